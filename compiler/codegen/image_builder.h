// Makes a flat image (flat_image.h) out of a relocatable ELF object: lays out code and constants and
// applies the PC-relative relocations between them.
//
// Errors: UNIMPLEMENTED for code that is too large for the target's addresses; INTERNAL, naming the symbol,
// for anything that would need a linker: an undefined symbol (a library call that LLVM put in), an absolute
// or GOT relocation, writable data.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kiln {

// `entry` is the name of the kernel's function in the object.
absl::StatusOr<std::string> BuildFlatImage(absl::string_view elf_object, absl::string_view entry);

}  // namespace kiln
