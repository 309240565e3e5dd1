#include "compiler/codegen/image_builder.h"

#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "compiler/codegen/target_operations.h"
#include "compiler/image/flat_image.h"
#include "compiler/support/status_macros.h"
#include "llvm/BinaryFormat/ELF.h"
#include "llvm/Object/ELFObjectFile.h"
#include "llvm/Support/MemoryBufferRef.h"

namespace kiln {
namespace {

using llvm::object::ELF64LEObjectFile;
using llvm::object::ELFSectionRef;
using llvm::object::RelocationRef;
using llvm::object::SectionRef;
using llvm::object::SymbolRef;

struct Placed {
  SectionRef section;
  llvm::StringRef bytes;
  uint64_t alignment;
  bool text;
  uint64_t offset = 0;
};

absl::string_view View(llvm::StringRef s) { return {s.data(), s.size()}; }

template <typename T>
absl::StatusOr<T> Take(llvm::Expected<T> value, absl::string_view what) {
  if (value) return std::move(*value);
  return absl::InternalError(absl::StrCat(what, ": ", llvm::toString(value.takeError())));
}

class Builder {
 public:
  Builder(const ELF64LEObjectFile& object, const TargetOperations& operations)
      : object_(object), operations_(operations) {}

  absl::StatusOr<std::string> Build(absl::string_view entry) {
    KILN_RETURN_IF_ERROR(CollectSections());
    Layout();
    KILN_RETURN_IF_ERROR(ApplyRelocations());
    KILN_RETURN_IF_ERROR(WriteHeader(entry));
    return std::move(image_);
  }

 private:
  absl::Status CollectSections() {
    for (const SectionRef& section : object_.sections()) {
      const ELFSectionRef elf(section);
      if ((elf.getFlags() & llvm::ELF::SHF_ALLOC) == 0 || section.getSize() == 0) continue;
      KILN_ASSIGN_OR_RETURN(llvm::StringRef name, Take(section.getName(), "section name"));
      // Unwind tables describe code to a debugger; nothing unwinds through a kernel.
      if (name == ".eh_frame") continue;
      if ((elf.getFlags() & llvm::ELF::SHF_WRITE) != 0 || section.isBSS()) {
        return absl::InternalError(absl::StrCat("code image: writable section ", View(name)));
      }
      KILN_ASSIGN_OR_RETURN(llvm::StringRef bytes, Take(section.getContents(), "section contents"));
      if (section.getAlignment().value() > kFlatImageAlignment) {
        return absl::InternalError(absl::StrCat("code image: over-aligned section ", View(name)));
      }
      placed_.push_back({section, bytes, section.getAlignment().value(), section.isText()});
    }
    return absl::OkStatus();
  }

  // Constants first, then all code in one run.
  void Layout() {
    uint64_t at = sizeof(FlatImageHeader);
    for (const bool text : {false, true}) {
      if (text) at = (at + kFlatImageAlignment - 1) / kFlatImageAlignment * kFlatImageAlignment;
      if (text) text_offset_ = at;
      for (Placed& placed : placed_) {
        if (placed.text != text) continue;
        at = (at + placed.alignment - 1) / placed.alignment * placed.alignment;
        placed.offset = at;
        at += placed.bytes.size();
        by_index_[placed.section.getIndex()] = &placed;
      }
    }
    image_.assign(at, '\0');
    for (const Placed& placed : placed_) {
      std::memcpy(image_.data() + placed.offset, placed.bytes.data(), placed.bytes.size());
    }
  }

  // Where a symbol is in the image.
  absl::StatusOr<uint64_t> Address(const SymbolRef& symbol) {
    KILN_ASSIGN_OR_RETURN(llvm::StringRef name, Take(symbol.getName(), "symbol name"));
    KILN_ASSIGN_OR_RETURN(auto section, Take(symbol.getSection(), "symbol section"));
    if (section == object_.section_end()) {
      return absl::InternalError(absl::StrCat("code image: undefined symbol ", View(name)));
    }
    const auto it = by_index_.find(section->getIndex());
    if (it == by_index_.end()) {
      return absl::InternalError(absl::StrCat("code image: symbol ", View(name), " is in no loaded section"));
    }
    KILN_ASSIGN_OR_RETURN(uint64_t value, Take(symbol.getValue(), "symbol value"));
    if (value > it->second->bytes.size()) {
      return absl::InternalError(absl::StrCat("code image: symbol ", View(name), " lies beyond its section"));
    }
    return it->second->offset + value;
  }

  absl::Status ApplyRelocations() {
    for (const SectionRef& section : object_.sections()) {
      KILN_ASSIGN_OR_RETURN(auto relocated, Take(section.getRelocatedSection(), "relocated section"));
      if (relocated == object_.section_end()) continue;
      const auto it = by_index_.find(relocated->getIndex());
      if (it == by_index_.end()) continue;
      for (const RelocationRef& relocation : section.relocations()) {
        KILN_RETURN_IF_ERROR(Apply(relocation, *it->second));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Apply(const RelocationRef& relocation, const Placed& in) {
    KILN_ASSIGN_OR_RETURN(const uint64_t target, Address(*relocation.getSymbol()));
    KILN_ASSIGN_OR_RETURN(const int64_t addend,
                          Take(llvm::object::ELFRelocationRef(relocation).getAddend(), "addend"));
    const uint64_t place = in.offset + relocation.getOffset();
    if (in.bytes.size() < 4 || relocation.getOffset() > in.bytes.size() - 4)
      return absl::InternalError("code image: stray relocation");
    uint32_t word;
    std::memcpy(&word, image_.data() + place, sizeof(word));
    const int64_t distance = static_cast<int64_t>(target) + addend - static_cast<int64_t>(place);
    const auto size = static_cast<int64_t>(image_.size());
    if (distance > size || distance < -size) {
      return absl::InternalError("code image: a relocation leads out of the image");
    }
    switch (operations_.relocate(relocation.getType(), distance, &word)) {
      case Relocation::kDone: break;
      case Relocation::kTooFar:
        return absl::UnimplementedError("unsupported: a kernel of more code than this target's jumps reach");
      case Relocation::kUnknown: return NeedsLinker(relocation);
    }
    std::memcpy(image_.data() + place, &word, sizeof(word));
    return absl::OkStatus();
  }

  static absl::Status NeedsLinker(const RelocationRef& relocation) {
    llvm::SmallString<32> name;
    relocation.getTypeName(name);
    KILN_ASSIGN_OR_RETURN(llvm::StringRef symbol, Take(relocation.getSymbol()->getName(), "symbol name"));
    return absl::InternalError(
        absl::StrCat("code image: relocation ", View(name), " against symbol ", View(symbol)));
  }

  absl::Status WriteHeader(absl::string_view entry) {
    std::optional<uint64_t> entry_offset;
    for (const SymbolRef& symbol : object_.symbols()) {
      KILN_ASSIGN_OR_RETURN(llvm::StringRef name, Take(symbol.getName(), "symbol name"));
      if (View(name) != entry) continue;
      KILN_ASSIGN_OR_RETURN(entry_offset, Address(symbol));
    }
    if (!entry_offset) return absl::InternalError(absl::StrCat("code image: no symbol ", entry));
    FlatImageHeader header = {};
    std::memcpy(header.magic, kFlatImageMagic, sizeof(header.magic));
    header.abi_version = KILN_KERNEL_ABI_VERSION;
    header.header_size = sizeof(header);
    header.total_size = image_.size();
    header.text_offset = text_offset_;
    header.text_size = image_.size() - text_offset_;
    header.entry_offset = *entry_offset;
    header.machine = operations_.elf_machine == llvm::ELF::EM_X86_64 ? 0 : operations_.elf_machine;
    std::memcpy(image_.data(), &header, sizeof(header));
    return CheckFlatImage(image_);
  }

  const ELF64LEObjectFile& object_;
  const TargetOperations& operations_;
  std::vector<Placed> placed_;
  std::map<uint64_t, const Placed*> by_index_;  // by ELF section number
  uint64_t text_offset_ = 0;
  std::string image_;
};

}  // namespace

absl::StatusOr<std::string> BuildFlatImage(absl::string_view elf_object, absl::string_view entry) {
  const llvm::MemoryBufferRef buffer(llvm::StringRef(elf_object.data(), elf_object.size()), "kernel");
  KILN_ASSIGN_OR_RETURN(auto object, Take(ELF64LEObjectFile::create(buffer), "code image: object"));
  const uint16_t machine = object.getELFFile().getHeader().e_machine;
  const TargetOperations* operations = OperationsOfElf(machine);
  if (operations == nullptr) {
    return absl::InternalError(absl::StrCat("code image: an object of ELF machine ", machine));
  }
  return Builder(object, *operations).Build(entry);
}

}  // namespace kiln
