#include "cache/tiers/tiered_store.h"

#include "absl/hash/hash.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

bool IsEnvironmentError(const absl::Status& status) {
  return absl::IsResourceExhausted(status) || absl::IsPermissionDenied(status) || absl::IsUnavailable(status);
}

std::vector<EntryId> IdsOf(absl::Span<const Entry> batch) {
  std::vector<EntryId> ids;
  ids.reserve(batch.size());
  for (const Entry& entry : batch) ids.push_back(entry.id);
  return ids;
}

}  // namespace

size_t TieredStore::StripeOf(const EntryId& id) { return absl::Hash<EntryId>()(id) % kStripes; }

void TieredStore::MoveVersion(const EntryId& id, StripeVersions* versions) {
  size_t index = StripeOf(id);
  if (versions->count(index) != 0) return;
  Stripe& stripe = stripes_[index];
  absl::MutexLock lock(&stripe.mutex);
  (*versions)[index] = ++stripe.version;
}

absl::StatusOr<EntryValue> TieredStore::Get(const EntryId& id) {
  absl::StatusOr<EntryValue> value = fast_->Get(id);
  if (value.ok()) {
    fast_hits_.fetch_add(1, std::memory_order_relaxed);
    return value;
  }
  if (!absl::IsNotFound(value.status())) return value;
  if (EntryValue refused = refused_.Find(id); refused != nullptr) return refused;
  Stripe& stripe = stripes_[StripeOf(id)];
  uint64_t version;
  {
    absl::MutexLock lock(&stripe.mutex);
    version = stripe.version;
  }
  value = slow_->Get(id);
  if (!value.ok()) return value;
  absl::MutexLock lock(&stripe.mutex);
  if (stripe.version == version) {
    KILN_RETURN_IF_ERROR(fast_->Put({{id, *value}}));
  }
  return value;
}

absl::Status TieredStore::Put(absl::Span<const Entry> batch) {
  KILN_RETURN_IF_ERROR(CheckBatch(batch));
  StripeVersions versions;
  for (const Entry& entry : batch) MoveVersion(entry.id, &versions);
  absl::Status stored = slow_->Put(batch);
  bool keep = stored.ok() || IsEnvironmentError(stored);
  if (stored.ok()) {
    refused_.Forget(IdsOf(batch));
  } else if (keep) {
    refused_.Keep(batch);
  }
  for (const auto& [index, version] : versions) {
    Stripe& stripe = stripes_[index];
    absl::MutexLock lock(&stripe.mutex);
    // Where somebody else wrote meanwhile, it is not known which write the slow store took last: the
    // next read asks it.
    bool alone = stripe.version == version;
    ++stripe.version;
    for (const Entry& entry : batch) {
      if (!keep || StripeOf(entry.id) != index) continue;
      KILN_RETURN_IF_ERROR(alone || !stored.ok() ? fast_->Put({entry}) : fast_->Delete({entry.id}));
    }
  }
  return stored;
}

absl::Status TieredStore::Delete(absl::Span<const EntryId> ids) {
  StripeVersions versions;
  for (const EntryId& id : ids) {
    KILN_RETURN_IF_ERROR(CheckEntryId(id));
    MoveVersion(id, &versions);
  }
  absl::Status deleted = slow_->Delete(ids);
  refused_.Forget(ids);
  for (const auto& [index, version] : versions) {
    Stripe& stripe = stripes_[index];
    absl::MutexLock lock(&stripe.mutex);
    ++stripe.version;
    for (const EntryId& id : ids) {
      if (StripeOf(id) == index) KILN_RETURN_IF_ERROR(fast_->Delete({id}));
    }
  }
  return deleted;
}

absl::StatusOr<std::vector<EntryId>> TieredStore::FindMissing(absl::Span<const EntryId> ids) {
  // The slow one first: it keeps what it says is there.
  KILN_ASSIGN_OR_RETURN(std::vector<EntryId> not_slow, slow_->FindMissing(ids));
  if (not_slow.empty()) return not_slow;
  KILN_ASSIGN_OR_RETURN(std::vector<EntryId> missing, fast_->FindMissing(not_slow));
  std::erase_if(missing, [this](const EntryId& id) { return refused_.Find(id) != nullptr; });
  return missing;
}

void TieredStore::Forget(absl::Span<const EntryId> ids) {
  for (const EntryId& id : ids) {
    Stripe& stripe = stripes_[StripeOf(id)];
    refused_.Forget({id});
    absl::MutexLock lock(&stripe.mutex);
    ++stripe.version;
    fast_->Delete({id}).IgnoreError();  // fails for malformed ids only, and these were entries
  }
}

}  // namespace kiln
