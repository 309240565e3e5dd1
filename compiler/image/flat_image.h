// The object of a CPU's kernel: freestanding, position-independent code with its constants. No relocation
// is left and no symbol is undefined, so loading is copying.
//
//   offset 0   FlatImageHeader (64 bytes, little endian)
//   …          constants and code, each section at its own alignment (at most kFlatImageAlignment)
//
// Worker and client both check an image before they believe it: `CheckFlatImage` bounds every field
// against the bytes at hand. What the code does is the compiler's word; the digest in the manifest
// ties the bytes to the compiler.
//
// Threads: the functions are thread safe; LoadedImages is immutable after LoadImages.
// Errors: DATA_LOSS for bytes that are no image, FAILED_PRECONDITION for an image of another ABI
// or machine, RESOURCE_EXHAUSTED when the system has no memory to map.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "compiler/support/kernel_abi.h"

namespace kiln {

inline constexpr char kFlatImageMagic[8] = {'k', 'i', 'l', 'n', 'i', 'm', 'g', '1'};
inline constexpr uint64_t kFlatImageAlignment = 64;

struct FlatImageHeader {
  char magic[8];
  uint32_t abi_version;  // KILN_KERNEL_ABI_VERSION
  uint32_t header_size;  // sizeof(FlatImageHeader)
  uint64_t total_size;   // of the image, this header included
  uint64_t text_offset;  // from the start of the image
  uint64_t text_size;
  uint64_t entry_offset;  // from the start of the image, inside the text
  uint64_t machine;       // ELF's number of the architecture that the code is for; 0: x86-64
  uint64_t reserved;      // 0
};
static_assert(sizeof(FlatImageHeader) == 64);

absl::Status CheckFlatImage(absl::string_view image);

// Several images in one mapping that is readable and executable, never writable at the same time.
class LoadedImages {
 public:
  LoadedImages(const LoadedImages&) = delete;
  LoadedImages& operator=(const LoadedImages&) = delete;
  ~LoadedImages();

  size_t size() const { return entries_.size(); }
  // Valid as long as this object lives.
  KilnKernel entry(size_t image) const { return entries_[image]; }
  absl::string_view code(size_t image) const { return code_[image]; }
  size_t mapped_bytes() const { return bytes_; }

 private:
  friend absl::StatusOr<std::unique_ptr<LoadedImages>> LoadImages(absl::Span<const absl::string_view> images);
  LoadedImages() = default;

  void* base_ = nullptr;
  size_t bytes_ = 0;
  std::vector<KilnKernel> entries_;
  std::vector<absl::string_view> code_;
};

// Checks and copies the images; nothing is mapped unless all are good and for this machine.
absl::StatusOr<std::unique_ptr<LoadedImages>> LoadImages(absl::Span<const absl::string_view> images);

}  // namespace kiln
