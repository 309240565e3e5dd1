// What differs between instruction sets, as a table, so that emitters, optimizer and image builder name none;
// what LLVM does alike for all of them is in the emitters.
//
// A row is a constant, in a file of its instruction set's (x86_operations.cc), and known to the table alone
// (target_operations.cc); a field that it leaves out says that there is no such instruction. Threads: any.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "compiler/target/vector_target.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/Intrinsics.h"
#include "llvm/Support/CodeGen.h"

namespace kiln {

struct FloatFunctions;

enum class Relocation { kDone, kUnknown, kTooFar };

// What LLVM is told.
struct LlvmTarget {
  void (*initialize)() = nullptr;  // once; any thread
  const char* cpu = "";
  llvm::CodeModel::Model code_model = llvm::CodeModel::Small;
  const char* vector_bits = nullptr;   // of registers, where a function has to say that it uses them whole
  bool constants_from_memory = false;  // constant_loads.h
};

struct TargetOperations {
  absl::string_view name;  // of the back-end

  // Floats of up to so many bits have maximum and minimum that are NaN where either operand is: llvm.maximum.
  unsigned maximum_bits = 0;
  // Maximum or minimum of two registers of F32 by one instruction: x where either is NaN.
  llvm::Value* (*maximum)(llvm::IRBuilder<>& b, llvm::Value* x, llvm::Value* y, bool maximum) = nullptr;
  bool vectors = false;  // a register holds many lanes; else each is computed by itself
  bool gathers = false;  // and scatters, of elements of 4 and 8 bytes: llvm.masked.gather
  const FloatFunctions* float_functions = nullptr;                    // in ways of its own: math.h
  bool converts_bf16 = false;                                         // from and to F32
  llvm::Intrinsic::ID high_product = llvm::Intrinsic::not_intrinsic;  // the high word of a product of words
  llvm::Intrinsic::ID nontemporal_fence = llvm::Intrinsic::not_intrinsic;  // orders nontemporal stores

  LlvmTarget llvm_target;  // a GPU's back-end has its own

  // For objects: the ELF number of the architecture, and the kinds of relocation that are a distance from the
  // place that is patched, in a word of 32 bits.
  uint16_t elf_machine = 0;
  Relocation (*relocate)(uint64_t type, int64_t distance, uint32_t* word) = nullptr;
};

const TargetOperations& OperationsOf(InstructionSet instructions);
// A row of the architecture; nullptr: no row has it.
const TargetOperations* OperationsOfElf(uint16_t elf_machine);

}  // namespace kiln
