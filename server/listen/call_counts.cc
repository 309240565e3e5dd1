#include "server/listen/call_counts.h"

#include <algorithm>
#include <initializer_list>
#include <string_view>

#include "absl/strings/numbers.h"
#include "google/protobuf/struct.pb.h"
#include "google/protobuf/util/json_util.h"
#include "grpc/grpc.h"
#include "grpc/support/alloc.h"

namespace kiln {
namespace {

using google::protobuf::ListValue;
using google::protobuf::Struct;

constexpr intptr_t kPage = 500;  // gRPC's own limit

// Takes gRPC's text; nothing where it has none, which says that the thing is gone.
std::optional<Struct> Parse(char* text) {
  if (text == nullptr) return std::nullopt;
  Struct parsed;
  const bool ok = google::protobuf::util::JsonStringToMessage(text, &parsed).ok();
  gpr_free(text);
  if (!ok) return std::nullopt;
  return parsed;
}

// 64 bits are text there, and zeros are left out.
int64_t NumberAt(const Struct& from, std::initializer_list<std::string_view> path) {
  const Struct* at = &from;
  int64_t number = 0;
  for (const std::string_view name : path) {
    const auto found = at->fields().find(std::string(name));
    if (found == at->fields().end()) return 0;
    if (!found->second.has_struct_value()) {
      return absl::SimpleAtoi(found->second.string_value(), &number) ? number : 0;
    }
    at = &found->second.struct_value();
  }
  return 0;
}

// Of all pages of a list; `ask` gives the page whose numbers are so large at least.
template <typename Ask>
std::vector<int64_t> Numbers(int64_t first, const char* list, const char* number, const Ask& ask) {
  std::vector<int64_t> numbers;
  while (true) {
    const std::optional<Struct> page = Parse(ask(first));
    if (!page.has_value()) return numbers;
    const auto found = page->fields().find(list);
    if (found == page->fields().end() || found->second.list_value().values().empty()) return numbers;
    for (const auto& value : found->second.list_value().values()) {
      const Struct& item = value.struct_value();
      numbers.push_back(item.fields().contains("ref") ? NumberAt(item, {"ref", number})
                                                      : NumberAt(item, {number}));
    }
    if (page->fields().contains("end")) return numbers;
    first = numbers.back() + 1;
  }
}

}  // namespace

std::optional<int64_t> NumberOfNewestServer() {
  const std::vector<int64_t> numbers =
      Numbers(0, "server", "serverId", [](int64_t first) { return grpc_channelz_get_servers(first); });
  if (numbers.empty()) return std::nullopt;
  return *std::max_element(numbers.begin(), numbers.end());
}

std::vector<int64_t> NumbersOfConnections(int64_t server, int64_t first) {
  return Numbers(first, "socketRef", "socketId",
                 [server](int64_t from) { return grpc_channelz_get_server_sockets(server, from, kPage); });
}

std::optional<int64_t> UnansweredOfServer(int64_t server) {
  const std::optional<Struct> found = Parse(grpc_channelz_get_server(server));
  if (!found.has_value()) return std::nullopt;
  return NumberAt(*found, {"server", "data", "callsFailed"});
}

std::optional<int64_t> UnansweredOfConnection(int64_t connection) {
  const std::optional<Struct> found = Parse(grpc_channelz_get_socket(connection));
  if (!found.has_value()) return std::nullopt;
  return NumberAt(*found, {"socket", "data", "streamsFailed"});
}

}  // namespace kiln
