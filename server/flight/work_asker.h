// Programs that run by defaults since nobody here could measure for their device (Tuning.waits): puts what
// they wait for on the shared tier's work list, watches for the records, and says that a program is outdated
// when they are there, so that the next who asks for it has another made by them. The program itself stays: a
// gang's ranks may have been promised it.
//
// It is told of a program whenever one is read from the store, so also after a start, and where it came from
// another daemon; what it waits for stands in its manifest. Nobody waits for it: what it finds out late, or
// forgets, costs a program its tuning until it is read again.
//
// Threads: thread-safe; a thread of its own asks. Limits: kWaitingProgramsMax variants that wait, each looked
// at from every second to once a minute, and once in kTierTriedLife where nobody could measure what is left;
// of more, the one that was to be looked at last is forgotten. kOutdatedProgramsMax variants that do no more.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cache/store.h"
#include "compiler/support/monotonic_cond_var.h"
#include "compiler/support/monotonic_time.h"
#include "kiln/v1/admin.pb.h"
#include "kiln/v1/artifact.pb.h"
#include "kiln/v1/record.pb.h"
#include "server/flight/waiting_programs.h"
#include "server/tune/tuning_records.h"
#include "server/tune/work_list.h"

namespace kiln {

class WorkAsker final : public WaitingPrograms {
 public:
  // All outlive the asker. `forget`: what memory knows of a key, of which a program is outdated.
  struct Outside {
    Store* store;
    WorkList* list;
    TuningRecords* records;
    std::function<void(const std::string& compile_key)> forget;
  };
  // UNAVAILABLE where the system gives no thread.
  static absl::StatusOr<std::unique_ptr<WorkAsker>> Create(Outside outside);
  ~WorkAsker() override { Stop(); }
  // From then on no program becomes outdated.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

  bool IsOutdated(const std::string& ns, const std::string& compile_key,
                  const std::string& variant_id) override ABSL_LOCKS_EXCLUDED(mutex_);
  void Made(const std::string& compile_key, const std::string& variant_id) override
      ABSL_LOCKS_EXCLUDED(mutex_);
  void AddTo(v1::TierWorkStatus* status) const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Program {
    std::string ns;
    std::string compile_key;
    MonotonicTime next;
    absl::Duration pause;
    bool told = false;  // of it, since the last look began
  };
  explicit WorkAsker(Outside outside) : outside_(std::move(outside)) {}
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  struct Due {
    std::string entry;  // of the manifest
    Program program;
  };
  // Waits for it; nothing at the end.
  std::optional<Due> Next() ABSL_LOCKS_EXCLUDED(mutex_);
  // What a look has found. Tried: there is nothing to wait for, but that somebody can do it after all.
  enum class Seen { kGone, kOutdated, kWaits, kTried };
  void Put(const std::string& entry, Seen seen) ABSL_LOCKS_EXCLUDED(mutex_);
  void DropLatest() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // An error: not known for now.
  absl::StatusOr<Seen> Look(const Due& due);
  // Which of what it waits for have a record.
  absl::StatusOr<std::vector<bool>> Measured(const std::string& ns, const v1::Manifest& manifest);
  // False: nobody would measure it.
  absl::StatusOr<bool> AskFor(const Due& due, const v1::Tunable& tunable, const v1::Target& target);
  absl::StatusOr<v1::TuningItem> ItemFor(const v1::Tunable& tunable, const v1::Target& target);
  void Outdate(const Due& due) ABSL_LOCKS_EXCLUDED(mutex_);

  const Outside outside_;
  std::atomic<uint64_t> asked_{0};
  std::atomic<uint64_t> full_{0};
  std::atomic<uint64_t> remade_{0};
  mutable absl::Mutex mutex_;
  MonotonicCondVar changed_;
  // Both by entry of the manifest.
  absl::flat_hash_map<std::string, Program> programs_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_set<std::string> outdated_ ABSL_GUARDED_BY(mutex_);
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace kiln
