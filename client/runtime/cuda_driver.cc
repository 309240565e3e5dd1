#include "client/runtime/cuda_driver.h"

#include <dlfcn.h>

#include <array>
#include <atomic>

#include "absl/strings/str_cat.h"
#include "client/client_limits.h"
#include "client/runtime/library_functions.h"
#include "compiler/support/status_macros.h"

namespace kiln::runtime {
namespace {

absl::StatusOr<CudaDriver> FindDriver() {
  void* cuda = dlopen("libcuda.so.1", RTLD_NOW);
  if (cuda == nullptr) return absl::UnimplementedError("unsupported: no NVIDIA driver (libcuda.so.1)");
  CudaDriver driver = {};
  LibraryFunctions functions(cuda);
  functions.Need(driver.load, "cuModuleLoadData");
  functions.Need(driver.unload, "cuModuleUnload");
  functions.Need(driver.function, "cuModuleGetFunction");
  functions.Need(driver.launch, "cuLaunchKernel");
  functions.Need(driver.error, "cuGetErrorString");
  functions.Need(driver.device, "cuDeviceGet");
  functions.Need(driver.retain_context, "cuDevicePrimaryCtxRetain");
  functions.Need(driver.current_context, "cuCtxGetCurrent");
  functions.Need(driver.set_context, "cuCtxSetCurrent");
  functions.Need(driver.wait, "cuStreamSynchronize");
  functions.Need(driver.is_capturing, "cuStreamIsCapturing");
  functions.Want(driver.capture_info, "cuStreamGetCaptureInfo_v2");
  functions.Want(driver.capture_dependencies, "cuStreamUpdateCaptureDependencies");
  if (functions.missing() != nullptr)
    return absl::UnimplementedError(absl::StrCat("unsupported: no function ", functions.missing()));
  return driver;
}

}  // namespace

const absl::StatusOr<CudaDriver>& TheCudaDriver() {
  static const auto* driver = new absl::StatusOr<CudaDriver>(FindDriver());
  return *driver;
}

absl::Status CudaDriver::Error(Result result, absl::string_view what) const {
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

}  // namespace kiln::runtime
