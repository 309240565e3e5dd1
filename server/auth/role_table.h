// Which role lets a caller ask what: a table of roles and RPCs, as data. A new RPC is a new row, without
// which it does not compile. docs/operating.md shows the same table (tests/unit/auth_test.cc compares them).
//
// Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kiln/v1/config.pb.h"

namespace kiln {

enum class Rpc {
  kHello,
  kLookup,
  kFetchObjects,
  kReportUse,
  kCompile,
  kAttach,
  kStatus,
  kStats,
  kJobs,
  kList,
  kShow,
  kVerify,
  kRemove,
  kPin,
  kEvict,
  kKeys,
  kWhy,
  kDiff,
  kDrain,
  kTenants,
  kExport,
  kImport,
  kReflect,
};

// A set of roles. No role implies another but by the table.
class Roles {
 public:
  constexpr Roles() = default;
  constexpr Roles(std::initializer_list<v1::Role> roles) {
    for (const v1::Role role : roles) Add(role);
  }
  constexpr void Add(v1::Role role) { bits_ |= uint32_t{1} << role; }
  constexpr void Remove(v1::Role role) { bits_ &= ~(uint32_t{1} << role); }
  constexpr bool Has(v1::Role role) const { return (bits_ >> role & 1) != 0; }
  constexpr bool Meets(const Roles& others) const { return (bits_ & others.bits_) != 0; }
  constexpr bool empty() const { return bits_ == 0; }

 private:
  uint32_t bits_ = 0;
};

struct RpcRule {
  Rpc rpc;
  absl::string_view name;  // "Compiler.Lookup"
  Roles allowed;           // any one of them is enough
  // ROLE_FORWARD may ask it for a tenant whom it speaks for.
  bool forwarded;
};

absl::Span<const RpcRule> RpcRules();
const RpcRule& RuleOf(Rpc rpc);

// "read", as people write it in the documents.
std::string RoleName(v1::Role role);
// "read or compile": what would have been enough.
std::string RoleNames(const Roles& roles);
// The table in Markdown, a row an RPC.
std::string RoleTable();

}  // namespace kiln
