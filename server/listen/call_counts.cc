#include "server/listen/call_counts.h"

#include <algorithm>

#include "google/protobuf/util/json_util.h"
#include "grpc/channelz/v1/channelz.pb.h"
#include "grpc/grpc.h"
#include "grpc/support/alloc.h"
#include "server/listen/tcp_peer.h"

namespace kiln {
namespace {

namespace channelz = grpc::channelz::v1;

constexpr intptr_t kPage = 500;  // gRPC's own limit

// Takes gRPC's text; nothing where it has none, which says that the thing is gone.
template <typename Message>
std::optional<Message> Parse(char* text) {
  if (text == nullptr) return std::nullopt;
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  Message parsed;
  const bool ok = google::protobuf::util::JsonStringToMessage(text, &parsed, options).ok();
  gpr_free(text);
  if (!ok) return std::nullopt;
  return parsed;
}

// Of all pages of a list; `ask` gives the page whose numbers are so large at least, `add` takes its numbers.
template <typename Page, typename Ask, typename Add>
std::vector<int64_t> Numbers(int64_t first, const Ask& ask, const Add& add) {
  std::vector<int64_t> numbers;
  while (true) {
    const std::optional<Page> page = Parse<Page>(ask(first));
    if (!page.has_value()) return numbers;
    const size_t before = numbers.size();
    add(*page, &numbers);
    if (page->end() || numbers.size() == before) return numbers;
    first = numbers.back() + 1;
  }
}

}  // namespace

std::optional<int64_t> NumberOfNewestServer() {
  const std::vector<int64_t> numbers = Numbers<channelz::GetServersResponse>(
      0, [](int64_t first) { return grpc_channelz_get_servers(first); },
      [](const channelz::GetServersResponse& page, std::vector<int64_t>* to) {
        for (const channelz::Server& server : page.server()) to->push_back(server.ref().server_id());
      });
  if (numbers.empty()) return std::nullopt;
  return *std::max_element(numbers.begin(), numbers.end());
}

std::vector<int64_t> NumbersOfConnections(int64_t server, int64_t first) {
  return Numbers<channelz::GetServerSocketsResponse>(
      first, [server](int64_t from) { return grpc_channelz_get_server_sockets(server, from, kPage); },
      [](const channelz::GetServerSocketsResponse& page, std::vector<int64_t>* to) {
        for (const channelz::SocketRef& socket : page.socket_ref()) to->push_back(socket.socket_id());
      });
}

std::string PeerOfConnection(int64_t connection) {
  const auto found = Parse<channelz::GetSocketResponse>(grpc_channelz_get_socket(connection));
  if (!found.has_value()) return "";
  const channelz::Address::TcpIpAddress& remote = found->socket().remote().tcpip_address();
  return TcpPeerOf(remote.ip_address(), remote.port());
}

std::optional<int64_t> UnansweredOfServer(int64_t server) {
  const auto found = Parse<channelz::GetServerResponse>(grpc_channelz_get_server(server));
  if (!found.has_value()) return std::nullopt;
  return found->server().data().calls_failed();
}

std::optional<int64_t> UnansweredOfConnection(int64_t connection) {
  const auto found = Parse<channelz::GetSocketResponse>(grpc_channelz_get_socket(connection));
  if (!found.has_value()) return std::nullopt;
  return found->socket().data().streams_failed();
}

}  // namespace kiln
