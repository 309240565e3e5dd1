#include "server/rpc/entry_choice.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "compiler/support/proto_util.h"
#include "compiler/support/status_macros.h"
#include "kiln/v1/artifact.pb.h"
#include "kiln/v1/record.pb.h"
#include "server/build/artifact.h"

namespace kiln {
namespace {

constexpr size_t kPage = 512;

absl::Status Stopped() { return absl::CancelledError("the caller has gone"); }

absl::string_view CompileKeyOf(const EntryId& id) {
  return absl::string_view(id.key).substr(0, kDigestBytes);
}

std::string RequestKeyOf(Store& store, const CatalogEntry& entry) {
  if (entry.id.kind == EntryKind::kFailure) {
    const absl::StatusOr<EntryValue> value =
        store.inspection().Get(RequestRecordId(std::string(CompileKeyOf(entry.id))));
    v1::RequestRecord record;
    return value.ok() && record.ParseFromString(**value) ? record.request_key() : "";
  }
  const absl::StatusOr<EntryValue> value = store.inspection().Get(entry.id);
  v1::SignedManifest signed_manifest;
  v1::Manifest manifest;
  const bool parses = value.ok() && ParseProto(**value, "manifest", &signed_manifest).ok() &&
                      ParseProto(signed_manifest.manifest(), "manifest", &manifest).ok();
  return parses ? manifest.request_key() : "";
}

// Adds those for which `meant`.
absl::Status Choose(const Catalog& catalog, EntryKind kind, absl::string_view prefix, size_t limit,
                    const CallerGone& gone, const std::function<bool(const CatalogEntry&)>& meant,
                    std::vector<CatalogEntry>* chosen) {
  const absl::Status status = VisitEntries(catalog, kind, prefix, gone, [&](const CatalogEntry& entry) {
    if (limit != 0 && chosen->size() >= limit) return absl::OutOfRangeError("enough");
    if (meant(entry)) chosen->push_back(entry);
    return absl::OkStatus();
  });
  return absl::IsOutOfRange(status) ? absl::OkStatus() : status;
}

// How many there were.
absl::StatusOr<uint64_t> RemoveKind(Store& store, EntryKind kind, const CallerGone& gone,
                                    CountsByKind* removed) {
  uint64_t count = 0;
  std::string after;
  for (;;) {
    if (gone()) return Stopped();
    KILN_ASSIGN_OR_RETURN(const std::vector<CatalogEntry> page, store.catalog().Scan(kind, "", kPage, after));
    if (page.empty()) return count;
    after = page.back().id.key;
    std::vector<EntryId> ids;
    for (const CatalogEntry& entry : page) ids.push_back(entry.id);
    KILN_RETURN_IF_ERROR(store.artifacts().Delete(ids));
    count += ids.size();
    (*removed)[static_cast<size_t>(kind)] += ids.size();
  }
}

}  // namespace

absl::StatusOr<KeyPrefix> KeyPrefix::Parse(absl::string_view hex) {
  if (hex.empty() || hex.find_first_not_of("0123456789abcdef") != absl::string_view::npos) {
    return absl::InvalidArgumentError("key_prefix: must be hexadecimal, in lower case");
  }
  KeyPrefix prefix;
  KILN_ASSIGN_OR_RETURN(prefix.bytes_, FromHex(hex.substr(0, hex.size() / 2 * 2)));
  if (hex.size() % 2 == 1) {
    prefix.digit_ = hex.back() <= '9' ? hex.back() - '0' : hex.back() - 'a' + 10;
  }
  return prefix;
}

bool KeyPrefix::Begins(absl::string_view key) const {
  if (!absl::StartsWith(key, bytes_)) return false;
  return digit_ < 0 ||
         (key.size() > bytes_.size() && static_cast<uint8_t>(key[bytes_.size()]) >> 4 == digit_);
}

absl::Status VisitEntries(const Catalog& catalog, EntryKind kind, absl::string_view prefix,
                          const CallerGone& gone,
                          const std::function<absl::Status(const CatalogEntry&)>& visit) {
  std::string after;
  for (;;) {
    KILN_ASSIGN_OR_RETURN(const std::vector<CatalogEntry> page, catalog.Scan(kind, prefix, kPage, after));
    if (page.empty()) return absl::OkStatus();
    after = page.back().id.key;
    for (const CatalogEntry& entry : page) {
      if (gone()) return Stopped();
      KILN_RETURN_IF_ERROR(visit(entry));
    }
  }
}

absl::StatusOr<std::vector<CatalogEntry>> LatestEntries(const Catalog& catalog, EntryKind kind, size_t limit,
                                                        const CallerGone& gone, uint64_t* total) {
  const auto later = [](const CatalogEntry& a, const CatalogEntry& b) {
    return std::max(a.created_unix_seconds, a.last_used_unix_seconds) >
           std::max(b.created_unix_seconds, b.last_used_unix_seconds);
  };
  std::vector<CatalogEntry> latest;
  *total = 0;
  KILN_RETURN_IF_ERROR(VisitEntries(catalog, kind, "", gone, [&](const CatalogEntry& entry) {
    ++*total;
    latest.push_back(entry);
    if (latest.size() < 2 * limit) return absl::OkStatus();
    std::nth_element(latest.begin(), latest.begin() + static_cast<ptrdiff_t>(limit), latest.end(), later);
    latest.resize(limit);
    return absl::OkStatus();
  }));
  std::sort(latest.begin(), latest.end(), later);
  if (latest.size() > limit) latest.resize(limit);
  return latest;
}

absl::StatusOr<ChosenEntries> ChooseEntries(Store& store, const KeyPrefix& prefix, RequestKeys request_keys,
                                            size_t limit, const CallerGone& gone) {
  const Catalog& catalog = store.catalog();
  ChosenEntries chosen;
  const auto by_compile_key = [&](const CatalogEntry& entry) {
    return prefix.Begins(CompileKeyOf(entry.id));
  };
  const auto by_variant = [&](const CatalogEntry& entry) {
    return !by_compile_key(entry) && prefix.Begins(absl::string_view(entry.id.key).substr(kDigestBytes));
  };
  const auto by_request_key = [&](const CatalogEntry& entry) {
    return !by_compile_key(entry) && !by_variant(entry) && prefix.Begins(RequestKeyOf(store, entry));
  };
  KILN_RETURN_IF_ERROR(
      Choose(catalog, EntryKind::kManifest, prefix.bytes(), limit, gone, by_compile_key, &chosen.manifests));
  KILN_RETURN_IF_ERROR(Choose(catalog, EntryKind::kManifest, "", limit, gone, by_variant, &chosen.manifests));
  KILN_RETURN_IF_ERROR(
      Choose(catalog, EntryKind::kFailure, prefix.bytes(), limit, gone, by_compile_key, &chosen.failures));
  const bool found = !chosen.manifests.empty() || !chosen.failures.empty();
  if (found && prefix.whole()) return chosen;
  if (request_keys == RequestKeys::kElse && !chosen.manifests.empty()) return chosen;
  KILN_RETURN_IF_ERROR(
      Choose(catalog, EntryKind::kManifest, "", limit, gone, by_request_key, &chosen.manifests));
  KILN_RETURN_IF_ERROR(
      Choose(catalog, EntryKind::kFailure, "", limit, gone, by_request_key, &chosen.failures));
  return chosen;
}

absl::StatusOr<ChosenEntries> ChooseOneKey(Store& store, const std::string& hex, bool every_match,
                                           const CallerGone& gone) {
  KILN_ASSIGN_OR_RETURN(const KeyPrefix prefix, KeyPrefix::Parse(hex));
  KILN_ASSIGN_OR_RETURN(ChosenEntries chosen,
                        ChooseEntries(store, prefix, RequestKeys::kToo, /*limit=*/0, gone));
  absl::flat_hash_set<absl::string_view> keys;
  for (const auto* entries : {&chosen.manifests, &chosen.failures}) {
    for (const CatalogEntry& entry : *entries) keys.insert(CompileKeyOf(entry.id));
  }
  if (keys.size() > 1 && !every_match) {
    return absl::FailedPreconditionError(
        absl::StrCat("key_prefix: ", keys.size(), " keys start with ", hex,
                     "; give more digits of the one that is meant, or say every_match (--every-match)"));
  }
  return chosen;
}

absl::Status RemoveEntries(Store& store, const std::vector<EntryId>& ids, const CallerGone& gone) {
  for (size_t at = 0; at < ids.size(); at += kPage) {
    if (gone()) return Stopped();
    KILN_RETURN_IF_ERROR(store.artifacts().Delete(absl::MakeSpan(ids).subspan(at, kPage)));
  }
  return absl::OkStatus();
}

absl::Status RemoveAllEntries(Store& store, const CallerGone& gone, CountsByKind* removed) {
  for (EntryKind kind : {EntryKind::kManifest, EntryKind::kFailure, EntryKind::kKernel, EntryKind::kTuning,
                         EntryKind::kObject, EntryKind::kMeta}) {
    KILN_RETURN_IF_ERROR(RemoveKind(store, kind, gone, removed).status());
  }
  // What was written meanwhile may name objects that have gone.
  for (bool found = true; found;) {
    found = false;
    for (EntryKind kind : {EntryKind::kManifest, EntryKind::kKernel}) {
      KILN_ASSIGN_OR_RETURN(const uint64_t late, RemoveKind(store, kind, gone, removed));
      found |= late > 0;
    }
  }
  return absl::OkStatus();
}

}  // namespace kiln
