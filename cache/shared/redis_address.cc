#include "cache/shared/redis_address.h"

#include <sys/un.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace kiln {
namespace {

absl::Status Wrong(absl::string_view text, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" ", why));
}

}  // namespace

absl::StatusOr<RedisAddress> RedisAddress::Parse(absl::string_view text) {
  RedisAddress address;
  absl::string_view rest = text;
  if (absl::ConsumePrefix(&rest, "unix:")) {
    if (!absl::StartsWith(rest, "/")) return Wrong(text, "names no absolute path");
    if (rest.size() >= sizeof(sockaddr_un::sun_path)) return Wrong(text, "is too long for a socket's path");
    address.unix_path = std::string(rest);
    return address;
  }
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos) return Wrong(text, "is neither HOST:PORT nor unix:/path");
  absl::string_view host = text.substr(0, colon);
  if (absl::ConsumePrefix(&host, "[") && !absl::ConsumeSuffix(&host, "]"))
    return Wrong(text, "lacks a \"]\"");
  if (host.empty()) return Wrong(text, "names no host");
  uint32_t port = 0;
  if (!absl::SimpleAtoi(text.substr(colon + 1), &port) || port == 0 || port > 65535) {
    return Wrong(text, "names no port from 1 to 65535");
  }
  address.host = std::string(host);
  address.port = static_cast<uint16_t>(port);
  return address;
}

}  // namespace kiln
