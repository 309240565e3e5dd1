#include "client/runtime/scratch.h"

#include <algorithm>

namespace kiln::runtime {
namespace {

constexpr size_t kKeptMax = size_t{1} << 20;
constexpr size_t kKeptMin = size_t{64} << 10;

}  // namespace

Scratch::~Scratch() {
  if (own_ != nullptr) host_.Release(own_);
}

Tensor Scratch::Make(size_t bytes) {
  const auto made = host_.Empty(v1::U8, {static_cast<int64_t>(bytes)}, {1});
  return made.ok() ? *made : nullptr;
}

void* Scratch::Of(size_t bytes) {
  if (bytes > kKeptMax) {
    if (own_ != nullptr) host_.Release(own_);
    own_ = Make(bytes);
    return own_ == nullptr ? nullptr : host_.Data(own_);
  }
  if (bytes > context_.scratch_bytes) {
    const size_t wanted = std::min(std::max({bytes, 2 * context_.scratch_bytes, kKeptMin}), kKeptMax);
    if (context_.scratch != nullptr) host_.Release(context_.scratch);
    context_.scratch = Make(wanted);
    context_.scratch_bytes = context_.scratch == nullptr ? 0 : wanted;
  }
  return context_.scratch == nullptr ? nullptr : host_.Data(context_.scratch);
}

}  // namespace kiln::runtime
