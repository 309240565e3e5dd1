// Emits, loads and runs kernels for tests.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "compiler/codegen/codegen_backend.h"
#include "compiler/image/flat_image.h"
#include "compiler/support/status_macros.h"

namespace kiln {

class CompiledKernel {
 public:
  static absl::StatusOr<CompiledKernel> Create(CodegenBackend* backend, const v1::Kernel& kernel) {
    KILN_ASSIGN_OR_RETURN(const EmittedObject object, backend->Emit(kernel, {}, false));
    CompiledKernel result;
    const absl::string_view bytes = object.bytes;
    KILN_ASSIGN_OR_RETURN(result.images_, LoadImages({bytes}));
    return result;
  }

  KilnStatus Run(const std::vector<void*>& buffers, int64_t begin, int64_t end,
                 const std::vector<int64_t>& symbols = {}) const {
    KilnStatus status = {};
    KilnArgs args = {sizeof(KilnArgs), static_cast<uint32_t>(buffers.size()), buffers.data(), symbols.data(),
                     &status};
    const int32_t code = images_->entry(0)(&args, begin, end, 0);
    if (code != status.code) status.code = -1;
    return status;
  }

 private:
  std::unique_ptr<LoadedImages> images_;
};

}  // namespace kiln
