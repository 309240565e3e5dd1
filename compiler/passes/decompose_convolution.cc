// Convolutions' gradients by groups of channels, where library/choice wants them so. They themselves are
// library calls.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "compiler/graph/channels_last.h"
#include "compiler/library/choice.h"
#include "compiler/passes/decomposition.h"
#include "compiler/passes/types.h"

namespace kiln {
namespace {

constexpr size_t kResults = 3;  // gradients of the input, the weight, the bias

struct Operands {
  Value gradient, input, weight;
};

// The results for `count` channels from `from` on, images channels-last.
std::vector<Value> GradientsOf(DecomposeContext& m, const Operands& of, int64_t from, int64_t count) {
  GraphBuilder& b = m.b();
  const auto cut = [&](const Value& x, int64_t dim) {
    return Slice(x, dim, b.Int(from), b.Int(from + count), 1);
  };
  const auto image = [&](const Value& x) {
    const Value part = cut(x, 1);
    TensorType type = part.type();
    type.strides = ChannelsLastStrides(m.exprs(), type.sizes);
    return Clone(part, type);
  };
  const Value gradient = image(of.gradient), input = image(of.input), weight = cut(of.weight, 0);
  std::vector<TensorType> types = {input.type(), b.Dense(weight.dtype(), weight.sizes()),
                                   b.Dense(weight.dtype(), {b.Int(count)})};
  for (size_t i = 0; i < types.size(); ++i) {
    if (!m.Wanted(i)) types[i] = TensorType();
  }
  return b.Nodes(m.node().target,
                 ArgumentsOfChannels(m.exprs(), m.node(), gradient.id(), input.id(), weight.id(), count),
                 std::move(types));
}

bool ConvolutionBackward(DecomposeContext& m) {
  const std::optional<Convolution> convolution = ConvolutionOf(m.b().graph(), m.node());
  if (!convolution) {
    m.b().Fail("gradients of a convolution that lack an operand");
    return false;
  }
  const Operands of = {m.b().Use(convolution->gradient), m.b().Use(convolution->input),
                       m.b().Use(convolution->weight)};
  if (!of.gradient.ok() || !of.input.ok() || !of.weight.ok()) return false;
  if (m.result_count() != kResults || !m.Wanted(1)) return false;
  const std::optional<int64_t> group = ChannelsAtOnce(m.exprs(), m.b().graph(), *convolution);
  if (!group) return false;
  const int64_t channels = *m.exprs().AsConst(of.weight.size(0));
  std::vector<std::vector<Value>> parts(kResults);
  for (int64_t from = 0; from < channels; from += *group) {
    const std::vector<Value> results = GradientsOf(m, of, from, std::min(*group, channels - from));
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
