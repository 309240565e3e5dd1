#include "compiler/image/gpu_image.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/member_table.h"

namespace kiln {
namespace {

constexpr char kMagic[8] = {'K', 'I', 'L', 'N', 'G', 'P', 'U', '4'};

// On disk and on the wire; little-endian like the machines that run it.
struct Header {
  char magic[8];
  uint32_t threads;
  uint32_t points_per_block;
  uint32_t buffers;
  uint32_t symbols;
  uint32_t members;
  uint32_t reserved;
  uint64_t stored;
  uint64_t cubin_bytes;  // before the PTX
};

// A thread completes so many at the most.
bool IsShared(uint32_t points, uint32_t threads) {
  return points > 0 && (points - 1) / threads < kPointsPerThreadMax;
}

}  // namespace

std::string SerializeGpuImage(const GpuImage& image) {
  Header header = {{}, image.threads, image.points_per_block, image.buffers, image.symbols, image.members,
                   0,  image.stored,  image.cubin.size()};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  return std::string(reinterpret_cast<const char*>(&header), sizeof(header)) + image.cubin + image.ptx;
}

absl::StatusOr<GpuImage> ParseGpuImage(absl::string_view bytes) {
  Header header;
  if (bytes.size() <= sizeof(header)) return absl::DataLossError("GPU image: too short");
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0)
    return absl::DataLossError("GPU image: not an image");
  if (header.threads == 0 || header.threads > kBlockThreadsMax ||
      !IsShared(header.points_per_block, header.threads)) {
    return absl::DataLossError(absl::StrCat("GPU image: impossible launch of ", header.points_per_block,
                                            " points by ", header.threads, " threads"));
  }
  const uint64_t words = uint64_t{header.buffers} + header.symbols;
  if (header.members > 0 && (words > MemberTable::kBytesMax / sizeof(uint64_t) ||
                             header.members > MemberTable::MembersThatFit(static_cast<uint32_t>(words)))) {
    return absl::DataLossError("GPU image: too many members");
  }
  bytes.remove_prefix(sizeof(header));
  if (header.cubin_bytes >= bytes.size()) return absl::DataLossError("GPU image: no PTX");
  return GpuImage{header.threads,
                  header.points_per_block,
                  header.buffers,
                  header.symbols,
                  header.members,
                  header.stored,
                  std::string(bytes.substr(0, header.cubin_bytes)),
                  std::string(bytes.substr(header.cubin_bytes))};
}

}  // namespace kiln
