#include "client/runtime/arena_plan.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "client/client_limits.h"

namespace kiln::runtime {
namespace {

constexpr int64_t kBytesMax = int64_t{1} << 47;  // of the address space; sums of them do not overflow

std::optional<int64_t> ValueOf(const Dim& dim, const ExprFrame& frame) {
  if (dim.expr < 0) return dim.value;
  const ExprValue& value = frame.exprs[dim.expr];
  if (!value.valid) return std::nullopt;
  return value.value;
}

// From the first to the last element; nullopt where that is no size.
std::optional<int64_t> BytesOf(const ArenaPlan::Layout& layout, const ExprFrame& frame) {
  int64_t last = 0;
  bool empty = false;
  for (size_t d = 0; d < layout.sizes.size(); ++d) {
    const std::optional<int64_t> size = ValueOf(layout.sizes[d], frame);
    const std::optional<int64_t> stride = ValueOf(layout.strides[d], frame);
    if (!size || !stride || *size < 0 || *stride < 0) return std::nullopt;
    int64_t reach = 0;
    if (*size == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(*size - 1, *stride, &reach) ||
               __builtin_add_overflow(last, reach, &last)) {
      return std::nullopt;
    }
  }
  if (empty) return 0;
  if (last >= kBytesMax / layout.element) return std::nullopt;
  return (last + 1) * layout.element;
}

}  // namespace

size_t ArenaPlan::Add(Storage storage) {
  storages_.push_back(std::move(storage));
  return storages_.size() - 1;
}

void ArenaPlan::Finish(const ExprProgram& exprs) {
  std::vector<Dim> dims;
  bool fixed = true;
  for (const Storage& storage : storages_) {
    for (const Layout& layout : storage.layouts) {
      fixed = false;
      dims.insert(dims.end(), layout.sizes.begin(), layout.sizes.end());
      dims.insert(dims.end(), layout.strides.begin(), layout.strides.end());
    }
  }
  symbols_ = exprs.SymbolsOf(dims);
  if (fixed && !empty()) fixed_ = Place(nullptr);
}

std::shared_ptr<const Arena> ArenaPlan::Place(const ExprFrame* frame) const {
  std::vector<Lifetime> lives;
  lives.reserve(storages_.size());
  for (const Storage& storage : storages_) {
    int64_t bytes = storage.bytes;
    for (const Layout& layout : storage.layouts) {
      const std::optional<int64_t> needed = BytesOf(layout, *frame);
      if (!needed) return nullptr;
      bytes = std::max(bytes, *needed);
    }
    // One of no bytes has an address, too.
    lives.push_back({storage.first, storage.last, std::max<int64_t>(bytes, 1)});
  }
  return std::make_shared<const Arena>(PlaceInSmallArena(lives, alignment_));
}

std::shared_ptr<const Arena> ArenaPlan::Find(const Key& key) const {
  for (auto kept = kept_.begin(); kept != kept_.end(); ++kept) {
    if (kept->key != key) continue;
    std::rotate(kept_.begin(), kept, kept + 1);
    return kept_.front().arena;
  }
  return nullptr;
}

std::shared_ptr<const Arena> ArenaPlan::For(const ExprFrame& frame) const {
  if (fixed_ != nullptr) return fixed_;
  Key key;
  for (uint32_t symbol : symbols_) key.push_back(frame.symbols[symbol]);
  {
    absl::MutexLock lock(&mutex_);
    if (std::shared_ptr<const Arena> found = Find(key)) return found;
  }
  // Not under the lock: calls of other sizes need not wait. Two threads may place the same; both are right.
  std::shared_ptr<const Arena> placed = Place(&frame);
  if (placed == nullptr) return nullptr;
  absl::MutexLock lock(&mutex_);
  ++placements_;
  if (std::shared_ptr<const Arena> found = Find(key)) return found;
  if (kept_.size() == kArenaPlacementsMax) kept_.pop_back();
  kept_.insert(kept_.begin(), {std::move(key), placed});
  return placed;
}

uint64_t ArenaPlan::placements() const {
  absl::MutexLock lock(&mutex_);
  return placements_;
}

}  // namespace kiln::runtime
