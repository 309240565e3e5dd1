#include "cache/shared/tier_config.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cache/cache_limits.h"
#include "cache/shared/redis_address.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

absl::Status Refuse(absl::string_view field, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("tier.", field, ": ", why));
}

absl::StatusOr<std::string> ReadPassword(absl::string_view field, const std::string& path) {
  const auto cannot = [&](absl::string_view why) {
    return absl::FailedPreconditionError(absl::StrCat("tier.", field, ": ", path, " ", why));
  };
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return cannot(absl::StrCat("can't be opened: ", strerror(errno)));
  struct stat facts = {};
  std::string text(kTierPasswordBytesMax, '\0');
  const bool known = fstat(file, &facts) == 0;
  const ssize_t size = read(file, text.data(), text.size());
  close(file);
  if (!known || size < 0) return cannot("can't be read");
  if (facts.st_uid != geteuid() || (facts.st_mode & 077) != 0)
    return cannot("holds a password, and has to be yours alone: chown it, and chmod 600");
  text.resize(static_cast<size_t>(size));
  absl::StripTrailingAsciiWhitespace(&text);
  if (text.empty()) return cannot("is empty");
  return text;
}

absl::Status CheckLogin(absl::string_view whose, const std::string& user, const std::string& password_file) {
  if (!user.empty() && password_file.empty())
    return Refuse(absl::StrCat(whose, "user"), absl::StrCat("a user needs ", whose, "password_file"));
  if (!password_file.empty() && password_file[0] != '/')
    return Refuse(absl::StrCat(whose, "password_file"), "is no absolute path");
  return absl::OkStatus();
}

}  // namespace

void TierDefaults(v1::TierConfig* config) {
  if (config->lookup_ms_max() == 0) config->set_lookup_ms_max(kTierLookupMsDefault);
  if (config->unused_days_max() == 0) config->set_unused_days_max(kTierUnusedDaysDefault);
  if (config->write_bytes_max() == 0) config->set_write_bytes_max(kTierWriteBytesDefault);
  if (config->work_list() == v1::WORK_LIST_UNSPECIFIED) config->set_work_list(v1::WORK_LIST_BOTH);
}

absl::Status CheckTierConfig(const v1::TierConfig& config) {
  if (config.cluster() && !config.sentinel_master().empty())
    return Refuse("sentinel_master", "a cluster has no sentinels; name its nodes, and not both");
  const bool several = config.cluster() || !config.sentinel_master().empty();
  if (config.addresses_size() == 0 || config.addresses_size() > kTierAddressesMax)
    return Refuse("addresses",
                  absl::StrCat(config.addresses_size(), " are given; it takes 1 to ", kTierAddressesMax));
  if (config.addresses_size() > 1 && !several) {
    return Refuse("addresses",
                  absl::StrCat(config.addresses_size(),
                               " are given; a server has one, else set cluster or sentinel_master"));
  }
  for (const std::string& text : config.addresses()) {
    const absl::Status address = RedisAddress::Parse(text).status();
    if (!address.ok()) return Refuse("addresses", address.message());
    // The others are named by where they listen, and would be reached past the tunnel.
    if (several && absl::StartsWith(text, "unix:"))
      return Refuse("addresses", "a unix socket leads to one server: not with cluster or sentinel_master");
  }
  KILN_RETURN_IF_ERROR(CheckLogin("", config.user(), config.password_file()));
  KILN_RETURN_IF_ERROR(CheckLogin("sentinel_", config.sentinel_user(), config.sentinel_password_file()));
  if (!config.sentinel_password_file().empty() && config.sentinel_master().empty())
    return Refuse("sentinel_password_file", "there are no sentinels: set sentinel_master");
  if (config.lookup_ms_max() > kTierLookupMsMax)
    return Refuse("lookup_ms_max", absl::StrCat(config.lookup_ms_max(), " is more than ", kTierLookupMsMax));
  if (config.unused_days_max() > kTierUnusedDaysMax)
    return Refuse("unused_days_max",
                  absl::StrCat(config.unused_days_max(), " is more than ", kTierUnusedDaysMax));
  if (config.write_bytes_max() < kTierWriteBytesMin)
    return Refuse("write_bytes_max",
                  absl::StrCat(config.write_bytes_max(), " is less than ", kTierWriteBytesMin));
  return absl::OkStatus();
}

absl::StatusOr<SharedTier::Options> TierOptions(const v1::TierConfig& config) {
  SharedTier::Options options;
  options.addresses.assign(config.addresses().begin(), config.addresses().end());
  options.sentinel_master = config.sentinel_master();
  options.cluster = config.cluster();
  options.login.user = config.user();
  if (!config.password_file().empty()) {
    KILN_ASSIGN_OR_RETURN(options.login.password, ReadPassword("password_file", config.password_file()));
  }
  options.sentinel_login.user = config.sentinel_user();
  if (!config.sentinel_password_file().empty()) {
    KILN_ASSIGN_OR_RETURN(options.sentinel_login.password,
                          ReadPassword("sentinel_password_file", config.sentinel_password_file()));
  }
  options.lookup_limit = absl::Milliseconds(config.lookup_ms_max());
  options.unused_limit = absl::Hours(24) * config.unused_days_max();
  options.write_bytes_max = config.write_bytes_max();
  return options;
}

}  // namespace kiln
