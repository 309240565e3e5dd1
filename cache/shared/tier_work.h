// The work list of a cluster: what daemons without a device ask those that have it to measure, by namespace
// and kind of device. A kind is a name that daemons of one build agree on.
//
//   kiln:1:NS:{w:KIND}:w          stream of items, in their order, with one consumer group
//   kiln:1:NS:{w:KIND}:s:SUBJECT  what became of a subject: "asked"; "tried", when it was measured or can't
//   be;
//                                 "refused:KEY", when the item that this key's owner asked by did not hold
//   kiln:1:NS:{w:KIND}:d          the device that is measured on, as its daemon says
//
// An item is measured once: who asks for a subject again finds that it was asked. Who has claimed one and
// dies leaves it to the next, kTierWorkIdle later. Nothing correct rests on the list: an item that is lost,
// or measured twice, costs a measurement.
//
// Trust: items and devices are sealed values (tier_value.h); one that nobody trusted has signed for the
// namespace and subject is refused, and taken out. States are not signed: who lies about one keeps programs
// from being tuned, and runs nothing.
//
// Threads: thread-safe; its functions block until their limit. Errors: RedisEngine's and RedisError's.
// Limits: kTierWorkItemsMax items a list, of kTierWorkItemBytesMax each; an item ends, with its state,
// kTierWorkLife after it was put.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "cache/artifact_store.h"
#include "cache/shared/redis_engine.h"
#include "cache/signatures.h"

namespace kiln {

inline constexpr absl::Duration kTierWorkIdle = absl::Seconds(10);
inline constexpr absl::Duration kTierWorkLife = absl::Hours(24);  // of items, and of what was asked for
inline constexpr absl::Duration kTierTriedLife =
    absl::Hours(1);  // likewise of "refused"; then it may be asked for
inline constexpr absl::Duration kTierConsumerLife = absl::Hours(24);  // of a process without a word
inline constexpr absl::Duration kTierDeviceLife = absl::Hours(1);     // after it was told last

class TierWork {
 public:
  // What the tier lends; all outlives this.
  struct Tier {
    RedisEngine* engine;
    // The value of a key, verified, or why it is nobody's.
    std::function<absl::StatusOr<std::string>(const std::string& ns, const EntryId&, absl::string_view)> open;
  };
  TierWork(Tier tier, const Signatures* signatures, absl::Duration lookup_limit);

  struct List {
    std::string ns;
    std::string kind;  // letters, digits, "_" and "-"
  };

  // ---- Who asks ----
  // `kBefore`: by anybody, or it was tried, or refused when this daemon's key asked.
  enum class Asked { kNow, kBefore, kFull };
  // INVALID_ARGUMENT for an item that is too large.
  absl::StatusOr<Asked> Ask(const List& list, const std::string& subject, const std::string& item) const;
  // A refusal of an item by this daemon's key is kTried, of another's kUnknown.
  enum class State { kUnknown, kAsked, kTried };
  // In the order of the subjects.
  absl::StatusOr<std::vector<State>> StatesOf(const List& list, absl::Span<const std::string> subjects) const;
  // The device that the list's kind is measured on. Somebody waits for it: for the limit of a look-up, and
  // not at all for a tier that is slow. NOT_FOUND: nobody has told of one lately.
  absl::StatusOr<std::string> Device(const List& list) const;

  // ---- Who has the device ----
  // Says which it is. What stands from now on: the first that was told, while it is told again; its own
  // daemon may replace it.
  absl::StatusOr<std::string> TellDevice(const List& list, const std::string& device) const;
  struct Claimed {
    std::string id;
    std::string subject;
    absl::StatusOr<std::string> item = absl::UnknownError("none");  // or why it is nobody's
    std::string asker;   // the id of the key that it says it is signed by; empty: none
    uint64_t tries = 0;  // before this one, each of which ended without a word
  };
  // The oldest whose owner is silent, else the next; nothing where there is none. It is this daemon's until
  // nobody has renewed it for `idle`.
  absl::StatusOr<std::optional<Claimed>> Claim(const List& list, absl::Duration idle = kTierWorkIdle,
                                               absl::Duration consumer_life = kTierConsumerLife) const;
  // False where it is this daemon's no more.
  absl::StatusOr<bool> Renew(const List& list, const Claimed& claimed) const;
  // Another may claim it at once, and nothing was tried. One that is another's by now stays so.
  absl::Status Release(const List& list, const Claimed& claimed) const;
  // It is done with, and what is known is in the tier. `tried`: nobody need ask for it again; false for what
  // was refused, which others than its asker may ask for. False where it is this daemon's no more: then
  // whoever has it ends it.
  absl::StatusOr<bool> End(const List& list, const Claimed& claimed, bool tried) const;

 private:
  RedisCommand OfOwner(absl::string_view script, const List& list, const Claimed& claimed) const;
  absl::StatusOr<RedisReplyPtr> Run(RedisCommand command) const;

  const Tier tier_;
  const Signatures* const signatures_;
  const absl::Duration lookup_limit_;
  const std::string consumer_;  // this process's: daemons may share a key
};

}  // namespace kiln
