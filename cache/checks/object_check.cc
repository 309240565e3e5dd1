#include "cache/checks/object_check.h"

#include <zstd.h>

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "cache/artifact_store.h"
#include "cache/cache_limits.h"
#include "compiler/support/digest.h"
#include "compiler/support/zstd.h"

namespace kiln {

absl::Status CheckObject(absl::string_view key, absl::string_view packed) {
  unsigned long long raw_size = ZSTD_getFrameContentSize(packed.data(), packed.size());
  if (raw_size == ZSTD_CONTENTSIZE_ERROR || raw_size == ZSTD_CONTENTSIZE_UNKNOWN ||
      raw_size > kEntryValueBytesMax) {
    return absl::InvalidArgumentError("object is not a zstd frame of a permitted size");
  }
  absl::StatusOr<std::string> raw = ZstdDecompress(packed, raw_size);
  if (!raw.ok() || Sha256(*raw) != key) {
    return absl::InvalidArgumentError(absl::StrCat("object does not match its digest ", ToHex(key)));
  }
  return absl::OkStatus();
}

}  // namespace kiln
