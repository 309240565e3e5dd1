#include "compiler/artifact/gemm_tunable.h"

#include <utility>

#include "compiler/library/conv1x1_gemm.h"
#include "compiler/library/convolution.h"
#include "compiler/library/fixed_gemm.h"
#include "compiler/library/gemm.h"

namespace kiln {
namespace {

// What is added: a row for all of d's rows is a bias. False where the runtime leaves the gemm to ATen.
bool AddSummand(const Graph& graph, const Gemm& gemm, v1::Gemm* description) {
  const std::optional<FixedTensor> c = FixedOf(graph, gemm.c);
  if (!gemm.beta.has_value() || !c.has_value()) return false;
  if (*gemm.beta == 0) return true;
  if (c->dtype != description->dtype()) return false;
  if (c->sizes.size() != 1) return DescribeMatrix(*c, gemm.form->batched, description->mutable_c());
  description->set_bias(true);
  return *gemm.beta == 1 && c->sizes[0] == description->d().columns() &&
         (c->sizes[0] <= 1 || c->strides[0] == 1);
}

v1::Activation ActivationOf(const Gemm& gemm) {
  switch (gemm.activation) {
    case Gemm::Activation::kNone: break;
    case Gemm::Activation::kRelu: return v1::ACTIVATION_RELU;
    case Gemm::Activation::kGeluTanh: return v1::ACTIVATION_GELU_TANH;
  }
  return v1::ACTIVATION_NONE;
}

bool DescribeGemm(const Graph& graph, const GraphNode& node, const v1::Numerics& numerics,
                  v1::Gemm* description) {
  const std::optional<Gemm> gemm = GemmOf(graph, node);
  if (!gemm.has_value() || gemm->form->onednn) return false;
  std::optional<v1::Gemm> factors = FixedFactorsOf(graph, *gemm);
  if (!factors.has_value()) return false;
  *description = *std::move(factors);
  description->set_tf32(description->dtype() == v1::F32 && numerics.float32_matmul_precision() != "highest");
  description->set_reduced_sums(true);  // as torch has it unless told otherwise
  description->set_activation(ActivationOf(*gemm));
  return gemm->c == kNoValue || AddSummand(graph, *gemm, description);
}

// A 1×1 convolution of contiguous images, channels-last or row-major.
bool DescribeConv1x1(const Graph& graph, const GraphNode& node, const v1::Numerics& numerics,
                     v1::Gemm* description) {
  const std::optional<Convolution> convolution = ConvolutionOf(graph, node);
  if (!convolution.has_value() || convolution->bias != kNoValue || !convolution->is_ungrouped() ||
      !IsConv1x1(graph, *convolution)) {
    return false;
  }
  const std::optional<FixedTensor> input = FixedOf(graph, convolution->input),
                                   weights = FixedOf(graph, convolution->weight),
                                   result = FixedOf(graph, convolution->result);
  if (!input.has_value() || !weights.has_value() || !result.has_value()) return false;
  const FixedTensor &image = *input, &weight = *weights;
  if (image.dtype != weight.dtype || !IsMultiplied(image.dtype)) return false;
  const std::optional<Conv1x1Gemm> gemm =
      Conv1x1AsGemm({image.sizes, image.strides}, {weight.sizes, weight.strides});
  if (!gemm.has_value() || !image.IsContiguous(gemm->channels_last) ||
      !result->IsContiguous(gemm->channels_last))
    return false;
  description->set_dtype(image.dtype);
  description->set_batch(gemm->batch);
  WriteMatrix(gemm->a, description->mutable_a());
  WriteMatrix(gemm->b, description->mutable_b());
  WriteMatrix(gemm->d, description->mutable_d());
  description->set_tf32(image.dtype == v1::F32 && numerics.float32_matmul_precision() != "highest");
  description->set_reduced_sums(true);
  return true;
}

}  // namespace

std::optional<v1::Gemm> GemmTunableOf(const Graph& calls, const GraphNode& call,
                                      const v1::Numerics& numerics) {
  v1::Gemm description;
  const bool described = IsConvolution(call.target) ? DescribeConv1x1(calls, call, numerics, &description)
                                                    : DescribeGemm(calls, call, numerics, &description);
  if (!described) return std::nullopt;
  return description;
}

}  // namespace kiln
