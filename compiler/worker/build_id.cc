#include "compiler/worker/build_id.h"

#include <elf.h>
#include <link.h>
#include <string.h>

#include <fstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/digest.h"

namespace kiln {
namespace {

size_t Padded(size_t size) { return (size + 3) & ~size_t{3}; }

// The build id in a block of notes, or nothing.
std::string FindBuildId(absl::string_view notes) {
  while (notes.size() >= sizeof(ElfW(Nhdr))) {
    ElfW(Nhdr) header;
    memcpy(&header, notes.data(), sizeof(header));
    notes.remove_prefix(sizeof(header));
    const size_t name = Padded(header.n_namesz);
    const size_t value = Padded(header.n_descsz);
    if (name > notes.size() || value > notes.size() - name) return "";
    if (header.n_type == NT_GNU_BUILD_ID && notes.substr(0, header.n_namesz) == absl::string_view("GNU", 4)) {
      return ToHex(notes.substr(name, header.n_descsz));
    }
    notes.remove_prefix(name + value);
  }
  return "";
}

// dl_iterate_phdr lists the program itself first.
int VisitProgram(dl_phdr_info* info, size_t, void* found) {
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr) & segment = info->dlpi_phdr[i];
    if (segment.p_type != PT_NOTE) continue;
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the loader gives numbers
    const char* begin = reinterpret_cast<const char*>(info->dlpi_addr + segment.p_vaddr);
    std::string id = FindBuildId(absl::string_view(begin, segment.p_memsz));
    if (!id.empty()) *static_cast<std::string*>(found) = std::move(id);
  }
  return 1;
}

}  // namespace

std::string OwnBuildId() {
  std::string found;
  dl_iterate_phdr(VisitProgram, &found);
  return found;
}

absl::StatusOr<std::string> BuildIdOfFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  ElfW(Ehdr) header;
  if (!file.read(reinterpret_cast<char*>(&header), sizeof(header)) ||
      memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_phentsize != sizeof(ElfW(Phdr))) {
    return absl::NotFoundError(absl::StrCat(path, " is no program"));
  }
  for (int i = 0; i < header.e_phnum; ++i) {
    ElfW(Phdr) segment;
    file.seekg(header.e_phoff + i * sizeof(segment));
    if (!file.read(reinterpret_cast<char*>(&segment), sizeof(segment))) break;
    if (segment.p_type != PT_NOTE || segment.p_filesz > kBuildNoteBytesMax) continue;
    std::vector<char> notes(segment.p_filesz);
    file.seekg(segment.p_offset);
    if (!file.read(notes.data(), notes.size())) break;
    std::string id = FindBuildId(absl::string_view(notes.data(), notes.size()));
    if (!id.empty()) return id;
  }
  return absl::NotFoundError(absl::StrCat(path, " has no build id"));
}

}  // namespace kiln
