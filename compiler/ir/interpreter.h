// The reference: runs a kernel on real memory as generated code would, one loop op after another.
// Every other back-end is compared with it, and it is what `KILN_DEBUG_INTERPRET` runs.
//
// Same entry as a compiled kernel (kernel_abi.h): units [begin, end), the status slot, the numerics of
// ops.def. Sums of F32 are kept in double. Unlike compiled code it checks every access against the
// buffer's span.
//
// Threads: `Run` is const and may be called from many threads. Ownership: keeps what it needs of the
// kernel. Errors: INVALID_ARGUMENT from Create for a kernel that VerifyKernel refuses; INTERNAL from
// Run when the kernel reaches outside a buffer, which is the compiler's fault.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "compiler/support/kernel_abi.h"
#include "kiln/v1/kernel.pb.h"

namespace kiln {

class KernelInterpreter {
 public:
  static absl::StatusOr<std::unique_ptr<KernelInterpreter>> Create(const v1::Kernel& kernel);
  virtual ~KernelInterpreter() = default;

  // A KilnStatusCode, as the compiled kernel would return it.
  virtual absl::StatusOr<int32_t> Run(const KilnArgs& args, int64_t begin, int64_t end,
                                      uint32_t thread) const = 0;
  // How many units there are with these symbols. INTERNAL when an extent has no value.
  virtual absl::StatusOr<int64_t> Units(const int64_t* symbols) const = 0;

 protected:
  KernelInterpreter() = default;
};

}  // namespace kiln
