// The row of AArch64: NEON.
//
// Code is of the tiny model, in which every address is a distance from the instruction that asks for it, so
// that an image may lie anywhere; in others it is one from the begin of a page. The price is that no constant
// may lie farther than 1 MiB from its use.
#include "compiler/codegen/target_operations.h"
#include "llvm/BinaryFormat/ELF.h"
#include "llvm/Support/MathExtras.h"
#include "llvm/Support/TargetSelect.h"

namespace kiln {
namespace {

void InitializeAArch64() {
  static const bool done = [] {
    LLVMInitializeAArch64TargetInfo();
    LLVMInitializeAArch64Target();
    LLVMInitializeAArch64TargetMC();
    LLVMInitializeAArch64AsmPrinter();
    return true;
  }();
  (void)done;
}

// A distance in instructions, in `bits` of the word from `place` on.
Relocation InWords(int64_t distance, unsigned bits, unsigned place, uint32_t* word) {
  if (distance % 4 != 0) return Relocation::kUnknown;
  if (!llvm::isIntN(bits, distance / 4)) return Relocation::kTooFar;
  const auto field = static_cast<uint32_t>(llvm::maskTrailingOnes<uint32_t>(bits) << place);
  *word = (*word & ~field) | (static_cast<uint32_t>(distance / 4) << place & field);
  return Relocation::kDone;
}

// In bytes: the two low bits lie apart from the others.
Relocation InAdr(int64_t distance, uint32_t* word) {
  constexpr unsigned kBits = 21, kLowPlace = 29, kHighPlace = 5;
  constexpr uint32_t kLow = 3u << kLowPlace, kHigh = 0x7ffffu << kHighPlace;
  if (!llvm::isIntN(kBits, distance)) return Relocation::kTooFar;
  const auto bits = static_cast<uint32_t>(distance);
  *word = (*word & ~(kLow | kHigh)) | (bits << kLowPlace & kLow) | (bits >> 2 << kHighPlace & kHigh);
  return Relocation::kDone;
}

Relocation RelocateAArch64(uint64_t type, int64_t distance, uint32_t* word) {
  switch (type) {
    case llvm::ELF::R_AARCH64_CALL26:
    case llvm::ELF::R_AARCH64_JUMP26: return InWords(distance, 26, 0, word);
    case llvm::ELF::R_AARCH64_LD_PREL_LO19: return InWords(distance, 19, 5, word);
    case llvm::ELF::R_AARCH64_ADR_PREL_LO21: return InAdr(distance, word);
    default: return Relocation::kUnknown;
  }
}

}  // namespace

extern const TargetOperations kNeonOperations = {
    .name = "aarch64",
    .maximum_bits = 64,
    .vectors = true,
    .llvm_target = {.initialize = InitializeAArch64, .cpu = "generic", .code_model = llvm::CodeModel::Tiny},
    .elf_machine = llvm::ELF::EM_AARCH64,
    .relocate = RelocateAArch64,
};

}  // namespace kiln
