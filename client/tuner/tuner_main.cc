// kiln-tuner: measures on one GPU what the kilnd that started it asks for, one frame at a time, from inside
// the sandbox. It runs tunables as the runtime does in a user's process. It exits 0 when kilnd closes the
// stream; whatever hangs or breaks here, kilnd kills the process and starts another.
#include <stdlib.h>

#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/strip.h"
#include "client/runtime/cublas_lt.h"
#include "client/runtime/cublas_lt_gemms.h"
#include "client/runtime/cudnn.h"
#include "client/runtime/cudnn_convolutions.h"
#include "client/tuner/bench.h"
#include "client/tuner/convolution_bench.h"
#include "client/tuner/copy_bench.h"
#include "client/tuner/gemm_bench.h"
#include "client/tuner/gpu.h"
#include "client/tuner/kernel_bench.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/status_macros.h"
#include "compiler/worker/build_id.h"
#include "compiler/worker/frame.h"
#include "compiler/worker/sandbox.h"

namespace kiln::tuner {
namespace {

constexpr int kExitUsage = 2;

struct Flags {
  SandboxOptions sandbox;
  std::string cublas_lt, cudnn, driver;
};

class Tuner {
 public:
  explicit Tuner(const Flags& flags) : flags_(flags), channel_(flags.sandbox.frame_fd) {}

  absl::Status Run(const std::vector<SandboxLayer>& layers) {
    v1::Frame hello;
    TellLayers(layers, hello.mutable_hello());
    hello.mutable_hello()->set_build_id(OwnBuildId());
    hello.mutable_hello()->set_program_format(kProgramFormatVersion);
    return ServeFrames(channel_, hello, [this](const v1::Frame& request) { return Answer(request); });
  }

 private:
  absl::StatusOr<v1::Frame> Answer(const v1::Frame& request) {
    v1::Frame reply;
    if (request.has_open_gpu()) {
      KILN_RETURN_IF_ERROR(Open(request.open_gpu().ordinal()));
      *reply.mutable_gpu() = gpu_->facts();
      reply.mutable_gpu()->set_cublas_lt_version(gemms_->version());
      if (convolutions_ != nullptr) reply.mutable_gpu()->set_cudnn_version(convolutions_->version());
      return reply;
    }
    if (gpu_ == nullptr) return absl::FailedPreconditionError("no GPU was opened");
    if (request.has_list_candidates()) {
      bench_ = nullptr;  // its memory first
      KILN_ASSIGN_OR_RETURN(bench_, BenchFor(request.list_candidates()));
      KILN_ASSIGN_OR_RETURN(*reply.mutable_candidates(), bench_->List());
      return reply;
    }
    if (request.has_measure()) {
      if (bench_ == nullptr) return absl::FailedPreconditionError("a measurement before its list");
      KILN_ASSIGN_OR_RETURN(*reply.mutable_measured(), bench_->Measure(request.measure()));
      return reply;
    }
    return absl::InvalidArgumentError("a frame that is no request");
  }

  absl::StatusOr<std::unique_ptr<Bench>> BenchFor(const v1::ListCandidates& request) {
    const v1::Tunable& tunable = request.tunable();
    if (tunable.has_kernel()) return KernelBench::Create(tunable.kernel(), request.images(), *gpu_);
    if (tunable.has_gemm()) return GemmBench::Create(tunable.gemm(), *gpu_, *gemms_);
    if (tunable.has_copy()) return CopyBench::Create(tunable.copy(), *gpu_);
    if (tunable.has_convolution()) {
      if (convolutions_ == nullptr) return absl::UnimplementedError(without_cudnn_);
      return ConvolutionBench::Create(tunable.convolution(), *gpu_, *convolutions_);
    }
    return absl::InvalidArgumentError("a tunable of no kind");
  }

  absl::Status Open(uint32_t ordinal) {
    if (gpu_ != nullptr) return absl::FailedPreconditionError("a GPU is open already");
    KILN_ASSIGN_OR_RETURN(std::unique_ptr<Gpu> gpu, Gpu::Open(ordinal, flags_.driver));
    KILN_ASSIGN_OR_RETURN(const runtime::CublasLt library, runtime::LoadCublasLt(flags_.cublas_lt));
    gemms_ = std::make_unique<runtime::Gemms>(library);
    const absl::StatusOr<runtime::Cudnn> cudnn = runtime::LoadCudnn(flags_.cudnn);
    if (cudnn.ok()) convolutions_ = std::make_unique<runtime::Convolutions>(*cudnn);
    without_cudnn_ = std::string(cudnn.status().message());
    gpu_ = std::move(gpu);
    return absl::OkStatus();
  }

  const Flags flags_;
  FrameChannel channel_;
  std::unique_ptr<Gpu> gpu_;
  std::unique_ptr<runtime::Gemms> gemms_;
  std::unique_ptr<runtime::Convolutions> convolutions_;  // nullptr: no cuDNN, as without_cudnn_ says
  std::string without_cudnn_;
  std::unique_ptr<Bench> bench_;
};

bool TakeText(absl::string_view word, absl::string_view flag, std::string* to) {
  if (!absl::ConsumePrefix(&word, flag)) return false;
  *to = std::string(word);
  return true;
}

int Main(int argc, char** argv) {
  Flags flags;
  flags.sandbox.gpu = true;
  for (int i = 1; i < argc; ++i) {
    absl::string_view word = argv[i];
    const bool known = TakeText(word, "--cublas-lt=", &flags.cublas_lt) ||
                       TakeText(word, "--cudnn=", &flags.cudnn) ||
                       TakeText(word, "--driver=", &flags.driver) || TakeSandboxWord(word, &flags.sandbox);
    if (!known) {
      std::cerr << "kiln-tuner: started by kilnd, not by hand\n";
      return kExitUsage;
    }
  }
  if (flags.sandbox.frame_fd < 0) return kExitUsage;
  flags.sandbox.libraries = {flags.cublas_lt, flags.cudnn, flags.driver};
  const absl::StatusOr<std::vector<SandboxLayer>> layers = EnterSandbox(flags.sandbox);
  absl::Status status = layers.status();
  if (status.ok()) status = Tuner(flags).Run(*layers);
  // What the driver and the libraries hold goes with the process.
  if (status.ok()) _exit(0);
  std::cerr << "kiln-tuner: " << status.message() << "\n";
  _exit(1);
}

}  // namespace
}  // namespace kiln::tuner

int main(int argc, char** argv) { return kiln::tuner::Main(argc, argv); }
