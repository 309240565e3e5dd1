#include "client/runtime/cuda_kernel.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "client/client_limits.h"
#include "client/runtime/cuda_driver.h"
#include "compiler/image/gpu_image.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/member_table.h"
#include "compiler/support/status_macros.h"

namespace kiln::runtime {
namespace {

using Module = CudaDriver::Module;
using Function = CudaDriver::Function;

class CudaKernel : public KernelRunner {
 public:
  CudaKernel(const CudaDriver& driver, GpuImage image) : driver_(driver), image_(std::move(image)) {}
  ~CudaKernel() override {
    for (Module module : modules_) driver_.unload(module);
  }

  absl::Status Run(const KilnArgs& args, int64_t begin, int64_t end, uint32_t,
                   const CallContext& call) const override {
    const int64_t units = end - begin;
    if (units <= 0) return absl::OkStatus();
    if (image_.members > 0) {
      const LaunchMember member = {args, units};
      return RunMembers({&member, 1}, call).status();
    }
    absl::InlinedVector<void*, 32> parameters;
    for (uint32_t k = 0; k < image_.buffers; ++k)
      parameters.push_back(static_cast<void*>(const_cast<void**>(&args.buffers[k])));
    for (uint32_t k = 0; k < image_.symbols; ++k)
      parameters.push_back(const_cast<int64_t*>(&args.symbols[k]));
    return Launch(BlocksOf(units, kLaunchBlocksMax), parameters.data(), call);
  }

  absl::StatusOr<uint64_t> RunMembers(absl::Span<const LaunchMember> members,
                                      const CallContext& call) const override {
    if (image_.members == 0) return KernelRunner::RunMembers(members, call);
    uint64_t launches = 0;
    for (size_t from = 0; from < members.size(); from += image_.members) {
      KILN_ASSIGN_OR_RETURN(const bool launched, LaunchMembers(members.subspan(from, image_.members), call));
      launches += launched ? 1 : 0;
    }
    return launches;
  }

  bool Stores(size_t buffer) const override { return image_.Stores(buffer); }

 private:
  uint32_t BlocksOf(int64_t units, int64_t most) const {
    return static_cast<uint32_t>(std::min(
        (std::max<int64_t>(units, 0) + image_.points_per_block - 1) / image_.points_per_block, most));
  }

  absl::Status Launch(uint32_t blocks, void** parameters, const CallContext& call) const {
    if (!call.on_gpu() || call.device >= kCudaDevicesMax) {
      return absl::InternalError(absl::StrCat("a GPU's kernel on device ", call.device));
    }
    Function function = functions_[call.device].load(std::memory_order_acquire);
    if (function == nullptr) {
      KILN_ASSIGN_OR_RETURN(function, LoadOn(call.device));
    }
    return driver_.Check(
        driver_.launch(function, blocks, 1, 1, image_.threads, 1, 1, 0, call.stream, parameters, nullptr),
        "launch");
  }

  // No more members than one launch takes; false where none has any units.
  absl::StatusOr<bool> LaunchMembers(absl::Span<const LaunchMember> members, const CallContext& call) const {
    MemberTableWriter table({image_.members, image_.buffers + image_.symbols});
    for (const LaunchMember& member : members) {
      table.Add(BlocksOf(member.units, kLaunchBlocksMax), member.args.buffers, image_.buffers,
                member.args.symbols);
    }
    if (table.blocks() == 0) return false;
    void* parameters[] = {table.Finish()};  // the driver copies it
    KILN_RETURN_IF_ERROR(Launch(table.blocks(), parameters, call));
    return true;
  }

  // A module belongs to a context: the device's primary one, which is current here.
  absl::StatusOr<Function> LoadOn(int32_t device) const {
    std::lock_guard<std::mutex> lock(mutex_);
    if (Function known = functions_[device].load(std::memory_order_relaxed)) return known;
    Module module = nullptr;
    // A driver that is older than the assembler, or of another architecture, takes the PTX alone.
    const bool loaded = !image_.cubin.empty() && driver_.load(&module, image_.cubin.data()) == 0;
    if (!loaded) KILN_RETURN_IF_ERROR(driver_.Check(driver_.load(&module, image_.ptx.c_str()), "load"));
    modules_.push_back(module);
    Function function = nullptr;
    KILN_RETURN_IF_ERROR(driver_.Check(driver_.function(&function, module, kGpuEntryName), "find kernel"));
    functions_[device].store(function, std::memory_order_release);
    return function;
  }

  const CudaDriver driver_;
  const GpuImage image_;
  mutable std::array<std::atomic<Function>, kCudaDevicesMax> functions_ =
      {};  // by device; nullptr: not loaded
  mutable std::mutex mutex_;
  mutable std::vector<Module> modules_;  // guarded by mutex_
};

}  // namespace

absl::StatusOr<std::shared_ptr<const KernelRunner>> NewCudaKernel(absl::string_view bytes) {
  KILN_ASSIGN_OR_RETURN(GpuImage image, ParseGpuImage(bytes));
  const absl::StatusOr<CudaDriver>& driver = TheCudaDriver();
  if (!driver.ok()) return driver.status();
  return std::shared_ptr<const KernelRunner>(std::make_shared<CudaKernel>(*driver, std::move(image)));
}

}  // namespace kiln::runtime
