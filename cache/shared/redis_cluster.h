// A Redis cluster: keys are spread over 16,384 slots, and slots over nodes, each with connections of its own
// (redis_pool.h). Commands go to the nodes of their keys, those of one node together, all nodes at a time:
// one that is away or slow costs its own commands alone. (hiredis has no router, and Debian no library that
// has.)
//
// Slots move, and nodes say so: MOVED, the slot is another's now, so ask there and read the map again; ASK,
// this key is another's already while its slot moves, so ask there this once. Either is followed
// `redirections_max` times within the deadline, then told as the server's error. A node that says READONLY is
// no master any more: the map is read again first, and then asked once.
//
// Threads: thread-safe. A thread of its own reads the map, from whichever node answers, when it starts, when
// a node says MOVED or READONLY or breaks, and each half minute. A caller waits for it where he was told
// READONLY, and for the first connection to a node that a redirection names and the map does not: half of the
// time that is left at most.
// Limits: nodes beside the map's, `nodes_named_max` at a time, a minute after they were named last; what is
// sent to one more is UNAVAILABLE.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "cache/cache_limits.h"
#include "cache/shared/redis_address.h"
#include "cache/shared/redis_engine.h"
#include "cache/shared/redis_pool.h"
#include "compiler/support/monotonic_cond_var.h"

namespace kiln {

inline constexpr size_t kRedisSlots = 16'384;

// CRC16 of the key, or of what stands between its first braces.
uint16_t RedisSlot(absl::string_view key);

class RedisCluster final : public RedisEngine {
 public:
  struct Options {
    std::vector<RedisAddress> seeds;  // nodes that know the others
    RedisLogin login;
    size_t connections = 1;                            // to each node
    absl::Duration slow_after = absl::ZeroDuration();  // as RedisPool's
    int redirections_max = 5;
    size_t nodes_named_max = kRedisNodesNamedMax;
  };
  // Waits for the first map, for a second at most: that nobody answers is no error. UNAVAILABLE where the
  // system gives no thread.
  static absl::StatusOr<std::unique_ptr<RedisCluster>> Create(Options options);
  // After the last caller.
  ~RedisCluster() override;

  std::vector<Answer> RunEach(absl::Span<const RedisCommand> commands, MonotonicTime deadline,
                              Asker asker) override ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status state() const override ABSL_LOCKS_EXCLUDED(mutex_);
  std::string slow() const override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using Node = std::shared_ptr<RedisPool>;  // shared by the map and the calls that are there
  struct Map {
    std::vector<RedisAddress> masters;
    std::array<uint16_t, kRedisSlots> master_of;  // by position; kNobody
  };
  static constexpr uint16_t kNobody = 0xffff;
  // One that a redirection has named, and the map has not.
  struct Named {
    Node node;
    MonotonicTime last;
  };
  // Which of a call's commands goes where next.
  struct Errand {
    size_t command = 0;
    std::string node;
    bool asking = false;
  };
  // Those of a call to one node.
  struct Visit {
    std::vector<Errand> errands;
    Node node;
    RedisPool::Lent lent;
    std::vector<RedisCommand> batch;
  };
  // A call on its way.
  struct Trip {
    absl::Span<const RedisCommand> commands;
    MonotonicTime deadline;
    Asker asker;
    std::vector<Answer> answers;
    std::vector<Errand> errands;    // still to be done
    std::vector<size_t> read_only;  // by their nodes
  };
  explicit RedisCluster(Options options) : options_(std::move(options)) {}

  void Plan(absl::Span<const size_t> which, Trip* trip) ABSL_LOCKS_EXCLUDED(mutex_);
  void Travel(Trip* trip) ABSL_LOCKS_EXCLUDED(mutex_);
  std::vector<Visit> Begin(Trip* trip) ABSL_LOCKS_EXCLUDED(mutex_);
  void Take(Visit* visit, absl::Span<RedisReplyPtr> replies, bool redirects, Trip* trip)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Reach(const std::string& name, const Trip& trip, Visit* visit) ABSL_LOCKS_EXCLUDED(mutex_);
  static void Fail(const Visit& visit, const absl::Status& why, Trip* trip);
  absl::StatusOr<Node> NodeOf(const std::string& name, MonotonicTime deadline) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<Node> NewNode(const RedisAddress& address) const;
  void AwaitNextMap(MonotonicTime deadline) ABSL_LOCKS_EXCLUDED(mutex_);
  void Distrust() ABSL_LOCKS_EXCLUDED(mutex_);

  void KeepMap() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<Map> ReadMap() ABSL_LOCKS_EXCLUDED(mutex_);
  static absl::StatusOr<Map> ReadMapAt(const RedisAddress& address, const RedisLogin& login);
  absl::Status TakeMap(Map map) ABSL_LOCKS_EXCLUDED(mutex_);
  void ExpireNamed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsWoken() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return closing_ || stale_; }

  const Options options_;
  mutable absl::Mutex mutex_;
  MonotonicCondVar changed_;
  std::shared_ptr<const Map> map_ ABSL_GUARDED_BY(mutex_);                // null: not known yet
  absl::flat_hash_map<std::string, Node> nodes_ ABSL_GUARDED_BY(mutex_);  // the map's masters
  absl::flat_hash_map<std::string, Named> named_ ABSL_GUARDED_BY(mutex_);
  std::vector<Node> left_ ABSL_GUARDED_BY(mutex_);  // that the map no longer has
  absl::Status last_ ABSL_GUARDED_BY(mutex_);       // of the latest reading
  uint64_t readings_ ABSL_GUARDED_BY(mutex_) = 0;
  bool reading_ ABSL_GUARDED_BY(mutex_) = true;
  bool stale_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace kiln
