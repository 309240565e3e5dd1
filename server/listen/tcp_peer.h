// The other side of a TCP connection, by its descriptor. Threads: pure functions.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace kiln {

// Its address without the port, as the system writes it; empty for what is no TCP connection.
std::string TcpHostOf(int descriptor);
// As gRPC names it ("ipv4:10.0.0.7:4711"); empty likewise.
std::string TcpPeerOf(int descriptor);
// The same of an address of four bytes or sixteen; empty for another.
std::string TcpPeerOf(absl::string_view address, int port);
// Whether gRPC's name of a peer is such a one.
bool IsTcpPeer(absl::string_view peer);

}  // namespace kiln
