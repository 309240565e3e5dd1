#include "server/flight/work_asker.h"

#include <algorithm>
#include <utility>

#include "compiler/support/digest.h"
#include "compiler/support/proto_util.h"
#include "compiler/support/start_thread.h"
#include "compiler/support/status_macros.h"
#include "server/server_limits.h"
#include "server/tune/tuner.h"
#include "spdlog/spdlog.h"

namespace kiln {
namespace {

constexpr absl::Duration kFirstPause = absl::Seconds(1);
constexpr absl::Duration kPauseMax = absl::Minutes(1);

EntryId ObjectId(const std::string& digest) { return {EntryKind::kObject, digest}; }

std::string NameOf(absl::string_view compile_key) { return ToHex(compile_key.substr(0, 6)); }

}  // namespace

absl::StatusOr<std::unique_ptr<WorkAsker>> WorkAsker::Create(Outside outside) {
  std::unique_ptr<WorkAsker> made(new WorkAsker(std::move(outside)));
  WorkAsker* const asker = made.get();
  KILN_ASSIGN_OR_RETURN(made->thread_, StartThread([asker] { asker->Run(); }));
  return made;
}

void WorkAsker::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
    changed_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

bool WorkAsker::IsOutdated(const std::string& ns, const std::string& compile_key,
                           const std::string& variant_id) {
  std::string entry = ManifestEntryKey(compile_key, variant_id);
  absl::MutexLock lock(&mutex_);
  if (outdated_.contains(entry)) return true;
  if (const auto found = programs_.find(entry); found != programs_.end()) {
    found->second.told = true;
    return false;
  }
  if (programs_.size() >= kWaitingProgramsMax) DropLatest();
  programs_[std::move(entry)] = {ns, compile_key, MonotonicNow(), kFirstPause};
  changed_.SignalAll();
  return false;
}

// What has waited longest in vain, as for a device that nobody has.
void WorkAsker::DropLatest() {
  programs_.erase(std::max_element(programs_.begin(), programs_.end(), [](const auto& a, const auto& b) {
    return a.second.next < b.second.next;
  }));
}

void WorkAsker::Made(const std::string& compile_key, const std::string& variant_id) {
  absl::MutexLock lock(&mutex_);
  outdated_.erase(ManifestEntryKey(compile_key, variant_id));
}

void WorkAsker::AddTo(v1::TierWorkStatus* status) const {
  status->set_asks(true);
  status->set_asked(asked_.load(std::memory_order_relaxed));
  status->set_full(full_.load(std::memory_order_relaxed));
  status->set_remade(remade_.load(std::memory_order_relaxed));
  absl::MutexLock lock(&mutex_);
  status->set_waiting(programs_.size());
}

// ---- Its thread ------------------------------------------------------------------------------

void WorkAsker::Run() {
  while (const std::optional<Due> due = Next()) {
    const absl::StatusOr<Seen> seen = Look(*due);
    if (!seen.ok()) {
      spdlog::debug("program {} waits for measurements: {}", NameOf(due->program.compile_key),
                    seen.status().ToString());
    }
    if (seen.ok() && *seen == Seen::kOutdated) Outdate(*due);
    Put(due->entry, seen.value_or(Seen::kWaits));
  }
}

std::optional<WorkAsker::Due> WorkAsker::Next() {
  absl::MutexLock lock(&mutex_);
  while (!closing_) {
    const auto first = std::min_element(programs_.begin(), programs_.end(), [](const auto& a, const auto& b) {
      return a.second.next < b.second.next;
    });
    const MonotonicTime next = first == programs_.end() ? MonotonicTime::max() : first->second.next;
    if (next <= MonotonicNow()) {
      first->second.told = false;
      return Due{first->first, first->second};
    }
    changed_.WaitUntil(&mutex_, next);
  }
  return std::nullopt;
}

void WorkAsker::Put(const std::string& entry, Seen seen) {
  absl::MutexLock lock(&mutex_);
  const auto found = programs_.find(entry);
  if (found == programs_.end()) return;
  Program& program = found->second;
  if (seen == Seen::kOutdated || (seen == Seen::kGone && !program.told)) {
    programs_.erase(found);
    return;
  }
  if (seen == Seen::kGone) program.pause = kFirstPause;  // it came back meanwhile
  program.next = MonotonicAfter(seen == Seen::kTried ? kTierTriedLife : program.pause);
  program.pause = std::min(2 * program.pause, kPauseMax);
}

// What became of each is read before its record: a record is in the tier before it says that it was tried.
absl::StatusOr<WorkAsker::Seen> WorkAsker::Look(const Due& due) {
  const std::string& ns = due.program.ns;
  const absl::StatusOr<EntryValue> stored =
      outside_.store->inspection().Get({EntryKind::kManifest, due.entry});
  if (!stored.ok()) return Seen::kGone;
  v1::SignedManifest signed_manifest;
  v1::Manifest manifest;
  KILN_RETURN_IF_ERROR(ParseProto(**stored, "manifest", &signed_manifest));
  KILN_RETURN_IF_ERROR(ParseProto(signed_manifest.manifest(), "manifest", &manifest));
  const auto& waits = manifest.tuning().waits();
  std::vector<std::string> subjects;
  for (const v1::Tunable& tunable : waits)
    subjects.push_back(outside_.list->SubjectOf(ns, tunable, manifest.target()));
  const TierWork::List list = outside_.list->ListOf(ns, WorkList::KindOf(manifest.target()));
  KILN_ASSIGN_OR_RETURN(const std::vector<TierWork::State> states,
                        outside_.list->tier().StatesOf(list, subjects));
  KILN_ASSIGN_OR_RETURN(const std::vector<bool> measured, Measured(ns, manifest));
  bool pending = false;
  for (int i = 0; i < waits.size(); ++i) {
    const TierWork::State state = states[static_cast<size_t>(i)];
    if (measured[static_cast<size_t>(i)] || state == TierWork::State::kTried) continue;
    bool asked = state == TierWork::State::kAsked;
    if (!asked) {
      KILN_ASSIGN_OR_RETURN(asked, AskFor(due, waits[i], manifest.target()));
    }
    pending |= asked;
  }
  if (pending) return Seen::kWaits;
  // What could not be measured keeps its default.
  const bool any = std::find(measured.begin(), measured.end(), true) != measured.end();
  return any ? Seen::kOutdated : Seen::kTried;
}

absl::StatusOr<std::vector<bool>> WorkAsker::Measured(const std::string& ns, const v1::Manifest& manifest) {
  const auto& waits = manifest.tuning().waits();
  std::vector<bool> measured(static_cast<size_t>(waits.size()), false);
  const absl::StatusOr<v1::GpuFacts> facts = outside_.list->FactsNow(ns, manifest.target());
  if (absl::IsNotFound(facts.status())) return measured;  // nobody could form a record's key
  KILN_RETURN_IF_ERROR(facts.status());
  std::vector<std::string> keys;
  for (const v1::Tunable& tunable : waits) keys.push_back(Tuner::KeyOf(ns, tunable, *facts));
  KILN_RETURN_IF_ERROR(outside_.records->Consult(ns, keys));
  for (size_t i = 0; i < keys.size(); ++i) measured[i] = outside_.records->Find(ns, keys[i]).ok();
  return measured;
}

absl::StatusOr<bool> WorkAsker::AskFor(const Due& due, const v1::Tunable& tunable, const v1::Target& target) {
  const absl::StatusOr<v1::TuningItem> item = ItemFor(tunable, target);
  const absl::StatusOr<TierWork::Asked> asked =
      item.ok() ? outside_.list->Ask(due.program.ns, *item) : item.status();
  if (!item.ok() || absl::IsInvalidArgument(asked.status())) {
    if (due.program.pause == kFirstPause) {
      spdlog::info("nobody is asked to measure a tunable of program {}: {}", NameOf(due.program.compile_key),
                   asked.status().ToString());
    }
    return false;
  }
  KILN_RETURN_IF_ERROR(asked.status());
  if (*asked == TierWork::Asked::kNow) asked_.fetch_add(1, std::memory_order_relaxed);
  if (*asked == TierWork::Asked::kFull) full_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

// A kernel goes along: it is an object of the program's, by the digest that is measured.
absl::StatusOr<v1::TuningItem> WorkAsker::ItemFor(const v1::Tunable& tunable, const v1::Target& target) {
  v1::TuningItem item;
  *item.mutable_tunable() = tunable;
  *item.mutable_target() = target;
  if (!tunable.has_kernel()) return item;
  KILN_ASSIGN_OR_RETURN(const EntryValue packed,
                        outside_.store->inspection().Get(ObjectId(tunable.kernel().digest())));
  item.set_kernel(*packed);
  return item;
}

void WorkAsker::Outdate(const Due& due) {
  {
    absl::MutexLock lock(&mutex_);
    // Forgotten, they are watched again.
    if (outdated_.size() >= kOutdatedProgramsMax) outdated_.clear();
    outdated_.insert(due.entry);
  }
  remade_.fetch_add(1, std::memory_order_relaxed);
  outside_.forget(due.program.compile_key);
  spdlog::info("program {} lacks measurements that other daemons have made since",
               NameOf(due.program.compile_key));
}

}  // namespace kiln
