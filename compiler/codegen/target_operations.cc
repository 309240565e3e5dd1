#include "compiler/codegen/target_operations.h"

#include "compiler/codegen/math.h"
#include "llvm/IR/IntrinsicsNVPTX.h"

namespace kiln {

// aarch64_operations.cc
extern const TargetOperations kNeonOperations;
// x86_operations.cc
extern const TargetOperations kAvx2Operations;
extern const TargetOperations kAvx512Operations;

namespace {

constexpr TargetOperations kThreadOperations = {
    .name = "nvptx",
    .maximum_bits = 32,
    .float_functions = &MathEmitter::kGpuFunctions,
    .converts_bf16 = true,
    .high_product = llvm::Intrinsic::nvvm_mulhi_ui,
};

}  // namespace

const TargetOperations& OperationsOf(InstructionSet instructions) {
  switch (instructions) {
    case InstructionSet::kAvx2: return kAvx2Operations;
    case InstructionSet::kAvx512: return kAvx512Operations;
    case InstructionSet::kNeon: return kNeonOperations;
    case InstructionSet::kThreads: break;
  }
  return kThreadOperations;
}

const TargetOperations* OperationsOfElf(uint16_t elf_machine) {
  for (const TargetOperations* row : {&kAvx2Operations, &kNeonOperations}) {
    if (row->elf_machine == elf_machine) return row;
  }
  return nullptr;
}

}  // namespace kiln
