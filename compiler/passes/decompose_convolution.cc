// Convolutions' gradients, by groups of channels. They themselves are library calls.
#include <algorithm>
#include <cstdint>
#include <utility>
#include <variant>
#include <vector>

#include "compiler/graph/channels_last.h"
#include "compiler/passes/decomposition.h"
#include "compiler/passes/types.h"

namespace kiln {
namespace {

// oneDNN's weight gradient of a depthwise convolution in channels-last pads every channel's window to 16 × 16
// of them.
constexpr int64_t kPaddedWindows = 16 * 16;
// From this size on glibc maps a block by itself and unmaps it when it is freed, whatever came before
// (DEFAULT_MMAP_THRESHOLD_MAX): each call would meet all pages of its padded windows anew.
constexpr int64_t kMappedBytesMin = int64_t{32} << 20;
// So they are padded for groups of channels: the next one finds the pages that the last one left in the heap.
constexpr int64_t kPaddedBytesMax = kMappedBytesMin / 4;
constexpr int64_t kVector = 16;  // channels; a group is whole vectors but for the last

// How many channels go into one call.
int64_t ChannelsOfGroup(Match& m, const Value& weight) {
  const auto channels = m.exprs().AsConst(weight.size(0));
  const auto rows = m.exprs().AsConst(weight.size(2)), columns = m.exprs().AsConst(weight.size(3));
  if (!rows || !columns || *rows < 1 || *columns < 1) return *channels;
  if (*rows > kMappedBytesMin / *columns) return *channels;
  const int64_t channel_bytes = kPaddedWindows * *rows * *columns * int64_t{sizeof(float)};
  if (*channels < kMappedBytesMin / channel_bytes) return *channels;
  const int64_t vectors = (*channels + kVector - 1) / kVector;
  const int64_t most = std::max<int64_t>(1, kPaddedBytesMax / (kVector * channel_bytes));
  const int64_t groups = (vectors + most - 1) / most;
  return (vectors + groups - 1) / groups * kVector;
}

// The results for `count` channels from `from` on, images by points.
std::vector<Value> GradientsOf(Match& m, int64_t from, int64_t count) {
  GraphBuilder& b = m.b();
  const auto cut = [&](const char* name, int64_t dim) {
    return Slice(m.Tensor(name), dim, b.Int(from), b.Int(from + count), 1);
  };
  const auto image = [&](const char* name) {
    const Value part = cut(name, 1);
    TensorType type = part.type();
    type.strides = ChannelsLastStrides(m.exprs(), type.sizes);
    return Clone(part, type);
  };
  GraphBuilder::Args args = m.node().args;
  for (auto& [name, argument] : args) {
    if (name == "grad_output" || name == "input") argument = TensorArg{image(name.c_str()).id()};
    if (name == "weight") argument = TensorArg{cut("weight", 0).id()};
    if (name == "groups") argument = IntArg{b.Int(count)};
    if (name == "bias_sizes" && std::holds_alternative<IntListArg>(argument))
      argument = IntListArg{{b.Int(count)}};
  }
  std::vector<TensorType> types;
  for (size_t i = 0; i < m.result_count(); ++i) {
    TensorType type = m.Type(i);
    if (m.Wanted(i)) {
      type.sizes[i == 0 ? 1 : 0] = b.Int(count);
      type.strides =
          i == 0 ? ChannelsLastStrides(m.exprs(), type.sizes) : ContiguousStrides(m.exprs(), type.sizes);
    }
    types.push_back(std::move(type));
  }
  return b.Nodes(m.node().target, std::move(args), std::move(types));
}

bool ConvolutionBackward(Match& m) {
  const Value input = m.Tensor("input"), weight = m.Tensor("weight");
  if (!input.ok() || !weight.ok() || !m.Wanted(1) || !IsDepthwise(m.b().graph(), m.node())) return false;
  if (input.type().device != v1::CPU || input.dtype() != v1::F32 || weight.size(0) != input.size(1) ||
      !IsChannelsLast(m.exprs(), input.type())) {
    return false;
  }
  const int64_t channels = *m.exprs().AsConst(weight.size(0)), group = ChannelsOfGroup(m, weight);
  if (group >= channels) return false;
  std::vector<std::vector<Value>> parts(m.result_count());
  for (int64_t from = 0; from < channels; from += group) {
    const std::vector<Value> results = GradientsOf(m, from, std::min(group, channels - from));
    for (size_t i = 0; i < results.size(); ++i) parts[i].push_back(results[i]);
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    if (m.Wanted(i)) m.Set(i, m.b().Cat(parts[i], i == 0 ? 1 : 0));
  }
  return true;
}

constexpr DecompositionRow kRows[] = {{"convolution_backward", ConvolutionBackward}};

}  // namespace

absl::Span<const DecompositionRow> ConvolutionRows() { return kRows; }

}  // namespace kiln
