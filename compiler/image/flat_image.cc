#include "compiler/image/flat_image.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/status_macros.h"

namespace kiln {
namespace {

uint64_t RoundUp(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

FlatImageHeader ReadHeader(absl::string_view image) {
  FlatImageHeader header;
  std::memcpy(&header, image.data(), sizeof(header));
  return header;
}

#if !defined(__x86_64__)
#error "another host loads images of its own machine, and flushes its instruction cache (docs/extending.md)"
#endif
constexpr uint64_t kThisMachine = 0;

absl::Status Bad(absl::string_view what) { return absl::DataLossError(absl::StrCat("code image: ", what)); }

}  // namespace

absl::Status CheckFlatImage(absl::string_view image) {
  if (image.size() < sizeof(FlatImageHeader)) return Bad("shorter than its header");
  if (image.size() > kFlatImageBytesMax)
    return Bad(absl::StrCat(image.size(), " bytes, limit ", kFlatImageBytesMax));
  const FlatImageHeader header = ReadHeader(image);
  if (std::memcmp(header.magic, kFlatImageMagic, sizeof(kFlatImageMagic)) != 0) return Bad("wrong magic");
  if (header.abi_version != KILN_KERNEL_ABI_VERSION) {
    return absl::FailedPreconditionError(absl::StrCat("code image: kernel ABI ", header.abi_version,
                                                      ", this host runs ", KILN_KERNEL_ABI_VERSION));
  }
  if (header.header_size != sizeof(FlatImageHeader)) return Bad("wrong header size");
  if (header.total_size != image.size()) return Bad("size differs from the header's");
  if (header.machine > UINT16_MAX) return Bad("unknown machine");
  if (header.reserved != 0) return Bad("a reserved field is set");
  if (header.text_offset < sizeof(FlatImageHeader) || header.text_offset > image.size() ||
      header.text_size == 0 || header.text_size > image.size() - header.text_offset) {
    return Bad("text lies outside of the image");
  }
  if (header.entry_offset < header.text_offset ||
      header.entry_offset - header.text_offset >= header.text_size) {
    return Bad("entry lies outside of the text");
  }
  return absl::OkStatus();
}

LoadedImages::~LoadedImages() {
  if (base_ != nullptr) munmap(base_, bytes_);
}

absl::StatusOr<std::unique_ptr<LoadedImages>> LoadImages(absl::Span<const absl::string_view> images) {
  uint64_t total = 0;
  std::vector<uint64_t> offsets;
  for (absl::string_view image : images) {
    KILN_RETURN_IF_ERROR(CheckFlatImage(image));
    if (const uint64_t machine = ReadHeader(image).machine; machine != kThisMachine) {
      return absl::FailedPreconditionError(
          absl::StrCat("code image: for another machine than this one (ELF's number ", machine, ")"));
    }
    offsets.push_back(total);
    total = RoundUp(total + image.size(), kFlatImageAlignment);
  }
  auto loaded = std::unique_ptr<LoadedImages>(new LoadedImages());
  if (images.empty()) return loaded;
  const size_t bytes = RoundUp(total, static_cast<uint64_t>(sysconf(_SC_PAGESIZE)));
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) return absl::ResourceExhaustedError("code images: no memory to map");
  loaded->base_ = base;
  loaded->bytes_ = bytes;
  for (size_t i = 0; i < images.size(); ++i) {
    char* at = static_cast<char*>(base) + offsets[i];
    std::memcpy(at, images[i].data(), images[i].size());
    const FlatImageHeader header = ReadHeader(images[i]);
    loaded->entries_.push_back(reinterpret_cast<KilnKernel>(at + header.entry_offset));
    loaded->code_.emplace_back(at + header.text_offset, header.text_size);
  }
  if (mprotect(base, bytes, PROT_READ | PROT_EXEC) != 0) {
    return absl::ResourceExhaustedError("code images: the system refuses executable memory");
  }
  return loaded;
}

}  // namespace kiln
