// kilnctl's commands: each asks one kilnd and prints a table, or JSON. They return the exit code.
#pragma once

#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "grpcpp/grpcpp.h"
#include "kiln/v1/admin.grpc.pb.h"
#include "kiln/v1/compile.grpc.pb.h"

namespace kiln {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;  // nothing found, or a check failed
inline constexpr int kExitUsage = 2;
inline constexpr int kExitUnreachable = 3;

struct AdminContext {
  std::string address;
  std::string where;            // how the address was found, for people
  std::string tls_certificate;  // the caller's file; empty: none is shown
  std::string upstream;         // that the embedded daemon is to have, where it is the one that is asked
  bool json = false;
  double timeout_seconds = 30;
  std::ostream* out = nullptr;
  std::ostream* error = nullptr;
  std::shared_ptr<grpc::Channel> channel;
};

// "/path" → "unix:/path". Empty: KILN_ADDRESS, else the embedded daemon of the kilnd beside kilnctl.
absl::Status ResolveAddress(const std::string& flag, AdminContext* context);

int RunStatus(const AdminContext& context);
int RunStats(const AdminContext& context);
int RunJobs(const AdminContext& context);
int RunList(const AdminContext& context, uint32_t limit);
int RunShow(const AdminContext& context, const std::string& key, bool listings);
int RunVerify(const AdminContext& context, bool repair);
int RunRemove(const AdminContext& context, const std::string& key, bool all, bool every_match, bool tuning);
int RunPin(const AdminContext& context, const std::string& key, bool unpin, bool every_match);
int RunEvict(const AdminContext& context, uint64_t live_bytes);
int RunKeys(const AdminContext& context);
int RunDoctor(const AdminContext& context);
// `about`: a job, the start of a key, or empty.
int RunWhy(const AdminContext& context, const std::string& about, uint32_t limit);
int RunDiff(const AdminContext& context, const std::string& a, const std::string& b);
int RunTenants(const AdminContext& context);
// `wait`: until nothing runs or waits any more.
int RunDrain(const AdminContext& context, bool undo, bool wait);
// `about`: a job, or the starts of keys. `path` is made when all of it is there.
int RunExport(const AdminContext& context, const std::vector<std::string>& about, const std::string& tenant,
              bool every_match, const std::string& path);
// `into`: a namespace, or empty.
int RunImport(const AdminContext& context, const std::string& path, const std::string& into, bool pin);
// Until it is interrupted; `once`: one look. Rates are of `interval_seconds`.
int RunTop(const AdminContext& context, bool once, double interval_seconds);

// The text of `show` for one entry.
std::string ShowText(const v1::ShownEntry& entry, int64_t now);

}  // namespace kiln
