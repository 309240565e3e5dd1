#include "compiler/codegen/constant_loads.h"

#include <vector>

#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/Analysis/VectorUtils.h"
#include "llvm/IR/Constants.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/InstIterator.h"
#include "llvm/IR/IntrinsicInst.h"
#include "llvm/IR/Module.h"

namespace kiln {
namespace {

constexpr unsigned kRegisterBits = 256;
// A function with no more constants keeps them in registers; the others are for a loop's own values.
constexpr size_t kConstantsMax = 8;

// The operand of arithmetic that may come from memory: the last one of a sum or product, and of a fused
// multiply-add any. -1: none is a constant of whole registers.
int ConstantOperand(const llvm::Instruction& instruction) {
  auto* type = llvm::dyn_cast<llvm::FixedVectorType>(instruction.getType());
  if (type == nullptr || (!type->getElementType()->isFloatTy() && !type->getElementType()->isDoubleTy()) ||
      type->getPrimitiveSizeInBits() % kRegisterBits != 0) {
    return -1;
  }
  const auto is_constant = [&](unsigned k) {
    auto* constant = llvm::dyn_cast<llvm::Constant>(instruction.getOperand(k));
    return constant != nullptr && !constant->isNullValue() &&
           llvm::isa_and_nonnull<llvm::ConstantFP>(constant->getSplatValue());
  };
  switch (instruction.getOpcode()) {
    case llvm::Instruction::FAdd:
    case llvm::Instruction::FSub:
    case llvm::Instruction::FMul: return is_constant(1) ? 1 : -1;
    case llvm::Instruction::Call: break;
    default: return -1;
  }
  auto* call = llvm::dyn_cast<llvm::IntrinsicInst>(&instruction);
  if (call == nullptr || call->getIntrinsicID() != llvm::Intrinsic::fma) return -1;
  for (unsigned k : {2, 1, 0}) {
    if (is_constant(k)) return static_cast<int>(k);
  }
  return -1;
}

llvm::GlobalVariable* TableOf(llvm::Module& module, llvm::Constant* register_value) {
  auto* table = new llvm::GlobalVariable(module, register_value->getType(), /*isConstant=*/true,
                                         llvm::GlobalValue::PrivateLinkage, register_value, "constant");
  table->setUnnamedAddr(llvm::GlobalValue::UnnamedAddr::Global);
  table->setAlignment(llvm::Align(kRegisterBits / 8));
  return table;
}

}  // namespace

llvm::PreservedAnalyses ConstantLoadsPass::run(llvm::Function& function,
                                               llvm::FunctionAnalysisManager& analyses) {
  llvm::DenseMap<llvm::Constant*, llvm::GlobalVariable*> tables;  // by number
  std::vector<llvm::Instruction*> users;
  for (llvm::Instruction& instruction : llvm::instructions(function)) {
    const int operand = ConstantOperand(instruction);
    if (operand < 0) continue;
    users.push_back(&instruction);
    tables[llvm::cast<llvm::Constant>(instruction.getOperand(operand))->getSplatValue()] = nullptr;
  }
  if (tables.size() <= kConstantsMax) return llvm::PreservedAnalyses::all();
  for (llvm::Instruction* user : users) {
    for (int operand = ConstantOperand(*user); operand >= 0; operand = ConstantOperand(*user)) {
      auto* constant = llvm::cast<llvm::Constant>(user->getOperand(operand));
      llvm::Constant* number = constant->getSplatValue();
      auto* type = llvm::cast<llvm::FixedVectorType>(constant->getType());
      const unsigned parts = static_cast<unsigned>(type->getPrimitiveSizeInBits() / kRegisterBits);
      llvm::GlobalVariable*& table = tables[number];
      if (table == nullptr) {
        const auto lanes = llvm::ElementCount::getFixed(type->getNumElements() / parts);
        table = TableOf(*function.getParent(), llvm::ConstantVector::getSplat(lanes, number));
      }
      llvm::IRBuilder<> b(user);
      llvm::SmallVector<llvm::Value*, 4> loads;
      for (unsigned part = 0; part < parts; ++part) {
        loads.push_back(
            b.CreateAlignedLoad(table->getValueType(), table, *table->getAlign(), /*isVolatile=*/true));
      }
      user->setOperand(operand, parts == 1 ? loads[0] : llvm::concatenateVectors(b, loads));
    }
  }
  llvm::PreservedAnalyses preserved;
  preserved.preserveSet<llvm::CFGAnalyses>();
  return preserved;
}

}  // namespace kiln
