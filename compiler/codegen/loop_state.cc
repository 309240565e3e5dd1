#include "compiler/codegen/loop_state.h"

namespace kiln {

llvm::Type* LoopState::Wide(llvm::Type* scalar) const {
  return lanes == 1 ? scalar : llvm::FixedVectorType::get(scalar, lanes);
}

llvm::Value* LoopState::Splat(llvm::Value* scalar) const {
  return lanes == 1 ? scalar : b_.CreateVectorSplat(lanes, scalar);
}

llvm::Value* LoopState::LaneNumbers(llvm::Type* scalar) const {
  llvm::SmallVector<llvm::Constant*, 64> numbers;
  for (unsigned lane = 0; lane < lanes; ++lane) numbers.push_back(llvm::ConstantInt::get(scalar, lane));
  return lanes == 1 ? numbers[0] : llvm::ConstantVector::get(numbers);
}

llvm::Value* LoopState::ActiveMask(LaneValue condition) const {
  if (condition.v == nullptr) return mask;
  llvm::Value* wide = Broadcast(condition);
  return mask == nullptr ? wide : b_.CreateAnd(mask, wide);
}

}  // namespace kiln
