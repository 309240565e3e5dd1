#include "client/runtime/torch_host.h"

#include <atomic>
#include <initializer_list>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/runtime/cublas_lt.h"
#include "client/runtime/cublas_lt_gemms.h"
#include "client/runtime/cuda_capture.h"
#include "client/runtime/cuda_driver.h"
#include "client/runtime/cudnn.h"
#include "client/runtime/cudnn_convolutions.h"
#include "client/runtime/torch_calls.h"
#include "client/runtime/torch_convolutions.h"
#include "client/runtime/torch_gemms.h"
#include "client/runtime/torch_precision.h"
#include "client/runtime/torch_shim.h"
#include "compiler/support/status_macros.h"

namespace kiln::runtime {
namespace {

// A gemm where it is one, otherwise the other.
class EitherCall : public MemoryCall {
 public:
  EitherCall(std::unique_ptr<MemoryCall> gemm, std::unique_ptr<MemoryCall> other)
      : gemm_(std::move(gemm)), other_(std::move(other)) {}
  bool Run(const CallArguments& arguments, const MemoryResults& results, CallContext& context) override {
    return gemm_->Run(arguments, results, context) || other_->Run(arguments, results, context);
  }

 private:
  const std::unique_ptr<MemoryCall> gemm_, other_;
};

class TorchHost : public Host {
 public:
  TorchHost(v1::DeviceType device, const TorchShim& shim, LibraryCallback callback)
      : device_(device), callback_(std::move(callback)), shim_(shim) {}

  // Gemms that cuBLASLt does go there, with `gemms` of this process's library.
  void UseGemms(Gemms& gemms) { gemms_ = std::make_unique<TorchGemms>(*this, precision_, gemms); }

  // The same for cuDNN.
  void UseConvolutions(Convolutions& convolutions) {
    convolutions_ = std::make_unique<TorchConvolutions>(*this, precision_, convolutions);
  }

  absl::StatusOr<CallContext> Begin() override {
    if (unfreed_.exchange(false)) return Refused("could not free a tensor of an earlier call");
    CallContext call;
    if (device_ != v1::CUDA) return call;
    KILN_ASSIGN_OR_RETURN(call.device, DeviceIndex());
    if (shim_.cuda.current_stream(call.device, &call.stream) != 0) return Refused("gives no CUDA stream");
    const auto& driver = TheCudaDriver();
    if (!driver.ok()) return driver.status();
    KILN_RETURN_IF_ERROR(UseCudaContext(*driver, call.device));
    int recorded = 0;
    KILN_RETURN_IF_ERROR(driver->Check(driver->is_capturing(call.stream, &recorded), "look at a stream"));
    call.recorded = recorded != 0;
    return call;
  }

  absl::Status Wait(const CallContext& call) override {
    if (!call.on_gpu()) return absl::OkStatus();
    const auto& driver = TheCudaDriver();
    return driver.ok() ? driver->Check(driver->wait(call.stream), "wait") : driver.status();
  }

  std::unique_ptr<Capture> NewCapture(const CallContext& call) override {
    const auto& driver = TheCudaDriver();
    return driver.ok() && call.recorded ? CudaCapture::Of(*driver, call.stream) : nullptr;
  }

  absl::StatusOr<Tensor> Empty(v1::DType dtype, absl::Span<const int64_t> sizes,
                               absl::Span<const int64_t> strides) override {
    KILN_ASSIGN_OR_RETURN(const int32_t device, DeviceIndex());
    Tensor tensor = nullptr;
    if (shim_.handles.empty_strided(sizes.size(), sizes.data(), strides.data(), shim_.numbers.to_torch[dtype],
                                    shim_.numbers.device, device, &tensor) == 0) {
      return tensor;
    }
    return InPython(Op::kEmptyStrided, {{"size", Ints(sizes)},
                                        {"stride", Ints(strides)},
                                        {"dtype", Code(v1::Argument::kAsScalarType, dtype)},
                                        {"device", Code(v1::Argument::kAsDevice, device_)}});
  }

  absl::StatusOr<Tensor> View(Tensor base, absl::Span<const int64_t> sizes, absl::Span<const int64_t> strides,
                              int64_t offset) override {
    Tensor tensor = nullptr;
    if (shim_.handles.reinterpret(base, sizes.size(), sizes.data(), strides.data(), offset, &tensor) != 0)
      return Refused("refused a view");
    return tensor;
  }

  absl::StatusOr<Tensor> Share(Tensor tensor) override {
    Tensor copy = nullptr;
    if (shim_.handles.new_handle(tensor, &copy) != 0) return Refused("refused a tensor handle");
    return copy;
  }

  absl::StatusOr<Tensor> Over(void* data, v1::DType dtype, absl::Span<const int64_t> sizes,
                              absl::Span<const int64_t> strides) override {
    KILN_ASSIGN_OR_RETURN(const int32_t device, DeviceIndex());
    Tensor tensor = nullptr;
    if (shim_.handles.from_blob(data, sizes.size(), sizes.data(), strides.data(), 0,
                                shim_.numbers.to_torch[dtype], shim_.numbers.device, device, &tensor) != 0) {
      return Refused("refused a tensor over memory");
    }
    return tensor;
  }

  void Release(Tensor tensor) override {
    if (shim_.handles.delete_object(tensor) != 0) unfreed_ = true;
  }

  // Torch raises where memory is not to be read: a CUDA graph's later run has it, or there never was any.
  absl::StatusOr<void*> Data(Tensor tensor) override {
    void* data = nullptr;
    if (shim_.tensors.data_ptr(tensor, &data) != 0) return Raised("Tensor.data_ptr", tensor);
    return data;
  }

  absl::StatusOr<absl::Span<const int64_t>> Sizes(Tensor tensor) override {
    return Dims(tensor, shim_.tensors.sizes, "Tensor.size");
  }
  absl::StatusOr<absl::Span<const int64_t>> Strides(Tensor tensor) override {
    return Dims(tensor, shim_.tensors.strides, "Tensor.stride");
  }

  absl::StatusOr<v1::DType> Type(Tensor tensor) override {
    int32_t number = -1;
    if (shim_.tensors.dtype(tensor, &number) != 0) return Refused("gives no dtype");
    if (number < 0 || number >= static_cast<int32_t>(shim_.numbers.from_torch.size()))
      return v1::DTYPE_UNSPECIFIED;
    return shim_.numbers.from_torch[number];
  }

  absl::StatusOr<Place> PlaceOf(Tensor tensor) override {
    int32_t type = -1;
    if (shim_.tensors.device_type(tensor, &type) != 0) return Refused("gives no device");
    if (type == shim_.numbers.device) return Place::kHere;
    return type == shim_.numbers.cpu ? Place::kOnCpu : Place::kElsewhere;
  }

  // Seed and offset of an attention's dropout: numbers on the CPU but in a stream that records a CUDA graph,
  // and the gradient reads them where that left them.
  bool StaysOnCpu(const OperatorName& target, size_t result) const override {
    if (target == Op::kScaledDotProductEfficientAttention || target == Op::kEfficientAttentionForward)
      return result == 2 || result == 3;
    return target == Op::kScaledDotProductCudnnAttention && (result == 6 || result == 7);
  }

  bool IsPlain(Tensor tensor) override {
    return !shim_.tensors.is_conj(tensor) && !shim_.tensors.is_neg(tensor) && !shim_.tensors.is_zero(tensor);
  }

  absl::Status Copy(Tensor to, Tensor from) override {
    if (shim_.tensors.copy(to, from, 0) == 0) return absl::OkStatus();
    KILN_ASSIGN_OR_RETURN(
        Tensor result, InPython(Op::kCopyInPlace, {{"self", TensorValue(to)}, {"src", TensorValue(from)}}));
    Release(result);
    return absl::OkStatus();
  }

  absl::StatusOr<int64_t> Item(Tensor tensor) override {
    int64_t item = 0;
    if (shim_.tensors.item(tensor, &item) != 0) return Refused("does not tell the element of a tensor");
    return item;
  }

  absl::StatusOr<Tensor> Seeds(uint32_t count) override {
    // One draw from torch's generator, so that torch.manual_seed repeats it.
    const int64_t size = count;
    return InPython(Op::kRandintLow, {{"low", Code(v1::Argument::kAsInt, INT64_MIN)},
                                      {"high", Code(v1::Argument::kAsInt, INT64_MAX)},
                                      {"size", Ints({&size, 1})},
                                      {"dtype", Code(v1::Argument::kAsScalarType, v1::I64)},
                                      {"device", Code(v1::Argument::kAsDevice, device_)}});
  }

  // Where torch can't say, one thread does all.
  uint32_t ThreadCount() override {
    uint32_t count = 1;
    return shim_.threads.num_threads(&count) == 0 ? count : 1;
  }

  // A range whose thread torch can't name is not run: it might have another one's memory.
  absl::Status ParallelFor(int64_t units, int64_t grain,
                           absl::FunctionRef<void(int64_t, int64_t, uint32_t)> body) override {
    struct Context {
      const TorchShim* shim;
      absl::FunctionRef<void(int64_t, int64_t, uint32_t)> body;
      std::atomic<bool> nameless = false;
    } context{&shim_, body};
    const TorchError error = shim_.threads.parallel_for(
        0, units, grain,
        [](int64_t begin, int64_t end, void* pointer) {
          auto* context = static_cast<Context*>(pointer);
          uint32_t thread = 0;
          if (context->shim->threads.thread_index(&thread) != 0) {
            context->nameless = true;
          } else {
            context->body(begin, end, thread);
          }
        },
        &context);
    if (error != 0) return Refused("did not run all threads");
    return context.nameless ? absl::InternalError("torch gives a thread no number") : absl::OkStatus();
  }

  // Everything that has a typed shim: gemms, convolutions, attention, what finds and takes places.
  bool MakesNewMemory(const OperatorName& target) const override { return TorchCalls::Knows(target); }

  std::unique_ptr<MemoryCall> NewMemoryCall(const OperatorName& target, bool fixed) override {
    std::unique_ptr<MemoryCall> gemm = gemms_ == nullptr ? nullptr : gemms_->NewCall(target, fixed);
    std::unique_ptr<MemoryCall> other = convolutions_ == nullptr ? nullptr : convolutions_->NewCall(target);
    if (gemm == nullptr || other == nullptr) return gemm != nullptr ? std::move(gemm) : std::move(other);
    return std::make_unique<EitherCall>(std::move(gemm), std::move(other));
  }

  absl::Status Call(const OperatorName& target, const CallArguments& arguments, absl::Span<Tensor> results,
                    bool into) override {
    if (calls_.Call(target, arguments, results, into)) return absl::OkStatus();
    const std::string name(target.text());
    if (!into) return CallPython(name, arguments, results);
    std::vector<Tensor> made(results.size(), nullptr);
    absl::Status status = CallPython(name, arguments, absl::MakeSpan(made));
    for (size_t i = 0; i < made.size(); ++i) {
      if (status.ok())
        status = made[i] != nullptr ? Copy(results[i], made[i]) : absl::InternalError("undefined result");
      if (made[i] != nullptr) Release(made[i]);
    }
    return status;
  }

 private:
  absl::StatusOr<absl::Span<const int64_t>> Dims(Tensor tensor, TorchError (*get)(Tensor, int64_t**),
                                                 const char* access) {
    int64_t rank = 0;
    int64_t* values = nullptr;
    if (shim_.tensors.dim(tensor, &rank) != 0 || get(tensor, &values) != 0) return Raised(access, tensor);
    return absl::MakeConstSpan(values, static_cast<size_t>(rank));
  }

  // ---- errors of torch's. The shim gives a number alone, so what failed is done again in Python, whose
  // error is torch's own.

  // What Python can't do again: torch's words where it has them.
  absl::Status Refused(absl::string_view what) const {
    const char* text = shim_.what == nullptr ? nullptr : shim_.what();
    return absl::InternalError(text == nullptr ? absl::StrCat("torch ", what)
                                               : absl::StrCat("torch ", what, ": ", text));
  }

  // `access`: a method of Python's tensors, which raises as the shim's function did.
  absl::Status Raised(const char* access, Tensor tensor) {
    const absl::Status refused = Refused(absl::StrCat("refused ", access));
    const std::vector<std::string> names = {"self"};
    const std::vector<CallValue> values = {TensorValue(tensor)};
    const absl::Status raised = CallPython(access, {names, values}, {});
    return raised.ok() ? refused : raised;
  }

  // An operator of one result.
  absl::StatusOr<Tensor> InPython(Op op, std::initializer_list<std::pair<const char*, CallValue>> arguments) {
    std::vector<std::string> names;
    std::vector<CallValue> values;
    for (const auto& [name, value] : arguments) {
      names.push_back(name);
      values.push_back(value);
    }
    Tensor result = nullptr;
    const std::string target(NameOf(op));
    KILN_RETURN_IF_ERROR(CallPython(target, {names, values}, absl::MakeSpan(&result, 1)));
    if (result == nullptr) return absl::InternalError(absl::StrCat(target, " gave nothing"));
    return result;
  }

  static CallValue Code(v1::Argument::KindCase kind, int64_t number) {
    CallValue value;
    value.kind = kind;
    value.number = number;
    return value;
  }
  static CallValue Ints(absl::Span<const int64_t> numbers) {
    CallValue value;
    value.kind = v1::Argument::kAsInts;
    value.numbers.assign(numbers.begin(), numbers.end());
    return value;
  }
  static CallValue TensorValue(Tensor tensor) {
    CallValue value;
    value.kind = v1::Argument::kAsTensor;
    value.tensor = tensor;
    return value;
  }

  // By name, of an operator or a tensor's method: Python looks it up. What runs there may leave another
  // device behind; ATen's own functions don't.
  absl::Status CallPython(const std::string& target, const CallArguments& arguments,
                          absl::Span<Tensor> results) {
    KILN_ASSIGN_OR_RETURN(const int32_t device, DeviceIndex());
    KILN_RETURN_IF_ERROR(callback_(target, arguments, results));
    if (device_ != v1::CUDA) return absl::OkStatus();
    const auto& driver = TheCudaDriver();
    absl::Status status = driver.ok() ? UseCudaContext(*driver, device) : driver.status();
    if (status.ok()) return status;
    for (Tensor& tensor : results) {
      if (tensor != nullptr) Release(std::exchange(tensor, nullptr));
    }
    return status;
  }

  absl::StatusOr<int32_t> DeviceIndex() const {
    int32_t index = 0;
    if (shim_.cuda.current_device != nullptr && shim_.cuda.current_device(&index) != 0)
      return Refused("gives no current device");
    return index;
  }

  const v1::DeviceType device_;
  LibraryCallback callback_;
  const TorchShim shim_;
  TorchCalls calls_{*this, shim_};
  std::atomic<bool> unfreed_ = false;  // a tensor that torch could not free
  const TorchPrecision precision_ = TorchPrecision::Find(shim_.library);
  std::unique_ptr<TorchGemms> gemms_;                // nullptr: none but ATen's
  std::unique_ptr<TorchConvolutions> convolutions_;  // likewise
};

}  // namespace

absl::StatusOr<std::unique_ptr<Host>> NewTorchHost(v1::DeviceType device, LibraryCallback callback) {
  KILN_ASSIGN_OR_RETURN(const TorchShim shim, TorchShim::Find(device));
  auto host = std::make_unique<TorchHost>(device, shim, std::move(callback));
  if (device == v1::CUDA) {
    // Plans are the process's, and outlive it as the host does. Without the library ATen does everything.
    static Gemms* const gemms = [] {
      const absl::StatusOr<CublasLt> library = FindCublasLt();
      return library.ok() ? new Gemms(*library) : nullptr;
    }();
    if (gemms != nullptr) host->UseGemms(*gemms);
    static Convolutions* const convolutions = [] {
      const absl::StatusOr<Cudnn> library = FindCudnn();
      return library.ok() ? new Convolutions(*library) : nullptr;
    }();
    if (convolutions != nullptr) host->UseConvolutions(*convolutions);
  }
  return host;
}

}  // namespace kiln::runtime
