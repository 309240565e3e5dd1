#include "client/runtime/cuda_kernel.h"

#include <dlfcn.h>

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "compiler/codegen/gpu_image.h"
#include "compiler/support/status_macros.h"

namespace kiln::runtime {
namespace {

using Result = int;  // CUresult; 0 is success
using Module = void*;
using Function = void*;
using Context = void*;

constexpr int64_t kBlocksMax = int64_t{1} << 20;  // beyond it blocks take several turns

// cuda.h's functions, in the versions that its names stand for.
struct Driver {
  Result (*load)(Module*, const void* image);
  Result (*unload)(Module);
  Result (*function)(Function*, Module, const char* name);
  Result (*launch)(Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned shared,
                   void* stream, void** parameters, void** extra);
  Result (*current)(Context*);
  Result (*error)(Result, const char** text);
  int32_t (*stream)(int32_t device, void** stream);  // torch's
  int32_t (*device)(int32_t* device);                // torch's
};

absl::StatusOr<Driver> FindDriver() {
  void* cuda = dlopen("libcuda.so.1", RTLD_NOW);
  if (cuda == nullptr) return absl::UnimplementedError("unsupported: no NVIDIA driver (libcuda.so.1)");
  void* torch_cuda = dlopen("libtorch_cuda.so", RTLD_NOLOAD | RTLD_LAZY);
  if (torch_cuda == nullptr) return absl::UnimplementedError("unsupported: this torch has no CUDA");
  void* torch = dlopen("libtorch_cpu.so", RTLD_NOLOAD | RTLD_LAZY);
  Driver driver = {};
  const char* missing = nullptr;
  const auto need = [&](auto& function, std::initializer_list<void*> libraries, const char* name) {
    for (void* library : libraries) {
      if (function == nullptr && library != nullptr) {
        function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
      }
    }
    if (function == nullptr) missing = name;
  };
  need(driver.load, {cuda}, "cuModuleLoadData");
  need(driver.unload, {cuda}, "cuModuleUnload");
  need(driver.function, {cuda}, "cuModuleGetFunction");
  need(driver.launch, {cuda}, "cuLaunchKernel");
  need(driver.current, {cuda}, "cuCtxGetCurrent");
  need(driver.error, {cuda}, "cuGetErrorString");
  need(driver.stream, {torch_cuda, torch}, "aoti_torch_get_current_cuda_stream");
  need(driver.device, {torch, torch_cuda}, "aoti_torch_get_current_device_index");
  if (missing != nullptr) return absl::UnimplementedError(absl::StrCat("unsupported: no function ", missing));
  return driver;
}

const absl::StatusOr<Driver>& TheDriver() {
  static const auto* driver = new absl::StatusOr<Driver>(FindDriver());
  return *driver;
}

class CudaKernel : public KernelRunner {
 public:
  CudaKernel(const Driver& driver, GpuImage image) : driver_(driver), image_(std::move(image)) {}
  ~CudaKernel() override {
    for (const auto& [context, loaded] : loaded_) driver_.unload(loaded.module);
  }

  absl::Status Run(const KilnArgs& args, int64_t begin, int64_t end, uint32_t) const override {
    const int64_t units = end - begin;
    if (units <= 0) return absl::OkStatus();
    KILN_ASSIGN_OR_RETURN(Function function, InCurrentContext());
    int32_t device = 0;
    void* stream = nullptr;
    if (driver_.device(&device) != 0 || driver_.stream(device, &stream) != 0) {
      return absl::InternalError("torch gives no CUDA stream");
    }
    absl::InlinedVector<void*, 32> parameters;
    for (uint32_t k = 0; k < image_.buffers; ++k) parameters.push_back(const_cast<void**>(&args.buffers[k]));
    for (uint32_t k = 0; k < image_.symbols; ++k)
      parameters.push_back(const_cast<int64_t*>(&args.symbols[k]));
    const int64_t blocks =
        std::min((units + image_.points_per_block - 1) / image_.points_per_block, kBlocksMax);
    return Check(driver_.launch(function, static_cast<unsigned>(blocks), 1, 1, image_.threads, 1, 1, 0,
                                stream, parameters.data(), nullptr),
                 "launch");
  }

 private:
  struct Loaded {
    Module module = nullptr;
    Function function = nullptr;
  };

  absl::Status Check(Result result, absl::string_view what) const {
    if (result == 0) return absl::OkStatus();
    const char* text = nullptr;
    driver_.error(result, &text);
    return absl::InternalError(
        absl::StrCat("CUDA driver, ", what, ": ", text == nullptr ? "unknown error" : text));
  }

  // A module belongs to a context, that is, to a device.
  absl::StatusOr<Function> InCurrentContext() const {
    Context context = nullptr;
    KILN_RETURN_IF_ERROR(Check(driver_.current(&context), "current context"));
    if (context == nullptr) return absl::FailedPreconditionError("no CUDA context on this thread");
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [known, loaded] : loaded_) {
      if (known == context) return loaded.function;
    }
    Loaded loaded;
    KILN_RETURN_IF_ERROR(Check(driver_.load(&loaded.module, image_.code.c_str()), "load"));
    KILN_RETURN_IF_ERROR(
        Check(driver_.function(&loaded.function, loaded.module, kGpuEntryName), "find kernel"));
    loaded_.emplace_back(context, loaded);
    return loaded.function;
  }

  const Driver driver_;
  const GpuImage image_;
  mutable std::mutex mutex_;
  mutable std::vector<std::pair<Context, Loaded>> loaded_;  // guarded by mutex_
};

}  // namespace

absl::StatusOr<std::shared_ptr<const KernelRunner>> NewCudaKernel(absl::string_view bytes) {
  KILN_ASSIGN_OR_RETURN(GpuImage image, ParseGpuImage(bytes));
  const absl::StatusOr<Driver>& driver = TheDriver();
  if (!driver.ok()) return driver.status();
  return std::shared_ptr<const KernelRunner>(std::make_shared<CudaKernel>(*driver, std::move(image)));
}

}  // namespace kiln::runtime
