// Authentication and authorisation of calls, in one place: every handler of every service asks it first.
//
// A gate belongs to one gRPC server. Of a unix socket the connections of one server are all of one caller,
// for whom the gate is made; by TLS each call's connection has a certificate that gRPC has verified.
//
// Immutable and cheap to copy: any thread.
#pragma once

#include "absl/status/statusor.h"
#include "grpcpp/grpcpp.h"
#include "server/auth/identities.h"
#include "server/auth/role_table.h"

namespace kiln {

class Gate {
 public:
  // `identities` outlives it, and so does `connection`, whose the connections are; null: each one's
  // certificate says.
  Gate(const Identities* identities, const Identity* connection)
      : identities_(identities), connection_(connection) {}

  // The identity that the call is made for: the caller, or the tenant that it names in kOnBehalfOfMetadata
  // (compiler/support/protocol.h). It lives as long as the identities. UNAUTHENTICATED where the certificate
  // names no tenant; PERMISSION_DENIED, which names the missing role, where the caller may not make this
  // call.
  absl::StatusOr<const Identity*> Admit(const grpc::ServerContextBase& call, Rpc rpc) const;

 private:
  absl::StatusOr<const Identity*> CallerOf(const grpc::ServerContextBase& call) const;

  const Identities* identities_;
  const Identity* connection_;
};

}  // namespace kiln
