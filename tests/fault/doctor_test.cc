// kilnctl doctor against daemons that are ill: of what it says of identity, keys, certificates, clocks and
// the tier, the fault as a person meets it. What it makes of each answer is tests/unit/doctor_checks_test.cc.
#include <signal.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "gtest/gtest.h"
#include "tests/fault/certificates.h"
#include "tests/fault/kilnctl.h"
#include "tests/fault/shifted_clock.h"
#include "tests/fault/test_daemon.h"
#include "tests/fault/tier_daemons.h"
#include "tests/unit/temporary_directory.h"

namespace kiln {
namespace {

constexpr long kNinetyDays = 90 * 24 * 3600 + 3600;

KilnctlOutput Doctor(const std::string& address, const std::string& variables = "",
                     const std::string& more = "") {
  // Of a daemon whose clock is set, kilnctl has the host's.
  return RunKilnctl(absl::StrCat("env -u LD_PRELOAD ", variables, " ", KILNCTL), address,
                    absl::StrCat("doctor ", more));
}

// Whether a line has that name and state, and then these words.
bool Says(const KilnctlOutput& doctor, const std::string& name, const std::string& state,
          const std::string& words) {
  for (absl::string_view line : absl::StrSplit(doctor.text, '\n')) {
    if (!absl::ConsumePrefix(&line, name + " ")) continue;
    line = absl::StripLeadingAsciiWhitespace(line);
    if (absl::ConsumePrefix(&line, state) && absl::StrContains(line, words)) return true;
  }
  return false;
}

TEST(Doctor, IdentityAndKeysOfADaemonThatIsWell) {
  TestDaemon daemon;
  const KilnctlOutput well = Doctor(daemon.socket());
  EXPECT_EQ(well.code, 0) << well.text;
  EXPECT_TRUE(Says(well, "identity", "ok", "there are no tenants; roles read, compile, admin")) << well.text;
  EXPECT_TRUE(Says(well, "clock", "ok", "as here")) << well.text;
  grpc::ClientContext context;
  v1::KeysReply keys;
  ASSERT_TRUE(daemon.admin().Keys(&context, {}, &keys).ok());
  EXPECT_TRUE(Says(well, "keys", "ok", absl::StrCat("signs with key ", keys.own().id().substr(0, 12))));
  // The control: a client that trusts another key alone.
  const std::string another(absl::Base64Escape(std::string(32, 'k')));
  const KilnctlOutput ill = Doctor(daemon.socket(), absl::StrCat("KILN_TRUSTED_KEYS=", another));
  EXPECT_EQ(ill.code, 1);
  EXPECT_TRUE(Says(ill, "keys", "FAILED", keys.own().public_key())) << ill.text;
}

TEST(Doctor, ClocksThatDiffer) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer wants to be the first library";
#endif
  ShiftedClock clock;
  TestDaemon daemon;
  EXPECT_TRUE(Says(Doctor(daemon.socket()), "clock", "ok", "as here"));
  clock.Set(3600);
  const KilnctlOutput ill = Doctor(daemon.socket());
  EXPECT_EQ(ill.code, 1);
  EXPECT_TRUE(Says(ill, "clock", "FAILED", "s ahead of this host's")) << ill.text;
}

// A daemon by TLS, and callers of it.
class DoctorByTls : public InTemporaryDirectory {
 protected:
  void Write(const std::string& name, const std::string& text) {
    const std::string path = absl::StrCat(directory_, "/", name);
    std::ofstream(path) << text;
    chmod(path.c_str(), 0600);
  }
  void WritePair(const std::string& name, const CertificateWish& wish) {
    const CertificatePair pair = authority_.Issue(wish);
    Write(name + ".crt", pair.certificate);
    Write(name + ".key", pair.key);
  }
  void Start(long ends_seconds) {
    Write("ca.crt", authority_.certificate());
    CertificateWish wish;
    wish.hosts = {"IP:127.0.0.1"};
    wish.usage = "serverAuth";
    wish.ends_seconds = ends_seconds;
    WritePair("server", wish);
    const std::string at = absl::StrCat("\"", directory_, "/");
    daemon_ = std::make_unique<TestDaemon>(
        absl::StrCat("listen { tcp: \"127.0.0.1:0\" tls { certificate: ", at, "server.crt\" key: ", at,
                     "server.key\" authority: ", at,
                     "ca.crt\" } tenants { name: \"ops\" identities: \"kiln:ops\" roles: ROLE_ADMIN } ",
                     "tenants { name: \"train\" identities: \"kiln:train\" } }"));
    v1::StatusReply status;
    grpc::ClientContext context;
    ASSERT_TRUE(daemon_->admin().Status(&context, {}, &status).ok());
    address_ = status.address().substr(status.address().rfind(' ') + 1);
  }
  KilnctlOutput DoctorOf(const std::string& tenant, long ends_seconds = kNinetyDays) {
    CertificateWish wish;
    wish.uris = {absl::StrCat("kiln:", tenant)};
    wish.ends_seconds = ends_seconds;
    WritePair(tenant, wish);
    const std::string at = absl::StrCat("=", directory_, "/");
    return Doctor(address_,
                  absl::StrCat("KILN_TLS_CA", at, "ca.crt KILN_TLS_CERT", at, tenant, ".crt KILN_TLS_KEY", at,
                               tenant, ".key"),
                  "--timeout 20");
  }

  TestAuthority authority_;
  std::string address_;
  std::unique_ptr<TestDaemon> daemon_;
};

TEST_F(DoctorByTls, WhoIsAskingAndHowLongCertificatesLast) {
  Start(kNinetyDays);
  const KilnctlOutput well = DoctorOf("ops");
  EXPECT_EQ(well.code, 0) << well.text;
  EXPECT_TRUE(Says(well, "identity", "ok", "tenant ops; roles admin")) << well.text;
  EXPECT_TRUE(Says(well, "certificate: listen.tls.certificate", "ok", "90 days left")) << well.text;
  EXPECT_TRUE(Says(well, "certificate: listen.tls.authority", "WARN", "0 days left")) << well.text;
  EXPECT_TRUE(Says(well, "certificate: KILN_TLS_CERT", "ok", "90 days left")) << well.text;
  EXPECT_TRUE(Says(DoctorOf("ops", 23 * 3600), "certificate: KILN_TLS_CERT", "WARN", "0 days left"));

  const KilnctlOutput ended = DoctorOf("ops", /*ends_seconds=*/-60);
  EXPECT_NE(ended.code, 0);
  EXPECT_TRUE(Says(ended, "certificate: KILN_TLS_CERT", "FAILED", "has ended")) << ended.text;
  std::filesystem::remove(directory_ + "/server.crt");
  EXPECT_TRUE(Says(DoctorOf("ops"), "certificate: listen.tls.certificate", "FAILED", "cannot be read"));
  EXPECT_EQ(DoctorOf("ops").code, 1);
}

TEST_F(DoctorByTls, WhoMayNotAskIsToldWhomTheDaemonTakesHimFor) {
  Start(kNinetyDays);
  for (const auto& [tenant, words] :
       {std::pair<std::string, std::string>{"train", "which tenant \"train\" lacks"},
        {"stranger", "kiln:stranger is no tenant's"}}) {
    const KilnctlOutput doctor = DoctorOf(tenant);
    EXPECT_EQ(doctor.code, 1) << doctor.text;
    EXPECT_TRUE(Says(doctor, "reachable", "ok", address_)) << doctor.text;
    EXPECT_TRUE(Says(doctor, "identity", "FAILED", words)) << doctor.text;
  }
}

class DoctorOfTier : public TierDaemons {};

TEST_F(DoctorOfTier, SaysHowItIsAndWhoIsThere) {
  TestDaemon first(Config("a", {"b"})), second(Config("b", {"a"}));
  ASSERT_TRUE(Eventually([&] { return Says(Doctor(first.socket()), "tier's daemons", "ok", "1 other"); }))
      << Doctor(first.socket()).text;
  const KilnctlOutput well = Doctor(first.socket());
  EXPECT_EQ(well.code, 0) << well.text;
  EXPECT_TRUE(Says(well, "tier", "ok", " ms")) << well.text;
  EXPECT_TRUE(Says(well, "tier's clock", "ok", "as the daemon's")) << well.text;
  EXPECT_TRUE(Says(well, "keys", "ok", "trusts 1 besides")) << well.text;
  EXPECT_FALSE(absl::StrContains(well.text, "tier's builds")) << well.text;
  EXPECT_TRUE(absl::StrContains(Doctor(first.socket(), "", "--json").text, "\"name\": \"tier's daemons\""));
  // Who ends takes leave.
  EXPECT_EQ(second.Stop(SIGTERM), 0);
  EXPECT_TRUE(Says(Doctor(first.socket()), "tier's daemons", "ok", "0 others"));

  redis_->Kill();
  EXPECT_EQ(Doctor(first.socket()).code, 1);
  EXPECT_TRUE(Eventually([&] { return Says(Doctor(first.socket()), "tier", "FAILED", "NOT CONNECTED"); }))
      << Doctor(first.socket()).text;
}

TEST_F(DoctorOfTier, NamesDaemonsOfAnotherCompilerAndStrangers) {
  TestDaemon first(Config("a", {"b"})), second(Config("b", {"a"}), {}, SCRIPTED_WORKER_2);
  ASSERT_TRUE(Eventually([&] {
    return Says(Doctor(first.socket()), "tier's builds", "FAILED", "1 of another compiler");
  })) << Doctor(first.socket()).text;
  EXPECT_EQ(Doctor(first.socket()).code, 1);
  TestDaemon stranger(Config("c", {"a"}));
  EXPECT_TRUE(Eventually([&] {
    return Says(Doctor(first.socket()), "tier's keys", "FAILED", "1 not trusted here");
  })) << Doctor(first.socket()).text;
}

TEST_F(DoctorOfTier, SaysThatItsClockDiffers) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer wants to be the first library";
#endif
  ShiftedClock clock;
  TestDaemon daemon(Config("a", {}));
  EXPECT_TRUE(Says(Doctor(daemon.socket()), "tier's clock", "ok", "as the daemon's"));
  clock.Set(-3600);
  const KilnctlOutput ill = Doctor(daemon.socket());
  EXPECT_TRUE(Says(ill, "tier's clock", "FAILED", "s ahead of the daemon's")) << ill.text;
}

}  // namespace
}  // namespace kiln
