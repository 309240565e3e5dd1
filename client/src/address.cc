#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "kiln/client.h"

namespace kiln {

absl::StatusOr<std::string> NormalAddress(absl::string_view text) {
  const absl::string_view path = absl::StripPrefix(text, "unix:");
  if (absl::StartsWith(path, "/")) return absl::StrCat("unix:", path);
  const size_t colon = text.rfind(':');
  uint32_t port = 0;
  const bool is_tcp = path == text && colon != absl::string_view::npos && colon > 0 &&
                      absl::SimpleAtoi(text.substr(colon + 1), &port) && port > 0 && port <= 65535;
  if (is_tcp) return std::string(text);
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\" is no address of a kilnd: unix:/path, /path or HOST:PORT"));
}

}  // namespace kiln
