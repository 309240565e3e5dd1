#include "client/runtime/torch_products.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <utility>

#include "client/runtime/memory_range.h"
#include "client/runtime/scratch.h"
#include "compiler/library/convolution.h"
#include "compiler/library/gemm.h"

namespace kiln::runtime {
namespace {

// Of products in one piece, where a second launch costs the CPU more than the pieces save the GPU.
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

bool All(const CallArguments& a, absl::string_view name, int64_t wanted) {
  const CallValue* value = a.Find(name);
  return value != nullptr && value->numbers.size() <= 2 &&
         std::all_of(value->numbers.begin(), value->numbers.end(), [&](int64_t n) { return n == wanted; });
}

// Of one image: whether its rows follow each other, so that all its points lie evenly.
bool RowsFollow(absl::Span<const int64_t> sizes, absl::Span<const int64_t> strides) {
  return sizes[2] == 1 || strides[2] == sizes[3] * strides[3];
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

// What settles a product but for its addresses is found out once where nothing else changes.
class TorchProducts::Call : public MemoryCall {
 public:
  Call(TorchProducts& products, const GemmForm& form, bool fixed)
      : products_(products),
        form_(form),
        convolution_(form.target == Op::kConvolution),
        fixed_(fixed),
        memo_(fixed) {}

  bool Run(const CallArguments& arguments, const MemoryResults& results, CallContext& context) override {
    if (!fixed_ || !settled_.has_value()) settled_ = Settle(arguments, results);
    if (!*settled_) return false;
    product_.a.data = arguments.values[a_].memory.data;
    product_.b.data = arguments.values[b_].memory.data;
    if (adds_) (bias_ ? product_.bias : product_.c.data) = arguments.values[c_].memory.data;
    if (!results.into) return Make(results, context);
    product_.d.data = results.declared[0].data;
    return Multiply(context);
  }

 private:
  bool Settle(const CallArguments& a, const MemoryResults& results) {
    product_ = {};
    adds_ = bias_ = false;
    if (results.declared.size() != 1 || results.declared[0].dtype == v1::DTYPE_UNSPECIFIED) return false;
    const TensorMemory *first = Get(a, form_.a, &a_), *second = Get(a, form_.b, &b_),
                       *third = Get(a, form_.c, &c_);
    if (first == nullptr || second == nullptr) return false;
    if (convolution_) {
      return third == nullptr && SettleConvolution(a, *first, *second) &&
             (!results.into || IsMade(results.declared[0]));
    }
    if (!results.into || (third == nullptr) != form_.c.empty()) return false;
    return SettleProduct(*first, *second, results.declared[0]) &&
           (third == nullptr || SettleSum(a, *third, results.declared[0]));
  }

  static const TensorMemory* Get(const CallArguments& a, absl::string_view name, size_t* position) {
    const CallValue* const value = a.Find(name);
    if (value == nullptr) return nullptr;
    *position = static_cast<size_t>(value - a.values.data());
    return &value->memory;
  }

  bool MatrixOf(const TensorMemory& tensor, const TensorMemory& like, Matrix* matrix) const {
    return runtime::MatrixOf(tensor, like.sizes.size() == 3 ? product_.batch : 0, matrix);
  }

  bool SettleProduct(const TensorMemory& a, const TensorMemory& b, const TensorMemory& d) {
    product_.dtype = d.dtype;
    product_.batch = d.sizes.size() == 3 ? d.sizes[0] : 1;
    if (a.dtype != d.dtype || b.dtype != d.dtype || product_.batch == 0) return false;
    return MatrixOf(a, d, &product_.a) && MatrixOf(b, d, &product_.b) && MatrixOf(d, d, &product_.d);
  }

  // c may be one row for all of d's, which is a bias.
  bool SettleSum(const CallArguments& arguments, const TensorMemory& c, const TensorMemory& d) {
    const double beta = Real(arguments, "beta", 1);
    product_.alpha = Real(arguments, "alpha", 1);
    product_.activation = ActivationOf(arguments);
    adds_ = beta != 0;
    if (!adds_) return true;
    if (c.dtype != d.dtype) return false;
    bias_ = c.sizes.size() == 1;
    if (bias_) {
      const int64_t size = c.sizes[0];
      return beta == 1 && size == product_.d.columns && (size <= 1 || c.strides[0] == 1);
    }
    product_.beta = beta;
    return MatrixOf(c, d, &product_.c);
  }

  // What torch calls GELU here is the one by tanh on a GPU.
  v1::Activation ActivationOf(const CallArguments& a) const {
    if (form_.gelu.empty()) return v1::ACTIVATION_NONE;
    const CallValue* const gelu = a.Find(form_.gelu);
    return gelu != nullptr && gelu->number != 0 ? v1::ACTIVATION_GELU_TANH : v1::ACTIVATION_RELU;
  }

  // A window of one point with a stride of one: the product of the weights and each image's points. Images
  // stored channel by channel are factors on the right, images stored point by point ones on the left, all of
  // the batch at once.
  bool SettleConvolution(const CallArguments& a, const TensorMemory& input, const TensorMemory& weight) {
    const CallValue *transposed = a.Find(Names::kTransposed), *groups = a.Find(Names::kGroups);
    if (transposed == nullptr || transposed->number != 0 || groups == nullptr || groups->number != 1)
      return false;
    if (!All(a, Names::kStride, 1) || !All(a, Names::kPadding, 0)) return false;
    const absl::Span<const int64_t> sizes = input.sizes, strides = input.strides;
    const absl::Span<const int64_t> window = weight.sizes, steps = weight.strides;
    if (sizes.size() != 4 || window.size() != 4 || window[2] != 1 || window[3] != 1 ||
        window[1] != sizes[1]) {
      return false;
    }
    if (input.dtype != weight.dtype) return false;
    const int64_t images = sizes[0], inputs = sizes[1], outputs = window[0], points = sizes[2] * sizes[3];
    if (images == 0 || inputs == 0 || outputs == 0 || points == 0 || !RowsFollow(sizes, strides))
      return false;
    product_.dtype = input.dtype;
    made_sizes_ = {images, outputs, sizes[2], sizes[3]};
    const bool channels_last = inputs > 1 && points > 1 && strides[1] == 1;
    if (channels_last) {
      if (images > 1 && strides[0] != points * strides[3]) return false;
      made_strides_ = {points * outputs, 1, sizes[3] * outputs, outputs};
      product_.a = {nullptr, images * points, inputs, strides[3], 1, 0};
      product_.b = {nullptr, inputs, outputs, steps[1], steps[0], 0};
      product_.d = {nullptr, images * points, outputs, outputs, 1, 0};
    } else {
      made_strides_ = {points * outputs, points, sizes[3], 1};
      product_.batch = images;
      product_.a = {nullptr, outputs, inputs, steps[0], steps[1], 0};
      product_.b = {nullptr, inputs, points, strides[1], strides[3], strides[0]};
      product_.d = {nullptr, outputs, points, points, 1, points * outputs};
      std::swap(a_, b_);
    }
    return true;
  }

  // Whether the memory lies as the convolution's result would.
  bool IsMade(const TensorMemory& result) const {
    for (size_t d = 0; d < made_strides_.size(); ++d) {
      if (result.sizes[d] > 1 && result.strides[d] != made_strides_[d]) return false;
    }
    return true;
  }

  // Of a convolution.
  bool Make(const MemoryResults& results, CallContext& context) {
    const auto made = products_.host_.Empty(product_.dtype, made_sizes_, made_strides_);
    if (!made.ok()) return false;
    const auto data = products_.host_.Data(*made);
    product_.d.data = data.ok() ? *data : nullptr;
    const TensorMemory result = {product_.d.data, product_.dtype, made_sizes_, made_strides_};
    if (!data.ok() || !WillWrite(result, context) || !Multiply(context)) {
      products_.host_.Release(*made);
      return false;
    }
    results.made[0] = *made;
    return true;
  }

  bool Multiply(CallContext& context) {
    const TorchPrecision& precision = products_.precision_;
    if (product_.dtype == v1::F32) {
      // A convolution that became a gemm, too: the kernels that cuDNN takes for such ones are F32's.
      const std::optional<bool> tf32 = precision.Tf32(/*convolution=*/false, context);
      if (!tf32.has_value()) return false;
      product_.tf32 = *tf32;
    }
    const std::optional<bool> reduced = precision.ReducedSums(product_.dtype);
    if (!reduced.has_value()) return false;
    product_.reduced_sums = *reduced;
    product_.tuned = context.tuned;
    product_.one_launch = !context.recorded && product_.a.columns <= kUnsplitSumMax;
    Scratch scratch(products_.host_, context);
    return products_.products_.Run(
        product_, context, [&](size_t bytes) { return scratch.Of(bytes); }, &memo_);
  }

  TorchProducts& products_;
  const GemmForm& form_;
  const bool convolution_, fixed_;
  std::optional<bool> settled_;       // whether it is a product
  bool adds_ = false, bias_ = false;  // one of the arguments to the product; as a bias
  size_t a_ = 0, b_ = 0, c_ = 0;      // positions of the operands among the arguments
  Product product_;                   // with the addresses of the last run
  MatrixProducts::Memo memo_;
  std::array<int64_t, 4> made_sizes_ = {}, made_strides_ = {};  // of a convolution's result
};

std::unique_ptr<MemoryCall> TorchProducts::NewCall(const std::string& target, bool fixed) {
  const OperatorName name(target);
  if (name == kConvolution.target) return std::make_unique<Call>(*this, kConvolution, fixed);
  const GemmForm* const form = GemmFormOf(name);
  if (form == nullptr || !form->into_results) return nullptr;
  return std::make_unique<Call>(*this, *form, fixed);
}

}  // namespace kiln::runtime
