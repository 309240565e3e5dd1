#include "compiler/support/zstd.h"

#include <zstd.h>

#include "absl/strings/str_cat.h"

namespace kiln {

std::string ZstdCompress(absl::string_view raw, int level) {
  std::string packed(ZSTD_compressBound(raw.size()), '\0');
  size_t size = ZSTD_compress(packed.data(), packed.size(), raw.data(), raw.size(), level);
  packed.resize(ZSTD_isError(size) ? 0 : size);  // the bound makes an error impossible
  return packed;
}

absl::StatusOr<size_t> ZstdRawSize(absl::string_view packed) {
  const unsigned long long claimed = ZSTD_getFrameContentSize(packed.data(), packed.size());
  if (claimed == ZSTD_CONTENTSIZE_ERROR || claimed == ZSTD_CONTENTSIZE_UNKNOWN)
    return absl::DataLossError("not a zstd frame that says its size");
  return static_cast<size_t>(claimed);
}

absl::StatusOr<std::string> ZstdDecompress(absl::string_view packed, size_t raw_size) {
  // The frame says how large it is; a lie is found before anything of that size is allocated.
  unsigned long long claimed = ZSTD_getFrameContentSize(packed.data(), packed.size());
  if (claimed == ZSTD_CONTENTSIZE_ERROR) return absl::DataLossError("not a zstd frame");
  if (claimed != ZSTD_CONTENTSIZE_UNKNOWN && claimed != raw_size) {
    return absl::DataLossError(
        absl::StrCat("zstd frame of ", claimed, " bytes where ", raw_size, " are due"));
  }
  if (ZSTD_findFrameCompressedSize(packed.data(), packed.size()) != packed.size()) {
    return absl::DataLossError("zstd: more or less than one frame");
  }
  std::string raw(raw_size, '\0');
  size_t size = ZSTD_decompress(raw.data(), raw.size(), packed.data(), packed.size());
  if (ZSTD_isError(size)) return absl::DataLossError(absl::StrCat("zstd: ", ZSTD_getErrorName(size)));
  if (size != raw_size) return absl::DataLossError("zstd: shorter than promised");
  return raw;
}

}  // namespace kiln
