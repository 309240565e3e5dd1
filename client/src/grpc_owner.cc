#include "client/src/grpc_owner.h"

#include <atomic>
#include <cstdint>

#include "client/src/this_process.h"

namespace kiln {
namespace {

std::atomic<uint64_t> owner{0};  // 0: nobody; a child has its parent's

}  // namespace

bool OwnGrpc() {
  uint64_t nobody = 0;
  owner.compare_exchange_strong(nobody, ThisProcess());
  return !IsGrpcOfParent();
}

bool IsGrpcOfParent() {
  const uint64_t seen = owner.load();
  return seen != 0 && seen != ThisProcess();
}

}  // namespace kiln
