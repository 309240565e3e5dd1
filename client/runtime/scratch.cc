#include "client/runtime/scratch.h"

#include <algorithm>

#include "client/client_limits.h"

namespace kiln::runtime {

Scratch::~Scratch() {
  if (own_ != nullptr) host_.Release(own_);
}

Tensor Scratch::Make(size_t bytes) {
  const auto made = host_.Empty(v1::U8, {static_cast<int64_t>(bytes)}, {1});
  return made.ok() ? *made : nullptr;
}

void* Scratch::DataOf(Tensor tensor) {
  if (tensor == nullptr) return nullptr;
  const auto data = host_.Data(tensor);
  return data.ok() ? *data : nullptr;
}

void* Scratch::Of(size_t bytes) {
  void* const data = bytes > kScratchKeptBytesMax ? AllocateOwn(bytes) : ReuseKept(bytes);
  if (data == nullptr || context_.order == nullptr) return data;
  return context_.order->Touch({data, static_cast<int64_t>(bytes), true}).ok() ? data : nullptr;
}

void* Scratch::AllocateOwn(size_t bytes) {
  if (own_ != nullptr) host_.Release(own_);
  own_ = Make(bytes);
  return DataOf(own_);
}

void* Scratch::ReuseKept(size_t bytes) {
  const size_t turn = context_.order == nullptr ? 0 : context_.scratch_turn++ % context_.scratch.size();
  CallContext::Kept& kept = context_.scratch[turn];
  if (bytes > kept.bytes) {
    const size_t wanted =
        std::min(std::max({bytes, 2 * kept.bytes, kScratchKeptBytesMin}), kScratchKeptBytesMax);
    if (kept.tensor != nullptr) host_.Release(kept.tensor);
    kept.tensor = Make(wanted);
    kept.bytes = kept.tensor == nullptr ? 0 : wanted;
  }
  return DataOf(kept.tensor);
}

}  // namespace kiln::runtime
