// An embedded daemon with an upstream (KILN_UPSTREAM): its user's processes are to the farm what they would
// be without it, but for the namespaces that the farm lets them read besides. Nobody configures it, so it
// takes from the farm, whom it knows by mutual TLS as a client does, which tenant its certificate is, and
// whose signatures count.
//
// Threads: pure functions but for the file system.
#pragma once

#include <sys/types.h>

#include <string>

#include "absl/status/status.h"
#include "kiln/v1/compile.pb.h"
#include "kiln/v1/config.pb.h"
#include "server/upstream/upstream.h"

namespace kiln {

// Then nothing is known of the upstream, and the daemon makes room soon for one that can ask it.
inline constexpr uint32_t kUnknownUpstreamIdleSeconds = 60;

// Makes `own` the tenant that the upstream says, and trusts the keys that it lists for that tenant. What it
// said to that certificate is kept beside the signing key, for a start while it is away. NOT_FOUND, and
// nothing is changed, where it is, and never was reached before. A configuration with tenants of its own
// stays as it is.
absl::Status AdoptUpstream(const Upstream& upstream, uid_t own, v1::Config* config);

// What AdoptUpstream makes of it.
void AdoptHello(const v1::HelloReply& hello, uid_t own, v1::Config* config);

}  // namespace kiln
