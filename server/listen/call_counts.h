// What gRPC counts of the calls of this process's servers and of their connections (channelz): no handler
// learns by which connection its call came. Numbers are gRPC's, and later ones are larger.
//
// Thread-safe: gRPC's own lock. Costs microseconds a question, and the newest server's number as many as
// there are connections.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kiln {

// Nothing where there is none.
std::optional<int64_t> NumberOfNewestServer();
// Those that are open and whose number is `first` at least.
std::vector<int64_t> NumbersOfConnections(int64_t server, int64_t first);
// The other side of a connection by TCP, as gRPC names it (tcp_peer.h); empty for another, and for what is
// gone.
std::string PeerOfConnection(int64_t connection);
// Calls that ended without an answer: the client reset them, or its connection broke. Nothing for what is
// gone.
std::optional<int64_t> UnansweredOfServer(int64_t server);
std::optional<int64_t> UnansweredOfConnection(int64_t connection);

}  // namespace kiln
