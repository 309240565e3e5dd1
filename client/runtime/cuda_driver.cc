#include "client/runtime/cuda_driver.h"

#include <dlfcn.h>

#include <array>
#include <atomic>

#include "absl/strings/str_cat.h"
#include "compiler/support/status_macros.h"

namespace kiln::runtime {
namespace {

absl::StatusOr<CudaDriver> FindDriver() {
  void* cuda = dlopen("libcuda.so.1", RTLD_NOW);
  if (cuda == nullptr) return absl::UnimplementedError("unsupported: no NVIDIA driver (libcuda.so.1)");
  CudaDriver driver = {};
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
  need(driver.is_capturing, "cuStreamIsCapturing");
  if (missing != nullptr) return absl::UnimplementedError(absl::StrCat("unsupported: no function ", missing));
  return driver;
}

}  // namespace

const absl::StatusOr<CudaDriver>& TheCudaDriver() {
  static const auto* driver = new absl::StatusOr<CudaDriver>(FindDriver());
  return *driver;
}

absl::Status CudaDriver::Check(Result result, absl::string_view what) const {
  if (result == 0) return absl::OkStatus();
  const char* text = nullptr;
  error(result, &text);
  return absl::InternalError(
      absl::StrCat("CUDA driver, ", what, ": ", text == nullptr ? "unknown error" : text));
}

absl::Status UseCudaContext(const CudaDriver& driver, int32_t device) {
  static std::array<std::atomic<CudaDriver::Context>, kCudaDevicesMax>
      contexts;  // retained for the process's life
  if (device < 0 || device >= kCudaDevicesMax) {
    return absl::InternalError(absl::StrCat("a GPU's work on device ", device));
  }
  CudaDriver::Context context = contexts[device].load(std::memory_order_acquire);
  if (context == nullptr) {
    int number = 0;
    KILN_RETURN_IF_ERROR(driver.Check(driver.device(&number, device), "find device"));
    KILN_RETURN_IF_ERROR(driver.Check(driver.retain_context(&context, number), "retain context"));
    contexts[device].store(context, std::memory_order_release);
  }
  CudaDriver::Context current = nullptr;
  KILN_RETURN_IF_ERROR(driver.Check(driver.current_context(&current), "get context"));
  if (current == context) return absl::OkStatus();
  return driver.Check(driver.set_context(context), "set context");
}

bool UseGpu(int32_t device) {
  const absl::StatusOr<CudaDriver>& driver = TheCudaDriver();
  return driver.ok() && UseCudaContext(*driver, device).ok();
}

}  // namespace kiln::runtime
