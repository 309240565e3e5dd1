#include "client/runtime/native_gemm.h"

#include "absl/container/inlined_vector.h"
#include "client/runtime/cuda_kernel.h"
#include "compiler/image/gpu_image.h"
#include "compiler/support/status_macros.h"

namespace kiln::runtime {

absl::StatusOr<std::shared_ptr<const NativeGemm>> NativeGemm::Create(const v1::NativeKernel& kernel,
                                                                     const std::string& bytes,
                                                                     const v1::Gemm& gemm) {
  KILN_ASSIGN_OR_RETURN(const GpuImage image, ParseGpuImage(bytes));
  const uint32_t operands = 3 + (gemm.has_c() ? 1 : 0) + (gemm.bias() ? 1 : 0);
  if (image.buffers != operands || image.symbols != 0 || image.points_per_block != 1 || kernel.units() == 0)
    return absl::InvalidArgumentError("a kernel that is none of its gemm");
  KILN_ASSIGN_OR_RETURN(auto runner, NewCudaKernel(bytes));
  return std::shared_ptr<const NativeGemm>(new NativeGemm(std::move(runner), kernel.units()));
}

absl::Status NativeGemm::Run(const Gemm& gemm, const CallContext& call) const {
  absl::InlinedVector<void*, 5> buffers = {gemm.a.data, gemm.b.data};
  if (gemm.c.data != nullptr) buffers.push_back(gemm.c.data);
  if (gemm.bias != nullptr) buffers.push_back(gemm.bias);
  buffers.push_back(gemm.d.data);
  KilnArgs args = {};
  args.struct_size = sizeof args;
  args.buffer_count = static_cast<uint32_t>(buffers.size());
  args.buffers = buffers.data();
  return runner_->Run(args, 0, units_, 0, call);
}

}  // namespace kiln::runtime
