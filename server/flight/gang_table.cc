#include "server/flight/gang_table.h"

#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

constexpr size_t kEntryOverhead = 512;  // names, lists, maps

// Ids and keys have one length each.
std::string SlotOf(const GangName& name) { return absl::StrCat(name.gang, name.compile_key, name.ns); }

absl::Status Contradiction() {
  return absl::AbortedError(
      "daemons have served this gang different variants of this graph: the shared tier lost what "
      "the first of them were told");
}

}  // namespace

GangTable::Entry* GangTable::Use(const GangName& name) {
  Expire();
  const auto found = entries_.find(SlotOf(name));
  if (found == entries_.end()) return nullptr;
  Entry& entry = *found->second;
  entry.until = clock_->Now() + absl::ToChronoNanoseconds(kGangVerdictLife);
  by_use_.splice(by_use_.end(), by_use_, found->second);
  return &entry;
}

GangAnswer GangTable::Find(const GangName& name, const v1::Hints& hints) {
  VerdictPtr verdict;
  {
    absl::MutexLock lock(&mutex_);
    const Entry* entry = Use(name);
    if (entry == nullptr) return {};
    if (entry->contradicted) return UnknownVerdict(Contradiction());
    verdict = entry->verdict;
  }
  return AnswerOf(*verdict, hints);
}

GangAnswer GangTable::Decide(const GangName& name, const v1::Hints& hints, const GangProposal& proposal) {
  absl::MutexLock lock(&mutex_);
  const Entry* entry = Use(name);
  if (entry != nullptr && entry->contradicted) return UnknownVerdict(Contradiction());
  v1::GangVerdict verdict;
  if (entry != nullptr) verdict = *entry->verdict;
  GangAnswer answer = AnswerOf(verdict, hints);
  if (answer.kind != GangAnswer::Kind::kOpen || proposal.empty()) return answer;
  absl::StatusOr<v1::GangVerdict> extended = Extended(std::move(verdict), proposal);
  if (!extended.ok()) return UnknownVerdict(extended.status());
  answer = AnswerOf(*extended, hints);
  const absl::Status put = Put(name, *std::move(extended));
  return put.ok() ? answer : UnknownVerdict(put);
}

v1::GangVerdict GangTable::Held(const GangName& name) {
  absl::MutexLock lock(&mutex_);
  const auto found = entries_.find(SlotOf(name));
  return found == entries_.end() ? v1::GangVerdict() : *found->second->verdict;
}

absl::Status GangTable::Adopt(const GangName& name, v1::GangVerdict verdict) {
  absl::MutexLock lock(&mutex_);
  const auto found = entries_.find(SlotOf(name));
  if (found == entries_.end()) return IsEmpty(verdict) ? absl::OkStatus() : Put(name, std::move(verdict));
  if (found->second->contradicted) return Contradiction();
  switch (Compare(*found->second->verdict, verdict)) {
    case GangAgreement::kSame:
    case GangAgreement::kSecondIsEarlier: return absl::OkStatus();
    case GangAgreement::kFirstIsEarlier: return Put(name, std::move(verdict));
    case GangAgreement::kContradict: break;
  }
  found->second->contradicted = true;
  return Contradiction();
}

absl::Status GangTable::Put(const GangName& name, v1::GangVerdict verdict) {
  Expire();
  const size_t bytes = verdict.SpaceUsedLong() + kEntryOverhead;
  const auto found = entries_.find(SlotOf(name));
  const bool known = found != entries_.end();
  const size_t before = known ? found->second->bytes : 0;
  Taken& taken = tenants_[name.ns];
  const bool full = (!known && taken.verdicts >= kGangVerdictsPerTenantMax) ||
                    taken.bytes - before + bytes > kGangBytesPerTenantMax ||
                    bytes_ - before + bytes > kGangBytesMax;
  if (full) {
    if (taken.verdicts == 0) tenants_.erase(name.ns);
    return absl::ResourceExhaustedError(
        absl::StrCat("kilnd holds as many verdicts of gangs as it may; one ends ",
                     absl::FormatDuration(kGangVerdictLife), " after a member asked last"));
  }
  taken.bytes += bytes - before;
  bytes_ += bytes - before;
  Entry& entry = known ? *found->second : by_use_.emplace_back();
  if (!known) {
    ++taken.verdicts;
    entry.name = name;
    entry.until = clock_->Now() + absl::ToChronoNanoseconds(kGangVerdictLife);
    entries_[SlotOf(name)] = std::prev(by_use_.end());
  }
  entry.bytes = bytes;
  entry.verdict = std::make_shared<const v1::GangVerdict>(std::move(verdict));
  return absl::OkStatus();
}

void GangTable::Expire() {
  const MonotonicTime now = clock_->Now();
  while (!by_use_.empty() && by_use_.front().until <= now) Drop(by_use_.begin());
}

void GangTable::Drop(Entries::iterator entry) {
  const auto taken = tenants_.find(entry->name.ns);
  --taken->second.verdicts;
  taken->second.bytes -= entry->bytes;
  if (taken->second.verdicts == 0) tenants_.erase(taken);
  bytes_ -= entry->bytes;
  entries_.erase(SlotOf(entry->name));
  by_use_.erase(entry);
}

std::vector<GangTable::Listed> GangTable::List() {
  absl::MutexLock lock(&mutex_);
  Expire();
  std::vector<Listed> listed;
  for (const Entry& entry : by_use_) {
    if (!entry.contradicted) listed.push_back({entry.name, entry.until});
  }
  return listed;
}

size_t GangTable::size() const {
  absl::MutexLock lock(&mutex_);
  return entries_.size();
}

}  // namespace kiln
