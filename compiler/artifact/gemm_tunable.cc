#include "compiler/artifact/gemm_tunable.h"

#include "absl/base/casts.h"
#include "absl/strings/string_view.h"
#include "compiler/artifact/fixed_call.h"
#include "compiler/graph/operator_name.h"
#include "compiler/library/gemm.h"

namespace kiln {
namespace {

// A number that torch's schema has as 1 where it is not given; no value for a symbolic one.
std::optional<double> FactorOf(const v1::Call& call, absl::string_view name) {
  const v1::Argument* argument = FindArgument(call, name);
  if (argument == nullptr) return 1;
  switch (argument->kind_case()) {
    case v1::Argument::kAsInt: return static_cast<double>(argument->as_int());
    case v1::Argument::kAsFloat: return absl::bit_cast<double>(argument->as_float());
    default: return std::nullopt;
  }
}

bool IsMultiplied(v1::DType dtype) { return dtype == v1::F16 || dtype == v1::BF16 || dtype == v1::F32; }

// False for what is no matrix, nor a batch of them.
bool Describe(const FixedTensor& tensor, bool batched, v1::MatrixOperand* operand) {
  const size_t first = batched ? 1 : 0;
  if (tensor.sizes.size() != first + 2) return false;
  operand->set_rows(tensor.sizes[first]);
  operand->set_columns(tensor.sizes[first + 1]);
  operand->set_row_stride(tensor.strides[first]);
  operand->set_column_stride(tensor.strides[first + 1]);
  operand->set_batch_stride(batched ? tensor.strides[0] : 0);
  return true;
}

// What is added: a row for all of d's rows is a bias. False where the runtime leaves the product to ATen.
bool AddSummand(const v1::Program& program, const v1::Call& call, absl::string_view name, bool batched,
                v1::MatrixProduct* product) {
  const std::optional<double> beta = FactorOf(call, "beta");
  const std::optional<FixedTensor> c = FixedArgument(program, call, name);
  if (!beta.has_value() || !c.has_value()) return false;
  if (*beta == 0) return true;
  if (c->dtype != product->dtype()) return false;
  if (c->sizes.size() != 1) return Describe(*c, batched, product->mutable_c());
  product->set_bias(true);
  return *beta == 1 && c->sizes[0] == product->d().columns() && (c->sizes[0] <= 1 || c->strides[0] == 1);
}

bool DescribeCall(const v1::Program& program, const v1::Call& call, const v1::Numerics& numerics,
                  v1::MatrixProduct* product) {
  const GemmForm* const form = GemmFormOf(call.target());
  if (form == nullptr || form->onednn || call.results_size() != 1) return false;
  const std::optional<FixedTensor> a = FixedArgument(program, call, form->a),
                                   b = FixedArgument(program, call, form->b),
                                   d = FixedBuffer(program, call.results(0));
  if (!a.has_value() || !b.has_value() || !d.has_value()) return false;
  if (a->dtype != d->dtype || b->dtype != d->dtype) return false;
  if (!IsMultiplied(d->dtype)) return false;
  const bool batched = d->sizes.size() == 3;
  product->set_dtype(d->dtype);
  product->set_batch(batched ? d->sizes[0] : 1);
  if (!Describe(*a, batched, product->mutable_a()) || !Describe(*b, batched, product->mutable_b()) ||
      !Describe(*d, batched, product->mutable_d())) {
    return false;
  }
  product->set_tf32(d->dtype == v1::F32 && numerics.float32_matmul_precision() != "highest");
  product->set_reduced_sums(true);  // as torch has it unless told otherwise
  if (!form->gelu.empty()) {
    const v1::Argument* gelu = FindArgument(call, form->gelu);
    product->set_activation(gelu != nullptr && gelu->as_bool() ? v1::ACTIVATION_GELU_TANH
                                                               : v1::ACTIVATION_RELU);
  }
  if (!form->c.empty() && !AddSummand(program, call, form->c, batched, product)) return false;
  return product->batch() > 0 && product->d().rows() > 0 && product->d().columns() > 0 &&
         product->a().columns() > 0;
}

// A 1×1 convolution, of images that are channels-last or by rows without gaps.
bool DescribePoints(const v1::Program& program, const v1::Call& call, const v1::Numerics& numerics,
                    v1::MatrixProduct* product) {
  const std::optional<FixedConvolution> convolution = FixedConvolutionOf(program, call);
  if (!convolution.has_value() || call.results_size() != 1 || !convolution->is_conv1x1()) return false;
  const std::optional<FixedTensor> result = FixedBuffer(program, call.results(0));
  const FixedTensor &image = convolution->input, &weight = convolution->weight;
  if (!result.has_value() || result->sizes.size() != 4 || !IsMultiplied(image.dtype)) return false;
  const int64_t images = image.sizes[0], inputs = image.sizes[1], outputs = weight.sizes[0],
                points = image.sizes[2] * image.sizes[3];
  if (images <= 0 || inputs <= 0 || outputs <= 0 || points <= 0) return false;
  const bool channels_last = inputs > 1 && points > 1 && image.strides[1] == 1;
  if (!image.LiesSo(channels_last) || !result->LiesSo(channels_last)) return false;
  const auto write = [](v1::MatrixOperand* to, int64_t rows, int64_t columns, int64_t row_stride,
                        int64_t column_stride, int64_t batch_stride) {
    to->set_rows(rows);
    to->set_columns(columns);
    to->set_row_stride(row_stride);
    to->set_column_stride(column_stride);
    to->set_batch_stride(batch_stride);
  };
  product->set_dtype(image.dtype);
  product->set_batch(channels_last ? 1 : images);
  if (channels_last) {
    write(product->mutable_a(), images * points, inputs, image.strides[3], 1, 0);
    write(product->mutable_b(), inputs, outputs, weight.strides[1], weight.strides[0], 0);
    write(product->mutable_d(), images * points, outputs, outputs, 1, 0);
  } else {
    write(product->mutable_a(), outputs, inputs, weight.strides[0], weight.strides[1], 0);
    write(product->mutable_b(), inputs, points, image.strides[1], image.strides[3], image.strides[0]);
    write(product->mutable_d(), outputs, points, points, 1, points * outputs);
  }
  product->set_tf32(image.dtype == v1::F32 && numerics.float32_matmul_precision() != "highest");
  product->set_reduced_sums(true);
  return true;
}

}  // namespace

std::optional<v1::MatrixProduct> MatrixProductOf(const v1::Program& program, const v1::Call& call,
                                                 const v1::Numerics& numerics) {
  v1::MatrixProduct product;
  const bool described = OperatorName(call.target()) == Op::kConvolution
                             ? DescribePoints(program, call, numerics, &product)
                             : DescribeCall(program, call, numerics, &product);
  if (!described) return std::nullopt;
  return product;
}

}  // namespace kiln
