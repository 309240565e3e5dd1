// The arena of a program's last call, kept for its next one.
//
// glibc gives the end of the heap back when a call frees enough of it, and takes a page fault for each page
// of the next call's. What all programs of the process keep is at most kSpareBytesMax; larger arenas are the
// allocator's. Threads: any number may take and give; one call has the arena, others allocate their own.
#pragma once

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/runtime/host.h"

namespace kiln::runtime {

inline constexpr int64_t kSpareBytesMax = int64_t{16} << 20;

class SpareArena {
 public:
  SpareArena() = default;
  ~SpareArena();  // the host that gave the arena outlives it
  SpareArena(const SpareArena&) = delete;
  SpareArena& operator=(const SpareArena&) = delete;

  // The kept arena, if it has just so many bytes; nullptr otherwise. The caller owns it.
  Tensor Take(int64_t bytes);
  // Keeps `arena`, or releases it where there is no room for it.
  void Give(Host& host, Tensor arena, int64_t bytes);

 private:
  absl::Mutex mutex_;
  Host* host_ ABSL_GUARDED_BY(mutex_) = nullptr;
  Tensor arena_ ABSL_GUARDED_BY(mutex_) = nullptr;
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace kiln::runtime
