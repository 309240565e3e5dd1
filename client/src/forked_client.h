// Decides, at each call, who makes it: `client`, by gRPC, in the process that used gRPC first; programs
// (program_client.h) in each process that was forked from it, also while a call ran there. Such a process
// touches nothing of `client`, whose locks other threads of the parent may have held, and never destroys it:
// the end of a channel there would take the parent's socket out of the set that both share.
//
// A child inherits a descriptor of its parent's socket. The parent shuts the connection down as usual; where
// it is killed while a child lives, the connection stays open with nobody to answer, until kilnd's keepalive
// pings fail (a call in flight) or the idle timeout ends it (server/listen).
//
// A process forked before the first call uses gRPC itself. Threads: as the client's.
#pragma once

#include <memory>

#include "kiln/client.h"

namespace kiln {

// `client` uses gRPC within its calls alone.
std::unique_ptr<Client> NewForkedClient(const ClientOptions& options, std::unique_ptr<Client> client);

}  // namespace kiln
