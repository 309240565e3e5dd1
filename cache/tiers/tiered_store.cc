#include "cache/tiers/tiered_store.h"

#include "absl/hash/hash.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

bool IsEnvironmentError(const absl::Status& status) {
  return absl::IsResourceExhausted(status) || absl::IsPermissionDenied(status) || absl::IsUnavailable(status);
}

}  // namespace

size_t TieredStore::StripeOf(const EntryId& id) { return absl::Hash<EntryId>()(id) % kStripes; }

void TieredStore::MoveVersion(const EntryId& id, StripeVersions* versions) {
  size_t index = StripeOf(id);
  if (versions->count(index) != 0) return;
  Stripe& stripe = stripes_[index];
  absl::MutexLock lock(&stripe.mutex);
  ++stripe.versions.version;
  (*versions)[index] = stripe.versions;
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
    version = stripe.versions.version;
  }
  value = slow_->Get(id);
  if (!value.ok()) return value;
  absl::MutexLock lock(&stripe.mutex);
  if (stripe.versions.version == version) {
    KILN_RETURN_IF_ERROR(fast_->Put({{id, *value}}));
  }
  return value;
}

absl::Status TieredStore::Put(absl::Span<const Entry> batch) {
  KILN_RETURN_IF_ERROR(CheckBatch(batch));
  StripeVersions versions;
  for (const Entry& entry : batch) MoveVersion(entry.id, &versions);
  absl::Status stored = slow_->Put(batch);
  const bool refused = IsEnvironmentError(stored);
  if (refused) refused_.Keep(batch);
  for (const auto& [index, begun] : versions) {
    Stripe& stripe = stripes_[index];
    absl::MutexLock lock(&stripe.mutex);
    const Versions before = stripe.versions;
    ++stripe.versions.version;
    if (stored.ok()) ++stripe.versions.taken;
    for (const Entry& entry : batch) {
      if (StripeOf(entry.id) != index) continue;
      if (stored.ok()) {
        refused_.Forget({entry.id});
        // Where somebody else wrote meanwhile, it is not known which write the slow store took last: the
        // next read asks it.
        const bool alone = before.version == begun.version;
        KILN_RETURN_IF_ERROR(alone ? fast_->Put({entry}) : fast_->Delete({entry.id}));
      } else if (refused && before.taken == begun.taken) {
        KILN_RETURN_IF_ERROR(fast_->Put({entry}));
      } else if (refused) {
        refused_.Forget({entry.id});
      }
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
  for (const auto& [index, begun] : versions) {
    Stripe& stripe = stripes_[index];
    absl::MutexLock lock(&stripe.mutex);
    ++stripe.versions.version;
    ++stripe.versions.taken;
    for (const EntryId& id : ids) {
      if (StripeOf(id) != index) continue;
      refused_.Forget({id});
      KILN_RETURN_IF_ERROR(fast_->Delete({id}));
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
    absl::MutexLock lock(&stripe.mutex);
    ++stripe.versions.version;
    ++stripe.versions.taken;
    refused_.Forget({id});
    fast_->Delete({id}).IgnoreError();  // fails for malformed ids only, and these were entries
  }
}

}  // namespace kiln
