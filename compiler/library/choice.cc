#include "compiler/library/choice.h"

#include "absl/types/span.h"
#include "compiler/graph/channels_last.h"
#include "compiler/library/fixed_gemm.h"
#include "compiler/target/cost_model.h"
#include "compiler/target/device.h"
#include "compiler/target/few_rows.h"

namespace kiln {
namespace {

// `can` names the device too: each implementation is there for one alone, and the cost model knows its price
// beside that device's libraries.
template <typename Described>
struct Row {
  Implementation by;
  bool (*can)(const Graph& graph, const Described& described);
  bool (*pays)(const Graph& graph, const Described& described, const Machine& machine);
};

template <typename Described>
Implementation First(absl::Span<const Row<Described>> rows, const Graph& graph, const Described& described,
                     const Machine& machine) {
  for (const Row<Described>& row : rows) {
    if (row.can(graph, described) && row.pays(graph, described, machine)) return row.by;
  }
  return Implementation::kLibrary;
}

// ---- gemms

bool IsOne(const Graph& graph, ExprId expr) { return graph.exprs.AsConst(expr) == 1; }

// Of F32 on a CPU, rows one after the other: others would be copied at each call. The library scales nothing.
bool CanGemmByOnednn(const Graph& graph, const Gemm& gemm) {
  if (!gemm.is_plain()) return false;
  const TensorType &a = graph.type(gemm.a), &b = graph.type(gemm.b), &d = graph.type(gemm.d);
  for (const TensorType* type : {&a, &b, &d}) {
    if (type->device != v1::CPU || type->dtype != v1::F32) return false;
  }
  for (const TensorType* type : {&a, &d}) {
    if (type->strides[0] != type->sizes[1] || !IsOne(graph, type->strides[1])) return false;
  }
  if (!IsOne(graph, b.strides[0]) && !IsOne(graph, b.strides[1])) return false;
  return gemm.c == kNoValue || (AddsBias(graph, gemm) && gemm.alpha == 1);
}

bool PaysGemmByOnednn(const Graph& graph, const Gemm& gemm, const Machine& machine) {
  const std::optional<double> multiplications = Multiplications(graph, gemm);
  return multiplications && cost::PaysOnednnGemm(machine, *multiplications);
}

// Of few rows on a GPU, of known sizes that fill 16 bytes and tiles.
bool CanGemmByKernel(const Graph& graph, const Gemm& gemm) {
  if (!gemm.is_plain() || !IsGpu(graph.type(gemm.d).device)) return false;
  if (!gemm.alpha || *gemm.alpha == 0 || !gemm.beta) return false;
  if (gemm.c != kNoValue && (!IsGpu(graph.type(gemm.c).device) || !IsFloat(graph.type(gemm.c).dtype)))
    return false;
  const std::optional<v1::Gemm> fixed = FixedFactorsOf(graph, gemm);
  return fixed && FitsGemmLoops(*fixed);
}

bool PaysGemmByKernel(const Graph& graph, const Gemm& gemm, const Machine& machine) {
  const v1::DType dtype = graph.type(gemm.d).dtype;
  const int64_t elements = *graph.exprs.AsConst(gemm.summed) * *graph.exprs.AsConst(gemm.columns);
  return cost::PaysGemmKernel(machine, *graph.exprs.AsConst(gemm.rows), elements * ByteSize(dtype),
                              dtype == v1::F32);
}

constexpr Row<Gemm> kGemms[] = {{Implementation::kOnednn, CanGemmByOnednn, PaysGemmByOnednn},
                                {Implementation::kKernel, CanGemmByKernel, PaysGemmByKernel}};

// Of 16-bit numbers on a GPU; what is added is padded with the rows.
bool CanPadRows(const Graph& graph, const Gemm& gemm) {
  const TensorType& type = graph.type(gemm.d);
  return gemm.is_plain() && IsGpu(type.device) && IsHalf(type.dtype) && HasOneDType(graph, gemm) &&
         (gemm.c == kNoValue || AddsRow(graph, gemm));
}

bool PaysPaddedRows(const Graph& graph, const Gemm& gemm, const Machine& machine) {
  const auto rows = graph.exprs.AsConst(gemm.rows), columns = graph.exprs.AsConst(gemm.columns),
             summed = graph.exprs.AsConst(gemm.summed);
  if (!rows || !columns || !summed) return false;
  const auto is_padded = [](int64_t size) { return size % kPaddedElements == 0; };
  if (is_padded(*rows) && is_padded(*columns) && is_padded(*summed)) return false;
  return cost::PaysPaddedGemm(machine, *rows, *columns, *summed);
}

// ---- convolutions

v1::DeviceType DeviceOf(const Graph& graph, const Convolution& convolution) {
  return graph.type(convolution.input).device;
}

bool CanConvolveByKernel(const Graph& graph, const Convolution& convolution) {
  return IsGpu(DeviceOf(graph, convolution)) && IsWindowPerChannel(graph, convolution);
}

bool PaysAlways(const Graph&, const Convolution&, const Machine&) { return true; }

bool PaysConvolutionByKernel(const Graph& graph, const Convolution& convolution, const Machine& machine) {
  const TensorType& weight = graph.type(convolution.weight);
  return cost::PaysUnrolledWindow(machine, *graph.exprs.AsConst(weight.sizes[2]),
                                  *graph.exprs.AsConst(weight.sizes[3]));
}

// Where images are channels-last, the gemm's left matrix is the image as it is stored.
bool CanConvolveByGemm(const Graph& graph, const Convolution& convolution) {
  return IsConv1x1(graph, convolution) && graph.type(convolution.result).device == v1::CPU &&
         IsAllOf(graph, convolution, v1::F32);
}

bool PaysConvolutionByGemm(const Graph& graph, const Convolution& convolution, const Machine& machine) {
  const TensorType &weight = graph.type(convolution.weight), &result = graph.type(convolution.result);
  const ExprPool& exprs = graph.exprs;
  const cost::Conv1x1 sizes = {.from = exprs.AsConst(weight.sizes[1]),
                               .to = exprs.AsConst(weight.sizes[0]),
                               .images = exprs.AsConst(result.sizes[0]),
                               .rows = exprs.AsConst(result.sizes[2]),
                               .columns = exprs.AsConst(result.sizes[3])};
  return cost::PaysConv1x1AsGemm(machine, sizes);
}

// Windows that are known to neither overlap nor leave a gap; the runtime has no such gemm of F64.
bool CanConvolvePatches(const Graph& graph, const Convolution& convolution) {
  if (convolution.gradients) return false;
  const TensorType& type = graph.type(convolution.result);
  if (!IsGpu(type.device) || type.dtype == v1::F64) return false;
  if (type.rank() != 4 || !IsOfImages(graph, convolution)) return false;
  const std::optional<Window> window = WindowOf(graph, convolution);
  return convolution.is_ungrouped() && window && window->cuts_patches();
}

constexpr Row<Convolution> kConvolutions[] = {
    {Implementation::kKernel, CanConvolveByKernel, PaysConvolutionByKernel},
    {Implementation::kGemm, CanConvolveByGemm, PaysConvolutionByGemm},
    {Implementation::kPatches, CanConvolvePatches, PaysAlways},
};

// ---- attention

// Of F32 on a GPU. More dimensions than one before the matrices would have to be copied to be one.
bool CanAttendByGemms(const Graph& graph, const Attention& attention) {
  const TensorType& query = graph.type(attention.query);
  if (!IsGpu(query.device) || !IsPlain(attention) || !IsOfHeads(graph, attention, v1::F32)) return false;
  const auto depth = graph.exprs.AsConst(query.sizes[3]);
  return (IsOne(graph, query.sizes[0]) || IsOne(graph, query.sizes[1])) && depth && *depth > 0;
}

bool PaysAttentionByGemms(const Graph& graph, const Attention& attention, const Machine& machine) {
  const TensorType &query = graph.type(attention.query), &key = graph.type(attention.key);
  const auto images = graph.exprs.AsConst(query.sizes[0]), heads = graph.exprs.AsConst(query.sizes[1]),
             queries = graph.exprs.AsConst(query.sizes[2]), keys = graph.exprs.AsConst(key.sizes[2]);
  if (!images || !heads || !queries || !keys) return false;
  return cost::PaysSplitAttention(machine, *images * *heads, *queries, *keys);
}

constexpr Row<Attention> kAttentions[] = {{Implementation::kGemm, CanAttendByGemms, PaysAttentionByGemms}};

// ---- layouts

// cuDNN's kernels for tensor cores want it.
bool WantsChannelsLastOnGpu(const Graph& graph, const Convolution& convolution, const Machine& machine) {
  if (!CudnnConvolves(graph.type(convolution.result).dtype)) return false;
  if (IsDepthwise(graph, convolution)) return Choose(graph, convolution, machine) != Implementation::kKernel;
  return convolution.is_ungrouped();
}

std::optional<int64_t> Bytes(const Graph& graph, ValueId value) {
  int64_t bytes = 4;
  for (ExprId size : graph.type(value).sizes) {
    const auto number = graph.exprs.AsConst(size);
    if (!number || *number < 0 || __builtin_mul_overflow(bytes, *number, &bytes)) return std::nullopt;
  }
  return bytes;
}

// A gemm of oneDNN's reorders no weights.
bool WantsChannelsLastOnCpu(const Graph& graph, const Convolution& convolution, const Machine& machine) {
  if (graph.type(convolution.result).dtype != v1::F32) return false;
  if (graph.kind != v1::INFERENCE) return CanTrainChannelsLastOnCpu(graph, convolution);
  if (IsDepthwise(graph, convolution)) return true;
  if (cost::PaysOnednn(machine) && CanConvolveByGemm(graph, convolution)) return true;
  return convolution.is_ungrouped() &&
         cost::PaysChannelsLast(machine, Bytes(graph, convolution.weight), Bytes(graph, convolution.input),
                                Bytes(graph, convolution.result));
}

}  // namespace

Implementation Choose(const Graph& graph, const Gemm& gemm, const Machine& machine) {
  return First<Gemm>(kGemms, graph, gemm, machine);
}

Implementation Choose(const Graph& graph, const Convolution& convolution, const Machine& machine) {
  return First<Convolution>(kConvolutions, graph, convolution, machine);
}

Implementation Choose(const Graph& graph, const Attention& attention, const Machine& machine) {
  return First<Attention>(kAttentions, graph, attention, machine);
}

// Of cuBLASLt's epilogues. That of GELU is four times as far from the exact value in F32 as eager's (6e-6 at
// values of 4), so it is for factors that may be rounded.
bool Activates(const Graph& graph, const Gemm& gemm, Gemm::Activation activation, const Machine& machine) {
  const TensorType& type = graph.type(gemm.d);
  if (!gemm.is_plain() || !IsGpu(type.device) || Choose(graph, gemm, machine) != Implementation::kLibrary)
    return false;
  if (gemm.c != kNoValue && !AddsBias(graph, gemm)) return false;
  return IsHalf(type.dtype) ||
         (type.dtype == v1::F32 && (machine.gpu_libraries.tf32 || activation == Gemm::Activation::kRelu));
}

bool WantsPaddedRows(const Graph& graph, const Gemm& gemm, const Machine& machine) {
  return CanPadRows(graph, gemm) && PaysPaddedRows(graph, gemm, machine);
}

// oneDNN pads the windows of depthwise ones, of F32 on a CPU where images are channels-last.
std::optional<int64_t> ChannelsAtOnce(ExprPool& exprs, const Graph& graph, const Convolution& convolution) {
  if (!convolution.gradients || !IsDepthwise(graph, convolution)) return std::nullopt;
  const TensorType &image = graph.type(convolution.input), &weight = graph.type(convolution.weight);
  if (graph.type(convolution.gradient).rank() != 4 || image.device != v1::CPU || image.dtype != v1::F32 ||
      weight.sizes[0] != image.sizes[1] || !IsChannelsLast(exprs, image)) {
    return std::nullopt;
  }
  const int64_t channels = *exprs.AsConst(weight.sizes[0]);
  const int64_t group =
      cost::ChannelsOfGradients(channels, exprs.AsConst(weight.sizes[2]), exprs.AsConst(weight.sizes[3]));
  return group < channels ? std::optional(group) : std::nullopt;
}

bool WeightsHaveImageLayout(const Graph& graph, const Convolution& convolution) {
  return IsGpu(DeviceOf(graph, convolution));
}

bool CanTrainChannelsLastOnCpu(const Graph& graph, const Convolution& convolution) {
  return convolution.is_ungrouped() || IsDepthwise(graph, convolution);
}

bool WantsChannelsLast(const Graph& graph, const Convolution& convolution, const Machine& machine) {
  return IsGpu(graph.type(convolution.result).device) ? WantsChannelsLastOnGpu(graph, convolution, machine)
                                                      : WantsChannelsLastOnCpu(graph, convolution, machine);
}

bool CanComputeGradientsChannelsLast(const Graph& graph, const Convolution& convolution) {
  if (!convolution.gradients || !IsOfImages(graph, convolution)) return false;
  const TensorType& image = graph.type(convolution.input);
  if (IsGpu(image.device)) return CudnnConvolves(image.dtype) && convolution.is_ungrouped();
  return image.dtype == v1::F32 && CanTrainChannelsLastOnCpu(graph, convolution);
}

bool ComputesGradientsChannelsLast(ExprPool& exprs, const Graph& graph, const GraphNode& node,
                                   const Convolution& convolution) {
  if (!convolution.is_ungrouped()) return false;
  for (const ValueId value : {convolution.gradient, convolution.input, convolution.weight}) {
    const TensorType& operand = graph.type(value);
    if (operand.rank() != 4 || (!IsGpu(operand.device) && operand.dtype != v1::F32)) return false;
  }
  const size_t told = WeightsHaveImageLayout(graph, convolution) ? 2 : 1;
  for (size_t i = 0; i < node.results.size() && i < told; ++i) {
    const ValueId result = node.results[i];
    if (result == kNoValue || graph.type(result).rank() != 4) continue;
    TensorType type = graph.type(result);
    const bool so = IsChannelsLast(exprs, type);
    type.strides = ChannelsLastStrides(exprs, type.sizes);
    if (IsChannelsLast(exprs, type)) return so;
  }
  return IsChannelsLast(exprs, graph.type(convolution.gradient)) ||
         IsChannelsLast(exprs, graph.type(convolution.input));
}

}  // namespace kiln
