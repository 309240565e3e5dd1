// The claims of one daemon as a state machine: what to ask the tier when, and what follows from its answers.
//
//   Claim → awaited: taken, with pauses that double, until it is ours, or patience is over, or there is no
//           answer in time → ours: put off thrice in a claim's life, until it is released, or another has it
//
// Where there is no answer the tier may have it as ours all the same, and others would wait for its end: who
// claimed goes on, and it is in doubt: put off as ours is, which tells whose it is, until it is released.
//
// Who runs it asks what is `Due`, and hands each question back with what was `Told`, before it asks again.
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
  // `new_token`: what nobody else will say.
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
    // To set the claim where there is none; to put its end off, and to set it where it is gone, unless it is
    // another's; to take it out unless it is another's.
    enum class Kind { kTake, kPutOff, kGiveBack };
    Kind kind;
    uint64_t id;
    std::string name;
    std::string token;
    MonotonicTime deadline;  // later the answer is of no use; max: it always is
  };
  // Who was not asked for in time is told so, and is not due.
  std::vector<Question> Due(MonotonicTime now);
  // Nothing: the tier did not answer, whatever it did.
  void Told(const Question& question, std::optional<bool> yes, MonotonicTime now);
  // The tier was not waited for as long as the question has time: it is asked again, at once.
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
    MonotonicTime next;      // when it is asked for, or put off
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
