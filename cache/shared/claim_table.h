// The claims of one daemon as a state machine: which request the tier gets when, and what its answer means. A
// claim is a lease: a key with a time to live that its holder renews.
//
//   Claim → awaited: tried with exponential back-off, until it is ours, patience ends, or the tier does not
//           answer in time → ours: renewed three times in a claim's life, until it is released or lost
//
// Where the tier does not answer it may have granted the claim all the same, and others would wait for it to
// expire. The caller then goes on without, and the claim is in doubt: it is renewed like one of ours, which
// tells whose it is, until it is released.
//
// The driver sends what is `Due`, and hands each question back by `Told` or `Cut` before it asks again.
//
// Threads: one at a time. Answers are called from Claim and Told, return at once and call nothing here.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/time/time.h"
#include "compiler/support/monotonic_time.h"

namespace kiln {

inline constexpr absl::Duration kClaimLife = absl::Seconds(10);
inline constexpr absl::Duration kClaimPatience = absl::Minutes(2);
inline constexpr absl::Duration kClaimPauseMax = absl::Milliseconds(250);  // of who waits for another's

class ClaimTable {
 public:
  // `new_token`: unique in the cluster.
  explicit ClaimTable(std::function<std::string()> new_token) : new_token_(std::move(new_token)) {}

  // kOurs: from now on until Release. kNobodys: the tier does not say.
  enum class Answer { kOurs, kNobodys };
  // As TierClaims'.
  void Claim(uint64_t id, std::string name, MonotonicTime deadline, std::function<void(Answer)> answer,
             MonotonicTime now);
  // The name of one that is ours.
  std::optional<std::string> Ours(uint64_t id) const;
  void Release(uint64_t id, MonotonicTime now);
  void ReleaseAll(MonotonicTime now);

  struct Question {
    // kAcquire sets the key where there is none. kRenew extends it, or sets it where it has expired, and
    // kRelease deletes it: both unless another daemon holds it.
    enum class Kind { kAcquire, kRenew, kRelease };
    Kind kind;
    uint64_t id;
    std::string name;
    std::string token;
    MonotonicTime deadline;  // after it the answer is of no use; max: none
  };
  // Who was not asked for in time is told so, and is not due.
  std::vector<Question> Due(MonotonicTime now);
  // `yes`: the tier's answer; nullopt: it gave none, and may have done it or not.
  void Told(const Question& question, std::optional<bool> yes, MonotonicTime now);
  // The request was cut short before its deadline: it is due again at once.
  void Cut(const Question& question, MonotonicTime now);
  // When something is due; max: there is nothing.
  MonotonicTime Next() const;
  bool empty() const { return held_.empty(); }

 private:
  struct Held {
    void Tell(Answer what);
    void Pause(MonotonicTime now);  // twice as long the next time

    std::string name;
    std::string token;                   // whose it is
    std::function<void(Answer)> answer;  // null: told
    bool ours = false;
    bool in_doubt = false;  // not known to be ours
    bool released = false;
    MonotonicTime next;      // when it is tried again, or renewed
    MonotonicTime deadline;  // of the first answer; max: it is there
    MonotonicTime patience;  // of who waits; when it has been released, its end at the latest
    absl::Duration pause;
  };
  // False when it is over.
  static bool Take(Held* held, std::optional<bool> yes, MonotonicTime now);
  static bool Await(Held* held, MonotonicTime now);
  static bool IsGone(Held* held, std::optional<bool> yes, MonotonicTime now);

  const std::function<std::string()> new_token_;
  absl::btree_map<uint64_t, Held> held_;  // and awaited
};

}  // namespace kiln
