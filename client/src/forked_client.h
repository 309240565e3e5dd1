// Decides, at each call, who makes it: `client`, by gRPC, in the process that used gRPC first; programs
// (program_client.h) in each process that was forked from it, also while a call ran there. Such a process
// touches nothing of `client`, whose locks other threads of the parent may have held, and never destroys it:
// the end of a channel there would take the parent's socket out of the set that both share.
//
// What a child has of its parent's connection is a copy of the socket's descriptor. The parent closes the
// connection as ever. Where it is killed while a child lives, the connection stays without anybody who
// answers: kilnd finds out by its pings where a call runs, and ends it as idle where none does
// (server/listen).
//
// A process forked before the first call is a process as any other. Threads: as the client's.
#pragma once

#include <memory>

#include "kiln/client.h"

namespace kiln {

// `client` uses gRPC within its calls alone.
std::unique_ptr<Client> NewForkedClient(const ClientOptions& options, std::unique_ptr<Client> client);

}  // namespace kiln
