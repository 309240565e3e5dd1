// A client whose calls are made by programs (call_program.h), for a process that must not call gRPC.
//
// A program for each call that runs, and one that waits for the next: the connection and the objects that it
// keeps serve a burst. One that has ended meanwhile is replaced, once a call. A breaker as libkiln's own, so
// that a service that is away is not waited for at each graph.
//
// Threads: as the client's. In the process that made it alone: a child that is forked makes another. Errors:
// beside the client's own, FAILED_PRECONDITION without a program, UNAVAILABLE where one ends within a call.
#pragma once

#include <memory>

#include "kiln/client.h"

namespace kiln {

std::unique_ptr<Client> NewProgramClient(const ClientOptions& options);

}  // namespace kiln
