#include "server/auth/role_table.h"

#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"

namespace kiln {
namespace {

constexpr v1::Role kRoles[] = {v1::ROLE_READ, v1::ROLE_COMPILE, v1::ROLE_ADMIN, v1::ROLE_FORWARD};

constexpr Roles kAll = {v1::ROLE_READ, v1::ROLE_COMPILE, v1::ROLE_ADMIN, v1::ROLE_FORWARD};
constexpr Roles kReaders = {v1::ROLE_READ, v1::ROLE_COMPILE};
constexpr Roles kCompilers = {v1::ROLE_COMPILE};
constexpr Roles kAdmins = {v1::ROLE_ADMIN};

// In the order of Rpc.
constexpr RpcRule kRules[] = {
    {Rpc::kHello, "Compiler.Hello", kAll, true},
    {Rpc::kLookup, "Compiler.Lookup", kReaders, true},
    {Rpc::kFetchObjects, "Compiler.FetchObjects", kReaders, true},
    {Rpc::kReportUse, "Compiler.ReportUse", kReaders, true},
    {Rpc::kCompile, "Compiler.Compile", kCompilers, true},
    {Rpc::kAttach, "Compiler.Attach", kCompilers, true},
    {Rpc::kStatus, "Admin.Status", kAdmins, false},
    {Rpc::kStats, "Admin.Stats", kAdmins, false},
    {Rpc::kJobs, "Admin.Jobs", kAdmins, false},
    {Rpc::kList, "Admin.List", kAdmins, false},
    {Rpc::kShow, "Admin.Show", kAdmins, false},
    {Rpc::kVerify, "Admin.Verify", kAdmins, false},
    {Rpc::kRemove, "Admin.Remove", kAdmins, false},
    {Rpc::kPin, "Admin.Pin", kAdmins, false},
    {Rpc::kEvict, "Admin.Evict", kAdmins, false},
    {Rpc::kKeys, "Admin.Keys", kAdmins, false},
    {Rpc::kWhy, "Admin.Why", kAdmins, false},
    {Rpc::kDiff, "Admin.Diff", kAdmins, false},
    {Rpc::kDrain, "Admin.Drain", kAdmins, false},
    {Rpc::kTenants, "Admin.Tenants", kAdmins, false},
    {Rpc::kExport, "Bundles.Export", kAdmins, false},
    {Rpc::kImport, "Bundles.Import", kAdmins, false},
    {Rpc::kReflect, "ServerReflection.ServerReflectionInfo", kAll, true},
};

constexpr bool InOrder() {
  for (size_t i = 0; i < std::size(kRules); ++i) {
    if (kRules[i].rpc != static_cast<Rpc>(i)) return false;
  }
  return std::size(kRules) == static_cast<size_t>(Rpc::kReflect) + 1;
}
static_assert(InOrder());

}  // namespace

absl::Span<const RpcRule> RpcRules() { return kRules; }

const RpcRule& RuleOf(Rpc rpc) { return kRules[static_cast<size_t>(rpc)]; }

std::string RoleName(v1::Role role) {
  return absl::AsciiStrToLower(absl::StripPrefix(v1::Role_Name(role), "ROLE_"));
}

std::string RoleNames(const Roles& roles) {
  std::vector<std::string> names;
  for (const v1::Role role : kRoles) {
    if (roles.Has(role)) names.push_back(RoleName(role));
  }
  return absl::StrJoin(names, " or ");
}

std::string RoleTable() {
  std::string table = "| RPC |";
  for (const v1::Role role : kRoles) absl::StrAppend(&table, " ", RoleName(role), " |");
  absl::StrAppend(&table, "\n|---|---|---|---|---|\n");
  for (const RpcRule& rule : kRules) {
    absl::StrAppend(&table, "| `", rule.name, "` |");
    for (const v1::Role role : kRoles) {
      const bool for_others = role == v1::ROLE_FORWARD && rule.forwarded && !rule.allowed.Has(role);
      absl::StrAppend(&table, rule.allowed.Has(role) ? " yes |" : for_others ? " for others |" : " |");
    }
    absl::StrAppend(&table, "\n");
  }
  return table;
}

}  // namespace kiln
