#include "server/upstream/upstream_config.h"

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "compiler/support/status_macros.h"
#include "compiler/support/tls_files.h"
#include "server/server_limits.h"

namespace kiln {
namespace {

absl::Status Refuse(absl::string_view field, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", why));
}

absl::Status CheckAddress(absl::string_view address) {
  if (absl::StartsWith(address, "unix:/")) return absl::OkStatus();
  const size_t colon = address.rfind(':');
  uint32_t port = 0;
  if (colon == absl::string_view::npos || colon == 0 || !absl::SimpleAtoi(address.substr(colon + 1), &port) ||
      port == 0 || port > 65535) {
    return Refuse("upstream.address",
                  absl::StrCat("\"", address, "\" is neither HOST:PORT nor unix:/ABSOLUTE/PATH"));
  }
  return absl::OkStatus();
}

absl::Status CheckFiles(const v1::UpstreamConfig& config) {
  const bool socket = absl::StartsWith(config.address(), "unix:");
  if (socket != config.has_tls()) {
    return absl::OkStatus();
  }
  return socket ? Refuse("upstream.tls", "is not for a unix socket, whose owner the file system vouches for")
                : Refuse("upstream.tls", "is not given, and another host is reached by mutual TLS alone");
}

}  // namespace

void UpstreamDefaults(v1::UpstreamConfig* config) {
  if (config->lookup_ms_max() == 0) config->set_lookup_ms_max(kUpstreamLookupMsDefault);
  if (config->when_away() == v1::AWAY_UNSPECIFIED) config->set_when_away(v1::AWAY_COMPILE_HERE);
}

absl::Status CheckUpstreamConfig(const v1::UpstreamConfig& config) {
  KILN_RETURN_IF_ERROR(CheckAddress(config.address()));
  KILN_RETURN_IF_ERROR(CheckFiles(config));
  if (config.has_tls()) {
    KILN_RETURN_IF_ERROR(
        CheckTlsPaths({config.tls().certificate(), config.tls().key(), config.tls().authority()},
                      {"upstream.tls.certificate", "upstream.tls.key", "upstream.tls.authority"}));
    if (config.tls().reload_seconds() != 0) {
      return Refuse("upstream.tls.reload_seconds",
                    "is for listen.tls; here the files are looked at every 10 s");
    }
  }
  if (!v1::WhenAway_IsValid(config.when_away()))
    return Refuse("upstream.when_away", absl::StrCat(config.when_away(), " is none"));
  if (config.lookup_ms_max() > kUpstreamLookupMsMax) {
    return Refuse("upstream.lookup_ms_max",
                  absl::StrCat(config.lookup_ms_max(), " is more than ", kUpstreamLookupMsMax));
  }
  return absl::OkStatus();
}

Upstream::Options UpstreamOptions(const v1::UpstreamConfig& config) {
  Upstream::Options options;
  options.address = config.address();
  options.tls = {config.tls().certificate(), config.tls().key(), config.tls().authority()};
  options.names_tenants = config.names_tenants();
  options.lookup_limit = absl::Milliseconds(config.lookup_ms_max());
  return options;
}

}  // namespace kiln
