#include "kiln/run_count.h"

#include <pthread.h>

#include <atomic>

namespace kiln {
namespace {

std::atomic<uint64_t> runs{0};

// What the parent made, the parent tells.
[[maybe_unused]] const int forks =
    pthread_atfork(nullptr, nullptr, [] { runs.store(0, std::memory_order_relaxed); });

}  // namespace

void CountRun(uint64_t count) { runs.fetch_add(count, std::memory_order_relaxed); }

uint64_t TakeRuns() { return runs.exchange(0, std::memory_order_relaxed); }

}  // namespace kiln
