// A code generator: turns one kernel into one loadable object.
//
// Implementations live in an anonymous namespace of their own .cc; only the factory below is public.
// A back-end is immutable after creation and may be used by one thread at a time.
// `Emit` is deterministic: same kernel, same target, same bytes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kiln/v1/artifact.pb.h"
#include "kiln/v1/kernel.pb.h"
#include "kiln/v1/tuning.pb.h"

namespace kiln {

struct EmittedObject {
  v1::ObjectKind kind = v1::OBJECT_UNSPECIFIED;
  std::string bytes;
  std::string listing;  // readable loop IR, LLVM IR and assembly; empty unless asked for
  std::string elf;      // the relocatable object that a flat image was cut from; empty unless asked for
};

// A gemm as a kernel of its own. Its parameters are the addresses of a, b, c and bias where there
// are such, and d, each aligned to 16 bytes.
struct EmittedGemm {
  v1::SkinnySchedule schedule;
  std::string image;
  uint32_t units = 0;  // of the launch
};

class CodegenBackend {
 public:
  virtual ~CodegenBackend() = default;
  virtual absl::string_view name() const = 0;  // "x86", "nvptx"
  // UNIMPLEMENTED with the op named, when this back-end cannot emit the kernel.
  virtual absl::Status Supports(const v1::Kernel& kernel) const = 0;
  // The kernel must have passed ir/verify_kernel.h. INVALID_ARGUMENT otherwise.
  virtual absl::StatusOr<EmittedObject> Emit(const v1::Kernel& kernel, const v1::KernelNotes& notes,
                                             bool want_listing) = 0;
  // Schedules of the same kernel: the one that `Emit` takes where the kernel has none for this target, then a
  // few others, of the same loops. None where there is no choice. The kernel must have passed
  // ir/verify_kernel.h.
  virtual std::vector<v1::KernelSchedule> Schedules(const v1::Kernel& kernel) const { return {}; }
  // The gemm by at most `wanted` schedules, the most promising first. UNIMPLEMENTED where this back-end
  // has no kernel for it.
  virtual absl::StatusOr<std::vector<EmittedGemm>> EmitGemm(const v1::Gemm& gemm, size_t wanted);
};

// By `target.triple`. UNIMPLEMENTED for a triple this build does not know.
absl::StatusOr<std::unique_ptr<CodegenBackend>> NewCodegenBackend(const v1::Target& target);

}  // namespace kiln
