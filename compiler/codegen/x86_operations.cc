// The rows of x86: AVX2 and AVX-512.
#include "compiler/codegen/math.h"
#include "compiler/codegen/target_operations.h"
#include "llvm/BinaryFormat/ELF.h"
#include "llvm/IR/IntrinsicsX86.h"
#include "llvm/Support/TargetSelect.h"

namespace kiln {
namespace {

void InitializeX86() {
  static const bool done = [] {
    LLVMInitializeX86TargetInfo();
    LLVMInitializeX86Target();
    LLVMInitializeX86TargetMC();
    LLVMInitializeX86AsmPrinter();
    return true;
  }();
  (void)done;
}

// LLVM would not make this of comparisons that ask for NaN beside it. The instruction gives its second
// operand where either is NaN.
llvm::Value* MaximumAvx2(llvm::IRBuilder<>& b, llvm::Value* x, llvm::Value* y, bool maximum) {
  return b.CreateIntrinsic(
      maximum ? llvm::Intrinsic::x86_avx_max_ps_256 : llvm::Intrinsic::x86_avx_min_ps_256,
      llvm::ArrayRef<llvm::Type*>{}, llvm::ArrayRef<llvm::Value*>{y, x});
}

llvm::Value* MaximumAvx512(llvm::IRBuilder<>& b, llvm::Value* x, llvm::Value* y, bool maximum) {
  constexpr int kCurrentRounding = 4;
  return b.CreateIntrinsic(
      maximum ? llvm::Intrinsic::x86_avx512_max_ps_512 : llvm::Intrinsic::x86_avx512_min_ps_512,
      llvm::ArrayRef<llvm::Type*>{}, llvm::ArrayRef<llvm::Value*>{y, x, b.getInt32(kCurrentRounding)});
}

Relocation RelocateX86(uint64_t type, int64_t distance, uint32_t* word) {
  if (type != llvm::ELF::R_X86_64_PC32 && type != llvm::ELF::R_X86_64_PLT32) return Relocation::kUnknown;
  if (distance != static_cast<int32_t>(distance)) return Relocation::kTooFar;
  *word = static_cast<uint32_t>(distance);
  return Relocation::kDone;
}

}  // namespace

extern const TargetOperations kAvx2Operations = {
    .name = "x86",
    .maximum = MaximumAvx2,
    .vectors = true,
    .nontemporal_fence = llvm::Intrinsic::x86_sse_sfence,
    .llvm_target = {.initialize = InitializeX86,
                    .cpu = "x86-64",
                    .vector_bits = "256",
                    .constants_from_memory = true},
    .elf_machine = llvm::ELF::EM_X86_64,
    .relocate = RelocateX86,
};

extern const TargetOperations kAvx512Operations = {
    .name = "x86",
    .maximum = MaximumAvx512,
    .vectors = true,
    .gathers = true,
    .float_functions = &MathEmitter::kTableFunctions,
    .nontemporal_fence = llvm::Intrinsic::x86_sse_sfence,
    .llvm_target = {.initialize = InitializeX86, .cpu = "x86-64", .vector_bits = "512"},
    .elf_machine = llvm::ELF::EM_X86_64,
    .relocate = RelocateX86,
};

}  // namespace kiln
