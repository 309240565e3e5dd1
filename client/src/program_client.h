// A client whose calls are made by programs (call_program.h), for a process that must not call gRPC.
//
// One program for each call in flight, and an idle one whose connection and objects serve the next call. A
// call retries once where its program has ended meanwhile. A circuit breaker like libkiln's own keeps graphs
// from waiting for a service that is away.
//
// Threads: as the client's. In the process that made it alone: a child that is forked makes another. Errors:
// beside the client's own, FAILED_PRECONDITION without a program, UNAVAILABLE where one ends within a call.
#pragma once

#include <memory>

#include "kiln/client.h"

namespace kiln {

std::unique_ptr<Client> NewProgramClient(const ClientOptions& options);

}  // namespace kiln
