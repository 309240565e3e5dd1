#include "client/runtime/torch_host.h"

#include <dlfcn.h>

#include <array>
#include <atomic>
#include <initializer_list>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "client/runtime/cublas_lt.h"
#include "client/runtime/cublas_lt_gemms.h"
#include "client/runtime/cuda_capture.h"
#include "client/runtime/cuda_driver.h"
#include "client/runtime/cudnn.h"
#include "client/runtime/cudnn_convolutions.h"
#include "client/runtime/library_functions.h"
#include "client/runtime/torch_convolutions.h"
#include "client/runtime/torch_precision.h"
#include "client/runtime/torch_products.h"
#include "compiler/support/status_macros.h"

namespace kiln::runtime {
namespace {

using Error = int32_t;  // 0 is success
using RangeFunction = void (*)(int64_t begin, int64_t end, void* context);

// Signatures as in torch/csrc/inductor/aoti_torch/c/shim.h, generated/c_shim_cpu.h and
// torch/csrc/stable/c/shim.h, which torch keeps stable.
struct Shim {
  Error (*empty_strided)(int64_t, const int64_t*, const int64_t*, int32_t, int32_t, int32_t, Tensor*);
  Error (*from_blob)(void*, int64_t, const int64_t*, const int64_t*, int64_t, int32_t, int32_t, int32_t,
                     Tensor*);
  Error (*reinterpret)(Tensor, int64_t, const int64_t*, const int64_t*, int64_t, Tensor*);
  Error (*new_handle)(Tensor, Tensor*);
  Error (*new_undefined)(Tensor*);  // stands for None where an argument is no optional one
  Error (*delete_object)(Tensor);
  Error (*data_ptr)(Tensor, void**);
  Error (*dim)(Tensor, int64_t*);
  Error (*sizes)(Tensor, int64_t**);
  Error (*strides)(Tensor, int64_t**);
  Error (*dtype)(Tensor, int32_t*);
  Error (*device_type)(Tensor, int32_t*);
  Error (*copy)(Tensor, Tensor, int32_t);
  Error (*item)(Tensor, int64_t*);
  bool (*is_conj)(Tensor);  // at::native::is_conj(const at::Tensor&): a handle is the tensor's address
  bool (*is_neg)(Tensor);
  bool (*is_zero)(Tensor);
  Error (*parallel_for)(int64_t, int64_t, int64_t, RangeFunction, void*);
  Error (*thread_index)(uint32_t*);
  Error (*num_threads)(uint32_t*);
  Error (*current_device)(int32_t*);         // CUDA only
  Error (*current_stream)(int32_t, void**);  // CUDA only
  const char* (*what)();                     // of the thread's last error; torch 2.13 and later

  Error (*mm_out)(Tensor, Tensor, Tensor);
  Error (*bmm_out)(Tensor, Tensor, Tensor);
  Error (*addmm_out)(Tensor, Tensor, Tensor, Tensor, double, double);
  Error (*baddbmm_out)(Tensor, Tensor, Tensor, Tensor, double, double);
  Error (*linear)(Tensor, Tensor, Tensor*, const char*, const double**, int64_t, const char**, Tensor*);
  Error (*convolution)(Tensor, Tensor, Tensor*, const int64_t*, int64_t, const int64_t*, int64_t,
                       const int64_t*, int64_t, int32_t, const int64_t*, int64_t, int64_t, Tensor*);
  Error (*convolution_backward)(Tensor, Tensor, Tensor, const int64_t**, int64_t, const int64_t*, int64_t,
                                const int64_t*, int64_t, const int64_t*, int64_t, int32_t, const int64_t*,
                                int64_t, int64_t, const int32_t*, int64_t, Tensor*, Tensor*, Tensor*);
  Error (*attention)(Tensor, Tensor, Tensor, double, int32_t, Tensor*, double*, Tensor*, Tensor*);
  Error (*attention_backward)(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, double, int32_t, Tensor*,
                              double*, Tensor*, Tensor*, Tensor*);
  Error (*efficient_attention)(Tensor, Tensor, Tensor, Tensor*, int32_t, double, int32_t, double*, Tensor*,
                               Tensor*, Tensor*, Tensor*);
  Error (*efficient_attention_backward)(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor,
                                        Tensor, double, const int32_t*, int64_t, int32_t, double*, Tensor*,
                                        Tensor*, Tensor*, Tensor*);
  Error (*cudnn_attention)(Tensor, Tensor, Tensor, Tensor*, int32_t, double, int32_t, int32_t, double*,
                           Tensor*, Tensor*, Tensor*, Tensor*, int64_t*, int64_t*, Tensor*, Tensor*, Tensor*);
  Error (*nonzero)(Tensor, Tensor*);
  Error (*masked_select)(Tensor, Tensor, Tensor*);
  Error (*masked_scatter)(Tensor, Tensor, Tensor, Tensor*);
  Error (*repeat_interleave)(Tensor, int64_t*, Tensor*);
  Error (*index)(Tensor, const Tensor**, int64_t, Tensor*);
  Error (*index_put)(Tensor, const Tensor**, int64_t, Tensor, int32_t, Tensor*);
  Error (*cudnn_attention_backward)(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor,
                                    Tensor, Tensor, int64_t, int64_t, double, int32_t, double*, Tensor*,
                                    Tensor*, Tensor*);
};

// A product where it is one, otherwise the other.
class EitherCall : public MemoryCall {
 public:
  EitherCall(std::unique_ptr<MemoryCall> product, std::unique_ptr<MemoryCall> other)
      : product_(std::move(product)), other_(std::move(other)) {}
  bool Run(const CallArguments& arguments, const MemoryResults& results, CallContext& context) override {
    return product_->Run(arguments, results, context) || other_->Run(arguments, results, context);
  }

 private:
  const std::unique_ptr<MemoryCall> product_, other_;
};

class TorchHost : public Host {
 public:
  TorchHost(v1::DeviceType device, LibraryCallback callback)
      : device_(device), callback_(std::move(callback)) {}

  absl::Status Resolve() {
    void* library = dlopen("libtorch_cpu.so", RTLD_NOLOAD | RTLD_LAZY);
    if (library == nullptr) return absl::UnimplementedError("libtorch_cpu.so is not loaded in this process");
    void* typed = device_ == v1::CUDA ? dlopen("libtorch_cuda.so", RTLD_NOLOAD | RTLD_LAZY) : library;
    if (typed == nullptr) return absl::UnimplementedError("this torch has no CUDA");
    precision_ = TorchPrecision::Find(library);
    LibraryFunctions functions(library), typed_functions(typed);
    // Functions of one kind of device have its name in theirs.
    auto want = [&](auto& function, const char* name) {
      const std::string full = absl::StrCat("aoti_torch_", device_ == v1::CUDA ? "cuda_" : "cpu_", name);
      typed_functions.Want(function, full.c_str());
    };
    functions.Need(shim_.empty_strided, "aoti_torch_empty_strided");
    functions.Need(shim_.from_blob, "aoti_torch_create_tensor_from_blob");
    functions.Need(shim_.reinterpret, "aoti_torch__reinterpret_tensor");
    functions.Need(shim_.new_handle, "aoti_torch_new_tensor_handle");
    functions.Need(shim_.new_undefined, "aoti_torch_new_uninitialized_tensor");
    functions.Need(shim_.delete_object, "aoti_torch_delete_tensor_object");
    functions.Need(shim_.data_ptr, "aoti_torch_get_data_ptr");
    functions.Need(shim_.dim, "aoti_torch_get_dim");
    functions.Need(shim_.sizes, "aoti_torch_get_sizes");
    functions.Need(shim_.strides, "aoti_torch_get_strides");
    functions.Need(shim_.dtype, "aoti_torch_get_dtype");
    functions.Need(shim_.device_type, "aoti_torch_get_device_type");
    functions.Need(shim_.copy, "aoti_torch_copy_");
    functions.Need(shim_.item, "aoti_torch_item_int64");
    functions.Need(shim_.is_conj, "_ZN2at6native7is_conjERKNS_6TensorE");
    functions.Need(shim_.is_neg, "_ZN2at6native6is_negERKNS_6TensorE");
    functions.Need(shim_.is_zero, "_ZN2at6native14_is_zerotensorERKNS_6TensorE");
    functions.Need(shim_.parallel_for, "torch_parallel_for");
    functions.Need(shim_.thread_index, "torch_get_thread_idx");
    functions.Need(shim_.num_threads, "torch_get_num_threads");
    functions.Want(shim_.what, "torch_exception_get_what_without_backtrace");
    want(shim_.mm_out, "mm_out");
    want(shim_.bmm_out, "bmm_out");
    want(shim_.addmm_out, "addmm_out");
    want(shim_.baddbmm_out, "baddbmm_out");
    want(shim_.linear, "_linear_pointwise");
    want(shim_.convolution, "convolution");
    want(shim_.convolution_backward, "convolution_backward");
    want(shim_.attention, "_scaled_dot_product_flash_attention_for_cpu");
    want(shim_.attention_backward, "_scaled_dot_product_flash_attention_for_cpu_backward");
    want(shim_.efficient_attention, "_scaled_dot_product_efficient_attention");
    want(shim_.efficient_attention_backward, "_scaled_dot_product_efficient_attention_backward");
    want(shim_.cudnn_attention, "_scaled_dot_product_cudnn_attention");
    want(shim_.cudnn_attention_backward, "_scaled_dot_product_cudnn_attention_backward");
    want(shim_.nonzero, "nonzero");
    want(shim_.masked_select, "masked_select");
    want(shim_.masked_scatter, "masked_scatter");
    want(shim_.repeat_interleave, "repeat_interleave_Tensor");
    want(shim_.index, "index_Tensor");
    want(shim_.index_put, "index_put");
    static constexpr std::pair<v1::DType, const char*> kTypes[] = {
#define KILN_DTYPE(Enum, text, torch, bytes, dtype_class) {v1::Enum, "aoti_torch_dtype_" #torch},
#include "compiler/graph/dtypes.def"
#undef KILN_DTYPE
    };
    for (const auto& [dtype, name] : kTypes) {
      int32_t (*get)() = nullptr;
      functions.Need(get, name);
      if (get == nullptr) break;
      const int32_t number = get();
      if (number < 0 || number >= static_cast<int32_t>(from_torch_.size())) {
        return absl::UnimplementedError(absl::StrCat(name, " is out of range"));
      }
      to_torch_[dtype] = number;
      from_torch_[number] = dtype;
    }
    int32_t (*cpu_type)() = nullptr;
    int32_t (*cuda_type)() = nullptr;
    functions.Need(cpu_type, "aoti_torch_device_type_cpu");
    if (device_ == v1::CUDA) {
      functions.Need(cuda_type, "aoti_torch_device_type_cuda");
      functions.Need(shim_.current_device, "aoti_torch_get_current_device_index");
      const char* stream = "aoti_torch_get_current_cuda_stream";
      typed_functions.Want(shim_.current_stream, stream);
      if (shim_.current_stream == nullptr) functions.Need(shim_.current_stream, stream);
    }
    if (functions.missing() != nullptr)
      return absl::UnimplementedError(absl::StrCat("this torch lacks ", functions.missing()));
    cpu_type_ = cpu_type();
    device_type_ = device_ == v1::CUDA ? cuda_type() : cpu_type_;
    return absl::OkStatus();
  }

  // Products that cuBLASLt does go there, with `products` of this process's library.
  void UseProducts(MatrixProducts& products) {
    products_ = std::make_unique<TorchProducts>(*this, precision_, products);
  }

  // The same for cuDNN.
  void UseConvolutions(Convolutions& convolutions) {
    convolutions_ = std::make_unique<TorchConvolutions>(*this, precision_, convolutions);
  }

  absl::StatusOr<CallContext> Begin() override {
    if (unfreed_.exchange(false)) return Refused("could not free a tensor of an earlier call");
    CallContext call;
    if (device_ != v1::CUDA) return call;
    KILN_ASSIGN_OR_RETURN(call.device, DeviceIndex());
    if (shim_.current_stream(call.device, &call.stream) != 0) return Refused("gives no CUDA stream");
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
    if (shim_.empty_strided(sizes.size(), sizes.data(), strides.data(), to_torch_[dtype], device_type_,
                            device, &tensor) == 0) {
      return tensor;
    }
    return InPython("aten.empty_strided.default", {{"size", Ints(sizes)},
                                                   {"stride", Ints(strides)},
                                                   {"dtype", Code(v1::Argument::kAsScalarType, dtype)},
                                                   {"device", Code(v1::Argument::kAsDevice, device_)}});
  }

  absl::StatusOr<Tensor> View(Tensor base, absl::Span<const int64_t> sizes, absl::Span<const int64_t> strides,
                              int64_t offset) override {
    Tensor tensor = nullptr;
    if (shim_.reinterpret(base, sizes.size(), sizes.data(), strides.data(), offset, &tensor) != 0)
      return Refused("refused a view");
    return tensor;
  }

  absl::StatusOr<Tensor> Share(Tensor tensor) override {
    Tensor copy = nullptr;
    if (shim_.new_handle(tensor, &copy) != 0) return Refused("refused a tensor handle");
    return copy;
  }

  absl::StatusOr<Tensor> Over(void* data, v1::DType dtype, absl::Span<const int64_t> sizes,
                              absl::Span<const int64_t> strides) override {
    KILN_ASSIGN_OR_RETURN(const int32_t device, DeviceIndex());
    Tensor tensor = nullptr;
    if (shim_.from_blob(data, sizes.size(), sizes.data(), strides.data(), 0, to_torch_[dtype], device_type_,
                        device, &tensor) != 0) {
      return Refused("refused a tensor over memory");
    }
    return tensor;
  }

  void Release(Tensor tensor) override {
    if (shim_.delete_object(tensor) != 0) unfreed_ = true;
  }

  // Torch raises where memory is not to be read: a CUDA graph's later run has it, or there never was any.
  absl::StatusOr<void*> Data(Tensor tensor) override {
    void* data = nullptr;
    if (shim_.data_ptr(tensor, &data) != 0) return Raised("Tensor.data_ptr", tensor);
    return data;
  }

  absl::StatusOr<absl::Span<const int64_t>> Sizes(Tensor tensor) override {
    return Dims(tensor, shim_.sizes, "Tensor.size");
  }
  absl::StatusOr<absl::Span<const int64_t>> Strides(Tensor tensor) override {
    return Dims(tensor, shim_.strides, "Tensor.stride");
  }

  absl::StatusOr<v1::DType> Type(Tensor tensor) override {
    int32_t number = -1;
    if (shim_.dtype(tensor, &number) != 0) return Refused("gives no dtype");
    if (number < 0 || number >= static_cast<int32_t>(from_torch_.size())) return v1::DTYPE_UNSPECIFIED;
    return from_torch_[number];
  }

  absl::StatusOr<Place> PlaceOf(Tensor tensor) override {
    int32_t type = -1;
    if (shim_.device_type(tensor, &type) != 0) return Refused("gives no device");
    if (type == device_type_) return Place::kHere;
    return type == cpu_type_ ? Place::kOnCpu : Place::kElsewhere;
  }

  // Seed and offset of an attention's dropout: numbers on the CPU but in a stream that records a CUDA graph,
  // and the gradient reads them where that left them.
  bool StaysOnCpu(const std::string& target, size_t result) const override {
    if (target == "aten._scaled_dot_product_efficient_attention.default" ||
        target == "aten._efficient_attention_forward.default") {
      return result == 2 || result == 3;
    }
    return target == "aten._scaled_dot_product_cudnn_attention.default" && (result == 6 || result == 7);
  }

  bool IsPlain(Tensor tensor) override {
    return !shim_.is_conj(tensor) && !shim_.is_neg(tensor) && !shim_.is_zero(tensor);
  }

  absl::Status Copy(Tensor to, Tensor from) override {
    if (shim_.copy(to, from, 0) == 0) return absl::OkStatus();
    KILN_ASSIGN_OR_RETURN(Tensor result, InPython("aten.copy_.default",
                                                  {{"self", TensorValue(to)}, {"src", TensorValue(from)}}));
    Release(result);
    return absl::OkStatus();
  }

  absl::StatusOr<int64_t> Item(Tensor tensor) override {
    int64_t item = 0;
    if (shim_.item(tensor, &item) != 0) return Refused("does not tell the element of a tensor");
    return item;
  }

  absl::StatusOr<Tensor> Seeds(uint32_t count) override {
    // One draw from torch's generator, so that torch.manual_seed repeats it.
    const int64_t size = count;
    return InPython("aten.randint.low", {{"low", Code(v1::Argument::kAsInt, INT64_MIN)},
                                         {"high", Code(v1::Argument::kAsInt, INT64_MAX)},
                                         {"size", Ints({&size, 1})},
                                         {"dtype", Code(v1::Argument::kAsScalarType, v1::I64)},
                                         {"device", Code(v1::Argument::kAsDevice, device_)}});
  }

  // Where torch can't say, one thread does all.
  uint32_t ThreadCount() override {
    uint32_t count = 1;
    return shim_.num_threads(&count) == 0 ? count : 1;
  }

  // A range whose thread torch can't name is not run: it might have another one's memory.
  absl::Status ParallelFor(int64_t units, int64_t grain,
                           absl::FunctionRef<void(int64_t, int64_t, uint32_t)> body) override {
    struct Context {
      const Shim* shim;
      absl::FunctionRef<void(int64_t, int64_t, uint32_t)> body;
      std::atomic<bool> nameless = false;
    } context{&shim_, body};
    const Error error = shim_.parallel_for(
        0, units, grain,
        [](int64_t begin, int64_t end, void* pointer) {
          auto* context = static_cast<Context*>(pointer);
          uint32_t thread = 0;
          if (context->shim->thread_index(&thread) != 0) {
            context->nameless = true;
          } else {
            context->body(begin, end, thread);
          }
        },
        &context);
    if (error != 0) return Refused("did not run all threads");
    return context.nameless ? absl::InternalError("torch gives a thread no number") : absl::OkStatus();
  }

  // Everything that has a typed shim: products, convolutions, attention, what finds and takes places.
  bool MakesNewMemory(const std::string& target) const override { return Typed().contains(target); }

  std::unique_ptr<MemoryCall> NewMemoryCall(const std::string& target, bool fixed) override {
    std::unique_ptr<MemoryCall> product = products_ == nullptr ? nullptr : products_->NewCall(target, fixed);
    std::unique_ptr<MemoryCall> other = convolutions_ == nullptr ? nullptr : convolutions_->NewCall(target);
    if (product == nullptr || other == nullptr)
      return product != nullptr ? std::move(product) : std::move(other);
    return std::make_unique<EitherCall>(std::move(product), std::move(other));
  }

  absl::Status Call(const std::string& target, const CallArguments& arguments, absl::Span<Tensor> results,
                    bool into) override {
    const auto found = Typed().find(target);
    if (found != Typed().end()) {
      const Outcome outcome = (this->*found->second)(arguments, results, into);
      if (outcome == Outcome::kDone) return absl::OkStatus();
    }
    if (!into) return CallPython(target, arguments, results);
    std::vector<Tensor> made(results.size(), nullptr);
    absl::Status status = CallPython(target, arguments, absl::MakeSpan(made));
    for (size_t i = 0; i < made.size(); ++i) {
      if (status.ok())
        status = made[i] != nullptr ? Copy(results[i], made[i]) : absl::InternalError("undefined result");
      if (made[i] != nullptr) Release(made[i]);
    }
    return status;
  }

 private:
  enum class Outcome { kDone, kNotHere };  // kNotHere: let the callback do it, or find the error
  using TypedCall = Outcome (TorchHost::*)(const CallArguments&, absl::Span<Tensor>, bool);

  // By name, as a program has it: each has a function of the shim's with a signature of its own, so that no
  // description of what the operator computes tells how it is called.
  static const absl::flat_hash_map<std::string, TypedCall>& Typed() {
    static const auto* table = new absl::flat_hash_map<std::string, TypedCall>{
        {"aten.mm.default", &TorchHost::Mm},
        {"aten.bmm.default", &TorchHost::Bmm},
        {"aten.addmm.default", &TorchHost::Addmm},
        {"aten.baddbmm.default", &TorchHost::Baddbmm},
        {"mkldnn._linear_pointwise.default", &TorchHost::Linear},
        {"aten.convolution.default", &TorchHost::Convolution},
        {"aten.convolution_backward.default", &TorchHost::ConvolutionBackward},
        {"aten._scaled_dot_product_flash_attention_for_cpu.default", &TorchHost::Attention},
        {"aten._scaled_dot_product_flash_attention_for_cpu_backward.default", &TorchHost::AttentionBackward},
        {"aten._scaled_dot_product_efficient_attention.default", &TorchHost::EfficientAttention},
        {"aten._scaled_dot_product_efficient_attention_backward.default",
         &TorchHost::EfficientAttentionBackward},
        {"aten._scaled_dot_product_cudnn_attention.default", &TorchHost::CudnnAttention},
        {"aten._scaled_dot_product_cudnn_attention_backward.default", &TorchHost::CudnnAttentionBackward},
        {"aten.nonzero.default", &TorchHost::Nonzero},
        {"aten.masked_select.default", &TorchHost::MaskedSelect},
        {"aten.masked_scatter.default", &TorchHost::MaskedScatter},
        {"aten.repeat_interleave.Tensor", &TorchHost::RepeatInterleave},
        {"aten.index.Tensor", &TorchHost::IndexTensor},
        {"aten.index_put.default", &TorchHost::IndexPut},
    };
    return *table;
  }

  absl::StatusOr<absl::Span<const int64_t>> Dims(Tensor tensor, Error (*get)(Tensor, int64_t**),
                                                 const char* access) {
    int64_t rank = 0;
    int64_t* values = nullptr;
    if (shim_.dim(tensor, &rank) != 0 || get(tensor, &values) != 0) return Raised(access, tensor);
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
  absl::StatusOr<Tensor> InPython(const std::string& target,
                                  std::initializer_list<std::pair<const char*, CallValue>> arguments) {
    std::vector<std::string> names;
    std::vector<CallValue> values;
    for (const auto& [name, value] : arguments) {
      names.push_back(name);
      values.push_back(value);
    }
    Tensor result = nullptr;
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

  static Outcome Result(Error error) { return error == 0 ? Outcome::kDone : Outcome::kNotHere; }

  static double Real(const CallArguments& a, absl::string_view name, double otherwise) {
    const CallValue* value = a.Find(name);
    if (value == nullptr) return otherwise;
    return value->kind == v1::Argument::kAsFloat ? value->real : static_cast<double>(value->number);
  }
  static int64_t Number(const CallArguments& a, absl::string_view name, int64_t otherwise) {
    const CallValue* value = a.Find(name);
    return value == nullptr ? otherwise : value->number;
  }
  static Tensor Get(const CallArguments& a, absl::string_view name) {
    const CallValue* value = a.Find(name);
    return value == nullptr ? nullptr : value->tensor;
  }

  Outcome Product(Error (*function)(Tensor, Tensor, Tensor), const CallArguments& a, absl::Span<Tensor> r,
                  bool into) {
    Tensor self = Get(a, "self"), other = Get(a, "mat2");
    if (!into || function == nullptr || self == nullptr || other == nullptr || r.size() != 1)
      return Outcome::kNotHere;
    return Result(function(r[0], self, other));
  }
  Outcome Mm(const CallArguments& a, absl::Span<Tensor> r, bool into) {
    return Product(shim_.mm_out, a, r, into);
  }
  Outcome Bmm(const CallArguments& a, absl::Span<Tensor> r, bool into) {
    return Product(shim_.bmm_out, a, r, into);
  }

  Outcome Sum(Error (*function)(Tensor, Tensor, Tensor, Tensor, double, double), Tensor first, Tensor second,
              const CallArguments& a, absl::Span<Tensor> r, bool into) {
    Tensor self = Get(a, "self");
    if (!into || function == nullptr || self == nullptr || first == nullptr || second == nullptr ||
        r.size() != 1) {
      return Outcome::kNotHere;
    }
    return Result(function(r[0], self, first, second, Real(a, "beta", 1), Real(a, "alpha", 1)));
  }
  Outcome Addmm(const CallArguments& a, absl::Span<Tensor> r, bool into) {
    return Sum(shim_.addmm_out, Get(a, "mat1"), Get(a, "mat2"), a, r, into);
  }
  Outcome Baddbmm(const CallArguments& a, absl::Span<Tensor> r, bool into) {
    return Sum(shim_.baddbmm_out, Get(a, "batch1"), Get(a, "batch2"), a, r, into);
  }

  Outcome Linear(const CallArguments& a, absl::Span<Tensor> r, bool into) {
    Tensor rows = Get(a, "X"), weight = Get(a, "W"), bias = Get(a, "B");
    const CallValue* activation = a.Find("attr");
    if (into || shim_.linear == nullptr || !rows || !weight || activation == nullptr || r.size() != 1)
      return Outcome::kNotHere;
    return Result(shim_.linear(rows, weight, bias == nullptr ? nullptr : &bias, activation->text.c_str(),
                               nullptr, 0, nullptr, &r[0]));
  }

  struct Window {
    const CallValue *stride, *padding, *dilation, *output_padding;
    bool Complete() const { return stride && padding && dilation && output_padding; }
  };
  static Window WindowOf(const CallArguments& a) {
    return {a.Find("stride"), a.Find("padding"), a.Find("dilation"), a.Find("output_padding")};
  }

  Outcome Convolution(const CallArguments& a, absl::Span<Tensor> r, bool into) {
    Tensor input = Get(a, "input"), weight = Get(a, "weight"), bias = Get(a, "bias");
    const Window w = WindowOf(a);
    if (shim_.convolution == nullptr || input == nullptr || weight == nullptr || !w.Complete() ||
        r.size() != 1) {
      return Outcome::kNotHere;
    }
    Tensor made = nullptr;
    const Outcome outcome = Result(shim_.convolution(
        input, weight, bias == nullptr ? nullptr : &bias, w.stride->numbers.data(), w.stride->numbers.size(),
        w.padding->numbers.data(), w.padding->numbers.size(), w.dilation->numbers.data(),
        w.dilation->numbers.size(), Number(a, "transposed", 0), w.output_padding->numbers.data(),
        w.output_padding->numbers.size(), Number(a, "groups", 1), &made));
    if (outcome != Outcome::kDone) return outcome;
    if (!into) {
      r[0] = made;
      return outcome;
    }
    const bool copied = Copy(r[0], made).ok();
    Release(made);
    return copied ? Outcome::kDone : Outcome::kNotHere;
  }

  Outcome ConvolutionBackward(const CallArguments& a, absl::Span<Tensor> r, bool into) {
    Tensor grad = Get(a, "grad_output"), input = Get(a, "input"), weight = Get(a, "weight");
    const Window w = WindowOf(a);
    const CallValue* mask = a.Find("output_mask");
    if (into || shim_.convolution_backward == nullptr || grad == nullptr || input == nullptr ||
        weight == nullptr || !w.Complete() || mask == nullptr || mask->numbers.size() != 3 || r.size() != 3) {
      return Outcome::kNotHere;
    }
    const CallValue* bias = a.Find("bias_sizes");
    const int64_t* bias_sizes = bias == nullptr ? nullptr : bias->numbers.data();
    const std::array<int32_t, 3> wanted = {mask->numbers[0] != 0, mask->numbers[1] != 0,
                                           mask->numbers[2] != 0};
    return Result(shim_.convolution_backward(
        grad, input, weight, bias == nullptr ? nullptr : &bias_sizes,
        bias == nullptr ? 0 : bias->numbers.size(), w.stride->numbers.data(), w.stride->numbers.size(),
        w.padding->numbers.data(), w.padding->numbers.size(), w.dilation->numbers.data(),
        w.dilation->numbers.size(), Number(a, "transposed", 0), w.output_padding->numbers.data(),
        w.output_padding->numbers.size(), Number(a, "groups", 1), wanted.data(), 3, &r[0], &r[1], &r[2]));
  }

  Outcome Nonzero(const CallArguments& a, absl::Span<Tensor> r, bool into) {
    const Tensor self = Get(a, "self");
    if (into || shim_.nonzero == nullptr || self == nullptr || r.size() != 1) return Outcome::kNotHere;
    return Result(shim_.nonzero(self, &r[0]));
  }
  Outcome MaskedSelect(const CallArguments& a, absl::Span<Tensor> r, bool into) {
    const Tensor self = Get(a, "self"), mask = Get(a, "mask");
    if (into || shim_.masked_select == nullptr || !self || !mask || r.size() != 1) return Outcome::kNotHere;
    return Result(shim_.masked_select(self, mask, &r[0]));
  }
  Outcome MaskedScatter(const CallArguments& a, absl::Span<Tensor> r, bool into) {
    const Tensor self = Get(a, "self"), mask = Get(a, "mask"), source = Get(a, "source");
    if (into || shim_.masked_scatter == nullptr || !self || !mask || !source || r.size() != 1)
      return Outcome::kNotHere;
    return Result(shim_.masked_scatter(self, mask, source, &r[0]));
  }
  Outcome RepeatInterleave(const CallArguments& a, absl::Span<Tensor> r, bool into) {
    const Tensor repeats = Get(a, "repeats");
    if (into || shim_.repeat_interleave == nullptr || repeats == nullptr || r.size() != 1)
      return Outcome::kNotHere;
    const CallValue* size = a.Find("output_size");
    int64_t number = size == nullptr ? 0 : size->number;
    return Result(shim_.repeat_interleave(repeats, size == nullptr ? nullptr : &number, &r[0]));
  }

  // Of a list in which a nullptr is None.
  static std::vector<const Tensor*> Indices(const CallArguments& a) {
    std::vector<const Tensor*> indices;
    const CallValue* given = a.Find("indices");
    if (given == nullptr) return indices;
    for (const Tensor& index : given->tensors) indices.push_back(index == nullptr ? nullptr : &index);
    return indices;
  }
  Outcome IndexTensor(const CallArguments& a, absl::Span<Tensor> r, bool into) {
    const Tensor self = Get(a, "self");
    std::vector<const Tensor*> indices = Indices(a);
    if (into || shim_.index == nullptr || self == nullptr || indices.empty() || r.size() != 1)
      return Outcome::kNotHere;
    return Result(shim_.index(self, indices.data(), static_cast<int64_t>(indices.size()), &r[0]));
  }
  Outcome IndexPut(const CallArguments& a, absl::Span<Tensor> r, bool into) {
    const Tensor self = Get(a, "self"), values = Get(a, "values");
    std::vector<const Tensor*> indices = Indices(a);
    if (into || shim_.index_put == nullptr || !self || !values || indices.empty() || r.size() != 1)
      return Outcome::kNotHere;
    return Result(shim_.index_put(self, indices.data(), static_cast<int64_t>(indices.size()), values,
                                  Number(a, "accumulate", 0) != 0, &r[0]));
  }

  Outcome Attention(const CallArguments& a, absl::Span<Tensor> r, bool into) {
    Tensor query = Get(a, "query"), key = Get(a, "key"), value = Get(a, "value"), mask = Get(a, "attn_mask");
    if (into || shim_.attention == nullptr || !query || !key || !value || r.size() != 2)
      return Outcome::kNotHere;
    double scale = Real(a, "scale", 0);
    return Result(shim_.attention(query, key, value, Real(a, "dropout_p", 0), Number(a, "is_causal", 0),
                                  mask == nullptr ? nullptr : &mask,
                                  a.Find("scale") == nullptr ? nullptr : &scale, &r[0], &r[1]));
  }

  Outcome AttentionBackward(const CallArguments& a, absl::Span<Tensor> r, bool into) {
    Tensor grad = Get(a, "grad_out"), query = Get(a, "query"), key = Get(a, "key"), value = Get(a, "value"),
           out = Get(a, "out"), sums = Get(a, "logsumexp"), mask = Get(a, "attn_mask");
    if (into || shim_.attention_backward == nullptr || !grad || !query || !key || !value || !out || !sums ||
        r.size() != 3) {
      return Outcome::kNotHere;
    }
    double scale = Real(a, "scale", 0);
    return Result(shim_.attention_backward(grad, query, key, value, out, sums, Real(a, "dropout_p", 0),
                                           Number(a, "is_causal", 0), mask == nullptr ? nullptr : &mask,
                                           a.Find("scale") == nullptr ? nullptr : &scale, &r[0], &r[1],
                                           &r[2]));
  }

  Outcome EfficientAttention(const CallArguments& a, absl::Span<Tensor> r, bool into) {
    Tensor query = Get(a, "query"), key = Get(a, "key"), value = Get(a, "value"), bias = Get(a, "attn_bias");
    if (into || shim_.efficient_attention == nullptr || !query || !key || !value || r.size() != 4)
      return Outcome::kNotHere;
    double scale = Real(a, "scale", 0);
    return Result(shim_.efficient_attention(
        query, key, value, bias == nullptr ? nullptr : &bias, Number(a, "compute_log_sumexp", 0),
        Real(a, "dropout_p", 0), Number(a, "is_causal", 0), a.Find("scale") == nullptr ? nullptr : &scale,
        &r[0], &r[1], &r[2], &r[3]));
  }

  Outcome EfficientAttentionBackward(const CallArguments& a, absl::Span<Tensor> r, bool into) {
    Tensor grad = Get(a, "grad_out_"), query = Get(a, "query"), key = Get(a, "key"), value = Get(a, "value"),
           bias = Get(a, "attn_bias"), out = Get(a, "out"), sums = Get(a, "logsumexp"),
           seed = Get(a, "philox_seed"), offset = Get(a, "philox_offset");
    const CallValue* mask = a.Find("grad_input_mask");
    if (into || shim_.efficient_attention_backward == nullptr || !grad || !query || !key || !value || !out ||
        !sums || !seed || !offset || mask == nullptr || mask->numbers.size() != 4 || r.size() != 4) {
      return Outcome::kNotHere;
    }
    Tensor none = nullptr;
    if (bias == nullptr && shim_.new_undefined(&none) != 0) return Outcome::kNotHere;
    const std::array<int32_t, 4> wanted = {mask->numbers[0] != 0, mask->numbers[1] != 0,
                                           mask->numbers[2] != 0, mask->numbers[3] != 0};
    double scale = Real(a, "scale", 0);
    const Outcome outcome = Result(shim_.efficient_attention_backward(
        grad, query, key, value, bias == nullptr ? none : bias, out, sums, seed, offset,
        Real(a, "dropout_p", 0), wanted.data(), 4, Number(a, "is_causal", 0),
        a.Find("scale") == nullptr ? nullptr : &scale, &r[0], &r[1], &r[2], &r[3]));
    if (none != nullptr) Release(none);
    return outcome;
  }

  Outcome CudnnAttention(const CallArguments& a, absl::Span<Tensor> r, bool into) {
    Tensor query = Get(a, "query"), key = Get(a, "key"), value = Get(a, "value"), bias = Get(a, "attn_bias");
    if (into || shim_.cudnn_attention == nullptr || !query || !key || !value || r.size() != 9)
      return Outcome::kNotHere;
    double scale = Real(a, "scale", 0);
    int64_t longest_query = 0, longest_key = 0;  // results 4 and 5, which the graph has as expressions
    return Result(shim_.cudnn_attention(query, key, value, bias == nullptr ? nullptr : &bias,
                                        Number(a, "compute_log_sumexp", 0), Real(a, "dropout_p", 0),
                                        Number(a, "is_causal", 0), Number(a, "return_debug_mask", 0),
                                        a.Find("scale") == nullptr ? nullptr : &scale, &r[0], &r[1], &r[2],
                                        &r[3], &longest_query, &longest_key, &r[6], &r[7], &r[8]));
  }

  Outcome CudnnAttentionBackward(const CallArguments& a, absl::Span<Tensor> r, bool into) {
    constexpr std::array<const char*, 8> kNeeded = {"grad_out", "query",     "key",         "value",
                                                    "out",      "logsumexp", "philox_seed", "philox_offset"};
    constexpr std::array<const char*, 3> kOptional = {"attn_bias", "cum_seq_q", "cum_seq_k"};
    std::array<Tensor, 8> needed;
    for (size_t i = 0; i < needed.size(); ++i) {
      needed[i] = Get(a, kNeeded[i]);
      if (needed[i] == nullptr) return Outcome::kNotHere;
    }
    if (into || shim_.cudnn_attention_backward == nullptr || !a.Find("max_q") || !a.Find("max_k") ||
        r.size() != 3) {
      return Outcome::kNotHere;
    }
    Tensor none = nullptr;
    if (shim_.new_undefined(&none) != 0) return Outcome::kNotHere;
    std::array<Tensor, 3> optional;
    for (size_t i = 0; i < optional.size(); ++i) {
      Tensor given = Get(a, kOptional[i]);
      optional[i] = given == nullptr ? none : given;
    }
    double scale = Real(a, "scale", 0);
    const Outcome outcome = Result(shim_.cudnn_attention_backward(
        needed[0], needed[1], needed[2], needed[3], needed[4], needed[5], needed[6], needed[7], optional[0],
        optional[1], optional[2], Number(a, "max_q", 0), Number(a, "max_k", 0), Real(a, "dropout_p", 0),
        Number(a, "is_causal", 0), a.Find("scale") == nullptr ? nullptr : &scale, &r[0], &r[1], &r[2]));
    Release(none);
    return outcome;
  }

  // What runs there may leave another device behind; ATen's own functions don't.
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
    if (shim_.current_device != nullptr && shim_.current_device(&index) != 0)
      return Refused("gives no current device");
    return index;
  }

  const v1::DeviceType device_;
  LibraryCallback callback_;
  Shim shim_ = {};
  std::atomic<bool> unfreed_ = false;  // a tensor that torch could not free
  TorchPrecision precision_;
  std::unique_ptr<TorchProducts> products_;          // nullptr: none but ATen's
  std::unique_ptr<TorchConvolutions> convolutions_;  // likewise
  int32_t device_type_ = 0;  // torch's numbers of the program's kind of device and of the CPU
  int32_t cpu_type_ = 0;
  std::array<int32_t, v1::DType_ARRAYSIZE> to_torch_ = {};
  std::array<v1::DType, 128> from_torch_ = {};
};

}  // namespace

absl::StatusOr<std::unique_ptr<Host>> NewTorchHost(v1::DeviceType device, LibraryCallback callback) {
  auto host = std::make_unique<TorchHost>(device, std::move(callback));
  KILN_RETURN_IF_ERROR(host->Resolve());
  if (device == v1::CUDA) {
    // Plans are the process's, and outlive it as the host does. Without the library ATen does everything.
    static MatrixProducts* const products = [] {
      const absl::StatusOr<CublasLt> library = FindCublasLt();
      return library.ok() ? new MatrixProducts(*library) : nullptr;
    }();
    if (products != nullptr) host->UseProducts(*products);
    static Convolutions* const convolutions = [] {
      const absl::StatusOr<Cudnn> library = FindCudnn();
      return library.ok() ? new Convolutions(*library) : nullptr;
    }();
    if (convolutions != nullptr) host->UseConvolutions(*convolutions);
  }
  return host;
}

}  // namespace kiln::runtime
