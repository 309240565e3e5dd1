// Plans graphs and emits their kernels for emitted.py, which asks by its standard input:
//   PlanRequest in, a 32-bit size before it; its graph need not be canonical, and its digest is not looked at
//   text out: a line "NAME DIGEST" for the program, for each kernel and, of what max-autotune would measure
//   on a GPU, for the list, for all schedules of a kernel and for the kernels of a gemm; or "error MESSAGE";
//   then an empty line
// Digests are of an x86 kernel's image, and of a GPU kernel's PTX and launch: a build with an assembler
// prints what one without does. How a schedule is written down is in none. Ends with the input; 1 for an
// input that is none.
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "compiler/artifact/plan.h"
#include "compiler/codegen/codegen_backend.h"
#include "compiler/graph/canonical.h"
#include "compiler/graph/schedule_text.h"
#include "compiler/image/gpu_image.h"
#include "compiler/support/digest.h"
#include "compiler/support/proto_util.h"
#include "compiler/support/status_macros.h"
#include "compiler/target/device.h"

namespace kiln {
namespace {

constexpr uint32_t kRequestBytesMax = 256u << 20;
constexpr size_t kGemmKernels = 4;  // as the worker emits them
constexpr size_t kDigestCharacters = 24;

std::string ShortDigest(absl::string_view bytes) {
  return absl::BytesToHexString(Sha256(bytes)).substr(0, kDigestCharacters);
}

// Without machine code, which not every build has.
absl::StatusOr<std::string> DigestOfImage(const std::string& bytes, bool on_gpu) {
  if (!on_gpu) return ShortDigest(bytes);
  KILN_ASSIGN_OR_RETURN(GpuImage image, ParseGpuImage(bytes));
  image.cubin.clear();
  return ShortDigest(SerializeGpuImage(image));
}

class Emitter {
 public:
  absl::StatusOr<std::string> Answer(const std::string& bytes) {
    v1::PlanRequest request;
    KILN_RETURN_IF_ERROR(ParseProto(bytes, "request", &request));
    KILN_RETURN_IF_ERROR(ParseProto(request.sections().target(), "target", &target_));
    KILN_ASSIGN_OR_RETURN(backend_, BackendFor(request.sections().target()));
    v1::Graph graph;
    KILN_RETURN_IF_ERROR(ParseProto(request.graph(), "graph", &graph));
    KILN_ASSIGN_OR_RETURN(CanonicalGraph canonical, Canonicalize(graph));
    request.set_graph(std::move(canonical.bytes));
    KILN_ASSIGN_OR_RETURN(const v1::PlanReply plan, PlanGraph(request, backend_));
    std::string text;
    Add("(program)", ShortDigest(SerializeDeterministic(plan.program())), &text);
    for (const v1::PlannedKernel& planned : plan.kernels()) {
      KILN_ASSIGN_OR_RETURN(const std::string digest, DigestOfKernel(planned));
      Add(planned.notes().name(), digest, &text);
    }
    KILN_RETURN_IF_ERROR(AddTunables(plan, &text));
    return text;
  }

 private:
  static void Add(absl::string_view name, absl::string_view digest, std::string* text) {
    absl::StrAppend(text, absl::StrReplaceAll(name, {{" ", "_"}, {"\n", "_"}}), " ", digest, "\n");
  }

  bool on_gpu() const { return IsGpu(target_); }

  absl::StatusOr<CodegenBackend*> BackendFor(const std::string& target) {
    std::unique_ptr<CodegenBackend>& backend = backends_[target];
    if (backend == nullptr) {
      KILN_ASSIGN_OR_RETURN(backend, NewCodegenBackend(target_));
    }
    return backend.get();
  }

  // Graphs share kernels.
  absl::StatusOr<std::string> DigestOfKernel(const v1::PlannedKernel& planned) {
    std::string& digest = digests_[{backend_, Sha256(planned.kernel())}];
    if (digest.empty()) {
      v1::Kernel kernel;
      KILN_RETURN_IF_ERROR(ParseProto(planned.kernel(), "kernel", &kernel));
      KILN_ASSIGN_OR_RETURN(const EmittedObject object, backend_->Emit(kernel, planned.notes(), false));
      KILN_ASSIGN_OR_RETURN(digest, DigestOfImage(object.bytes, on_gpu()));
    }
    return digest;
  }

  absl::Status AddTunables(const v1::PlanReply& plan, std::string* text) {
    std::map<std::string, const v1::PlannedKernel*> kernels;
    for (const v1::PlannedKernel& planned : plan.kernels()) kernels[Sha256(planned.kernel())] = &planned;
    std::string all;
    int gemms = 0;
    for (const v1::Tunable& tunable : plan.tunables()) {
      v1::Tunable unscheduled = tunable;
      if (tunable.has_kernel()) {
        const v1::PlannedKernel& planned = *kernels.at(tunable.kernel().digest());
        KILN_ASSIGN_OR_RETURN(const std::string digest, DigestOfSchedules(planned, tunable.kernel()));
        Add(absl::StrCat("(schedules_of_", planned.notes().name(), ")"), digest, text);
        unscheduled.mutable_kernel()->clear_digest();
        unscheduled.mutable_kernel()->clear_schedules();
      }
      const std::string bytes = SerializeDeterministic(unscheduled);
      absl::StrAppend(&all, bytes.size(), " ", bytes);
      if (!tunable.has_gemm()) continue;
      KILN_ASSIGN_OR_RETURN(const std::string digest, DigestOfGemm(tunable.gemm(), bytes));
      Add(absl::StrCat("(gemm_", gemms++, ")"), digest, text);
    }
    if (plan.tunables_size() > 0) Add("(measured)", ShortDigest(all), text);
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> DigestOfSchedules(const v1::PlannedKernel& planned,
                                                const v1::KernelTunable& tunable) {
    std::string& digest = schedules_[{backend_, tunable.digest()}];
    if (!digest.empty()) return digest;
    v1::Kernel kernel;
    KILN_RETURN_IF_ERROR(ParseProto(planned.kernel(), "kernel", &kernel));
    std::string all;
    for (const v1::KernelSchedule& schedule : tunable.schedules()) {
      *kernel.mutable_schedule() = schedule;
      KILN_ASSIGN_OR_RETURN(const EmittedObject object, backend_->Emit(kernel, planned.notes(), false));
      KILN_ASSIGN_OR_RETURN(const std::string of_image, DigestOfImage(object.bytes, on_gpu()));
      absl::StrAppend(&all, of_image, "\n");
    }
    return digest = ShortDigest(all);
  }

  absl::StatusOr<std::string> DigestOfGemm(const v1::Gemm& gemm, const std::string& bytes) {
    std::string& digest = digests_[{backend_, bytes}];
    if (!digest.empty()) return digest;
    const absl::StatusOr<std::vector<EmittedGemm>> emitted = backend_->EmitGemm(gemm, kGemmKernels);
    if (absl::IsUnimplemented(emitted.status())) return digest = "none";
    KILN_RETURN_IF_ERROR(emitted.status());
    std::string all;
    for (const EmittedGemm& one : *emitted) {
      KILN_ASSIGN_OR_RETURN(const std::string of_image, DigestOfImage(one.image, true));
      absl::StrAppend(&all, ScheduleText(one.schedule), " ", one.units, " ", of_image, "\n");
    }
    return digest = ShortDigest(all);
  }

  v1::Target target_;  // of the request
  CodegenBackend* backend_ = nullptr;
  std::map<std::string, std::unique_ptr<CodegenBackend>> backends_;  // by the target's bytes
  std::map<std::pair<const CodegenBackend*, std::string>, std::string> digests_;
  std::map<std::pair<const CodegenBackend*, std::string>, std::string> schedules_;  // likewise, of kernels
};

int Main() {
  Emitter emitter;
  uint32_t size = 0;
  while (std::cin.read(reinterpret_cast<char*>(&size), sizeof size)) {
    if (size > kRequestBytesMax) return 1;
    std::string bytes(size, '\0');
    if (!std::cin.read(bytes.data(), size)) return 1;
    const absl::StatusOr<std::string> answer = emitter.Answer(bytes);
    if (answer.ok()) {
      std::cout << *answer;
    } else {
      std::cout << "error " << absl::StrReplaceAll(answer.status().ToString(), {{"\n", " "}}) << "\n";
    }
    std::cout << std::endl;
  }
  return std::cin.gcount() == 0 ? 0 : 1;
}

}  // namespace
}  // namespace kiln

int main() { return kiln::Main(); }
