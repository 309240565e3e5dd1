// The form of an entry on disk: a header with format version and SHA-256, then the payload. The
// digest covers kind and key too, so a damaged key can't pass one entry off as another.
// Threads: pure functions.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cache/artifact_store.h"

namespace kiln {

inline constexpr size_t kEnvelopeHeaderBytes = 36;  // "KE", version, 0, digest

std::string SealEntry(const EntryId& id, absl::string_view payload);

// The payload within `sealed`, checked. DATA_LOSS for anything but what SealEntry made for `id`.
absl::StatusOr<absl::string_view> OpenEntry(const EntryId& id, absl::string_view sealed);

// The payload, believed. DATA_LOSS only where there is no room for a header.
absl::StatusOr<absl::string_view> OpenEntryUnchecked(absl::string_view sealed);

}  // namespace kiln
