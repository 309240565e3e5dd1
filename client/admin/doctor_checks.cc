#include "client/admin/doctor_checks.h"

#include <cstdlib>
#include <iterator>
#include <set>

#include "absl/algorithm/container.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/admin/text.h"
#include "client/client_limits.h"
#include "compiler/worker/sandbox_layer.h"
#include "kiln/client.h"

namespace kiln {
namespace {

void Add(const std::string& name, bool good, const std::string& detail, Checks* checks) {
  checks->push_back({name, good ? "ok" : "FAILED", Printable(detail)});
}

std::string KeyName(const std::string& id) { return absl::StrCat("key ", id.substr(0, 12)); }

// "farm-2 (key 0123…)": some of those that a line is about.
std::string Named(const std::vector<const v1::TierDaemon*>& daemons) {
  std::vector<std::string> names;
  for (const v1::TierDaemon* daemon : daemons) {
    if (names.size() == kDoctorDaemonsNamedMax) {
      names.push_back(absl::StrCat("and ", daemons.size() - kDoctorDaemonsNamedMax, " more"));
      break;
    }
    const std::string& host = daemon->record().host();
    names.push_back(absl::StrCat(host, host.empty() ? "" : " ", "(", KeyName(daemon->key_id()),
                                 daemon->has_record()
                                     ? absl::StrCat(", kilnd ", daemon->record().version(), " build ",
                                                    daemon->record().build_id().substr(0, 12))
                                     : "",
                                 ")"));
  }
  return absl::StrJoin(names, ", ");
}

std::string SkewText(int64_t ahead_ms) {
  return absl::StrFormat("%.1f s %s", 1e-3 * static_cast<double>(std::abs(ahead_ms)),
                         ahead_ms > 0 ? "ahead of" : "behind");
}

void CheckTierClock(const v1::TierStatus& tier, Checks* checks) {
  if (!tier.has_clock_ahead_ms()) {
    checks->push_back({"tier's clock", "off", Printable(absl::StrCat("not known: ", tier.clock_message()))});
    return;
  }
  const int64_t ahead = tier.clock_ahead_ms();
  const bool good = std::abs(ahead) <= kClockSkewMsMax;
  Add("tier's clock", good,
      good ? "as the daemon's"
           : absl::StrCat(SkewText(ahead),
                          " the daemon's: keep both by NTP; what others leave there ends "
                          "early or late"),
      checks);
}

void CheckTierDaemons(const v1::StatusReply& status, Checks* checks) {
  const v1::TierStatus& tier = status.tier();
  std::vector<const v1::TierDaemon*> strange, other_compiler, other_build;
  size_t others = 0;
  for (const v1::TierDaemon& daemon : tier.daemons()) {
    if (daemon.self()) continue;
    ++others;
    if (!daemon.has_record()) {
      strange.push_back(&daemon);
    } else if (daemon.record().compiler_fingerprint() != status.compiler_fingerprint()) {
      other_compiler.push_back(&daemon);
    } else if (daemon.record().build_id() != status.build_id()) {
      other_build.push_back(&daemon);
    }
  }
  const bool told = tier.look_message().empty();
  checks->push_back({"tier's daemons", told ? "ok" : "WARN",
                     told ? absl::StrCat(others, others == 1 ? " other" : " others")
                          : Printable(absl::StrCat("not all known: ", tier.look_message()))});
  if (!strange.empty()) {
    Add("tier's keys", false,
        absl::StrCat(strange.size(), " not trusted here, whose programs are misses: ", Named(strange),
                     "; what kilnctl keys prints there goes into signing.trusted, or revoke it and take its "
                     "password"),
        checks);
  }
  if (!other_compiler.empty()) {
    Add("tier's builds", false,
        absl::StrCat(other_compiler.size(), " of another compiler, which share no programs with this one: ",
                     Named(other_compiler), "; install one build of kiln on all"),
        checks);
  }
  if (!other_build.empty()) {
    checks->push_back(
        {"tier's builds", "WARN",
         Printable(absl::StrCat(other_build.size(),
                                " of another kilnd with the same compiler: ", Named(other_build)))});
  }
}

}  // namespace

// A layer that this host does not give is told and no fault; one without which no worker should be is.
void CheckSandbox(const v1::StatusReply& status, Checks* checks) {
  std::set<std::string> missing(std::begin(kMandatoryLayers), std::end(kMandatoryLayers));
  for (const v1::SandboxLayer& layer : status.sandbox()) {
    const bool mandatory = absl::c_linear_search(kMandatoryLayers, layer.name());
    missing.erase(layer.name());
    checks->push_back({absl::StrCat("sandbox: ", Printable(layer.name())),
                       layer.on()  ? "ok"
                       : mandatory ? "FAILED"
                                   : "off",
                       Printable(layer.why_not())});
  }
  for (const std::string& name : missing) {
    checks->push_back(
        {absl::StrCat("sandbox: ", name), "FAILED", "the workers do not say that they have it"});
  }
}

void CheckUpstream(const v1::StatusReply& status, const std::string& wanted, Checks* checks) {
  if (!wanted.empty() && status.upstream().address() != wanted) {
    checks->push_back(
        {"upstream", "FAILED",
         absl::StrCat("KILN_UPSTREAM is ", wanted, ", and this daemon ",
                      status.has_upstream() ? "asks " : "asks nobody", Printable(status.upstream().address()),
                      ": it has not been reached yet (the log is beside the socket), or another "
                      "process started the daemon that serves KILN_RUNTIME_DIR")});
    return;
  }
  if (!status.has_upstream()) return;
  const v1::UpstreamStatus& upstream = status.upstream();
  const bool good = upstream.connected();
  checks->push_back(
      {"upstream", good ? "ok" : "FAILED",
       Printable(absl::StrCat(upstream.address(), good ? "" : ": ", good ? "" : upstream.message()))});
  if (upstream.refused() == 0) return;
  checks->push_back({"upstream's answers", "FAILED",
                     absl::StrCat(upstream.refused(),
                                  " refused; is its key (kilnctl keys, there) in "
                                  "signing.trusted? The last: ",
                                  Printable(upstream.message()))});
}

void CheckCaller(const v1::StatusReply& status, Checks* checks) {
  if (!status.has_caller()) return;  // an older daemon
  const v1::CallerStatus& caller = status.caller();
  const std::string roles =
      caller.roles().empty() ? "no role" : absl::StrCat("roles ", absl::StrJoin(caller.roles(), ", "));
  const std::string who = !caller.tenant().empty() ? absl::StrCat("tenant ", caller.tenant())
                          : caller.has_tenants()   ? "the daemon's own user, who is no tenant"
                                                   : "everybody is one: there are no tenants";
  Add("identity", true, absl::StrCat(who, "; ", roles), checks);
}

void CheckKeys(const v1::StatusReply& status, const std::string& daemons_key, const std::string& only,
               Checks* checks) {
  std::vector<std::string> known = {absl::StrCat("signs with ", KeyName(status.signing_key()))};
  known.push_back(absl::StrCat("trusts ", status.trusted_keys_size(), " besides"));
  if (status.revoked_keys() > 0) known.push_back(absl::StrCat(status.revoked_keys(), " revoked"));
  std::string own;
  absl::Base64Unescape(daemons_key, &own);
  absl::StatusOr<std::vector<std::string>> narrowed = std::vector<std::string>{own};
  if (!only.empty()) narrowed = ReadTrustedKeys(only);
  if (!narrowed.ok()) {
    Add("keys", false, absl::StrCat("KILN_TRUSTED_KEYS: ", narrowed.status().message()), checks);
    return;
  }
  const bool counts = absl::c_linear_search(*narrowed, own);
  Add("keys", counts,
      counts ? absl::StrJoin(known, ", ")
             : absl::StrCat("KILN_TRUSTED_KEYS has not the key that this daemon signs with, and clients with "
                            "it run nothing of what it compiles: add ",
                            daemons_key),
      checks);
}

void CheckCertificate(const v1::CertificateStatus& certificate, int64_t now, Checks* checks) {
  const std::string name = absl::StrCat("certificate: ", Printable(certificate.name()));
  if (!certificate.message().empty()) {
    Add(name, false, certificate.message(), checks);
    return;
  }
  const int64_t left = certificate.ends_unix_seconds() - now;
  if (left <= 0) {
    Add(name, false, absl::StrCat("has ended ", HumanSeconds(static_cast<double>(-left)), " ago: renew it"),
        checks);
    return;
  }
  const int64_t days = left / (24 * 3600);
  checks->push_back({name, left < kCertificateWarnSeconds ? "WARN" : "ok",
                     absl::StrCat(days, days == 1 ? " day left" : " days left")});
}

void CheckClock(const v1::StatusReply& status, int64_t begun_ms, int64_t ended_ms, Checks* checks) {
  if (status.unix_millis() == 0) return;  // an older daemon
  const int64_t ahead = status.unix_millis() > ended_ms   ? status.unix_millis() - ended_ms
                        : status.unix_millis() < begun_ms ? status.unix_millis() - begun_ms
                                                          : 0;
  const bool good = std::abs(ahead) <= kClockSkewMsMax;
  Add("clock", good,
      good ? "as here"
           : absl::StrCat("the daemon's is ", SkewText(ahead),
                          " this host's: keep both by NTP; certificates begin and end by them"),
      checks);
}

void CheckVersion(const v1::StatusReply& status, const std::string& own, Checks* checks) {
  const bool same = status.version() == own;
  checks->push_back({"version", same ? "ok" : "WARN",
                     Printable(absl::StrCat(status.version(), ", build ", status.build_id(),
                                            same ? "" : absl::StrCat("; kilnctl is ", own)))});
}

void CheckTier(const v1::StatusReply& status, Checks* checks) {
  if (!status.has_tier()) return;
  const v1::TierStatus& tier = status.tier();
  if (!tier.connected()) {
    Add("tier", false,
        absl::StrCat(tier.address(), ": NOT CONNECTED: ", tier.message(),
                     "; what others compiled is compiled here again"),
        checks);
    return;
  }
  const std::string latency =
      tier.has_latency_ms() ? absl::StrFormat("%.1f ms", tier.latency_ms()) : tier.look_message();
  if (tier.breaker_open()) {
    Add("tier", false,
        absl::StrCat(tier.address(), ", ", latency, ": TOO SLOW, not asked for now (tier.lookup_ms_max)"),
        checks);
  } else {
    Add("tier", tier.has_latency_ms(), absl::StrCat(tier.address(), ", ", latency), checks);
  }
  if (!tier.has_latency_ms()) return;
  CheckTierClock(tier, checks);
  CheckTierDaemons(status, checks);
}

}  // namespace kiln
