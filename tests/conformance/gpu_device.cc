#include "tests/conformance/gpu_device.h"

#include <dlfcn.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/runtime/cuda_driver.h"
#include "client/runtime/library_functions.h"
#include "compiler/support/status_macros.h"
#include "tests/conformance/gpu_target.h"

namespace kiln::testing {
namespace {

constexpr unsigned kAttachGlobal = 1;  // CU_MEM_ATTACH_GLOBAL
constexpr int kComputeMajor = 75;      // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
constexpr int kComputeMinor = 76;

}  // namespace

absl::StatusOr<GpuDevice*> GpuDevice::Find() {
  static auto* device = new absl::StatusOr<GpuDevice>(Open());
  if (!device->ok()) return device->status();
  return &**device;
}

absl::StatusOr<GpuDevice> GpuDevice::Open() {
  const absl::StatusOr<runtime::CudaDriver>& driver = runtime::TheCudaDriver();
  if (!driver.ok()) return absl::UnavailableError("no NVIDIA GPU here");
  void* cuda = dlopen("libcuda.so.1", RTLD_NOW);
  GpuDevice device;
  int (*initialize)(unsigned) = nullptr;
  int (*count)(int*) = nullptr;
  int (*attribute)(int*, int which, int ordinal) = nullptr;
  runtime::LibraryFunctions functions(cuda);
  functions.Need(initialize, "cuInit");
  functions.Need(count, "cuDeviceGetCount");
  functions.Need(attribute, "cuDeviceGetAttribute");
  functions.Need(device.allocate_, "cuMemAllocManaged");
  functions.Need(device.free_, "cuMemFree_v2");
  functions.Need(device.wait_, "cuCtxSynchronize");
  if (functions.missing() != nullptr)
    return absl::InternalError(absl::StrCat("libcuda.so.1 has no ", functions.missing()));
  int devices = 0;
  if (initialize(0) != 0 || count(&devices) != 0 || devices == 0)
    return absl::UnavailableError("no NVIDIA GPU here");
  KILN_RETURN_IF_ERROR(runtime::UseCudaContext(*driver, 0));
  int major = 0, minor = 0;
  KILN_RETURN_IF_ERROR(driver->Check(attribute(&major, kComputeMajor, 0), "attribute"));
  KILN_RETURN_IF_ERROR(driver->Check(attribute(&minor, kComputeMinor, 0), "attribute"));
  device.target_ = GpuTarget(absl::StrCat("sm_", major, minor));
  return device;
}

absl::StatusOr<std::shared_ptr<char>> GpuDevice::Allocate(size_t bytes) {
  uint64_t address = 0;
  KILN_RETURN_IF_ERROR(runtime::TheCudaDriver()->Check(
      allocate_(&address, std::max<size_t>(bytes, 1), kAttachGlobal), "allocate"));
  return std::shared_ptr<char>(reinterpret_cast<char*>(address),
                               [this](char* data) { free_(reinterpret_cast<uint64_t>(data)); });
}

absl::Status GpuDevice::Wait() { return runtime::TheCudaDriver()->Check(wait_(), "run"); }

}  // namespace kiln::testing
