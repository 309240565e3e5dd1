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
  absl::MutexLock lock(&cluster->mutex_);
  cluster->mutex_.AwaitWithTimeout(absl::Condition(&cluster->tried_), kFirstMapLimit);
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

absl::StatusOr<std::vector<RedisCluster::Errand>> RedisCluster::ErrandsOf(
    absl::Span<const RedisCommand> commands) {
  absl::MutexLock lock(&mutex_);
  if (map_ == nullptr)
    return absl::UnavailableError(last_.ok() ? "the cluster's map is not known yet" : last_.message());
  std::vector<Errand> errands;
  for (size_t i = 0; i < commands.size(); ++i) {
    const uint16_t master = map_->master_of[RedisSlot(KeyOf(commands[i]))];
    if (master == kNobody) return absl::UnavailableError("a slot of the cluster is nobody's");
    errands.push_back({i, NameOf(map_->masters[master]), false});
  }
  return errands;
}

// All at one node. A reply an errand.
absl::StatusOr<std::vector<RedisReplyPtr>> RedisCluster::RunAt(absl::Span<const RedisCommand> commands,
                                                               absl::Span<const Errand> errands,
                                                               MonotonicTime deadline) {
  Node node;
  {
    absl::MutexLock lock(&mutex_);
    if (const auto found = nodes_.find(errands[0].node); found != nodes_.end()) node = found->second;
  }
  if (node == nullptr) {
    Distrust();
    return absl::UnavailableError("a node of the cluster is not known yet");
  }
  std::vector<RedisCommand> batch;
  for (const Errand& errand : errands) {
    if (errand.asking) batch.push_back({"ASKING"});
    batch.push_back(commands[errand.command]);
  }
  absl::StatusOr<std::vector<RedisReplyPtr>> replies = node->Run(batch, deadline);
  if (!replies.ok()) {
    Distrust();
    return replies.status();
  }
  std::vector<RedisReplyPtr> answers;
  size_t next = 0;
  for (const Errand& errand : errands) {
    if (errand.asking) ++next;
    answers.push_back(std::move((*replies)[next++]));
  }
  return answers;
}

absl::StatusOr<std::vector<RedisReplyPtr>> RedisCluster::Run(absl::Span<const RedisCommand> commands,
                                                             MonotonicTime deadline) {
  KILN_ASSIGN_OR_RETURN(std::vector<Errand> errands, ErrandsOf(commands));
  std::vector<RedisReplyPtr> replies(commands.size());
  for (int redirections = 0; !errands.empty(); ++redirections) {
    std::map<std::string, std::vector<Errand>> by_node;
    for (Errand& errand : errands) by_node[errand.node].push_back(std::move(errand));
    errands.clear();
    for (const auto& [node, here] : by_node) {
      KILN_ASSIGN_OR_RETURN(std::vector<RedisReplyPtr> answers, RunAt(commands, here, deadline));
      for (size_t i = 0; i < here.size(); ++i) {
        Redirection redirection;
        const bool redirected = ParseRedirection(*answers[i], node, &redirection);
        if (redirected && !redirection.asks) Distrust();
        if (redirected && redirections < options_.redirections_max) {
          errands.push_back({here[i].command, std::move(redirection.node), redirection.asks});
        } else {
          replies[here[i].command] = std::move(answers[i]);
        }
      }
    }
  }
  return replies;
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

// ---- The map ---------------------------------------------------------------------------------

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
    tried_ = true;
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
  for (const RedisAddress& address : map.masters) {
    Node& node = nodes[NameOf(address)];
    {
      absl::MutexLock lock(&mutex_);
      if (const auto found = nodes_.find(NameOf(address)); found != nodes_.end()) node = found->second;
    }
    if (node != nullptr) continue;
    RedisPool::Options options;
    options.find = [address](MonotonicTime) { return address; };
    options.login = options_.login;
    options.connections = options_.connections;
    KILN_ASSIGN_OR_RETURN(node, RedisPool::Create(std::move(options)));
  }
  absl::MutexLock lock(&mutex_);
  for (auto& [name, node] : nodes_) {
    if (!nodes.contains(name)) left_.push_back(std::move(node));
  }
  nodes_ = std::move(nodes);
  map_ = std::make_shared<const Map>(std::move(map));
  return absl::OkStatus();
}

}  // namespace kiln
