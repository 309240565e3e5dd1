// What gangs are served, in the shared tier: a key a gang and CompileKey ("g:ID"), which is only ever
// replaced by who has read what it replaces. So of daemons that add to a verdict at once one comes first, and
// the other learns what it said.
//
// A value that no trusted key has signed is as good as none, and gives way to the next. Errors: UNAVAILABLE
// (at once where nobody is kept waiting), DEADLINE_EXCEEDED, RedisError's: then nothing is known, not even
// whether something was written.
//
// Threads: thread-safe; calls block, and at most kTierVerdictAskers at a time have a connection.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "cache/shared/redis_engine.h"
#include "cache/signatures.h"
#include "kiln/v1/record.pb.h"

namespace kiln {

inline constexpr size_t kTierVerdictAskers = 8;

class TierVerdicts {
 public:
  // Both outlive this.
  TierVerdicts(RedisEngine* engine, const Signatures* signatures, absl::Duration command_limit)
      : engine_(engine), signatures_(signatures), command_limit_(command_limit) {}

  struct Name {
    std::string ns;
    std::string gang;
    std::string compile_key;
  };
  struct Value {
    std::string sealed;  // as it stands there; empty: nothing does
    v1::GangVerdict verdict;
  };
  absl::StatusOr<Value> Read(const Name& name);
  // Puts `wanted` where `seen` stands, for `life` from now, or as long as that had. What stands there
  // afterwards: that, or what somebody else put there meanwhile.
  absl::StatusOr<Value> Replace(const Name& name, const std::string& seen, const v1::GangVerdict& wanted,
                                absl::Duration life);
  struct Life {
    Name name;
    absl::Duration left;
  };
  // None ends earlier than that, and later where somebody else has said so. A mark for each value, as it
  // stands there, that another value has not; empty: nothing does.
  std::vector<absl::StatusOr<std::string>> Renew(absl::Span<const Life> lives);

  uint64_t refused() const { return refused_.load(std::memory_order_relaxed); }

 private:
  absl::StatusOr<RedisReplyPtr> Ask(RedisCommand command);
  Value Open(const Name& name, absl::string_view sealed);

  RedisEngine* const engine_;
  const Signatures* const signatures_;
  const absl::Duration command_limit_;
  std::atomic<uint64_t> refused_{0};
};

}  // namespace kiln
