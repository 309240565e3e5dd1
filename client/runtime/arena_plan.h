// Offsets of a program's temporaries in a call's arena.
//
// What is known when the program is loaded are lifetimes, and sizes as expressions. Fixed sizes are placed
// once; others once a set of values of the symbols that they depend on: the placements used last are kept, so
// that a call of sizes seen before only looks one up.
//
// Threads: immutable after Finish but for the kept placements, which are locked; any number may call `For`.
// Limits: kArenaPlacementsMax placements, each 8 bytes a storage.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/inlined_vector.h"
#include "absl/synchronization/mutex.h"
#include "client/runtime/arena.h"
#include "client/runtime/expr_program.h"

namespace kiln::runtime {

class ArenaPlan {
 public:
  // A layout whose sizes a call knows when it begins.
  struct Layout {
    int64_t element = 0;  // bytes
    std::vector<Dim> sizes;
    std::vector<Dim> strides;
  };
  // Memory that buffers have one after the other.
  struct Storage {
    size_t first = 0;  // step, as in Lifetime
    size_t last = 0;
    int64_t bytes = 0;            // of the largest buffer of fixed sizes
    std::vector<Layout> layouts;  // of the others
  };

  // Of all places, instead of kArenaAlignment.
  void AlignTo(int64_t bytes) { alignment_ = bytes; }
  // Returns its position in Arena::offsets.
  size_t Add(Storage storage);
  // To be called once, when all are added.
  void Finish(const ExprProgram& exprs);

  bool empty() const { return storages_.empty(); }
  // The places for the sizes of `frame`; nullptr where a size is negative, overflows or is otherwise none:
  // the step that allocates it says which.
  std::shared_ptr<const Arena> For(const ExprFrame& frame) const;

  uint64_t placements() const;  // made so far

 private:
  using Key = absl::InlinedVector<int64_t, 4>;
  struct Kept {
    Key key;
    std::shared_ptr<const Arena> arena;
  };

  // frame: nullptr where all sizes are fixed.
  std::shared_ptr<const Arena> Place(const ExprFrame* frame) const;
  std::shared_ptr<const Arena> Find(const Key& key) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  int64_t alignment_ = kArenaAlignment;
  std::vector<Storage> storages_;
  std::vector<uint32_t> symbols_;       // that sizes depend on
  std::shared_ptr<const Arena> fixed_;  // when they depend on none
  mutable absl::Mutex mutex_;
  mutable std::vector<Kept> kept_ ABSL_GUARDED_BY(mutex_);  // the one used last first
  mutable uint64_t placements_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace kiln::runtime
