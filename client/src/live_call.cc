#include "client/src/live_call.h"

#include <unistd.h>

#include <atomic>
#include <cstdint>

#include "absl/status/status.h"

namespace kiln {
namespace {

// How many there are (low half), of which process (high half). A child sees the parent's pid.
std::atomic<uint64_t> live_calls{0};

}  // namespace

absl::StatusOr<LiveCall> LiveCall::Enter() {
  const uint64_t mine = static_cast<uint64_t>(getpid()) << 32;
  uint64_t seen = live_calls.load();
  uint64_t next;
  do {
    const bool others = (seen ^ mine) >> 32 != 0;
    const uint64_t calls = seen & 0xffffffff;
    if (others && calls > 0) {
      return absl::UnavailableError("this process was forked while its parent was compiling");
    }
    next = mine + (others ? 0 : calls) + 1;
  } while (!live_calls.compare_exchange_weak(seen, next));
  return LiveCall();
}

LiveCall::~LiveCall() {
  if (active_) live_calls.fetch_sub(1);
}

}  // namespace kiln
