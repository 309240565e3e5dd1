// The verdicts that this daemon holds, in memory: what gangs are served of which graphs. One lasts for
// kGangVerdictLife after a member asked last; no size of a gang is relied on.
//
// What contradicts a verdict that is held (another daemon's, where a shared tier lost this one's) makes
// nobody's answer wrong that has been given, and nobody's later one right: members are told kUnknown.
//
// Threads: thread-safe; a lock is held while a list's guards are tried only where something is appended.
// Limits: kGangVerdictsPerTenantMax, kGangBytesPerTenantMax, kGangBytesMax: one more is kUnknown
// (RESOURCE_EXHAUSTED), and what is held stays.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/flight/gang_verdict.h"
#include "server/schedule/clock.h"

namespace kiln {

inline constexpr absl::Duration kGangVerdictLife = absl::Hours(1);

// One gang and one graph.
struct GangName {
  std::string ns;
  std::string gang;  // its id
  std::string compile_key;
  // That it is made of, where variants of the namespaces that `ns` reads besides are served as well.
  std::string request_key;
};

class GangTable {
 public:
  // The clock outlives the table.
  explicit GangTable(const Clock* clock) : clock_(clock) {}

  // By what is held alone.
  GangAnswer Find(const GangName& name, const v1::Hints& hints) ABSL_LOCKS_EXCLUDED(mutex_);
  // Where that says nothing: by the proposal, which is held from now on.
  GangAnswer Decide(const GangName& name, const v1::Hints& hints, const GangProposal& proposal)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // What is held; empty: nothing.
  v1::GangVerdict Held(const GangName& name) ABSL_LOCKS_EXCLUDED(mutex_);
  // Takes what another daemon holds, where that is the same or later. ABORTED where the two contradict,
  // RESOURCE_EXHAUSTED where there is no room.
  absl::Status Adopt(const GangName& name, v1::GangVerdict verdict) ABSL_LOCKS_EXCLUDED(mutex_);

  struct Listed {
    GangName name;
    MonotonicTime until;
  };
  // Those that are held and contradicted by nobody.
  std::vector<Listed> List() ABSL_LOCKS_EXCLUDED(mutex_);
  size_t size() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  using VerdictPtr = std::shared_ptr<const v1::GangVerdict>;  // shared with who reads it without the lock
  struct Entry {
    GangName name;
    VerdictPtr verdict;
    bool contradicted = false;
    size_t bytes = 0;
    MonotonicTime until;
  };
  using Entries = std::list<Entry>;
  struct Taken {
    size_t verdicts = 0;
    size_t bytes = 0;
  };

  // nullptr: not held. Counts as a use.
  Entry* Use(const GangName& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Put(const GangName& name, v1::GangVerdict verdict) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Expire() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Drop(Entries::iterator entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Clock* const clock_;
  mutable absl::Mutex mutex_;
  Entries by_use_ ABSL_GUARDED_BY(mutex_);  // the latest last
  absl::flat_hash_map<std::string, Entries::iterator> entries_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, Taken> tenants_ ABSL_GUARDED_BY(mutex_);
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace kiln
