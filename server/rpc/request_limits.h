// How much of everything a client may say (server/server_limits.h), checked before anything is kept. Errors
// are INVALID_ARGUMENT and name the field. Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "grpcpp/grpcpp.h"
#include "kiln/v1/compile.pb.h"
#include "server/auth/identities.h"
#include "server/schedule/fair_queue.h"

namespace kiln {

// Of a request: its tenant's, where there are tenants, and otherwise what it asks for.
inline const std::string& NamespaceOf(const Identity& who, const std::string& asked) {
  return who.tenant.empty() ? asked : who.tenant;
}

// As much of a job's name as is kept, in whole characters.
std::string JobOf(absl::string_view job);

// The gang that a caller is in; without an id: in none, also where it is the only member.
const v1::Gang& GangOf(const v1::Gang& gang);

absl::Status CheckNamespace(const std::string& ns);
absl::Status CheckDigest(absl::string_view field, const std::string& digest);
absl::Status CheckHints(const v1::Hints& hints);
absl::Status CheckGang(const v1::Gang& gang);
absl::Status CheckUse(const v1::UseReport& use);
absl::StatusOr<Caller::Class> WorkClassOf(v1::WorkClass asked);
absl::Status CheckFetch(const v1::FetchObjectsRequest& request);
absl::Status CheckHeader(const v1::CompileHeader& header, uint64_t graph_bytes_max);

// Same numbers, same meaning.
grpc::Status ToGrpc(const absl::Status& status);
// The end of a call: its trailing metadata says when to come again, where the status does (`PushbackOf`).
grpc::Status EndOfCall(const absl::Status& status, grpc::ServerContextBase* context);

}  // namespace kiln
