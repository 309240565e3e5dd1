#include <fstream>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "compiler/support/signature.h"
#include "compiler/support/status_macros.h"
#include "kiln/client.h"

namespace kiln {
namespace {

absl::StatusOr<std::vector<std::string>> KeysOf(const std::vector<absl::string_view>& items) {
  std::vector<std::string> keys;
  for (absl::string_view item : items) {
    item = absl::StripAsciiWhitespace(item);
    if (item.empty() || item[0] == '#') continue;
    std::string key;
    if (!absl::Base64Unescape(item, &key) || key.size() != kPublicKeyBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", item, "\" is no public key as `kilnctl keys` prints them"));
    }
    keys.push_back(std::move(key));
  }
  if (keys.empty()) return absl::InvalidArgumentError("there is no public key");
  return keys;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ReadTrustedKeys(absl::string_view text) {
  absl::StatusOr<std::vector<std::string>> keys = KeysOf(absl::StrSplit(text, ','));
  // Base64 may begin with a slash.
  if (keys.ok() || !absl::StartsWith(text, "/")) return keys;
  std::ifstream file{std::string(text)};
  std::stringstream lines;
  if (!file || !(lines << file.rdbuf())) {
    return absl::InvalidArgumentError(absl::StrCat(text, " is neither public keys nor a file of them"));
  }
  const std::string contents = lines.str();
  keys = KeysOf(absl::StrSplit(contents, '\n'));
  if (keys.ok()) return keys;
  return absl::InvalidArgumentError(absl::StrCat(text, ": ", keys.status().message()));
}

}  // namespace kiln
