// Brings what a gang's verdict names and is not here: a variant that another daemon has told may still be on
// its way to the shared tier. It is looked for until it is there, for kVariantPatience at most.
//
// Threads: thread-safe. Nobody's thread is held: kVariantThreads of its own look, of which one tenant's
// variants take kVariantLooksPerTenantMax at a time, and call `answer`. Limits: kVariantsWantedPerTenantMax:
// one more is RESOURCE_EXHAUSTED. The destructor answers what waits with CANCELLED.
#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "compiler/support/monotonic_cond_var.h"
#include "compiler/support/monotonic_time.h"
#include "server/flight/gang_table.h"
#include "server/flight/known_key.h"

namespace kiln {

inline constexpr absl::Duration kVariantPatience = absl::Seconds(10);
inline constexpr size_t kVariantThreads = 4;

class GangVariants {
 public:
  // One look for a variant, which may block: NOT_FOUND where it is not there yet.
  using Look =
      std::function<absl::StatusOr<KnownVariant>(const GangName& name, const std::string& variant_id)>;
  // `may_come`: what is not there now may be later. UNAVAILABLE where the system gives no thread.
  static absl::StatusOr<std::unique_ptr<GangVariants>> Create(Look look, bool may_come);
  ~GangVariants();

  using Answer = std::function<void(absl::StatusOr<KnownVariant>)>;
  void Bring(const GangName& name, const std::string& variant_id, Answer answer) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Wanted {
    GangName name;
    std::string variant_id;
    Answer answer;
    MonotonicTime deadline;
    MonotonicTime next;
    absl::Duration pause;
  };
  using List = std::list<Wanted>;
  struct Tenant {
    size_t wanted = 0;
    size_t looks = 0;  // at a time
  };
  GangVariants(Look look, bool may_come) : look_(std::move(look)), may_come_(may_come) {}
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  // The next whose turn it is; empty at the end.
  List AwaitDue() ABSL_LOCKS_EXCLUDED(mutex_);
  // One that was looked for waits for its next turn; false: it is to be answered.
  bool PutBack(List* looked, bool over) ABSL_LOCKS_EXCLUDED(mutex_);

  const Look look_;
  const bool may_come_;
  absl::Mutex mutex_;
  MonotonicCondVar changed_;
  List waiting_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, Tenant> tenants_ ABSL_GUARDED_BY(mutex_);
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;  // last: they use all of the above
};

}  // namespace kiln
