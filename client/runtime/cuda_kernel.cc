#include "client/runtime/cuda_kernel.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
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
using Context = void*;
using Module = void*;
using Function = void*;

constexpr int64_t kBlocksMax = int64_t{1} << 20;  // beyond it blocks take several turns
constexpr int32_t kDevicesMax = 64;

// cuda.h's functions, in the versions that its names stand for.
struct Driver {
  Result (*load)(Module*, const void* image);
  Result (*unload)(Module);
  Result (*function)(Function*, Module, const char* name);
  Result (*launch)(Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned shared,
                   void* stream, void** parameters, void** extra);
  Result (*error)(Result, const char** text);
  Result (*device)(int* device, int ordinal);
  Result (*retain_context)(Context*, int device);
  Result (*current_context)(Context*);
  Result (*set_context)(Context);
};

absl::StatusOr<Driver> FindDriver() {
  void* cuda = dlopen("libcuda.so.1", RTLD_NOW);
  if (cuda == nullptr) return absl::UnimplementedError("unsupported: no NVIDIA driver (libcuda.so.1)");
  Driver driver = {};
  const char* missing = nullptr;
  const auto need = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(cuda, name));
    if (function == nullptr) missing = name;
  };
  need(driver.load, "cuModuleLoadData");
  need(driver.unload, "cuModuleUnload");
  need(driver.function, "cuModuleGetFunction");
  need(driver.launch, "cuLaunchKernel");
  need(driver.error, "cuGetErrorString");
  need(driver.device, "cuDeviceGet");
  need(driver.retain_context, "cuDevicePrimaryCtxRetain");
  need(driver.current_context, "cuCtxGetCurrent");
  need(driver.set_context, "cuCtxSetCurrent");
  if (missing != nullptr) return absl::UnimplementedError(absl::StrCat("unsupported: no function ", missing));
  return driver;
}

const absl::StatusOr<Driver>& TheDriver() {
  static const auto* driver = new absl::StatusOr<Driver>(FindDriver());
  return *driver;
}

absl::Status Check(const Driver& driver, Result result, absl::string_view what) {
  if (result == 0) return absl::OkStatus();
  const char* text = nullptr;
  driver.error(result, &text);
  return absl::InternalError(
      absl::StrCat("CUDA driver, ", what, ": ", text == nullptr ? "unknown error" : text));
}

// Makes the device's primary context, which is torch's, current on this thread. torch does so only at its own
// first call of the runtime there, and a kernel may come first.
absl::Status UseContext(const Driver& driver, int32_t device) {
  static std::array<std::atomic<Context>, kDevicesMax> contexts;  // retained for the life of the process
  Context context = contexts[device].load(std::memory_order_acquire);
  if (context == nullptr) {
    int number = 0;
    KILN_RETURN_IF_ERROR(Check(driver, driver.device(&number, device), "find device"));
    KILN_RETURN_IF_ERROR(Check(driver, driver.retain_context(&context, number), "retain context"));
    contexts[device].store(context, std::memory_order_release);
  }
  Context current = nullptr;
  KILN_RETURN_IF_ERROR(Check(driver, driver.current_context(&current), "get context"));
  if (current == context) return absl::OkStatus();
  return Check(driver, driver.set_context(context), "set context");
}

class CudaKernel : public KernelRunner {
 public:
  CudaKernel(const Driver& driver, GpuImage image) : driver_(driver), image_(std::move(image)) {}
  ~CudaKernel() override {
    for (Module module : modules_) driver_.unload(module);
  }

  absl::Status Run(const KilnArgs& args, int64_t begin, int64_t end, uint32_t,
                   const CallContext& call) const override {
    const int64_t units = end - begin;
    if (units <= 0) return absl::OkStatus();
    if (!call.on_gpu() || call.device >= kDevicesMax) {
      return absl::InternalError(absl::StrCat("a GPU's kernel on device ", call.device));
    }
    KILN_RETURN_IF_ERROR(UseContext(driver_, call.device));
    Function function = functions_[call.device].load(std::memory_order_acquire);
    if (function == nullptr) {
      KILN_ASSIGN_OR_RETURN(function, LoadOn(call.device));
    }
    absl::InlinedVector<void*, 32> parameters;
    for (uint32_t k = 0; k < image_.buffers; ++k)
      parameters.push_back(static_cast<void*>(const_cast<void**>(&args.buffers[k])));
    for (uint32_t k = 0; k < image_.symbols; ++k)
      parameters.push_back(const_cast<int64_t*>(&args.symbols[k]));
    const int64_t blocks =
        std::min((units + image_.points_per_block - 1) / image_.points_per_block, kBlocksMax);
    return Check(driver_,
                 driver_.launch(function, static_cast<unsigned>(blocks), 1, 1, image_.threads, 1, 1, 0,
                                call.stream, parameters.data(), nullptr),
                 "launch");
  }

 private:
  // A module belongs to a context: the device's primary one, which is current here.
  absl::StatusOr<Function> LoadOn(int32_t device) const {
    std::lock_guard<std::mutex> lock(mutex_);
    if (Function known = functions_[device].load(std::memory_order_relaxed)) return known;
    Module module = nullptr;
    KILN_RETURN_IF_ERROR(Check(driver_, driver_.load(&module, image_.code.c_str()), "load"));
    modules_.push_back(module);
    Function function = nullptr;
    KILN_RETURN_IF_ERROR(Check(driver_, driver_.function(&function, module, kGpuEntryName), "find kernel"));
    functions_[device].store(function, std::memory_order_release);
    return function;
  }

  const Driver driver_;
  const GpuImage image_;
  mutable std::array<std::atomic<Function>, kDevicesMax> functions_ = {};  // by device; nullptr: not loaded
  mutable std::mutex mutex_;
  mutable std::vector<Module> modules_;  // guarded by mutex_
};

}  // namespace

absl::StatusOr<std::shared_ptr<const KernelRunner>> NewCudaKernel(absl::string_view bytes) {
  KILN_ASSIGN_OR_RETURN(GpuImage image, ParseGpuImage(bytes));
  const absl::StatusOr<Driver>& driver = TheDriver();
  if (!driver.ok()) return driver.status();
  return std::shared_ptr<const KernelRunner>(std::make_shared<CudaKernel>(*driver, std::move(image)));
}

}  // namespace kiln::runtime
