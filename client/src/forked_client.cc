#include "client/src/forked_client.h"

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/debugging/leak_check.h"
#include "client/src/daemon.h"
#include "client/src/grpc_owner.h"
#include "client/src/program_client.h"
#include "client/src/this_process.h"

namespace kiln {
namespace {

class ForkedClient final : public Client {
 public:
  ForkedClient(const ClientOptions& options, std::unique_ptr<Client> client)
      : options_(options), client_(std::move(client)) {}
  ~ForkedClient() override {
    if (IsGrpcOfParent()) absl::IgnoreLeak(client_.release());
    Programs* const programs = programs_.load();
    if (programs != nullptr && programs->process == ThisProcess()) {
      delete programs;
    } else if (programs != nullptr) {
      absl::IgnoreLeak(programs);
    }
  }

  absl::StatusOr<CompiledArtifact> Get(const CompileRequestInput& input, bool compile,
                                       Cancellation* cancellation) override {
    return Caller().Get(input, compile, cancellation);
  }
  std::string address() const override { return AddressText(options_); }
  void ReportUse(absl::Duration limit) override { Caller().ReportUse(limit); }

 private:
  // Belongs to the process that made it. A forked child inherits the pointer and must not use it: it makes
  // its own.
  struct Programs {
    uint64_t process;
    std::unique_ptr<Client> client;
  };

  Client& Caller() {
    if (OwnGrpc()) return *client_;
    Programs* seen = programs_.load();
    while (seen == nullptr || seen->process != ThisProcess()) {
      auto mine = std::make_unique<Programs>(Programs{ThisProcess(), NewProgramClient(options_)});
      if (!programs_.compare_exchange_strong(seen, mine.get())) continue;
      absl::IgnoreLeak(seen);
      seen = mine.release();
    }
    return *seen->client;
  }

  const ClientOptions options_;
  std::unique_ptr<Client> client_;
  std::atomic<Programs*> programs_{nullptr};
};

}  // namespace

std::unique_ptr<Client> NewForkedClient(const ClientOptions& options, std::unique_ptr<Client> client) {
  return std::make_unique<ForkedClient>(options, std::move(client));
}

}  // namespace kiln
