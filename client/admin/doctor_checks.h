// What `kilnctl doctor` makes of a daemon's answers: a line each, with the cause and the way out.
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/admin/commands.h"
#include "kiln/v1/admin.pb.h"

namespace kiln {

// "ok", "off" and "WARN" are no faults; "FAILED" makes doctor's exit code 1.
struct Check {
  std::string name, state, detail;
};
using Checks = std::vector<Check>;

// Beyond it, clocks differ enough to matter: certificates begin and end by them, refusals and quotas too.
inline constexpr int64_t kClockSkewMsMax = 10'000;
inline constexpr int64_t kCertificateWarnSeconds = 14 * 24 * 3600;

void CheckSandbox(const v1::StatusReply& status, Checks* checks);
// `wanted`: as KILN_UPSTREAM names it, of the embedded daemon.
void CheckUpstream(const v1::StatusReply& status, const std::string& wanted, Checks* checks);
void CheckCaller(const v1::StatusReply& status, Checks* checks);
// `only`: KILN_TRUSTED_KEYS of this environment (client.h's ReadTrustedKeys); empty: it narrows nothing.
// `daemons_key`: the public key that the daemon signs with, in base64.
void CheckKeys(const v1::StatusReply& status, const std::string& daemons_key, const std::string& only,
               Checks* checks);
// `now`: by the caller's clock. Nothing of a daemon that does not say how late it is.
void CheckCertificate(const v1::CertificateStatus& certificate, int64_t now, Checks* checks);
// The caller's clock before and after it asked.
void CheckClock(const v1::StatusReply& status, int64_t begun_ms, int64_t ended_ms, Checks* checks);
void CheckVersion(const v1::StatusReply& status, const std::string& own, Checks* checks);
// How the tier is, its clock, and what other daemons of it are.
void CheckTier(const v1::StatusReply& status, Checks* checks);

}  // namespace kiln
