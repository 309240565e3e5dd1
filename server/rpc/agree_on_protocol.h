// Client and daemon agree on a version of kiln.v1, at each call (compiler/support/protocol.h).
//
// Threads: pure functions.
#pragma once

#include "absl/status/status.h"
#include "compiler/support/protocol.h"
#include "grpcpp/grpcpp.h"

namespace kiln {

// FAILED_PRECONDITION, which names both ranges, where they have no version in common.
absl::Status CheckProtocol(const ProtocolRange& client);

// Checks what the client says, and says in the answer's initial metadata what this daemon speaks where that
// is another range. INVALID_ARGUMENT for what is no range; a client that says nothing is served.
absl::Status AgreeOnProtocol(grpc::CallbackServerContext* context);

}  // namespace kiln
