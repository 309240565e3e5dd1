#include "compiler/codegen/codegen_backend.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "compiler/codegen/codegen_nvptx.h"
#include "compiler/codegen/codegen_x86.h"

namespace kiln {

absl::StatusOr<std::unique_ptr<CodegenBackend>> NewCodegenBackend(const v1::Target& target) {
  if (absl::StartsWith(target.triple(), "x86_64-")) return NewX86Backend(target);
  if (absl::StartsWith(target.triple(), "nvptx64-")) return NewNvptxBackend(target);
  return absl::UnimplementedError(absl::StrCat("unsupported: target ", target.triple()));
}

}  // namespace kiln
