// What doctor makes of answers: of each line the good one, and the fault that it is there for.
#include "client/admin/doctor_checks.h"

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace kiln {
namespace {

constexpr int64_t kNow = 1'800'000'000;
constexpr int64_t kDay = 24 * 3600;

// The line of that name, whose detail has these words.
void ExpectLine(const Checks& checks, const std::string& name, const std::string& state,
                const std::string& words) {
  for (const Check& check : checks) {
    if (check.name != name || check.state != state) continue;
    EXPECT_TRUE(absl::StrContains(check.detail, words)) << name << ": " << check.detail;
    return;
  }
  std::string all;
  for (const Check& check : checks)
    absl::StrAppend(&all, check.name, " ", check.state, " ", check.detail, "\n");
  ADD_FAILURE() << "no line " << name << " " << state << " in\n" << all;
}

// Of a tier that is well.
v1::StatusReply InATier() {
  v1::StatusReply status;
  status.set_build_id("aaaa");
  status.set_compiler_fingerprint("one");
  v1::TierStatus& tier = *status.mutable_tier();
  tier.set_address("tier.example:6379");
  tier.set_connected(true);
  tier.set_latency_ms(0.7);
  tier.set_clock_ahead_ms(12);
  tier.add_daemons()->set_self(true);
  return status;
}

v1::TierDaemon& AddDaemon(const std::string& host, const std::string& compiler, const std::string& build,
                          v1::StatusReply* status) {
  v1::TierDaemon& daemon = *status->mutable_tier()->add_daemons();
  daemon.set_key_id(std::string(64, 'e'));
  daemon.mutable_record()->set_host(host);
  daemon.mutable_record()->set_compiler_fingerprint(compiler);
  daemon.mutable_record()->set_build_id(build);
  return daemon;
}

TEST(DoctorChecks, TheCaller) {
  v1::StatusReply status;
  status.mutable_caller()->set_tenant("train");
  status.mutable_caller()->set_has_tenants(true);
  status.mutable_caller()->add_roles("read");
  status.mutable_caller()->add_roles("admin");
  Checks checks;
  CheckCaller(status, &checks);
  ExpectLine(checks, "identity", "ok", "tenant train; roles read, admin");
  checks.clear();
  CheckCaller(v1::StatusReply(), &checks);
  EXPECT_TRUE(checks.empty()) << "an older daemon says nothing of that";
}

TEST(DoctorChecks, Keys) {
  v1::StatusReply status;
  status.set_signing_key("0123456789abcdef");
  status.add_trusted_keys("another");
  status.set_revoked_keys(2);
  const std::string key = absl::Base64Escape(std::string(32, 'k'));
  const std::string other = absl::Base64Escape(std::string(32, 'o'));
  for (const std::string& only : {std::string(), key, absl::StrCat(other, ",", key)}) {
    Checks checks;
    CheckKeys(status, key, only, &checks);
    ExpectLine(checks, "keys", "ok", "signs with key 0123456789ab, trusts 1 besides, 2 revoked");
  }
  Checks checks;
  CheckKeys(status, key, other, &checks);
  ExpectLine(checks, "keys", "FAILED", absl::StrCat("add ", key));
  checks.clear();
  CheckKeys(status, key, "no key", &checks);
  ExpectLine(checks, "keys", "FAILED", "KILN_TRUSTED_KEYS");
}

TEST(DoctorChecks, Certificates) {
  v1::CertificateStatus certificate;
  certificate.set_name("listen.tls.certificate");
  const auto line = [&](int64_t ends) {
    Checks checks;
    certificate.set_ends_unix_seconds(ends);
    CheckCertificate(certificate, kNow, &checks);
    return checks;
  };
  const std::string name = "certificate: listen.tls.certificate";
  ExpectLine(line(kNow + 90 * kDay), name, "ok", "90 days left");
  ExpectLine(line(kNow + kCertificateWarnSeconds), name, "ok", "14 days left");
  ExpectLine(line(kNow + kCertificateWarnSeconds - 1), name, "WARN", "13 days left");
  ExpectLine(line(kNow), name, "FAILED", "renew it");
  ExpectLine(line(kNow - 3 * kDay), name, "FAILED", "has ended 3 d ago");
  certificate.set_message("listen.tls.certificate: /x cannot be read: No such file or directory");
  ExpectLine(line(0), name, "FAILED", "cannot be read");
}

TEST(DoctorChecks, Clocks) {
  v1::StatusReply status;
  const auto line = [&](int64_t daemons, int64_t begun, int64_t ended) {
    Checks checks;
    status.set_unix_millis(daemons);
    CheckClock(status, begun, ended, &checks);
    return checks;
  };
  ExpectLine(line(5'000, 4'000, 6'000), "clock", "ok", "as here");
  ExpectLine(line(16'000, 4'000, 6'000), "clock", "ok", "as here");
  ExpectLine(line(16'001, 4'000, 6'000), "clock", "FAILED", "10.0 s ahead of this host's");
  ExpectLine(line(1'000, 40'000, 60'000), "clock", "FAILED", "39.0 s behind this host's");
  EXPECT_TRUE(line(0, 4'000, 6'000).empty()) << "an older daemon";
}

TEST(DoctorChecks, Versions) {
  v1::StatusReply status;
  status.set_version("1.2.0");
  Checks checks;
  CheckVersion(status, "1.2.0", &checks);
  ExpectLine(checks, "version", "ok", "1.2.0");
  checks.clear();
  CheckVersion(status, "1.1.0", &checks);
  ExpectLine(checks, "version", "WARN", "kilnctl is 1.1.0");
}

TEST(DoctorChecks, TheTier) {
  Checks checks;
  CheckTier(v1::StatusReply(), &checks);
  EXPECT_TRUE(checks.empty()) << "there is none";
  CheckTier(InATier(), &checks);
  ExpectLine(checks, "tier", "ok", "tier.example:6379, 0.7 ms");
  ExpectLine(checks, "tier's clock", "ok", "as the daemon's");
  ExpectLine(checks, "tier's daemons", "ok", "0 others");

  const auto of = [&](void (*harm)(v1::TierStatus*)) {
    v1::StatusReply status = InATier();
    harm(status.mutable_tier());
    Checks told;
    CheckTier(status, &told);
    return told;
  };
  ExpectLine(of([](v1::TierStatus* tier) {
               tier->set_connected(false);
               tier->set_message("Connection refused");
             }),
             "tier", "FAILED", "NOT CONNECTED: Connection refused");
  ExpectLine(of([](v1::TierStatus* tier) { tier->set_breaker_open(true); }), "tier", "FAILED", "TOO SLOW");
  ExpectLine(of([](v1::TierStatus* tier) {
               tier->clear_latency_ms();
               tier->set_look_message("no answer in time");
             }),
             "tier", "FAILED", "no answer in time");
  ExpectLine(of([](v1::TierStatus* tier) { tier->set_clock_ahead_ms(-3'600'000); }), "tier's clock", "FAILED",
             "3600.0 s behind");
  ExpectLine(of([](v1::TierStatus* tier) {
               tier->clear_clock_ahead_ms();
               tier->set_clock_message("unknown command");
             }),
             "tier's clock", "off", "unknown command");
  ExpectLine(of([](v1::TierStatus* tier) { tier->set_look_message("NOPERM"); }), "tier's daemons", "WARN",
             "NOPERM");
}

TEST(DoctorChecks, DaemonsOfTheTierThatDiffer) {
  v1::StatusReply status = InATier();
  AddDaemon("farm-2", "one", "aaaa", &status);
  Checks checks;
  CheckTier(status, &checks);
  ExpectLine(checks, "tier's daemons", "ok", "1 other");
  EXPECT_EQ(checks.size(), 3u) << "of those that are the same nothing more is said";

  AddDaemon("farm-3", "two", "bbbb", &status);
  AddDaemon("farm-4", "one", "cccc", &status);
  AddDaemon("", "", "", &status).clear_record();
  checks.clear();
  CheckTier(status, &checks);
  ExpectLine(checks, "tier's builds", "FAILED",
             "1 of another compiler, which share no programs with this one: farm-3");
  ExpectLine(checks, "tier's builds", "WARN", "1 of another kilnd with the same compiler: farm-4");
  ExpectLine(checks, "tier's keys", "FAILED",
             "1 not trusted here, whose programs are misses: (key eeeeeeeeeeee)");
}

}  // namespace
}  // namespace kiln
