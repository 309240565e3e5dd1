#include "compiler/codegen/codegen_backend.h"

#include <stdlib.h>

#include <new>

#include "absl/strings/str_cat.h"
#include "compiler/codegen/codegen_cpu.h"
#include "compiler/codegen/codegen_nvptx.h"
#include "compiler/target/device.h"
#include "llvm/Support/ErrorHandling.h"

namespace kiln {
namespace {

// LLVM's containers use malloc: when it fails the process ends as it does when `new` fails.
void EndAsNewDoes(void*, const char*, bool) {
  if (const std::new_handler handler = std::get_new_handler(); handler != nullptr) handler();
  abort();
}

}  // namespace

absl::StatusOr<std::vector<EmittedGemm>> CodegenBackend::EmitGemm(const v1::Gemm&, size_t) {
  return absl::UnimplementedError(absl::StrCat("unsupported: a gemm by ", name()));
}

absl::StatusOr<std::unique_ptr<CodegenBackend>> NewCodegenBackend(const v1::Target& target) {
  static const bool installed = (llvm::install_bad_alloc_error_handler(EndAsNewDoes), true);
  (void)installed;
  if (IsGpu(target)) return NewNvptxBackend(target);
  return NewCpuBackend(target);
}

}  // namespace kiln
