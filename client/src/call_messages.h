// Converts between libkiln's types and the messages of a forked process and its kiln-call
// (proto/kiln/v1/call.proto). Threads: pure functions.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kiln/client.h"
#include "kiln/v1/call.pb.h"

namespace kiln {

// The version of the messages: any change of them raises it.
inline constexpr uint32_t kCallFormat = 1;

v1::CallOptions ToMessage(const ClientOptions& options);
// FAILED_PRECONDITION where the message is of another build.
absl::StatusOr<ClientOptions> FromMessage(const v1::CallOptions& message);

v1::CallInput ToMessage(const CompileRequestInput& input, bool compile);
CompileRequestInput FromMessage(v1::CallInput message);

// Without objects and debug files.
v1::CallArtifact ToMessage(const CompiledArtifact& artifact);
// Into `artifact`, whose objects and debug files stay.
void FromMessage(v1::CallArtifact message, CompiledArtifact* artifact);

// With all payloads.
v1::CallReply::End ToMessage(const absl::Status& status);
absl::Status FromMessage(const v1::CallReply::End& message);

}  // namespace kiln
