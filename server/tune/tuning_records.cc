#include "server/tune/tuning_records.h"

#include <utility>

#include "compiler/support/proto_util.h"
#include "compiler/support/status_macros.h"
#include "spdlog/spdlog.h"

namespace kiln {
namespace {

EntryId IdOf(const std::string& key) { return {EntryKind::kTuning, key}; }

}  // namespace

// Null where there is none.
EntryValue TuningRecords::Stored(const std::string& key) const {
  absl::StatusOr<EntryValue> stored = store_->artifacts().Get(IdOf(key));
  return stored.ok() ? *std::move(stored) : nullptr;
}

absl::StatusOr<v1::Measurement> TuningRecords::Find(const std::string& ns, const std::string& key) const {
  KILN_ASSIGN_OR_RETURN(const EntryValue stored, store_->artifacts().Get(IdOf(key)));
  KILN_ASSIGN_OR_RETURN(const std::string value, OpenFor(ns, *stored));
  v1::Measurement record;
  KILN_RETURN_IF_ERROR(ParseProto(value, "tuning record", &record));
  return record;
}

absl::Status TuningRecords::Consult(const std::string& ns, const std::vector<std::string>& keys) {
  if (tier_ == nullptr || keys.empty()) return absl::OkStatus();
  return Agree(ns, keys).status();
}

absl::StatusOr<bool> TuningRecords::Publish(const std::string& ns, const std::string& key) {
  if (tier_ == nullptr) return false;
  KILN_ASSIGN_OR_RETURN(const std::vector<TierTuning::Record> stand, Agree(ns, {key}));
  return stand[0].shared;
}

absl::StatusOr<std::vector<TierTuning::Record>> TuningRecords::Agree(const std::string& ns,
                                                                     const std::vector<std::string>& keys) {
  std::vector<TierTuning::Record> own;
  for (const std::string& key : keys) own.push_back({key, Stored(key)});
  KILN_ASSIGN_OR_RETURN(std::vector<TierTuning::Record> stand, tier_->AgreeOnTuning(ns, own));
  absl::MutexLock lock(&keeping_);
  for (size_t i = 0; i < own.size(); ++i) Take(own[i], stand[i]);
  return stand;
}

// `keeping_` is held.
void TuningRecords::Take(const TierTuning::Record& own, const TierTuning::Record& stands) {
  absl::Status done;
  if (stands.barred) {
    // Unless it has been measured again meanwhile.
    const EntryValue now = Stored(own.key);
    if (now != nullptr && *now == *own.value) done = store_->artifacts().Delete({IdOf(own.key)});
  } else if (stands.value != nullptr && (own.value == nullptr || *own.value != *stands.value)) {
    done = store_->artifacts().Put({{IdOf(own.key), stands.value}});
  }
  if (!done.ok()) spdlog::warn("take a measurement from the shared tier: {}", done.ToString());
}

v1::Measurement TuningRecords::Keep(const std::string& ns, const std::string& key, v1::Measurement record) {
  {
    absl::MutexLock lock(&keeping_);
    if (absl::StatusOr<v1::Measurement> earlier = Find(ns, key); earlier.ok()) return *std::move(earlier);
    const absl::Status put = store_->artifacts().Put(
        {signatures_->SignEntry({EntryKind::kTuning, key}, ns, SerializeDeterministic(record))});
    if (!put.ok()) spdlog::warn("store a measurement: {}", put.ToString());
  }
  Consult(ns, {key}).IgnoreError();  // a miss; the tier's status says why
  absl::StatusOr<v1::Measurement> first = Find(ns, key);
  return first.ok() ? *std::move(first) : std::move(record);
}

absl::StatusOr<bool> TuningRecords::Remove(const std::string& key) {
  const EntryValue value = Stored(key);
  if (value == nullptr) return false;
  // Barred first: what is still here can be removed again.
  if (tier_ != nullptr) {
    KILN_ASSIGN_OR_RETURN(const v1::SignedEnvelope envelope, OpenEnvelope(*value));
    KILN_RETURN_IF_ERROR(tier_->BarTuning(envelope.namespace_(), {key, value, true}));
  }
  absl::MutexLock lock(&keeping_);
  KILN_RETURN_IF_ERROR(store_->artifacts().Delete({IdOf(key)}));
  return true;
}

}  // namespace kiln
