#include "compiler/codegen/random_emitter.h"

#include "llvm/Analysis/ValueTracking.h"
#include "llvm/Support/KnownBits.h"

namespace kiln {
namespace {

constexpr unsigned kWords = 4;  // of a counter

llvm::Value* Low(llvm::IRBuilder<>& b, llvm::Value* v) {
  return b.CreateTrunc(v, v->getType()->getWithNewType(b.getInt32Ty()));
}
llvm::Value* High(llvm::IRBuilder<>& b, llvm::Value* v) { return Low(b, b.CreateLShr(v, 32)); }

}  // namespace

// The low and the high word of a product of words. A GPU has an instruction for either; products of 64 bits
// would draw the rest of the function into 64 bits, of which it has no instructions.
std::pair<llvm::Value*, llvm::Value*> RandomEmitter::WideProduct(llvm::Value* v, uint32_t multiplier) {
  llvm::Type* i64 = v->getType()->getWithNewType(b_.getInt64Ty());
  if (k_.operations.high_product == llvm::Intrinsic::not_intrinsic) {
    llvm::Value* product = b_.CreateMul(b_.CreateZExt(v, i64), llvm::ConstantInt::get(i64, multiplier));
    return {Low(b_, product), High(b_, product)};
  }
  const auto high = [&](llvm::Value* word) {
    return b_.CreateIntrinsic(b_.getInt32Ty(), k_.operations.high_product, {word, b_.getInt32(multiplier)});
  };
  llvm::Value* low = b_.CreateMul(v, llvm::ConstantInt::get(v->getType(), multiplier));
  auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(v->getType());
  if (vector == nullptr) return {low, high(v)};
  llvm::Value* words = llvm::PoisonValue::get(vector);
  for (uint64_t lane = 0; lane < vector->getNumElements(); ++lane) {
    words = b_.CreateInsertElement(words, high(b_.CreateExtractElement(v, lane)), lane);
  }
  return {low, words};
}

RandomEmitter::Words RandomEmitter::Philox(llvm::Value* seed, llvm::Value* block, llvm::Value* number) {
  constexpr uint32_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  llvm::Type* i32 = block->getType()->getWithNewType(b_.getInt32Ty());
  Words counter = {Low(b_, block), High(b_, block), Low(b_, number), High(b_, number)};
  llvm::Value* key[2] = {Low(b_, seed), High(b_, seed)};
  for (int round = 0; round < 10; ++round) {
    const auto [low0, high0] = WideProduct(counter[0], kMultiplier0);
    const auto [low1, high1] = WideProduct(counter[2], kMultiplier1);
    counter = {b_.CreateXor(b_.CreateXor(high1, counter[1]), key[0]), low1,
               b_.CreateXor(b_.CreateXor(high0, counter[3]), key[1]), low0};
    key[0] = b_.CreateAdd(key[0], llvm::ConstantInt::get(i32, kWeyl0));
    key[1] = b_.CreateAdd(key[1], llvm::ConstantInt::get(i32, kWeyl1));
  }
  return counter;
}

// Of lanes that draw neighbouring numbers from the first word of a counter on: the first lane's; else
// nullptr.
llvm::Value* RandomEmitter::WholeCounters(const v1::LoopOp& op) {
  const v1::LoopOp& flat = k_.facts.op(op.args(1));
  if (at_.lanes < kWords || at_.lanes % kWords != 0 ||
      static_cast<LoopOpcode>(flat.op()) != LoopOpcode::kIndexExpr)
    return nullptr;
  if (at_.values[op.args(0)].vector || at_.values[op.args(2)].vector) return nullptr;
  if (k_.facts.DependsOnOps(flat.index()) || index_.Coefficient(flat.index()) != 1) return nullptr;
  llvm::Value* first = index_.Scalar(flat.index());
  const llvm::KnownBits known = llvm::computeKnownBits(first, k_.module->getDataLayout());
  return known.countMinTrailingZeros() >= 2 ? first : nullptr;
}

llvm::Value* RandomEmitter::RandBits(const v1::LoopOp& op, llvm::ArrayRef<llvm::Value*> args) {
  llvm::Type* i64 = at_.Wide(b_.getInt64Ty());
  if (llvm::Value* first = WholeCounters(op)) {
    const unsigned lanes = at_.lanes;
    at_.lanes /= kWords;  // counters
    llvm::Value* block = b_.CreateAdd(at_.Splat(b_.CreateLShr(first, 2)), at_.LaneNumbers(b_.getInt64Ty()));
    const Words words =
        Philox(at_.Splat(at_.values[op.args(0)].v), block, at_.Splat(at_.values[op.args(2)].v));
    llvm::Value* result = llvm::PoisonValue::get(llvm::FixedVectorType::get(b_.getInt32Ty(), lanes));
    for (unsigned lane = 0; lane < lanes; ++lane) {
      llvm::Value* word = words[lane % kWords];
      if (at_.lanes > 1) word = b_.CreateExtractElement(word, uint64_t{lane / kWords});
      result = b_.CreateInsertElement(result, word, uint64_t{lane});
    }
    at_.lanes = lanes;
    return b_.CreateZExt(result, i64);
  }
  llvm::Value* flat = args[1];
  const Words words = Philox(args[0], b_.CreateLShr(flat, 2), args[2]);
  llvm::Type* i32 = words[0]->getType();
  llvm::Value* lane = b_.CreateAnd(Low(b_, flat), llvm::ConstantInt::get(i32, kWords - 1));
  llvm::Value* word = words[0];
  for (uint64_t k = 1; k < kWords; ++k) {
    word = b_.CreateSelect(b_.CreateICmpEQ(lane, llvm::ConstantInt::get(i32, k)), words[k], word);
  }
  return b_.CreateZExt(word, i64);
}

}  // namespace kiln
