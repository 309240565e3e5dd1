// The daemons that a call has passed before this one: metadata "kiln-hops: ID,ID"
// (compiler/support/protocol.h).
//
// Threads: pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "grpcpp/grpcpp.h"

namespace kiln {

// FAILED_PRECONDITION, which says how it came about, where they are more than kHopsMax, or `own` is among
// them; INVALID_ARGUMENT for what is no list of ids. `own`: this daemon's id; empty: it passes nothing on.
absl::StatusOr<std::vector<std::string>> HopsOf(const grpc::ServerContextBase& call, absl::string_view own);

}  // namespace kiln
