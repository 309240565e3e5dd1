// kilnctl tenants and drain.
#include <chrono>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/admin/ask.h"
#include "client/admin/json.h"
#include "client/admin/text.h"

namespace kiln {
namespace {

constexpr std::chrono::milliseconds kDrainPause(200);

}  // namespace

int RunTenants(const AdminContext& context) {
  v1::TenantsReply reply;
  if (int code = Ask(context, &v1::Admin::Stub::Tenants, v1::TenantsRequest(), &reply); code != kExitOk)
    return code;
  if (context.json) {
    *context.out << ToJson(reply);
    return kExitOk;
  }
  Table table({"TENANT", "UIDS", ">CONNECTIONS", ">QUEUED", ">RUNNING", ">GRAPHS", ">LAST HOUR", ">QUOTA",
               ">HITS", ">COMPILES"});
  for (const v1::TenantInfo& tenant : reply.tenants()) {
    const uint64_t quota = tenant.compile_seconds_per_hour();
    table.Add({tenant.name().empty() ? "(no namespace)" : tenant.name(),
               tenant.configured() ? absl::StrJoin(tenant.uids(), ",") : "-",
               tenant.configured() ? absl::StrCat(tenant.connections()) : "-",
               absl::StrCat(tenant.waiting() + tenant.queued()), absl::StrCat(tenant.running()),
               HumanBytes(tenant.graphs_bytes()), HumanSeconds(tenant.compile_seconds_last_hour()),
               quota == 0 ? "-" : HumanSeconds(static_cast<double>(quota)), absl::StrCat(tenant.hits()),
               absl::StrCat(tenant.compiles())});
  }
  *context.out << (table.rows() == 0 ? "no tenant has done anything yet\n" : table.ToString());
  *context.out << reply.connections() << (reply.connections() == 1 ? " connection" : " connections")
               << " in all\n";
  return kExitOk;
}

int RunDrain(const AdminContext& context, bool undo, bool wait) {
  v1::DrainRequest request;
  request.set_undo(undo);
  v1::DrainReply reply;
  while (true) {
    if (int code = Ask(context, &v1::Admin::Stub::Drain, request, &reply); code != kExitOk) return code;
    if (!wait || reply.flights() == 0) break;
    std::this_thread::sleep_for(kDrainPause);
  }
  if (context.json) {
    *context.out << ToJson(reply);
  } else if (!reply.drained()) {
    *context.out << "takes compiles again\n";
  } else {
    *context.out << "drained: takes no new compiles; "
                 << (reply.flights() == 0 ? "none runs or waits"
                                          : absl::StrCat(reply.flights(), " still run or wait"))
                 << "\n";
  }
  return kExitOk;
}

}  // namespace kiln
