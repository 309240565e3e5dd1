// kiln-worker: answers plan and emit frames of the kilnd that started it, one at a time, from inside
// the sandbox. It exits 0 when kilnd closes the stream, and as sandbox.h says when it lacks memory. Its build
// id is the compiler's fingerprint: LLVM is linked statically, so the id covers everything that decides about
// the bytes of an artifact.
#include <stdlib.h>

#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "compiler/artifact/plan.h"
#include "compiler/codegen/codegen_backend.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/proto_util.h"
#include "compiler/support/status_macros.h"
#include "compiler/target/device.h"
#include "compiler/target/vector_target.h"
#include "compiler/worker/build_id.h"
#include "compiler/worker/frame.h"
#include "compiler/worker/sandbox.h"

namespace kiln {
namespace {

constexpr int kExitUsage = 2;

class Worker {
 public:
  explicit Worker(int frame_fd) : channel_(frame_fd) {}

  absl::Status Run(const std::vector<SandboxLayer>& layers) {
    return ServeFrames(channel_, Hello(layers), [this](const v1::Frame& request) { return Answer(request); });
  }

 private:
  static v1::Frame Hello(const std::vector<SandboxLayer>& layers) {
    v1::Frame frame;
    v1::WorkerHello* hello = frame.mutable_hello();
    hello->set_build_id(OwnBuildId());
    hello->set_compiler_fingerprint(OwnBuildId());
    hello->set_program_format(kProgramFormatVersion);
    hello->set_graph_format(kGraphFormatVersion);
    for (absl::string_view triple : CpuTriples()) hello->add_targets(std::string(triple));
    TellLayers(layers, hello);
    return frame;
  }

  absl::StatusOr<v1::Frame> Answer(const v1::Frame& request) {
    if (request.has_plan()) return Plan(request.plan());
    if (request.has_emit()) return Emit(request.emit());
    return absl::InvalidArgumentError("a frame that is no request");
  }

  absl::StatusOr<v1::Frame> Plan(const v1::PlanRequest& request) {
    v1::Target target;
    KILN_RETURN_IF_ERROR(ParseProto(request.sections().target(), "target", &target));
    absl::StatusOr<CodegenBackend*> backend = nullptr;
    if (IsGpu(target)) backend = BackendFor(target);
    // Of a target without a back-end it is the first kernel that says so.
    KILN_ASSIGN_OR_RETURN(v1::PlanReply plan, PlanGraph(request, backend.ok() ? *backend : nullptr));
    v1::Frame frame;
    *frame.mutable_plan_reply() = std::move(plan);
    return frame;
  }

  static constexpr size_t kGemmKernels = 4;  // to be measured; each costs some 0.1 s

  absl::StatusOr<v1::Frame> EmitGemm(const v1::EmitRequest& request) {
    KILN_ASSIGN_OR_RETURN(CodegenBackend * backend, BackendFor(request.target()));
    v1::Frame frame;
    v1::EmitReply* reply = frame.mutable_emit_reply();
    absl::StatusOr<std::vector<EmittedGemm>> emitted = backend->EmitGemm(request.gemm(), kGemmKernels);
    if (absl::IsUnimplemented(emitted.status())) return frame;
    KILN_RETURN_IF_ERROR(emitted.status());
    for (EmittedGemm& gemm : *emitted) {
      v1::NativeKernel* native = reply->add_natives();
      native->set_image(std::move(gemm.image));
      native->set_units(gemm.units);
      *native->mutable_schedule() = std::move(gemm.schedule);
    }
    return frame;
  }

  absl::StatusOr<v1::Frame> Emit(const v1::EmitRequest& request) {
    if (request.has_gemm()) return EmitGemm(request);
    v1::Kernel kernel;
    KILN_RETURN_IF_ERROR(ParseProto(request.kernel(), "kernel", &kernel));
    KILN_ASSIGN_OR_RETURN(CodegenBackend * backend, BackendFor(request.target()));
    KILN_ASSIGN_OR_RETURN(EmittedObject object,
                          backend->Emit(kernel, request.notes(), request.want_listing()));
    v1::Frame frame;
    v1::EmitReply* reply = frame.mutable_emit_reply();
    reply->set_kind(object.kind);
    reply->set_object(std::move(object.bytes));
    reply->set_listing(std::move(object.listing));
    reply->set_elf(std::move(object.elf));
    return frame;
  }

  // A back-end is warm after its first kernel, so it is kept; a daemon's callers have few targets.
  absl::StatusOr<CodegenBackend*> BackendFor(const v1::Target& target) {
    const std::string key = SerializeDeterministic(target);
    if (auto found = backends_.find(key); found != backends_.end()) return found->second.get();
    KILN_ASSIGN_OR_RETURN(std::unique_ptr<CodegenBackend> backend, NewCodegenBackend(target));
    if (backends_.size() >= kWorkerBackendsMax) backends_.clear();
    return (backends_[key] = std::move(backend)).get();
  }

  FrameChannel channel_;
  std::map<std::string, std::unique_ptr<CodegenBackend>> backends_;
};

int Main(int argc, char** argv) {
  SandboxOptions sandbox;
  for (int i = 1; i < argc; ++i) {
    absl::string_view word = argv[i];
    const bool known = TakeSandboxWord(word, &sandbox) || (absl::ConsumePrefix(&word, "--memory-bytes=") &&
                                                           absl::SimpleAtoi(word, &sandbox.memory_bytes));
    if (!known) {
      std::cerr << "kiln-worker: started by kilnd, not by hand\n";
      return kExitUsage;
    }
  }
  if (sandbox.frame_fd < 0) return kExitUsage;
  const absl::StatusOr<std::vector<SandboxLayer>> layers = EnterSandbox(sandbox);
  absl::Status status = layers.status();
  if (status.ok()) status = Worker(sandbox.frame_fd).Run(*layers);
  if (status.ok()) return 0;
  std::cerr << "kiln-worker: " << status.message() << "\n";
  return 1;
}

}  // namespace
}  // namespace kiln

int main(int argc, char** argv) { return kiln::Main(argc, argv); }
