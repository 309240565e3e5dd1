#include "client/runtime/torch_convolutions.h"

#include <algorithm>
#include <array>
#include <optional>

#include "client/runtime/memory_range.h"
#include "client/runtime/read_convolution.h"
#include "client/runtime/scratch.h"
#include "compiler/library/convolution.h"
#include "compiler/library/fixed_convolution.h"

namespace kiln::runtime {
namespace {

using Names = ConvolutionArguments;

const TensorMemory* Get(const CallArguments& a, absl::string_view name) {
  const CallValue* value = a.Find(name);
  return value == nullptr ? nullptr : &value->memory;
}

std::array<int64_t, 2> Both(const int64_t (&pair)[2]) { return {pair[0], pair[1]}; }

}  // namespace

class TorchConvolutions::Call : public MemoryCall {
 public:
  Call(TorchConvolutions& convolutions, bool forward) : convolutions_(convolutions), forward_(forward) {}
  bool Run(const CallArguments& arguments, const MemoryResults& results, CallContext& context) override {
    if (forward_) return convolutions_.Forward(arguments, results, context);
    return !results.into && convolutions_.Backward(arguments, results, context);
  }

 private:
  TorchConvolutions& convolutions_;
  const bool forward_;
};

std::unique_ptr<MemoryCall> TorchConvolutions::NewCall(const OperatorName& target) {
  if (!IsConvolution(target)) return nullptr;
  return std::make_unique<Call>(*this, target == Op::kConvolution);
}

// What all directions have in common; false where ATen's way may be another.
bool TorchConvolutions::Settle(const CallArguments& a, Convolution& convolution, CallContext& context) const {
  const std::optional<FixedConvolution> read = ReadConvolution(a);
  if (!read.has_value()) return false;
  const std::optional<bool> deterministic = precision_.Deterministic();
  if (!deterministic.has_value() || !GoesToCudnn(*read, *deterministic)) return false;
  convolution.stride = Both(read->window.stride);
  convolution.padding = Both(read->window.padding);
  convolution.dilation = Both(read->window.dilation);
  convolution.deterministic = *deterministic;
  if (read->dtype == v1::F32) {
    const std::optional<bool> tf32 = precision_.Tf32(true, context);
    if (!tf32.has_value()) return false;
    convolution.tf32 = *tf32;
  }
  convolution.input = *Get(a, Names::kInput);
  convolution.weight = *Get(a, Names::kWeight);
  convolution.tuned = context.tuned_convolutions;
  return true;
}

bool TorchConvolutions::Run(const Convolution& convolution, CallContext& context) {
  Scratch scratch(host_, context);
  return convolutions_.Run(convolution, context, [&](size_t bytes) { return scratch.Of(bytes); });
}

// `result` is one of the convolution's tensors, in the layout declared for it.
bool TorchConvolutions::Make(Convolution& convolution, TensorMemory& result, Tensor* made,
                             CallContext& context) {
  const auto tensor = host_.Empty(result.dtype, result.sizes, result.strides);
  if (!tensor.ok()) return false;
  const auto data = host_.Data(*tensor);
  result.data = data.ok() ? *data : nullptr;
  if (!data.ok() || !WillWrite(result, context) || !Run(convolution, context)) {
    host_.Release(*tensor);
    return false;
  }
  *made = *tensor;
  return true;
}

bool TorchConvolutions::Forward(const CallArguments& a, const MemoryResults& results, CallContext& context) {
  Convolution convolution;
  if (results.declared.size() != 1 || results.declared[0].dtype == v1::DTYPE_UNSPECIFIED) return false;
  if (Get(a, Names::kBias) != nullptr || !Settle(a, convolution, context)) return false;
  convolution.output = results.declared[0];
  if (results.into) return Run(convolution, context);
  return Make(convolution, convolution.output, &results.made[0], context);
}

bool TorchConvolutions::Backward(const CallArguments& a, const MemoryResults& results, CallContext& context) {
  const TensorMemory* output = Get(a, Names::kGradient);
  Convolution convolution;
  if (results.declared.size() != 3 || output == nullptr || !Settle(a, convolution, context)) return false;
  if (results.declared[2].dtype != v1::DTYPE_UNSPECIFIED) return false;
  convolution.output = *output;
  const auto gradient = [&](size_t result, Convolution::Direction direction,
                            TensorMemory Convolution::* wanted) {
    if (results.declared[result].dtype == v1::DTYPE_UNSPECIFIED) return true;
    Convolution one = convolution;
    one.direction = direction;
    one.*wanted = results.declared[result];
    return Make(one, one.*wanted, &results.made[result], context);
  };
  if (!gradient(0, Convolution::Direction::kInputGradient, &Convolution::input)) return false;
  if (gradient(1, Convolution::Direction::kWeightGradient, &Convolution::weight)) return true;
  if (results.made[0] != nullptr) host_.Release(results.made[0]);
  results.made[0] = nullptr;
  return false;
}

}  // namespace kiln::runtime
