#include "client/runtime/native_product.h"

#include "absl/container/inlined_vector.h"
#include "client/runtime/cuda_kernel.h"
#include "compiler/image/gpu_image.h"
#include "compiler/support/status_macros.h"

namespace kiln::runtime {

absl::StatusOr<std::shared_ptr<const NativeProduct>> NativeProduct::Create(const v1::NativeKernel& kernel,
                                                                           const std::string& bytes,
                                                                           const v1::MatrixProduct& product) {
  KILN_ASSIGN_OR_RETURN(const GpuImage image, ParseGpuImage(bytes));
  const uint32_t operands = 3 + (product.has_c() ? 1 : 0) + (product.bias() ? 1 : 0);
  if (image.buffers != operands || image.symbols != 0 || image.points_per_block != 1 || kernel.units() == 0)
    return absl::InvalidArgumentError("a kernel that is none of its product");
  KILN_ASSIGN_OR_RETURN(auto runner, NewCudaKernel(bytes));
  return std::shared_ptr<const NativeProduct>(new NativeProduct(std::move(runner), kernel.units()));
}

absl::Status NativeProduct::Run(const Product& product, const CallContext& call) const {
  absl::InlinedVector<void*, 5> buffers = {product.a.data, product.b.data};
  if (product.c.data != nullptr) buffers.push_back(product.c.data);
  if (product.bias != nullptr) buffers.push_back(product.bias);
  buffers.push_back(product.d.data);
  KilnArgs args = {};
  args.struct_size = sizeof args;
  args.buffer_count = static_cast<uint32_t>(buffers.size());
  args.buffers = buffers.data();
  return runner_->Run(args, 0, units_, 0, call);
}

}  // namespace kiln::runtime
