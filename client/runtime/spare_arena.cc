#include "client/runtime/spare_arena.h"

#include <atomic>

namespace kiln::runtime {
namespace {

std::atomic<int64_t> kept_bytes{0};  // by all programs

bool Reserve(int64_t bytes) {
  if (kept_bytes.fetch_add(bytes, std::memory_order_relaxed) + bytes <= kSpareBytesMax) return true;
  kept_bytes.fetch_sub(bytes, std::memory_order_relaxed);
  return false;
}

}  // namespace

SpareArena::~SpareArena() {
  absl::MutexLock lock(&mutex_);
  if (arena_ == nullptr) return;
  kept_bytes.fetch_sub(bytes_, std::memory_order_relaxed);
  host_->Release(arena_);
}

Tensor SpareArena::Take(int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  if (arena_ == nullptr) return nullptr;
  Tensor arena = arena_;
  arena_ = nullptr;
  kept_bytes.fetch_sub(bytes_, std::memory_order_relaxed);
  if (bytes_ == bytes) return arena;
  host_->Release(arena);  // of other sizes: theirs may not come again
  return nullptr;
}

void SpareArena::Give(Host& host, Tensor arena, int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  if (arena_ != nullptr || !Reserve(bytes)) {
    host.Release(arena);
    return;
  }
  host_ = &host;
  arena_ = arena;
  bytes_ = bytes;
}

}  // namespace kiln::runtime
