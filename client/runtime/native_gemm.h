// A gemm by a kernel of our own, which was measured to be faster than the library.
//
// Threads: immutable after creation; Run as KernelRunner's. Errors: INVALID_ARGUMENT for a kernel that is not
// one of such a gemm, otherwise as NewCudaKernel's.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/runtime/cublas_lt_gemms.h"
#include "client/runtime/kernels.h"
#include "kiln/v1/tuning.pb.h"

namespace kiln::runtime {

class NativeGemm {
 public:
  // `image`: the kernel's, wherever it came from.
  static absl::StatusOr<std::shared_ptr<const NativeGemm>> Create(const v1::NativeKernel& kernel,
                                                                  const std::string& image,
                                                                  const v1::Gemm& gemm);

  // Of gemms that are described alike: whether the kernel does this one, whose factors it does not have.
  static bool Does(const Gemm& gemm) { return gemm.alpha == 1 && (gemm.c.data == nullptr || gemm.beta == 1); }
  absl::Status Run(const Gemm& gemm, const CallContext& call) const;

 private:
  NativeGemm(std::shared_ptr<const KernelRunner> runner, uint32_t units)
      : runner_(std::move(runner)), units_(units) {}

  const std::shared_ptr<const KernelRunner> runner_;  // as LoadKernels gives them
  const uint32_t units_;
};

}  // namespace kiln::runtime
