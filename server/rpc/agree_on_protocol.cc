#include "server/rpc/agree_on_protocol.h"

#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace kiln {

absl::Status CheckProtocol(const ProtocolRange& client) {
  if (client.min <= kProtocol.max && client.max >= kProtocol.min) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("this daemon speaks protocol ", ToText(kProtocol),
                                                    ", the client ", ToText(client),
                                                    "; both have to be of builds that have one in common"));
}

absl::Status AgreeOnProtocol(grpc::CallbackServerContext* context) {
  static const std::string own = ToText(kProtocol);
  const auto said = context->client_metadata().find(kProtocolMetadata);
  if (said == context->client_metadata().end()) return absl::OkStatus();
  const absl::string_view text(said->second.data(), said->second.size());
  // Metadata costs both ends some microseconds of a hit: nobody is told what he has said himself.
  if (text == own) return absl::OkStatus();
  context->AddInitialMetadata(kProtocolMetadata, own);
  const std::pair<absl::string_view, absl::string_view> ends = absl::StrSplit(text, absl::MaxSplits('-', 1));
  ProtocolRange client;
  if (!absl::SimpleAtoi(ends.first, &client.min) || !absl::SimpleAtoi(ends.second, &client.max) ||
      client.min > client.max) {
    return absl::InvalidArgumentError(absl::StrCat(kProtocolMetadata, ": is no MIN-MAX of two numbers"));
  }
  return CheckProtocol(client);
}

}  // namespace kiln
