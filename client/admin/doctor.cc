// kilnctl doctor: asks the daemon all that a check takes, and tells what came of it.
#include <chrono>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "client/admin/ask.h"
#include "client/admin/commands.h"
#include "client/admin/doctor_checks.h"
#include "client/admin/json.h"
#include "client/admin/text.h"
#include "compiler/support/tls_files.h"

namespace kiln {
namespace {

void Add(const std::string& name, bool good, const std::string& detail, Checks* checks) {
  checks->push_back({name, good ? "ok" : "FAILED", detail});
}

std::string Environment(const char* name) {
  const char* value = getenv(name);
  return value == nullptr ? "" : value;
}

// The checks as a table or as JSON; false where one failed.
bool ReportChecks(const AdminContext& context, const Checks& checks) {
  bool good = true;
  Table table({"CHECK", "STATE", "DETAIL"});
  std::string json;
  for (const Check& check : checks) {
    const bool passed = check.state != "FAILED";
    good = good && passed;
    table.Add({check.name, check.state, check.detail});
    absl::StrAppend(&json, json.empty() ? "" : ",\n", "    {\"name\": ", JsonString(check.name),
                    ", \"ok\": ", passed ? "true" : "false", ", \"state\": ", JsonString(check.state),
                    ", \"detail\": ", JsonString(check.detail), "}");
  }
  if (context.json) {
    *context.out << "{\n  \"ok\": " << (good ? "true" : "false") << ",\n  \"checks\": [\n"
                 << json << "\n  ]\n}\n";
  } else {
    *context.out << table.ToString();
  }
  return good;
}

struct Answer {
  int code = kExitOk;
  bool refused = false;  // the daemon is there, and takes the caller for nobody, or not for an administrator
  std::string said;      // what went wrong
  v1::StatusReply status;
  int64_t begun_ms = 0, ended_ms = 0;
};

Answer AskStatus(const AdminContext& context) {
  Answer answer;
  AdminContext quiet = context;
  std::ostringstream said;
  quiet.error = &said;
  v1::StatusRequest request;
  request.set_look(true);
  answer.begun_ms = absl::ToUnixMillis(absl::Now());
  const auto stub = v1::Admin::NewStub(context.channel);
  grpc::ClientContext call;
  call.set_deadline(std::chrono::system_clock::now() +
                    std::chrono::milliseconds(static_cast<int64_t>(context.timeout_seconds * 1e3)));
  const grpc::Status status = stub->Status(&call, request, &answer.status);
  answer.code = ExitCodeOf(quiet, status);
  // A handshake that fails is UNAVAILABLE.
  answer.refused =
      status.error_code() == grpc::PERMISSION_DENIED || status.error_code() == grpc::UNAUTHENTICATED;
  answer.ended_ms = absl::ToUnixMillis(absl::Now());
  answer.said = std::string(absl::StripPrefix(said.str(), "kilnctl: "));
  return answer;
}

void CheckReachable(const AdminContext& context, const Answer& answer, Checks* checks) {
  const bool unreachable = answer.code == kExitUnreachable;
  const bool reached = answer.code == kExitOk || answer.refused;
  Add("reachable", reached,
      unreachable ? absl::StrCat("nothing answers at ", context.address, " (", context.where, ")")
      : reached   ? context.address
                  : absl::StrCat(context.address, ": ", answer.said),
      checks);
  if (answer.refused) Add("identity", false, Printable(absl::StripSuffix(answer.said, "\n")), checks);
}

void CheckHello(const AdminContext& context, Checks* checks) {
  auto stub = v1::Compiler::NewStub(context.channel);
  grpc::ClientContext call;
  v1::HelloRequest request;
  request.set_protocol_min(1);
  request.set_protocol_max(1);
  request.set_client("kilnctl");
  v1::HelloReply hello;
  const grpc::Status greeted = stub->Hello(&call, request, &hello);
  Add("protocol", greeted.ok(), greeted.ok() ? absl::StrCat(hello.protocol()) : greeted.error_message(),
      checks);
  Add("compiler", hello.targets_size() > 0,
      hello.targets_size() > 0 ? hello.compiler_fingerprint() : "the workers offer no target", checks);
}

void CheckService(const v1::StatusReply& status, Checks* checks) {
  Add("store writable", status.store_writable(),
      status.store_writable() ? status.store_directory()
                              : absl::StrCat(status.store_message(), "; compiles go on, nothing is kept"),
      checks);
  Add("accepting", !status.draining() && !status.drained(),
      status.draining()  ? "the daemon is stopping"
      : status.drained() ? "no new compiles: it is drained; kilnctl drain --undo"
                         : "",
      checks);
}

void CheckCounts(const AdminContext& context, Checks* checks) {
  AdminContext quiet = context;
  std::ostringstream said;
  quiet.error = &said;
  v1::StatsReply stats;
  if (Ask(quiet, &v1::Admin::Stub::Stats, v1::StatsRequest(), &stats) != kExitOk) return;
  Add("damaged entries", stats.quarantined() == 0,
      stats.quarantined() == 0
          ? "none met"
          : absl::StrCat(stats.quarantined(), " taken out; run kilnctl verify, check the disk"),
      checks);
  Add("worker crashes", stats.worker_crashes() == 0,
      stats.worker_crashes() == 0 ? "none" : absl::StrCat(stats.worker_crashes(), "; see the daemon's log"),
      checks);
}

// The caller's own, whether or not the daemon answers: one that has ended is why it does not.
void CheckOwnCertificate(const AdminContext& context, Checks* checks) {
  if (context.tls_certificate.empty()) return;
  v1::CertificateStatus certificate;
  certificate.set_name("KILN_TLS_CERT");
  const absl::StatusOr<int64_t> end = CertificateFileEnd(context.tls_certificate, "KILN_TLS_CERT");
  if (end.ok()) {
    certificate.set_ends_unix_seconds(*end);
  } else {
    certificate.set_message(std::string(end.status().message()));
  }
  CheckCertificate(certificate, absl::ToUnixSeconds(absl::Now()), checks);
}

}  // namespace

int RunDoctor(const AdminContext& context) {
  Checks checks;
  const Answer answer = AskStatus(context);
  const v1::StatusReply& status = answer.status;
  CheckReachable(context, answer, &checks);
  CheckOwnCertificate(context, &checks);
  if (answer.code == kExitOk) {
    CheckHello(context, &checks);
    CheckVersion(status, KILN_VERSION, &checks);
    CheckCaller(status, &checks);
    v1::KeysReply keys;
    if (Ask(context, &v1::Admin::Stub::Keys, v1::KeysRequest(), &keys) == kExitOk)
      CheckKeys(status, keys.own().public_key(), Environment("KILN_TRUSTED_KEYS"), &checks);
    CheckClock(status, answer.begun_ms, answer.ended_ms, &checks);
    for (const v1::CertificateStatus& certificate : status.certificates())
      CheckCertificate(certificate, answer.ended_ms / 1000, &checks);
    Add("workers", status.workers() > 0, absl::StrCat(status.workers()), &checks);
    CheckSandbox(status, &checks);
    CheckUpstream(status, context.upstream, &checks);
    CheckTier(status, &checks);
    CheckService(status, &checks);
    CheckCounts(context, &checks);
  }
  const bool good = ReportChecks(context, checks);
  if (answer.code == kExitUnreachable) return kExitUnreachable;
  return good ? kExitOk : kExitFailed;
}

}  // namespace kiln
