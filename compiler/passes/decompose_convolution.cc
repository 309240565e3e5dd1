// Layouts of convolutions' gradients. The products themselves are library calls.
#include <utility>

#include "compiler/passes/decomposition.h"
#include "compiler/passes/types.h"

namespace kiln {
namespace {

// oneDNN's weight gradient of a depthwise convolution in channels-last pads every channel's window to 16 × 16
// of them.
constexpr int64_t kPaddedWindows = 16 * 16;
// Padded windows for each pixel of the two images from which copies of the images cost less, in time and
// memory.
constexpr int64_t kWindowsPerPixelMin = 12;

bool AsConsts(const ExprPool& exprs, const Value& x, std::vector<int64_t>* sizes) {
  for (ExprId size : x.sizes()) {
    const auto value = exprs.AsConst(size);
    if (!value) return false;
    sizes->push_back(*value);
  }
  return true;
}

bool IsContiguous(Match& m, const Value& x) {
  return SameLayout(m.exprs(), x.type(), m.b().Dense(x.dtype(), x.sizes()));
}

// Of a depthwise convolution whose images are small beside its padded windows.
bool PadsMuch(Match& m, const Value& gradient, const Value& input, const Value& weight) {
  std::vector<int64_t> image, window, result;
  if (!AsConsts(m.exprs(), input, &image) || !AsConsts(m.exprs(), weight, &window) ||
      !AsConsts(m.exprs(), gradient, &result) || image.size() != 4 || window.size() != 4 ||
      result.size() != 4) {
    return false;
  }
  const bool depthwise = window[1] == 1 && window[0] == image[1] && m.Int("groups") == image[1];
  const int64_t pixels = image[0] * image[2] * image[3] + result[0] * result[2] * result[3];
  return depthwise && kPaddedWindows * window[2] * window[3] >= kWindowsPerPixelMin * pixels;
}

// Row-major images where channels-last ones would make the library pad.
bool ConvolutionBackward(Match& m) {
  const Value gradient = m.Tensor("grad_output"), input = m.Tensor("input"), weight = m.Tensor("weight");
  if (!gradient.ok() || !input.ok() || !weight.ok()) return false;
  if (input.type().device != v1::CPU || input.dtype() != v1::F32 || !PadsMuch(m, gradient, input, weight))
    return false;
  GraphBuilder::Args args = m.node().args;
  bool changed = false;
  for (auto& [name, argument] : args) {
    const auto* tensor = std::get_if<TensorArg>(&argument);
    if (tensor == nullptr || tensor->value == kNoValue) continue;
    const Value image = m.b().Use(tensor->value);
    if (!image.ok() || IsContiguous(m, image)) continue;
    argument = TensorArg{Clone(image, m.b().Dense(image.dtype(), image.sizes())).id()};
    changed = true;
  }
  if (!changed) return false;
  std::vector<TensorType> types;
  for (size_t i = 0; i < m.result_count(); ++i) {
    const TensorType declared = m.Type(i);
    types.push_back(m.Wanted(i) ? m.b().Dense(declared.dtype, declared.sizes) : declared);
  }
  const std::vector<Value> results = m.b().Nodes(m.node().target, std::move(args), std::move(types));
  for (size_t i = 0; i < results.size(); ++i) {
    if (!m.Wanted(i)) continue;
    const bool as_declared = SameLayout(m.exprs(), results[i].type(), m.Type(i));
    m.Set(i, as_declared ? results[i] : Clone(results[i], m.Type(i)));
  }
  return true;
}

constexpr DecompositionRow kRows[] = {{"convolution_backward", ConvolutionBackward}};

}  // namespace

absl::Span<const DecompositionRow> ConvolutionRows() { return kRows; }

}  // namespace kiln
