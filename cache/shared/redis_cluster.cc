#include "cache/shared/redis_cluster.h"

#include <hiredis/hiredis.h>

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "compiler/support/start_thread.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

constexpr absl::Duration kFirstMapLimit = absl::Seconds(1);
constexpr absl::Duration kReadLimit = absl::Milliseconds(500);  // of one node
constexpr absl::Duration kPauseMin = absl::Milliseconds(100);   // between two readings
constexpr absl::Duration kPauseMax = absl::Seconds(30);
constexpr absl::Duration kNamedLife = absl::Minutes(1);

constexpr std::array<uint16_t, 256> Crc16Table() {
  std::array<uint16_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte << 8;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 0x8000) != 0 ? (crc << 1) ^ 0x1021 : crc << 1;
    table[byte] = static_cast<uint16_t>(crc);
  }
  return table;
}
constexpr std::array<uint16_t, 256> kCrc16 = Crc16Table();

const std::string& KeyOf(const RedisCommand& command) {
  return command[0] == "EVAL" ? command[3] : command[1];
}

std::string NameOf(const RedisAddress& address) { return absl::StrCat(address.host, ":", address.port); }

// The other way round.
absl::StatusOr<RedisAddress> AddressOf(const std::string& name) {
  const size_t colon = name.rfind(':');
  RedisAddress address;
  uint32_t port = 0;
  if (colon == std::string::npos || colon == 0 || !absl::SimpleAtoi(name.substr(colon + 1), &port) ||
      port == 0 || port > 65535) {
    return absl::DataLossError("a redirection to what is no node");
  }
  address.host = name.substr(0, colon);
  address.port = static_cast<uint16_t>(port);
  return address;
}

// "MOVED 3999 10.0.0.2:6381" or "ASK …"; without a host it is the host of who says so.
struct Redirection {
  std::string node;
  bool asks = false;
};
bool ParseRedirection(const redisReply& reply, const std::string& from, Redirection* redirection) {
  if (reply.type != REDIS_REPLY_ERROR) return false;
  const std::vector<absl::string_view> words = absl::StrSplit(absl::string_view(reply.str, reply.len), ' ');
  if (words.size() != 3 || (words[0] != "MOVED" && words[0] != "ASK")) return false;
  redirection->asks = words[0] == "ASK";
  redirection->node = absl::StartsWith(words[2], ":")
                          ? absl::StrCat(from.substr(0, from.rfind(':')), words[2])
                          : std::string(words[2]);
  return true;
}

}  // namespace

uint16_t RedisSlot(absl::string_view key) {
  if (const size_t open = key.find('{'); open != absl::string_view::npos) {
    const size_t close = key.find('}', open + 1);
    if (close != absl::string_view::npos && close > open + 1) key = key.substr(open + 1, close - open - 1);
  }
  uint32_t crc = 0;
  for (const char c : key)
    crc = ((crc << 8) & 0xffff) ^ kCrc16[((crc >> 8) ^ static_cast<unsigned char>(c)) & 0xff];
  return static_cast<uint16_t>(crc % kRedisSlots);
}

absl::StatusOr<std::unique_ptr<RedisCluster>> RedisCluster::Create(Options options) {
  std::unique_ptr<RedisCluster> made(new RedisCluster(std::move(options)));
  RedisCluster* const cluster = made.get();
  KILN_ASSIGN_OR_RETURN(made->thread_, StartThread([cluster] { cluster->KeepMap(); }));
  const MonotonicTime latest = MonotonicAfter(kFirstMapLimit);
  std::vector<Node> nodes;
  {
    absl::MutexLock lock(&cluster->mutex_);
    while (cluster->readings_ == 0 && MonotonicNow() < latest)
      cluster->changed_.WaitUntil(&cluster->mutex_, latest);
    for (const auto& [name, node] : cluster->nodes_) nodes.push_back(node);
  }
  for (const Node& node : nodes) node->AwaitFirst(latest);
  return made;
}

RedisCluster::~RedisCluster() {
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
    changed_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

// ---- Commands --------------------------------------------------------------------------------

// By the map that is known now.
void RedisCluster::Plan(absl::Span<const size_t> which, Trip* trip) {
  absl::MutexLock lock(&mutex_);
  for (const size_t i : which) {
    if (map_ == nullptr) {
      trip->answers[i] =
          absl::UnavailableError(last_.ok() ? "the cluster's map is not known yet" : last_.message());
      continue;
    }
    const uint16_t master = map_->master_of[RedisSlot(KeyOf(trip->commands[i]))];
    if (master == kNobody) {
      trip->answers[i] = absl::UnavailableError("a slot of the cluster has no node");
    } else {
      trip->errands.push_back({i, NameOf(map_->masters[master]), false});
    }
  }
}

std::vector<RedisEngine::Answer> RedisCluster::RunEach(absl::Span<const RedisCommand> commands,
                                                       MonotonicTime deadline, Asker asker) {
  Trip trip{commands, deadline, asker, {}, {}, {}};
  std::vector<size_t> all;
  for (size_t i = 0; i < commands.size(); ++i) {
    trip.answers.emplace_back(absl::UnknownError("not asked"));
    all.push_back(i);
  }
  Plan(all, &trip);
  Travel(&trip);
  if (trip.read_only.empty()) return std::move(trip.answers);
  AwaitNextMap(deadline);
  const std::vector<size_t> again = std::exchange(trip.read_only, {});
  Plan(again, &trip);
  Travel(&trip);
  for (const size_t i : trip.read_only)
    trip.answers[i] = absl::UnavailableError("a master has changed, and the cluster's map has not yet");
  return std::move(trip.answers);
}

void RedisCluster::Travel(Trip* trip) {
  for (int redirections = 0; !trip->errands.empty(); ++redirections) {
    std::vector<Visit> visits = Begin(trip);
    std::vector<RedisExchange> exchanges;
    for (Visit& visit : visits)
      exchanges.push_back({visit.lent.connection.get(), visit.batch, absl::UnknownError("")});
    RedisConnection::RunTogether(absl::MakeSpan(exchanges), trip->deadline);
    for (size_t i = 0; i < visits.size(); ++i) {
      RedisExchange& exchange = exchanges[i];
      visits[i].node->Return(std::move(visits[i].lent), exchange, trip->asker);
      if (exchange.replies.ok()) {
        Take(&visits[i], absl::MakeSpan(*exchange.replies), redirections < options_.redirections_max, trip);
      } else {
        Distrust();
        Fail(visits[i], exchange.replies.status(), trip);
      }
    }
  }
}

// With a connection each; errands to who has none are answered.
std::vector<RedisCluster::Visit> RedisCluster::Begin(Trip* trip) {
  std::map<std::string, std::vector<Errand>> by_node;
  for (Errand& errand : trip->errands) by_node[errand.node].push_back(std::move(errand));
  trip->errands.clear();
  std::vector<Visit> visits;
  for (auto& [name, errands] : by_node) {
    Visit visit;
    visit.errands = std::move(errands);
    if (const absl::Status reached = Reach(name, *trip, &visit); !reached.ok()) {
      Distrust();
      Fail(visit, reached, trip);
      continue;
    }
    for (const Errand& errand : visit.errands) {
      if (errand.asking) visit.batch.push_back({"ASKING"});
      visit.batch.push_back(trip->commands[errand.command]);
    }
    visits.push_back(std::move(visit));
  }
  return visits;
}

absl::Status RedisCluster::Reach(const std::string& name, const Trip& trip, Visit* visit) {
  KILN_ASSIGN_OR_RETURN(visit->node, NodeOf(name, trip.deadline));
  KILN_ASSIGN_OR_RETURN(visit->lent, visit->node->Borrow(trip.asker));
  return absl::OkStatus();
}

void RedisCluster::Fail(const Visit& visit, const absl::Status& why, Trip* trip) {
  for (const Errand& errand : visit.errands) {
    trip->answers[errand.command] =
        absl::Status(why.code(), absl::StrCat("node ", errand.node, ": ", why.message()));
  }
}

void RedisCluster::Take(Visit* visit, absl::Span<RedisReplyPtr> replies, bool redirects, Trip* trip) {
  size_t next = 0;
  for (Errand& errand : visit->errands) {
    if (errand.asking) ++next;
    RedisReplyPtr& reply = replies[next++];
    Redirection redirection;
    const bool redirected = ParseRedirection(*reply, errand.node, &redirection);
    if ((redirected && !redirection.asks) || IsReadOnly(*reply)) Distrust();
    if (redirected && redirects) {
      trip->errands.push_back({errand.command, std::move(redirection.node), redirection.asks});
    } else if (IsReadOnly(*reply)) {
      trip->read_only.push_back(errand.command);
    } else {
      trip->answers[errand.command] = std::move(reply);
    }
  }
}

// One that nobody has asked yet is connected to first.
absl::StatusOr<RedisCluster::Node> RedisCluster::NodeOf(const std::string& name, MonotonicTime deadline) {
  {
    absl::MutexLock lock(&mutex_);
    if (const auto found = nodes_.find(name); found != nodes_.end()) return found->second;
  }
  KILN_ASSIGN_OR_RETURN(const RedisAddress address, AddressOf(name));
  Node node;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = named_.find(name);
    if (found == named_.end() && named_.size() >= options_.nodes_named_max)
      return absl::UnavailableError("more nodes are named than are followed");
    if (found == named_.end()) {
      KILN_ASSIGN_OR_RETURN(node, NewNode(address));
      named_[name] = {node, MonotonicNow()};
    } else {
      node = found->second.node;
      found->second.last = MonotonicNow();
    }
  }
  const MonotonicTime now = MonotonicNow();
  node->AwaitFirst(now + (deadline - now) / 2);
  return node;
}

absl::StatusOr<RedisCluster::Node> RedisCluster::NewNode(const RedisAddress& address) const {
  RedisPool::Options options;
  options.find = [address](MonotonicTime) { return address; };
  options.login = options_.login;
  options.connections = options_.connections;
  options.slow_after = options_.slow_after;
  return RedisPool::Create(std::move(options));
}

absl::Status RedisCluster::state() const {
  absl::MutexLock lock(&mutex_);
  if (map_ == nullptr) return last_.ok() ? absl::UnavailableError("not connected yet") : last_;
  for (const auto& [name, node] : nodes_) {
    const absl::Status state = node->state();
    if (!state.ok()) return absl::Status(state.code(), absl::StrCat("node ", name, ": ", state.message()));
  }
  return absl::OkStatus();
}

std::string RedisCluster::slow() const {
  absl::MutexLock lock(&mutex_);
  for (const auto& [name, node] : nodes_) {
    const std::string slow = node->slow();
    if (!slow.empty()) return absl::StrCat("node ", name, ": ", slow);
  }
  return "";
}

// ---- The map ---------------------------------------------------------------------------------

// One whose reading begins now, or, where one is being read, the next.
void RedisCluster::AwaitNextMap(MonotonicTime deadline) {
  absl::MutexLock lock(&mutex_);
  const uint64_t wanted = readings_ + (reading_ ? 2 : 1);
  stale_ = true;
  changed_.SignalAll();
  while (readings_ < wanted && !closing_ && MonotonicNow() < deadline) changed_.WaitUntil(&mutex_, deadline);
}

void RedisCluster::Distrust() {
  absl::MutexLock lock(&mutex_);
  stale_ = true;
  changed_.SignalAll();
}

void RedisCluster::KeepMap() {
  while (true) {
    absl::StatusOr<Map> map = ReadMap();
    const absl::Status taken = map.ok() ? TakeMap(*std::move(map)) : map.status();
    std::vector<Node> gone;  // ends outside the lock
    absl::MutexLock lock(&mutex_);
    last_ = taken;
    ++readings_;
    reading_ = false;
    changed_.SignalAll();
    ExpireNamed();
    // Whoever was there when it left the map has come back by now, or holds it still.
    for (Node& node : left_) {
      if (node.use_count() == 1) gone.push_back(std::move(node));
    }
    left_.erase(std::remove(left_.begin(), left_.end(), nullptr), left_.end());
    const MonotonicTime soonest = MonotonicAfter(kPauseMin);
    const MonotonicTime latest = MonotonicAfter(taken.ok() ? kPauseMax : kReadLimit);
    while (!closing_ && MonotonicNow() < soonest) changed_.WaitUntil(&mutex_, soonest);
    while (!IsWoken() && MonotonicNow() < latest) changed_.WaitUntil(&mutex_, latest);
    if (closing_) return;
    stale_ = false;
    reading_ = true;
  }
}

absl::StatusOr<RedisCluster::Map> RedisCluster::ReadMap() {
  std::vector<RedisAddress> addresses;
  {
    absl::MutexLock lock(&mutex_);
    if (map_ != nullptr) addresses = map_->masters;
  }
  addresses.insert(addresses.end(), options_.seeds.begin(), options_.seeds.end());
  absl::Status last;
  for (const RedisAddress& address : addresses) {
    absl::StatusOr<Map> map = ReadMapAt(address, options_.login);
    if (map.ok()) return map;
    last = map.status();
    absl::MutexLock lock(&mutex_);
    if (closing_) break;
  }
  return last;
}

// Of each range of slots: the first, the last, the master (host, port, …), its replicas.
absl::StatusOr<RedisCluster::Map> RedisCluster::ReadMapAt(const RedisAddress& address,
                                                          const RedisLogin& login) {
  const MonotonicTime deadline = MonotonicAfter(kReadLimit);
  KILN_ASSIGN_OR_RETURN(const std::unique_ptr<RedisConnection> connection,
                        RedisConnection::Connect(address, login, deadline));
  KILN_ASSIGN_OR_RETURN(const std::vector<RedisReplyPtr> replies,
                        connection->Run({{"CLUSTER", "SLOTS"}}, deadline));
  KILN_RETURN_IF_ERROR(RedisError(*replies[0]));
  Map map;
  map.master_of.fill(kNobody);
  std::map<std::string, uint16_t> known;
  for (size_t i = 0; i < replies[0]->elements; ++i) {
    const redisReply& range = *replies[0]->element[i];
    if (range.elements < 3 || range.element[2]->elements < 2) return absl::DataLossError("no map of slots");
    const redisReply& master = *range.element[2];
    RedisAddress node;
    node.host = std::string(RedisString(*master.element[0]));
    if (node.host.empty()) node.host = address.host;  // it knows no name of its own
    const int64_t first = range.element[0]->integer, last = range.element[1]->integer;
    const int64_t port = master.element[1]->integer;
    if (first < 0 || last >= static_cast<int64_t>(kRedisSlots) || port <= 0 || port > 65535)
      return absl::DataLossError("no map of slots");
    node.port = static_cast<uint16_t>(port);
    const auto [found, is_new] = known.insert({NameOf(node), static_cast<uint16_t>(map.masters.size())});
    if (is_new) map.masters.push_back(node);
    for (int64_t slot = first; slot <= last; ++slot) map.master_of[static_cast<size_t>(slot)] = found->second;
  }
  if (map.masters.empty()) return absl::UnavailableError("no slot of the cluster has a master");
  return map;
}

absl::Status RedisCluster::TakeMap(Map map) {
  absl::flat_hash_map<std::string, Node> nodes;
  absl::MutexLock lock(&mutex_);
  for (const RedisAddress& address : map.masters) {
    const std::string name = NameOf(address);
    if (const auto found = nodes_.find(name); found != nodes_.end()) {
      nodes[name] = found->second;
    } else if (const auto named = named_.find(name); named != named_.end()) {
      nodes[name] = std::move(named->second.node);
      named_.erase(named);
    } else {
      KILN_ASSIGN_OR_RETURN(nodes[name], NewNode(address));
    }
  }
  for (auto& [name, node] : nodes_) {
    if (!nodes.contains(name)) left_.push_back(std::move(node));
  }
  nodes_ = std::move(nodes);
  map_ = std::make_shared<const Map>(std::move(map));
  return absl::OkStatus();
}

void RedisCluster::ExpireNamed() {
  const MonotonicTime oldest = MonotonicNow() - absl::ToChronoNanoseconds(kNamedLife);
  absl::erase_if(named_, [&](auto& named) {
    if (named.second.last > oldest) return false;
    left_.push_back(std::move(named.second.node));
    return true;
  });
}

}  // namespace kiln
