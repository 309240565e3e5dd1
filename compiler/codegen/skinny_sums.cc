#include "compiler/codegen/skinny_sums.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "compiler/schedule/thread_walk.h"
#include "llvm/IR/IntrinsicsNVPTX.h"

namespace kiln {
namespace {

using llvm::Value;

constexpr unsigned kShared = 3, kSharedOfCluster = 7;  // address spaces
constexpr unsigned kWords = 4;                         // of 32 bits that an access moves

// Of a warp's lanes, `lane_.group` (of eight) is the row of a fragment and `lane_.quarter` (of four) the
// place along K: each lane takes 16 bytes of K of its rows, and since both factors are dealt alike it does
// not matter which of a step's terms an instruction takes to be which.
class SkinnyEmitter {
 public:
  SkinnyEmitter(const SkinnyShape& shape, const SkinnyFactors& factors, llvm::Module* module,
                LoopBuilder* builder)
      : shape_(shape), gemm_(shape.gemm), factors_(factors), b_(*builder) {
    auto* array = llvm::ArrayType::get(b_.getFloatTy(), shape_.slots() * shape_.slot_elements());
    slots_ = new llvm::GlobalVariable(*module, array, false, llvm::GlobalValue::InternalLinkage,
                                      llvm::UndefValue::get(array), "pieces", nullptr,
                                      llvm::GlobalValue::NotThreadLocal, kShared);
    slots_->setAlignment(llvm::Align(16));
  }

  // Before any other.
  void FindOperands() {
    lane_.thread = Special(llvm::Intrinsic::nvvm_read_ptx_sreg_tid_x);
    Value* lane = b_.CreateAnd(lane_.thread, I32(kWarp - 1));
    lane_.warp = b_.CreateLShr(lane_.thread, I32(5));
    lane_.group = b_.CreateLShr(lane, I32(2));
    lane_.quarter = b_.CreateAnd(lane, I32(3));
    Value* block = Special(llvm::Intrinsic::nvvm_read_ptx_sreg_ctaid_x);
    lane_.rank = b_.CreateURem(block, I32(shape_.blocks));
    lane_.first_column = b_.CreateMul(b_.CreateUDiv(block, I32(shape_.blocks)), I32(shape_.columns()));
    // Nobody may write to a block's memory before it runs; that is waited for when the sums are made.
    if (shape_.blocks > 1) Call(llvm::Intrinsic::nvvm_barrier_cluster_arrive_relaxed, b_.getVoidTy(), {});
    lane_.slot = b_.CreateAdd(b_.CreateMul(lane_.rank, I32(shape_.warps)), lane_.warp);
    lane_.first_step = b_.CreateMul(lane_.slot, I32(shape_.steps_of_warp));
    // Where this lane's terms of the first step lie along K.
    lane_.first_term = b_.CreateAdd(b_.CreateMul(lane_.first_step, I32(gemm_.step_terms())),
                                    b_.CreateMul(lane_.quarter, I32(gemm_.terms())));
    const int64_t rows = gemm_.tensor_cores ? gemm_.row_groups() : gemm_.rows;
    for (int64_t r = 0; r < rows; ++r) {
      // Rows beyond the last are the last again, and are not stored.
      Value* row =
          gemm_.tensor_cores ? AtMost(b_.CreateAdd(lane_.group, I32(8 * r)), gemm_.rows - 1) : I32(r);
      x_.push_back(factors_.make_a ? row : At(factors_.a, Product(row, gemm_.a_stride)));
    }
    if (!gemm_.along_n) {
      for (uint32_t i = 0; i < 2 * shape_.tiles; ++i) {
        Value* column = b_.CreateAdd(lane_.first_column, b_.CreateAdd(lane_.group, I32(8 * i)));
        column = AtMost(column, gemm_.columns - 1);
        w_.push_back(factors_.make_b ? column : At(factors_.b, Product(column, gemm_.b_stride)));
      }
      return;
    }
    Value* column = b_.CreateAdd(lane_.first_column, b_.CreateMul(lane_.group, I32(2 * shape_.tiles)));
    column = AtMost(column, gemm_.columns - 2 * shape_.tiles);
    w_.push_back(At(factors_.b, b_.CreateZExt(column, b_.getInt64Ty())));
  }

  void ForElements(absl::FunctionRef<void(const SkinnyElement&)> before) {
    for (uint32_t iteration = 0; iteration < shape_.iterations(); ++iteration) {
      const Output out = OutputOf(iteration);
      before({iteration, AtMost(out.row, gemm_.rows - 1), AtMost(out.column, gemm_.columns - 1)});
    }
  }

  void MakeSums(Value* aligned) {
    if (aligned == nullptr) {
      Multiply();
    } else {
      MultiplyByAlignment(aligned);
    }
    if (!gemm_.tensor_cores) AddQuarters();
    StorePartialSums();
  }

  void AddPieces(absl::FunctionRef<void(const SkinnyElement&, Value*)> finish) {
    Value* slots = SlotsOf(lane_.rank);
    for (uint32_t iteration = 0; iteration < shape_.iterations(); ++iteration) {
      const Output out = OutputOf(iteration);
      Value* exists = b_.CreateAnd(b_.CreateICmpULT(out.row, I32(gemm_.rows)),
                                   b_.CreateICmpULT(out.column, I32(gemm_.columns)));
      b_.If(exists, "element", [&] {
        Value* sum = nullptr;
        for (uint32_t slot = 0; slot < shape_.slots(); ++slot) {
          Value* place = b_.CreateAdd(out.place, I32(slot * shape_.slot_elements()));
          Value* piece = b_.CreateAlignedLoad(b_.getFloatTy(), b_.CreateGEP(b_.getFloatTy(), slots, place),
                                              llvm::Align(4));
          sum = sum == nullptr ? piece : b_.CreateFAdd(sum, piece);
        }
        finish({iteration, out.row, out.column}, sum);
      });
    }
  }

 private:
  // Where this one is.
  struct Lane {
    Value *thread = nullptr, *warp = nullptr;            // in the block
    Value *group = nullptr, *quarter = nullptr;          // of four lanes in the warp; in the group
    Value *rank = nullptr, *first_column = nullptr;      // of the block: in its cluster; of d
    Value* slot = nullptr;                               // of the warp among those that share a sum
    Value *first_step = nullptr, *first_term = nullptr;  // along K
  };
  // What a lane has of a step of K, as words.
  struct Step {
    std::vector<Value*> x;        // [row of a][word]; with tensor cores [eight rows of a][word]
    std::vector<Value*> weights;  // [tile][half][word]
  };

  Value* I32(int64_t value) { return b_.getInt32(static_cast<uint32_t>(value)); }
  Value* I64(int64_t value) { return b_.getInt64(static_cast<uint64_t>(value)); }
  Value* Call(llvm::Intrinsic::ID id, llvm::Type* type, llvm::ArrayRef<Value*> arguments) {
    return b_.CreateIntrinsic(type, id, arguments);
  }
  Value* Special(llvm::Intrinsic::ID id) { return Call(id, b_.getInt32Ty(), {}); }
  Value* AtMost(Value* value, int64_t most) {
    Value* limit = I32(most);
    return b_.CreateSelect(b_.CreateICmpULT(value, limit), value, limit);
  }
  llvm::Type* Element() {
    if (gemm_.dtype == v1::F32) return b_.getFloatTy();
    return gemm_.dtype == v1::F16 ? b_.getHalfTy() : b_.getBFloatTy();
  }
  Value* At(Value* base, Value* elements) { return b_.CreateGEP(Element(), base, elements); }
  Value* Product(Value* number, int64_t factor) {
    return b_.CreateMul(b_.CreateZExt(number, b_.getInt64Ty()), I64(factor));
  }

  // ---- the sums of a warp

  llvm::LoadInst* LoadWords(Value* address, unsigned words) {
    llvm::Type* type = words == 1 ? static_cast<llvm::Type*>(b_.getInt32Ty())
                                  : llvm::FixedVectorType::get(b_.getInt32Ty(), words);
    return b_.CreateAlignedLoad(type, address, std::min(llvm::Align(4 * words), align_));
  }

  // Appends the words, or zeros where the terms don't exist.
  void Append(Value* address, unsigned words, Value* exists, std::vector<Value*>* to) {
    for (unsigned done = 0; done < words; done += kWords) {
      const unsigned count = std::min(words - done, kWords);
      Value* loaded = LoadWords(b_.CreateConstGEP1_32(b_.getInt32Ty(), address, done), count);
      for (unsigned w = 0; w < count; ++w) {
        Value* word = count == 1 ? loaded : b_.CreateExtractElement(loaded, w);
        if (exists != nullptr) word = b_.CreateSelect(exists, word, I32(0));
        to->push_back(word);
      }
    }
  }

  // `number` of the step among this warp's.
  Step Load(Value* number) {
    Step step;
    Value* term = b_.CreateAdd(lane_.first_term, b_.CreateMul(number, I32(gemm_.step_terms())));
    Value* exists = nullptr;
    if (!shape_.steps_fit()) {
      exists = b_.CreateICmpULT(term, I32(gemm_.depth));
      term = b_.CreateSelect(exists, term, I32(0));
    }
    Value* along = b_.CreateZExt(term, b_.getInt64Ty());
    const auto take = [&](const SkinnyWords& make, Value* line, std::vector<Value*>* to) {
      if (!make) return Append(At(line, along), kWords, exists, to);
      for (Value* word : make(line, term, align_ == llvm::Align(16)))
        to->push_back(exists == nullptr ? word : b_.CreateSelect(exists, word, I32(0)));
    };
    for (Value* row : x_) take(factors_.make_a, row, &step.x);
    if (!gemm_.along_n) {
      for (Value* column : w_) take(factors_.make_b, column, &step.weights);
      return step;
    }
    std::vector<Value*> rows;  // [term][word]
    const unsigned words = 2 * shape_.tiles * gemm_.element_bytes() / 4;
    Value* first = At(w_[0], b_.CreateMul(along, I64(gemm_.b_stride)));
    for (int64_t k = 0; k < gemm_.terms(); ++k) {
      Append(At(first, I64(k * gemm_.b_stride)), words, exists, &rows);
    }
    for (uint32_t tile = 0; tile < shape_.tiles; ++tile) {
      for (uint32_t half = 0; half < 2; ++half) {
        for (uint32_t word = 0; word < kWords; ++word) {
          step.weights.push_back(gemm_.dtype == v1::F32 ? rows[words * word + 2 * tile + half]
                                                        : Pair(rows[words * 2 * word + tile],
                                                               rows[words * (2 * word + 1) + tile], half));
        }
      }
    }
    return step;
  }

  // The low or the high halves of two words beside each other.
  Value* Pair(Value* first, Value* second, uint32_t half) {
    return Call(llvm::Intrinsic::nvvm_prmt, b_.getInt32Ty(),
                {first, second, I32(half == 0 ? 0x5410 : 0x7632)});
  }

  // Twice, with the loads of either case. A sum leaves by a slot, which LLVM makes a register.
  void MultiplyByAlignment(Value* aligned) {
    std::vector<llvm::AllocaInst*> slots;
    for (uint32_t k = 0; k < shape_.sums_of_lane(); ++k) slots.push_back(b_.Slot(b_.getFloatTy(), "sum"));
    const auto multiply = [&](llvm::Align align) {
      align_ = align;
      Multiply();
      for (size_t k = 0; k < slots.size(); ++k) b_.CreateStore(sums_[k], slots[k]);
    };
    b_.Choose(
        aligned, [&] { multiply(llvm::Align(16)); },
        [&] { multiply(llvm::Align(static_cast<uint64_t>(gemm_.element_bytes()))); });
    for (size_t k = 0; k < slots.size(); ++k) sums_[k] = b_.CreateLoad(b_.getFloatTy(), slots[k]);
  }

  void Multiply() {
    sums_.assign(shape_.sums_of_lane(), llvm::ConstantFP::get(b_.getFloatTy(), 0));
    const uint32_t rounds = shape_.steps_of_warp / shape_.steps;
    std::vector<Step> steps;
    for (uint32_t s = 0; s < shape_.steps; ++s) steps.push_back(Load(I32(s)));
    zero_ = Special(llvm::Intrinsic::nvvm_read_ptx_sreg_ctaid_y);
    if (rounds > 1) steps = LoopOverRounds(rounds, std::move(steps));
    AddLast(steps);
  }

  // In a row with the loads the assembler would take each down to its use, or the uses up, so as to spare
  // registers, and then few loads are in flight. So the sums stand in a loop, and loads stay before it. It
  // ends after one iteration: a launch has one row of blocks, which the assembler cannot know.
  void AddLast(const std::vector<Step>& steps) {
    llvm::BasicBlock* before = b_.GetInsertBlock();
    auto* body = llvm::BasicBlock::Create(b_.getContext(), "last_round", b_.function());
    auto* after = llvm::BasicBlock::Create(b_.getContext(), "summed", b_.function());
    b_.CreateBr(body);
    b_.SetInsertPoint(body);
    std::vector<llvm::PHINode*> carried;
    for (Value*& sum : sums_) {
      carried.push_back(b_.CreatePHI(sum->getType(), 2));
      carried.back()->addIncoming(sum, before);
      sum = carried.back();
    }
    for (const Step& step : steps) Add(step);
    for (size_t i = 0; i < sums_.size(); ++i) carried[i]->addIncoming(sums_[i], body);
    b_.CreateCondBr(b_.CreateICmpEQ(zero_, I32(0)), after, body);
    b_.SetInsertPoint(after);
  }

  // All rounds but the last; each loads the next one's steps before it multiplies its own. Returns the
  // last's.
  std::vector<Step> LoopOverRounds(uint32_t rounds, std::vector<Step> first) {
    llvm::BasicBlock* before = b_.GetInsertBlock();
    auto* body = llvm::BasicBlock::Create(b_.getContext(), "round", b_.function());
    auto* after = llvm::BasicBlock::Create(b_.getContext(), "rounds_done", b_.function());
    b_.CreateBr(body);
    b_.SetInsertPoint(body);
    std::vector<llvm::PHINode*> carried;
    const auto carry = [&](Value*& value) {
      llvm::PHINode* phi = b_.CreatePHI(value->getType(), 2);
      phi->addIncoming(value, before);
      carried.push_back(phi);
      value = phi;
    };
    llvm::PHINode* round = b_.CreatePHI(b_.getInt32Ty(), 2);
    round->addIncoming(I32(1), before);
    for (Step& step : first) {
      for (Value*& word : step.x) carry(word);
      for (Value*& word : step.weights) carry(word);
    }
    for (Value*& sum : sums_) carry(sum);
    std::vector<Step> next;
    for (uint32_t s = 0; s < shape_.steps; ++s) {
      next.push_back(Load(b_.CreateAdd(b_.CreateMul(round, I32(shape_.steps)), I32(s))));
    }
    for (const Step& step : first) Add(step);
    Value* following = b_.CreateAdd(round, I32(1));
    round->addIncoming(following, b_.GetInsertBlock());
    size_t at = 0;
    const auto close = [&](Value* value) { carried[at++]->addIncoming(value, b_.GetInsertBlock()); };
    for (const Step& step : next) {
      for (Value* word : step.x) close(word);
      for (Value* word : step.weights) close(word);
    }
    for (Value* sum : sums_) close(sum);
    b_.CreateCondBr(b_.CreateICmpULT(following, b_.CreateAdd(zero_, I32(rounds))), body, after);
    b_.SetInsertPoint(after);
    return next;
  }

  void Add(const Step& step) {
    if (!gemm_.tensor_cores) {
      AddByFma(step);
      return;
    }
    std::vector<Value*> x = step.x, weights = step.weights;
    if (gemm_.dtype == v1::F32) {
      for (Value*& word : x) word = RoundToTf32(word);
      for (Value*& word : weights) word = RoundToTf32(word);
    }
    for (uint32_t part = 0; part < 2; ++part) {
      for (uint32_t tile = 0; tile < shape_.tiles; ++tile) {
        Value* const* w = &weights[tile * 2 * kWords + 2 * part];
        for (uint32_t rows = 0; rows < gemm_.row_groups(); ++rows) {
          AddFragment({w[0], w[kWords], w[1], w[kWords + 1]},
                      {x[rows * kWords + 2 * part], x[rows * kWords + 2 * part + 1]},
                      &sums_[4 * (tile * gemm_.row_groups() + rows)]);
        }
      }
    }
  }

  Value* RoundToTf32(Value* word) {
    return Call(llvm::Intrinsic::nvvm_f2tf32_rna, b_.getInt32Ty(), {b_.CreateBitCast(word, b_.getFloatTy())});
  }

  void AddFragment(std::array<Value*, 4> weights, std::array<Value*, 2> x, Value** sums) {
    llvm::SmallVector<Value*, 10> arguments(weights.begin(), weights.end());
    arguments.append(x.begin(), x.end());
    if (gemm_.dtype == v1::F16) {
      auto* pair = llvm::FixedVectorType::get(b_.getHalfTy(), 2);
      for (Value*& word : arguments) word = b_.CreateBitCast(word, pair);
    }
    arguments.append(sums, sums + 4);
    llvm::Type* number = b_.getFloatTy();
    const auto id = gemm_.dtype == v1::F32   ? llvm::Intrinsic::nvvm_mma_m16n8k8_row_col_tf32
                    : gemm_.dtype == v1::F16 ? llvm::Intrinsic::nvvm_mma_m16n8k16_row_col_f32_f32
                                             : llvm::Intrinsic::nvvm_mma_m16n8k16_row_col_bf16;
    Value* result = Call(id, llvm::StructType::get(number, number, number, number), arguments);
    for (unsigned i = 0; i < 4; ++i) sums[i] = b_.CreateExtractValue(result, i);
  }

  // sums_[tile][half][row]: of this lane's terms.
  void AddByFma(const Step& step) {
    const auto number = [&](Value* word) { return b_.CreateBitCast(word, b_.getFloatTy()); };
    for (uint32_t column = 0; column < 2 * shape_.tiles; ++column) {
      for (int64_t row = 0; row < gemm_.rows; ++row) {
        Value*& sum = sums_[column * gemm_.rows + row];
        for (unsigned word = 0; word < kWords; ++word) {
          sum =
              Call(llvm::Intrinsic::fma, b_.getFloatTy(),
                   {number(step.weights[column * kWords + word]), number(step.x[row * kWords + word]), sum});
        }
      }
    }
  }

  // The four lanes of a row have a quarter of its terms each; the first gets the sum.
  void AddQuarters() {
    for (Value*& sum : sums_) {
      for (const int distance : {2, 1}) {
        Value* other = Call(llvm::Intrinsic::nvvm_shfl_sync_down_i32, b_.getInt32Ty(),
                            {I32(-1), b_.CreateBitCast(sum, b_.getInt32Ty()), I32(distance), I32(kWarp - 1)});
        sum = b_.CreateFAdd(sum, b_.CreateBitCast(other, b_.getFloatTy()));
      }
    }
  }

  // ---- from the warps' sums to the result

  // Of column 16 * tile + 8 * half + lane_.group, as fragments have it: its place in the block's columns.
  Value* ColumnOf(uint32_t tile, uint32_t half) {
    if (!gemm_.along_n) return b_.CreateAdd(lane_.group, I32(16 * tile + 8 * half));
    return b_.CreateAdd(b_.CreateMul(lane_.group, I32(2 * shape_.tiles)), I32(2 * tile + half));
  }

  // The shared memory of a block of the cluster.
  Value* SlotsOf(Value* rank) {
    if (shape_.blocks == 1) return slots_;
    return Call(llvm::Intrinsic::nvvm_mapa_shared_cluster, b_.getPtrTy(kSharedOfCluster), {slots_, rank});
  }

  // Of eight rows of a the first block owns the first 8 / blocks, and so on. Its place for a warp's sum:
  // slot, then row, then column.
  Value* PlaceOf(Value* row_of_eight, uint32_t rows, Value* column) {
    const uint32_t owned = 8 / shape_.blocks;
    Value* row = b_.CreateAdd(b_.CreateAnd(row_of_eight, I32(owned - 1)), I32(rows * owned));
    Value* place = b_.CreateAdd(b_.CreateMul(row, I32(shape_.slot_stride())), column);
    return b_.CreateAdd(place, b_.CreateMul(lane_.slot, I32(shape_.slot_elements())));
  }

  void Store(Value* slots, Value* place, Value* sum) {
    b_.CreateAlignedStore(sum, b_.CreateGEP(b_.getFloatTy(), slots, place), llvm::Align(4));
  }

  void StorePartialSums() {
    if (shape_.blocks > 1) Call(llvm::Intrinsic::nvvm_barrier_cluster_wait, b_.getVoidTy(), {});
    if (gemm_.tensor_cores) {
      StoreFragments();
    } else {
      StoreRows();
    }
    if (shape_.blocks == 1) {
      Call(llvm::Intrinsic::nvvm_barrier_cta_sync_aligned_all, b_.getVoidTy(), {I32(0)});
    } else {
      Call(llvm::Intrinsic::nvvm_barrier_cluster_arrive, b_.getVoidTy(), {});
      Call(llvm::Intrinsic::nvvm_barrier_cluster_wait, b_.getVoidTy(), {});
    }
  }

  void StoreFragments() {
    const uint32_t owned = 8 / shape_.blocks;
    for (uint32_t odd = 0; odd < 2; ++odd) {
      Value* row = b_.CreateAdd(b_.CreateMul(lane_.quarter, I32(2)), I32(odd));
      Value* slots = SlotsOf(b_.CreateUDiv(row, I32(owned)));
      for (uint32_t tile = 0; tile < shape_.tiles; ++tile) {
        for (uint32_t rows = 0; rows < gemm_.row_groups(); ++rows) {
          for (uint32_t half = 0; half < 2; ++half) {
            Store(slots, PlaceOf(row, rows, ColumnOf(tile, half)),
                  sums_[4 * (tile * gemm_.row_groups() + rows) + 2 * half + odd]);
          }
        }
      }
    }
  }

  void StoreRows() {
    const uint32_t owned = 8 / shape_.blocks;
    b_.If(b_.CreateICmpEQ(lane_.quarter, I32(0)), "first_quarter", [&] {
      for (uint32_t rank = 0; rank < shape_.blocks; ++rank) {
        Value* slots = SlotsOf(I32(rank));
        for (int64_t row = 0; row < gemm_.rows; ++row) {
          if (row % 8 / owned != rank) continue;
          for (uint32_t column = 0; column < 2 * shape_.tiles; ++column) {
            Store(slots,
                  PlaceOf(I32(row % 8), static_cast<uint32_t>(row / 8), ColumnOf(column / 2, column % 2)),
                  sums_[column * gemm_.rows + row]);
          }
        }
      }
    });
  }

  // An element's place in each slot, and in d.
  struct Output {
    Value* place;
    Value *row, *column;
  };
  Output OutputOf(uint32_t iteration) {
    const uint32_t owned = 8 / shape_.blocks;
    Value* number = b_.CreateAdd(lane_.thread, I32(iteration * shape_.threads()));
    Value* row = b_.CreateUDiv(number, I32(shape_.columns()));
    Value* column = b_.CreateURem(number, I32(shape_.columns()));
    Value* place = b_.CreateAdd(b_.CreateMul(row, I32(shape_.slot_stride())), column);
    Value* eights = b_.CreateMul(b_.CreateUDiv(row, I32(owned)), I32(8));
    Value* in_eight = b_.CreateAdd(b_.CreateMul(lane_.rank, I32(owned)), b_.CreateURem(row, I32(owned)));
    return {place, b_.CreateAdd(eights, in_eight), b_.CreateAdd(lane_.first_column, column)};
  }

  const SkinnyShape& shape_;
  const SkinnyGemm& gemm_;
  const SkinnyFactors& factors_;
  LoopBuilder& b_;
  llvm::GlobalVariable* slots_ = nullptr;
  llvm::Align align_ = llvm::Align(16);  // of the factors' rows, in the code that is being emitted
  Lane lane_;
  Value* zero_ = nullptr;  // of which only the launch knows that it is
  std::vector<Value*> x_,
      w_;  // addresses: rows of a, and columns of b or its first column; numbers of made ones
  std::vector<Value*> sums_;
};

}  // namespace

void EmitSkinnySums(const SkinnyShape& shape, const SkinnyFactors& factors, llvm::Module* module,
                    LoopBuilder* builder, absl::FunctionRef<void(const SkinnyElement&)> before,
                    absl::FunctionRef<void(const SkinnyElement&, llvm::Value* sum)> finish) {
  SkinnyEmitter emitter(shape, factors, module, builder);
  emitter.FindOperands();
  emitter.ForElements(before);
  emitter.MakeSums(factors.aligned);
  emitter.AddPieces(finish);
}

}  // namespace kiln
