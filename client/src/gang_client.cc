#include "client/src/gang_client.h"

#include <string>
#include <utility>

#include "absl/strings/cord.h"
#include "client/src/status_payloads.h"

namespace kiln {
namespace {

class GangClient final : public Client {
 public:
  explicit GangClient(std::unique_ptr<Client> client) : client_(std::move(client)) {}

  absl::StatusOr<CompiledArtifact> Get(const CompileRequestInput& input, bool compile,
                                       Cancellation* cancellation) override {
    absl::StatusOr<CompiledArtifact> got = client_->Get(input, compile, cancellation);
    const bool member = input.gang.size() > 1 && !input.gang.id().empty();
    if (!member || got.ok() || got.status().GetPayload(kAnswered).has_value()) return got;
    // Who only looks up comes again, with the graph.
    if (!compile && absl::IsNotFound(got.status())) return got;
    absl::Status status = got.status();
    status.SetPayload(kWithoutVerdict, absl::Cord());
    return status;
  }
  std::string address() const override { return client_->address(); }
  void ReportUse(absl::Duration limit) override { client_->ReportUse(limit); }

 private:
  const std::unique_ptr<Client> client_;
};

}  // namespace

bool IsWithoutVerdict(const absl::Status& status) { return status.GetPayload(kWithoutVerdict).has_value(); }

std::unique_ptr<Client> NewGangClient(std::unique_ptr<Client> client) {
  return std::make_unique<GangClient>(std::move(client));
}

}  // namespace kiln
