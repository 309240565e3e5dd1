#include "client/runtime/torch_gemms.h"

#include <array>
#include <cstddef>
#include <optional>
#include <utility>

#include "client/runtime/memory_range.h"
#include "client/runtime/read_convolution.h"
#include "client/runtime/scratch.h"
#include "compiler/library/conv1x1_gemm.h"
#include "compiler/library/convolution.h"
#include "compiler/library/fixed_convolution.h"
#include "compiler/library/gemm.h"

namespace kiln::runtime {
namespace {

// Of gemms in one piece, where a second launch costs the CPU more than the pieces save the GPU.
constexpr int64_t kUnsplitSumMax = 1024;

using Names = ConvolutionArguments;

// A convolution as a gemm: how its operands are called.
constexpr GemmForm kConvolution = {
    .target = Op::kConvolution, .a = Names::kInput, .b = Names::kWeight, .c = Names::kBias};

double Real(const CallArguments& a, absl::string_view name, double otherwise) {
  const CallValue* value = a.Find(name);
  if (value == nullptr) return otherwise;
  return value->kind == v1::Argument::kAsFloat ? value->real : static_cast<double>(value->number);
}

// Whether the pixels of each image, or of all images, are one dimension of one stride.
bool PixelsHaveOneStride(const StridedTensor& images, bool in_one_matrix) {
  const absl::Span<const int64_t> sizes = images.sizes, strides = images.strides;
  if (sizes[2] != 1 && strides[2] != sizes[3] * strides[3]) return false;
  return !in_one_matrix || sizes[0] <= 1 || strides[0] == sizes[2] * sizes[3] * strides[3];
}

Matrix WithoutMemory(const StridedMatrix& m) {
  return {nullptr, m.rows, m.columns, m.row_stride, m.column_stride, m.batch_stride};
}

// `batch` 0: one matrix, no dimension for a batch.
bool MatrixOf(const TensorMemory& tensor, int64_t batch, Matrix* matrix) {
  const absl::Span<const int64_t> sizes = tensor.sizes, strides = tensor.strides;
  const size_t first = batch == 0 ? 0 : 1;
  if (sizes.size() != first + 2 || (batch > 0 && sizes[0] != batch)) return false;
  *matrix = {tensor.data,    sizes[first],       sizes[first + 1],
             strides[first], strides[first + 1], batch > 0 ? strides[0] : 0};
  return true;
}

}  // namespace

// What settles a gemm but for its addresses is found out once where nothing else changes.
class TorchGemms::Call : public MemoryCall {
 public:
  Call(TorchGemms& gemms, const GemmForm& form, bool fixed)
      : gemms_(gemms),
        form_(form),
        convolution_(form.target == Op::kConvolution),
        fixed_(fixed),
        memo_(fixed) {}

  bool Run(const CallArguments& arguments, const MemoryResults& results, CallContext& context) override {
    if (!fixed_ || !settled_.has_value()) settled_ = Settle(arguments, results);
    if (!*settled_) return false;
    gemm_.a.data = arguments.values[a_].memory.data;
    gemm_.b.data = arguments.values[b_].memory.data;
    if (adds_) (bias_ ? gemm_.bias : gemm_.c.data) = arguments.values[c_].memory.data;
    if (!results.into) return Make(results, context);
    gemm_.d.data = results.declared[0].data;
    return Multiply(context);
  }

 private:
  bool Settle(const CallArguments& a, const MemoryResults& results) {
    gemm_ = {};
    adds_ = bias_ = false;
    if (results.declared.size() != 1 || results.declared[0].dtype == v1::DTYPE_UNSPECIFIED) return false;
    const TensorMemory *first = Get(a, form_.a, &a_), *second = Get(a, form_.b, &b_),
                       *third = Get(a, form_.c, &c_);
    if (first == nullptr || second == nullptr) return false;
    if (convolution_) {
      return third == nullptr && SettleConvolution(a) && (!results.into || IsMade(results.declared[0]));
    }
    if (!results.into || (third == nullptr) != form_.c.empty()) return false;
    return SettleGemm(*first, *second, results.declared[0]) &&
           (third == nullptr || SettleSum(a, *third, results.declared[0]));
  }

  static const TensorMemory* Get(const CallArguments& a, absl::string_view name, size_t* position) {
    const CallValue* const value = a.Find(name);
    if (value == nullptr) return nullptr;
    *position = static_cast<size_t>(value - a.values.data());
    return &value->memory;
  }

  bool MatrixOf(const TensorMemory& tensor, const TensorMemory& like, Matrix* matrix) const {
    return runtime::MatrixOf(tensor, like.sizes.size() == 3 ? gemm_.batch : 0, matrix);
  }

  bool SettleGemm(const TensorMemory& a, const TensorMemory& b, const TensorMemory& d) {
    gemm_.dtype = d.dtype;
    gemm_.batch = d.sizes.size() == 3 ? d.sizes[0] : 1;
    if (a.dtype != d.dtype || b.dtype != d.dtype || gemm_.batch == 0) return false;
    return MatrixOf(a, d, &gemm_.a) && MatrixOf(b, d, &gemm_.b) && MatrixOf(d, d, &gemm_.d);
  }

  // c may be one row for all of d's, which is a bias.
  bool SettleSum(const CallArguments& arguments, const TensorMemory& c, const TensorMemory& d) {
    const double beta = Real(arguments, "beta", 1);
    gemm_.alpha = Real(arguments, "alpha", 1);
    gemm_.activation = ActivationOf(arguments);
    adds_ = beta != 0;
    if (!adds_) return true;
    if (c.dtype != d.dtype) return false;
    bias_ = c.sizes.size() == 1;
    if (bias_) {
      const int64_t size = c.sizes[0];
      return beta == 1 && size == gemm_.d.columns && (size <= 1 || c.strides[0] == 1);
    }
    gemm_.beta = beta;
    return MatrixOf(c, d, &gemm_.c);
  }

  // What torch calls GELU here is the one by tanh on a GPU.
  v1::Activation ActivationOf(const CallArguments& a) const {
    if (form_.gelu.empty()) return v1::ACTIVATION_NONE;
    const CallValue* const gelu = a.Find(form_.gelu);
    return gelu != nullptr && gelu->number != 0 ? v1::ACTIVATION_GELU_TANH : v1::ACTIVATION_RELU;
  }

  // Images and weights change places where the gemm has them so.
  bool SettleConvolution(const CallArguments& a) {
    const std::optional<FixedConvolution> convolution = ReadConvolution(a);
    if (!convolution.has_value() || !IsConv1x1(*convolution)) return false;
    const StridedTensor &images = convolution->images, &weights = convolution->weights;
    const std::optional<Conv1x1Gemm> gemm = Conv1x1AsGemm(images, weights);
    if (!gemm.has_value() || !PixelsHaveOneStride(images, gemm->channels_last)) return false;
    gemm_.dtype = convolution->dtype;
    gemm_.batch = gemm->batch;
    gemm_.a = WithoutMemory(gemm->a);
    gemm_.b = WithoutMemory(gemm->b);
    gemm_.d = WithoutMemory(gemm->d);
    const int64_t outputs = weights.sizes[0], rows = images.sizes[2], columns = images.sizes[3];
    made_sizes_ = {images.sizes[0], outputs, rows, columns};
    if (gemm->channels_last) {
      made_strides_ = {rows * columns * outputs, 1, columns * outputs, outputs};
    } else {
      made_strides_ = {rows * columns * outputs, rows * columns, columns, 1};
      std::swap(a_, b_);
    }
    return true;
  }

  // Whether the memory has the layout of the convolution's result.
  bool IsMade(const TensorMemory& result) const {
    for (size_t d = 0; d < made_strides_.size(); ++d) {
      if (result.sizes[d] > 1 && result.strides[d] != made_strides_[d]) return false;
    }
    return true;
  }

  // Of a convolution.
  bool Make(const MemoryResults& results, CallContext& context) {
    const auto made = gemms_.host_.Empty(gemm_.dtype, made_sizes_, made_strides_);
    if (!made.ok()) return false;
    const auto data = gemms_.host_.Data(*made);
    gemm_.d.data = data.ok() ? *data : nullptr;
    const TensorMemory result = {gemm_.d.data, gemm_.dtype, made_sizes_, made_strides_};
    if (!data.ok() || !WillWrite(result, context) || !Multiply(context)) {
      gemms_.host_.Release(*made);
      return false;
    }
    results.made[0] = *made;
    return true;
  }

  bool Multiply(CallContext& context) {
    const TorchPrecision& precision = gemms_.precision_;
    if (gemm_.dtype == v1::F32) {
      // A convolution that became a gemm, too: the kernels that cuDNN takes for such ones are F32's.
      const std::optional<bool> tf32 = precision.Tf32(/*convolution=*/false, context);
      if (!tf32.has_value()) return false;
      gemm_.tf32 = *tf32;
    }
    const std::optional<bool> reduced = precision.ReducedSums(gemm_.dtype);
    if (!reduced.has_value()) return false;
    gemm_.reduced_sums = *reduced;
    gemm_.tuned = context.tuned;
    gemm_.one_launch = !context.recorded && gemm_.a.columns <= kUnsplitSumMax;
    Scratch scratch(gemms_.host_, context);
    return gemms_.gemms_.Run(gemm_, context, [&](size_t bytes) { return scratch.Of(bytes); }, &memo_);
  }

  TorchGemms& gemms_;
  const GemmForm& form_;
  const bool convolution_, fixed_;
  std::optional<bool> settled_;       // whether it is a gemm
  bool adds_ = false, bias_ = false;  // one of the arguments to the gemm; as a bias
  size_t a_ = 0, b_ = 0, c_ = 0;      // positions of the operands among the arguments
  Gemm gemm_;                         // with the addresses of the last run
  Gemms::Memo memo_;
  std::array<int64_t, 4> made_sizes_ = {}, made_strides_ = {};  // of a convolution's result
};

std::unique_ptr<MemoryCall> TorchGemms::NewCall(const OperatorName& target, bool fixed) {
  if (target == kConvolution.target) return std::make_unique<Call>(*this, kConvolution, fixed);
  const GemmForm* const form = GemmFormOf(target);
  if (form == nullptr || !form->into_results) return nullptr;
  return std::make_unique<Call>(*this, *form, fixed);
}

}  // namespace kiln::runtime
