#include "cache/chain/metrics_store.h"

#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

void Add(std::atomic<uint64_t>& counter, uint64_t amount = 1) {
  counter.fetch_add(amount, std::memory_order_relaxed);
}

}  // namespace

absl::StatusOr<EntryValue> MetricsStore::Get(const EntryId& id) {
  KILN_RETURN_IF_ERROR(CheckEntryId(id));
  Counters& counters = counters_[static_cast<size_t>(id.kind)];
  Add(counters.gets);
  absl::StatusOr<EntryValue> value = base_->Get(id);
  if (value.ok()) {
    Add(counters.hits);
    Add(counters.bytes_read, (*value)->size());
  } else if (!absl::IsNotFound(value.status())) {
    Add(counters.errors);
  }
  return value;
}

absl::Status MetricsStore::Put(absl::Span<const Entry> batch) {
  absl::Status status = base_->Put(batch);
  if (!status.ok()) {
    Add(batches_failed_);
    return status;
  }
  for (const Entry& entry : batch) {
    Counters& counters = counters_[static_cast<size_t>(entry.id.kind)];
    Add(counters.puts);
    Add(counters.bytes_written, entry.value->size());
  }
  return status;
}

absl::Status MetricsStore::Delete(absl::Span<const EntryId> ids) {
  KILN_RETURN_IF_ERROR(base_->Delete(ids));
  for (const EntryId& id : ids) Add(counters_[static_cast<size_t>(id.kind)].deletes);
  return absl::OkStatus();
}

MetricsStore::Counts MetricsStore::counts(EntryKind kind) const {
  const Counters& counters = counters_[static_cast<size_t>(kind)];
  return {counters.gets,    counters.hits,       counters.errors,       counters.puts,
          counters.deletes, counters.bytes_read, counters.bytes_written};
}

MetricsStore::Counts MetricsStore::total() const {
  Counts sum;
  for (size_t kind = 0; kind < kEntryKinds; ++kind) {
    Counts counts_of_kind = counts(static_cast<EntryKind>(kind));
    sum.gets += counts_of_kind.gets;
    sum.hits += counts_of_kind.hits;
    sum.errors += counts_of_kind.errors;
    sum.puts += counts_of_kind.puts;
    sum.deletes += counts_of_kind.deletes;
    sum.bytes_read += counts_of_kind.bytes_read;
    sum.bytes_written += counts_of_kind.bytes_written;
  }
  return sum;
}

}  // namespace kiln
