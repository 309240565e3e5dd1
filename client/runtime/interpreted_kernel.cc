#include "client/runtime/interpreted_kernel.h"

namespace kiln::runtime {

absl::StatusOr<std::shared_ptr<const KernelRunner>> NewInterpretedKernel(const std::string& loop_ir) {
  return absl::UnimplementedError("this build has no interpreter");
}

}  // namespace kiln::runtime
