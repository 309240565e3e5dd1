#include "client/src/program_client.h"

#include <mutex>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "client/src/call_program.h"
#include "client/src/daemon.h"
#include "client/src/status_payloads.h"
#include "compiler/support/breaker.h"
#include "compiler/support/monotonic_time.h"
#include "compiler/support/status_macros.h"
#include "kiln/run_count.h"

namespace kiln {
namespace {

class ProgramClient final : public Client {
 public:
  explicit ProgramClient(const ClientOptions& options) : options_(options) {}

  absl::StatusOr<CompiledArtifact> Get(const CompileRequestInput& input, bool compile,
                                       Cancellation* cancellation) override {
    Cancellation nobodys;
    if (cancellation == nullptr) cancellation = &nobodys;
    if (!breaker_.Allows(MonotonicNow())) return ServiceAwayError();
    uint64_t runs = TakeRuns();
    std::unique_ptr<CallProgram> program = TakeIdle();
    if (program != nullptr) {
      absl::StatusOr<CompiledArtifact> got = program->Get(input, compile, runs, *cancellation);
      // Once more where it had ended; whoever does not answer has had his time.
      const bool again = program->gone() && absl::IsUnavailable(got.status()) && !cancellation->cancelled();
      if (!again) return Ended(std::move(program), std::move(got));
      if (program->asked()) runs = 0;  // which may have been told
    }
    KILN_ASSIGN_OR_RETURN(program, CallProgram::Start(options_));
    absl::StatusOr<CompiledArtifact> got = program->Get(input, compile, runs, *cancellation);
    return Ended(std::move(program), std::move(got));
  }

  std::string address() const override { return AddressText(options_); }

  void ReportUse(absl::Duration limit) override {
    const MonotonicTime deadline = MonotonicAfter(limit);
    const uint64_t runs = TakeRuns();
    std::unique_ptr<CallProgram> program = TakeIdle();
    if (runs == 0 || !breaker_.Allows(MonotonicNow())) return;
    if (program != nullptr) program->ReportUse(runs, limit);
    const bool ended = program == nullptr || (program->gone() && !program->asked());
    if (!ended || MonotonicNow() >= deadline) return;
    absl::StatusOr<std::unique_ptr<CallProgram>> started = CallProgram::Start(options_);
    if (started.ok()) (*started)->ReportUse(runs, absl::FromChrono(deadline - MonotonicNow()));
  }

 private:
  // What became of a call, told to the breaker; the program waits for the next.
  absl::StatusOr<CompiledArtifact> Ended(std::unique_ptr<CallProgram> program,
                                         absl::StatusOr<CompiledArtifact> got) {
    const bool gone = program->gone();
    if (!gone) Keep(std::move(program));
    if (absl::IsCancelled(got.status())) return got;  // says nothing about the service
    if (gone || got.status().GetPayload(kAway).has_value()) {
      breaker_.Failed(MonotonicNow());
    } else {
      breaker_.Succeeded();
    }
    return got;
  }

  std::unique_ptr<CallProgram> TakeIdle() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::move(idle_);
  }
  void Keep(std::unique_ptr<CallProgram> program) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (idle_ == nullptr && options_.idle_seconds > 0) idle_ = std::move(program);
  }

  const ClientOptions options_;
  Breaker breaker_;
  std::mutex mutex_;
  std::unique_ptr<CallProgram> idle_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<Client> NewProgramClient(const ClientOptions& options) {
  return std::make_unique<ProgramClient>(options);
}

}  // namespace kiln
