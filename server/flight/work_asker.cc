#include "server/flight/work_asker.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "compiler/support/digest.h"
#include "compiler/support/proto_util.h"
#include "compiler/support/start_thread.h"
#include "compiler/support/status_macros.h"
#include "server/tune/tuner.h"
#include "spdlog/spdlog.h"

namespace kiln {
namespace {

constexpr absl::Duration kFirstPause = absl::Seconds(1);
constexpr absl::Duration kPauseMax = absl::Minutes(1);

EntryId ObjectId(const std::string& digest) { return {EntryKind::kObject, digest}; }

}  // namespace

absl::StatusOr<std::unique_ptr<WorkAsker>> WorkAsker::Create(Outside outside) {
  std::unique_ptr<WorkAsker> made(new WorkAsker(std::move(outside)));
  WorkAsker* const asker = made.get();
  KILN_ASSIGN_OR_RETURN(made->thread_, StartThread([asker] { asker->Run(); }));
  return made;
}

WorkAsker::~WorkAsker() {
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
    changed_.SignalAll();
  }
  if (thread_.joinable()) thread_.join();
}

bool WorkAsker::IsOutdated(const std::string& ns, const std::string& compile_key,
                           const std::string& variant_id) {
  absl::MutexLock lock(&mutex_);
  if (outdated_.contains(ManifestEntryKey(compile_key, variant_id))) return true;
  if (programs_.size() >= kWaitingProgramsMax) return false;
  if (programs_.try_emplace(compile_key, Program{ns, MonotonicNow(), kFirstPause}).second)
    changed_.SignalAll();
  return false;
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
    const absl::StatusOr<bool> over = Look(*due);
    if (!over.ok()) {
      spdlog::debug("program {} waits for measurements: {}", ToHex(due->compile_key.substr(0, 6)),
                    over.status().ToString());
    }
    Put(due->compile_key, over.ok() && *over);
  }
}

std::optional<WorkAsker::Due> WorkAsker::Next() {
  absl::MutexLock lock(&mutex_);
  while (!closing_) {
    const auto first = std::min_element(programs_.begin(), programs_.end(), [](const auto& a, const auto& b) {
      return a.second.next < b.second.next;
    });
    const MonotonicTime next = first == programs_.end() ? MonotonicTime::max() : first->second.next;
    if (next <= MonotonicNow()) return Due{first->first, first->second.ns};
    changed_.WaitUntil(&mutex_, next);
  }
  return std::nullopt;
}

void WorkAsker::Put(const std::string& compile_key, bool over) {
  absl::MutexLock lock(&mutex_);
  const auto found = programs_.find(compile_key);
  if (found == programs_.end()) return;
  if (over) {
    programs_.erase(found);
    return;
  }
  found->second.next = MonotonicAfter(found->second.pause);
  found->second.pause = std::min(2 * found->second.pause, kPauseMax);
}

absl::StatusOr<bool> WorkAsker::Look(const Due& due) {
  const absl::StatusOr<EntryValue> stored =
      outside_.store->inspection().Get(RequestRecordId(due.compile_key));
  if (!stored.ok()) return true;  // it has gone
  Waiting waiting;
  KILN_RETURN_IF_ERROR(ParseProto(**stored, "request record", &waiting.record));
  KILN_RETURN_IF_ERROR(ParseProto(waiting.record.sections().target(), "target", &waiting.target));
  std::vector<v1::Tunable> missing;
  KILN_RETURN_IF_ERROR(CountFound(due.ns, &waiting, &missing));
  KILN_RETURN_IF_ERROR(AskFor(due.ns, missing, &waiting));
  if (waiting.pending > 0) return false;
  // What could not be measured keeps its default.
  if (waiting.found > 0) KILN_RETURN_IF_ERROR(Outdate(due));
  return true;
}

absl::Status WorkAsker::CountFound(const std::string& ns, Waiting* waiting,
                                   std::vector<v1::Tunable>* missing) {
  missing->assign(waiting->record.waits().begin(), waiting->record.waits().end());
  const absl::StatusOr<v1::GpuFacts> facts = outside_.list->Facts(ns, waiting->target);
  if (absl::IsNotFound(facts.status())) return absl::OkStatus();  // so there is no record
  KILN_RETURN_IF_ERROR(facts.status());
  std::vector<std::string> keys;
  for (const v1::Tunable& tunable : *missing) keys.push_back(Tuner::KeyOf(ns, tunable, *facts));
  KILN_RETURN_IF_ERROR(outside_.records->Consult(ns, keys));
  std::vector<v1::Tunable> left;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (outside_.records->Find(ns, keys[i]).ok()) {
      ++waiting->found;
    } else {
      left.push_back(std::move((*missing)[i]));
    }
  }
  *missing = std::move(left);
  return absl::OkStatus();
}

absl::Status WorkAsker::AskFor(const std::string& ns, const std::vector<v1::Tunable>& missing,
                               Waiting* waiting) {
  if (missing.empty()) return absl::OkStatus();
  std::vector<std::string> subjects;
  for (const v1::Tunable& tunable : missing)
    subjects.push_back(outside_.list->SubjectOf(ns, tunable, waiting->target));
  const TierWork::List list = outside_.list->ListOf(ns, WorkList::KindOf(waiting->target));
  KILN_ASSIGN_OR_RETURN(const std::vector<TierWork::State> states,
                        outside_.list->tier().StatesOf(list, subjects));
  for (size_t i = 0; i < missing.size(); ++i) {
    if (states[i] == TierWork::State::kTried) continue;
    if (states[i] == TierWork::State::kUnknown) {
      absl::StatusOr<v1::TuningItem> item = ItemFor(missing[i], waiting->target);
      if (!item.ok()) {
        spdlog::info("nobody is asked to measure a kernel: {}", item.status().ToString());
        continue;
      }
      const absl::StatusOr<TierWork::Asked> asked = outside_.list->Ask(ns, *item);
      if (absl::IsInvalidArgument(asked.status())) continue;  // too large: it keeps its default
      KILN_RETURN_IF_ERROR(asked.status());
      if (*asked == TierWork::Asked::kNow) asked_.fetch_add(1, std::memory_order_relaxed);
      if (*asked == TierWork::Asked::kFull) full_.fetch_add(1, std::memory_order_relaxed);
    }
    ++waiting->pending;
  }
  return absl::OkStatus();
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

absl::Status WorkAsker::Outdate(const Due& due) {
  KILN_ASSIGN_OR_RETURN(const std::vector<CatalogEntry> variants,
                        outside_.store->catalog().Scan(EntryKind::kManifest, due.compile_key));
  for (const CatalogEntry& entry : variants) {
    const absl::StatusOr<EntryValue> value = outside_.store->inspection().Get(entry.id);
    v1::SignedManifest signed_manifest;
    v1::Manifest manifest;
    if (!value.ok() || !ParseProto(**value, "manifest", &signed_manifest).ok() ||
        !ParseProto(signed_manifest.manifest(), "manifest", &manifest).ok() ||
        manifest.tuning().waits_for().empty()) {
      continue;
    }
    absl::MutexLock lock(&mutex_);
    // Forgotten, they are watched again.
    if (outdated_.size() >= kOutdatedProgramsMax) outdated_.clear();
    if (outdated_.insert(entry.id.key).second) remade_.fetch_add(1, std::memory_order_relaxed);
  }
  outside_.forget(due.compile_key);
  spdlog::info("program {} is to be made anew by measurements of other daemons",
               ToHex(due.compile_key.substr(0, 6)));
  return absl::OkStatus();
}

}  // namespace kiln
