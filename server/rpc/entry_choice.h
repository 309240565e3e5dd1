// The entries that a person means: by the start of a key, or all of them. The catalogue is gone through by
// pages, so that nobody waits for a scan, and for no longer than somebody waits for the answer: CANCELLED
// once `gone` says so. Thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cache/store.h"
#include "compiler/support/digest.h"

namespace kiln {

using CallerGone = std::function<bool()>;

// The start of a binary key, in hexadecimal digits.
class KeyPrefix {
 public:
  // INVALID_ARGUMENT, naming the field, unless `hex` has one digit or more, in lower case.
  static absl::StatusOr<KeyPrefix> Parse(absl::string_view hex);

  bool Begins(absl::string_view key) const;
  // Whole bytes: every key that it begins, and some others, begin with these.
  const std::string& bytes() const { return bytes_; }
  bool whole() const { return bytes_.size() >= kDigestBytes; }

 private:
  std::string bytes_;
  int digit_ = -1;  // after them
};

// Manifests whose CompileKey or VariantId begins so, and failures by their CompileKey, in the order of the
// keys: the catalogue alone is asked. After them those whose RequestKey does, for which every manifest and
// the record of every failure is read: kToo, so that whoever removes hears of all that he may have meant, or,
// kElse, where no manifest has been found. A whole key that has been found is nobody else's. At most `limit`
// of a kind; 0: all.
enum class RequestKeys { kElse, kToo };
struct ChosenEntries {
  std::vector<CatalogEntry> manifests, failures;
};
absl::StatusOr<ChosenEntries> ChooseEntries(Store& store, const KeyPrefix& prefix, RequestKeys request_keys,
                                            size_t limit, const CallerGone& gone);

// As ChooseEntries with kToo, for who changes what is chosen: FAILED_PRECONDITION, which names the field,
// where several CompileKeys start so and not all of them are meant.
absl::StatusOr<ChosenEntries> ChooseOneKey(Store& store, const std::string& hex, bool every_match,
                                           const CallerGone& gone);

// Deletes in batches, so that no writer waits for long.
absl::Status RemoveEntries(Store& store, const std::vector<EntryId>& ids, const CallerGone& gone);

// Deletes whatever the store holds: what names others first and, where it was written meanwhile, last again,
// so that none is left without what it names. Counts by kind in `removed`, also where it stops early.
using CountsByKind = std::array<uint64_t, kEntryKinds>;
absl::Status RemoveAllEntries(Store& store, const CallerGone& gone, CountsByKind* removed);

// The entries of a kind that were made or used last, the latest first; at most `limit`. `total`: how many
// there are.
absl::StatusOr<std::vector<CatalogEntry>> LatestEntries(const Catalog& catalog, EntryKind kind, size_t limit,
                                                        const CallerGone& gone, uint64_t* total);

// Every entry of a kind, in the order of the keys.
absl::Status VisitEntries(const Catalog& catalog, EntryKind kind, absl::string_view prefix,
                          const CallerGone& gone,
                          const std::function<absl::Status(const CatalogEntry&)>& visit);

}  // namespace kiln
