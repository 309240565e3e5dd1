// Philox4x32-10: key = seed, counter = (flat >> 2, op number), lane = flat & 3.
#include "compiler/codegen/kernel_emitter.h"

namespace kiln {

llvm::Value* KernelEmitter::EmitRandBits(llvm::Value* seed, llvm::Value* flat, llvm::Value* number) {
  constexpr uint32_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  llvm::Type* i64 = flat->getType();
  llvm::Type* i32 = i64->getWithNewType(b_.getInt32Ty());
  const auto low = [&](llvm::Value* v) { return b_.CreateTrunc(v, i32); };
  const auto high = [&](llvm::Value* v) { return b_.CreateTrunc(b_.CreateLShr(v, 32), i32); };
  llvm::Value* block = b_.CreateLShr(flat, 2);
  llvm::Value* counter[4] = {low(block), high(block), low(number), high(number)};
  llvm::Value* key[2] = {low(seed), high(seed)};
  for (int round = 0; round < 10; ++round) {
    const auto product = [&](llvm::Value* v, uint32_t multiplier) {
      return b_.CreateMul(b_.CreateZExt(v, i64), llvm::ConstantInt::get(i64, multiplier));
    };
    llvm::Value* p0 = product(counter[0], kMultiplier0);
    llvm::Value* p1 = product(counter[2], kMultiplier1);
    llvm::Value* next[4] = {b_.CreateXor(b_.CreateXor(high(p1), counter[1]), key[0]), low(p1),
                            b_.CreateXor(b_.CreateXor(high(p0), counter[3]), key[1]), low(p0)};
    std::copy(next, next + 4, counter);
    key[0] = b_.CreateAdd(key[0], llvm::ConstantInt::get(i32, kWeyl0));
    key[1] = b_.CreateAdd(key[1], llvm::ConstantInt::get(i32, kWeyl1));
  }
  llvm::Value* lane = b_.CreateAnd(low(flat), llvm::ConstantInt::get(i32, 3));
  llvm::Value* word = counter[0];
  for (uint64_t k = 1; k < 4; ++k) {
    word = b_.CreateSelect(b_.CreateICmpEQ(lane, llvm::ConstantInt::get(i32, k)), counter[k], word);
  }
  return b_.CreateZExt(word, i64);
}

}  // namespace kiln
