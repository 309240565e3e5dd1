#include "compiler/codegen/thread_emitter.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "compiler/codegen/member_entry.h"
#include "compiler/ir/dtypes.h"
#include "llvm/IR/IntrinsicsNVPTX.h"

namespace kiln {
namespace {

constexpr char kBodyName[] = "kiln_body";

// The loop's body that many times in a row, where its accesses are in flight at once. `back`: its branch
// back, nullptr where it never runs.
void UnrollLoop(llvm::Instruction* back, unsigned times) {
  if (back == nullptr || times < 2) return;
  llvm::LLVMContext& context = back->getContext();
  llvm::Constant* number = llvm::ConstantInt::get(llvm::Type::getInt32Ty(context), times);
  llvm::MDNode* count = llvm::MDNode::get(context, {llvm::MDString::get(context, "llvm.loop.unroll.count"),
                                                    llvm::ConstantAsMetadata::get(number)});
  llvm::MDNode* loop = llvm::MDNode::getDistinct(context, {nullptr, count});
  loop->replaceOperandWith(0, loop);
  back->setMetadata(llvm::LLVMContext::MD_loop, loop);
}

}  // namespace

ThreadEmitter::ThreadEmitter(const v1::Kernel& kernel, const VectorTarget& target, llvm::Module* module)
    : KernelEmitter(kernel, target, module, &failure_, &thread_memory_, &combine_),
      chosen_(kernel.schedule().threads()),
      threads_(chosen_.threads()),
      warps_(chosen_.has_rows() ? chosen_.rows().warps() : 1),
      rows_(chosen_.has_columns() ? chosen_.columns().rows() : 1),
      block_(&b_, threads_, warps_),
      combine_(&k_, &at_, &block_, &point_),
      failure_(&b_),
      thread_memory_(&k_, &at_, &index_) {}

void ThreadEmitter::UseSchedule() {
  at_.vector_lanes = chosen_.lanes();
  for (const uint32_t load : chosen_.tile().transposed()) packable_.push_back(k_.facts.ops()[load]);
  for (const uint32_t store : chosen_.rows().strips().stores()) {
    strip_sums_.push_back({&k_.StageOf(store), k_.facts.ops()[store], {}});
  }
}

GpuImage ThreadEmitter::Launch() const {
  GpuImage image;
  image.threads = ThreadsOfBlock(chosen_);
  image.points_per_block = PointsOfBlock(chosen_);
  image.buffers = k_.kernel.buffers_size();
  image.symbols = k_.kernel.symbol_count();
  image.members = k_.kernel.schedule().members();
  for (int k = 0; k < k_.kernel.buffers_size() && k < 64; ++k) {
    if (k_.kernel.buffers(k).access() == v1::READ) image.stored &= ~(uint64_t{1} << k);
  }
  return image;
}

absl::Status ThreadEmitter::EmitKernel() {
  absl::Status emitted = Emit();
  if (!emitted.ok()) return emitted;
  llvm::Function* entry = k_.kernel.schedule().members() > 0 ? AddMemberEntry(k_.kernel, b_.function())
                                                             : AddPlainEntry(b_.function());
  entry->setCallingConv(llvm::CallingConv::PTX_Kernel);
  entry->addFnAttr("nvvm.maxntid", absl::StrCat(ThreadsOfBlock(chosen_)));
  if (const uint32_t blocks = chosen_.rows().strips().blocks(); blocks > 0)
    entry->addFnAttr("nvvm.minctasm", absl::StrCat(blocks));
  return absl::OkStatus();
}

void ThreadEmitter::EmitEntry() {
  llvm::SmallVector<llvm::Type*, 16> parameters(k_.kernel.buffers_size(), b_.getPtrTy());
  parameters.append(k_.kernel.symbol_count(), b_.getInt64Ty());
  if (k_.kernel.schedule().members() > 0) parameters.append(2, b_.getInt64Ty());  // the block and how many
  auto* type = llvm::FunctionType::get(b_.getInt32Ty(), parameters, false);
  auto* function = llvm::Function::Create(type, llvm::GlobalValue::InternalLinkage, kBodyName, k_.module);
  function->addFnAttr(llvm::Attribute::AlwaysInline);
  block_.Enter(function, k_.kernel.schedule().members() > 0);
  b_.SetInsertPoint(llvm::BasicBlock::Create(b_.getContext(), "entry", function));

  for (int k = 0; k < k_.kernel.buffers_size(); ++k) k_.buffers.push_back(function->getArg(k));
  for (uint32_t k = 0; k < k_.kernel.symbol_count(); ++k) {
    k_.symbols.push_back(function->getArg(k_.kernel.buffers_size() + k));
  }
  EmitExtents();
}

void ThreadEmitter::EmitUnits() {
  EmitPoints();
  failure_.Trap();
}

void ThreadEmitter::EmitPoints() {
  if (chosen_.has_tile()) {
    EmitSharedTiles();
    return;
  }
  std::vector<llvm::Value*> extents = k_.outer_extents;
  if (chosen_.has_points() && at_.vector_lanes > 1) {
    extents.back() = b_.CreateUDiv(b_.CreateNSWAdd(extents.back(), b_.I64(at_.vector_lanes - 1)),
                                   b_.I64(at_.vector_lanes), "vectors");
  }
  llvm::Value* points = b_.I64(1);
  for (llvm::Value* extent : extents) points = b_.CreateNSWMul(points, extent);
  if (chosen_.has_columns()) {
    EmitColumns(points);
    return;
  }
  if (chosen_.has_points()) {
    EmitPointsOfThreads(points, extents);
    return;
  }
  if (!strip_sums_.empty()) {
    EmitStrips(points);
    return;
  }
  llvm::Value* block = block_.Number();
  llvm::Value* blocks = block_.Count();
  llvm::Value* first = block;
  llvm::Value* step = blocks;
  if (warps_ > 1) {
    llvm::Value* warp = block_.Warp();
    first = b_.CreateNSWAdd(b_.CreateNSWMul(block, b_.I64(warps_)), warp);
    step = b_.CreateNSWMul(blocks, b_.I64(warps_));
  }
  b_.ScalarLoop(first, points, step, "point", [&](llvm::Value* point) { EmitPoint(point, extents); });
}

// Neighbours take neighbouring points in every turn.
void ThreadEmitter::EmitPointsOfThreads(llvm::Value* points, llvm::ArrayRef<llvm::Value*> extents) {
  const unsigned turns = chosen_.points().turns();
  const auto emit = [&] {
    llvm::Value* in_block = b_.I64(int64_t{threads_} * turns);
    llvm::Value* block = block_.Number();
    llvm::Value* step = b_.CreateNSWMul(block_.Count(), in_block);
    llvm::Value* first = b_.CreateNSWAdd(b_.CreateNSWMul(block, in_block), block_.Thread());
    b_.ScalarLoop(first, points, step, "point", [&](llvm::Value* point) {
      if (turns == 1) {
        EmitPoint(point, extents);
        return;
      }
      llvm::Value* last = b_.CreateNSWAdd(point, b_.I64(int64_t{threads_} * (turns - 1)));
      b_.Choose(
          b_.CreateICmpSLT(last, points, "every_turn"),
          [&] {
            for (unsigned turn = 0; turn < turns; ++turn)
              EmitPoint(b_.CreateNSWAdd(point, b_.I64(int64_t{threads_} * turn)), extents);
          },
          [&] {
            b_.ScalarLoop(point, points, b_.I64(threads_), "turn",
                          [&](llvm::Value* number) { EmitPoint(number, extents); });
          });
    });
  };
  if (chosen_.aligned() != v1::ALIGNED_KERNEL) {
    emit();
    return;
  }
  std::vector<const StageInfo*> all;
  for (const StageInfo& info : k_.stages) all.push_back(&info);
  at_.variables.assign(k_.kernel.outer_size(), b_.I64(0));
  at_.vector_variable = k_.kernel.outer_size() - 1;
  llvm::Value* aligned = thread_memory_.IsAligned(all);
  at_.vector_variable = LoopState::kNoVariable;
  thread_memory_.EmitByAlignment(aligned, emit);
}

// All threads of a block take part in every turn, for the sake of the barriers in it.
void ThreadEmitter::EmitColumns(llvm::Value* points) {
  llvm::Value* thread = block_.Thread();
  llvm::Value* columns = b_.I64(PointsOfBlock(chosen_));
  llvm::Value* column = b_.CreateURem(thread, columns, "column");
  point_.row = b_.CreateUDiv(thread, columns, "row");
  llvm::Value* first = b_.CreateNSWMul(block_.Number(), columns);
  llvm::Value* step = b_.CreateNSWMul(block_.Count(), columns);
  b_.ScalarLoop(first, points, step, "columns", [&](llvm::Value* begin) {
    llvm::Value* point = b_.CreateNSWAdd(begin, column, "point");
    point_.active = b_.CreateICmpSLT(point, points, "active");
    // Beyond the end it is the last point's values that a thread computes, for nobody.
    EmitPoint(b_.CreateSelect(point_.active, point, b_.CreateNSWSub(points, b_.I64(1))), k_.outer_extents);
  });
}

// The shared loop of a point in columns: neighbouring rows take neighbouring turns.
void ThreadEmitter::InnerLoop(const StageInfo& info, uint32_t level,
                              absl::FunctionRef<void(llvm::Value*)> body) {
  const int number = k_.NumberOf(info);
  if (!chosen_.has_columns() || level != chosen_.columns().levels(number)) {
    const bool last = !chosen_.has_columns() && static_cast<int>(level) + 1 == info.stage->inner_size();
    UnrollLoop(b_.ScalarLoop(b_.I64(0), info.extents[level], b_.I64(1), "inner", body),
               last ? chosen_.unroll(k_.NumberOf(info)) : 1);
    return;
  }
  llvm::Value* end = b_.CreateSelect(point_.active, info.extents[level], b_.I64(0));
  UnrollLoop(b_.ScalarLoop(point_.row, end, b_.I64(rows_), "row", body), chosen_.unroll(k_.NumberOf(info)));
}

// Turns that a block's threads share; neighbours take neighbouring ones. Of a known number those that every
// thread has stand in a row without conditions: their loads are in flight at once, and a later stage finds
// the values in registers.
void ThreadEmitter::EmitTurns(llvm::Value* thread, llvm::Value* count, unsigned at_once,
                              absl::FunctionRef<void(llvm::Value*)> turn) {
  auto* known = llvm::dyn_cast<llvm::ConstantInt>(count);
  if (known == nullptr) {
    UnrollLoop(b_.ScalarLoop(thread, count, b_.I64(threads_), "turn", turn), at_once);
    return;
  }
  const int64_t common = known->getSExtValue() / threads_;
  const auto some = [&](llvm::Value* first, int64_t number) {
    for (int64_t k = 0; k < number; ++k) {
      turn_ = static_cast<unsigned>(k);
      turn(b_.CreateNSWAdd(first, b_.I64(k * threads_)));
    }
  };
  const int64_t looped = common > at_once ? common / at_once * at_once : 0;
  if (looped > 0) {
    b_.ScalarLoop(b_.I64(0), b_.I64(looped * threads_), b_.I64(int64_t{at_once} * threads_), "turns",
                  [&](llvm::Value* begin) { some(b_.CreateNSWAdd(begin, thread), at_once); });
  }
  some(b_.CreateNSWAdd(thread, b_.I64(looped * threads_)), common - looped);
  if (known->getSExtValue() % threads_ == 0) return;
  b_.If(b_.CreateICmpSLT(b_.CreateNSWAdd(thread, b_.I64(common * threads_)), count), "turn", [&] {
    turn_ = static_cast<unsigned>(common);
    turn(b_.CreateNSWAdd(thread, b_.I64(common * threads_)));
  });
}

// All inner loops of the stage as one, of which the threads of the block take turns.
void ThreadEmitter::EmitInnerFrom(const StageInfo& info, uint32_t level) {
  if (level > 0 || !IsFlattened(chosen_, k_.NumberOf(info))) {
    KernelEmitter::EmitInnerFrom(info, level);
    return;
  }
  const uint32_t first = k_.kernel.outer_size();
  const int loops = info.stage->inner_size();
  const auto emit = [&] {
    llvm::Value* thread = block_.Thread();
    const auto turn = [&](llvm::Value* number) {
      llvm::Value* rest = b_.CreateTrunc(number, b_.getInt32Ty());  // fewer instructions than in 64 bits
      for (int k = loops - 1; k >= 0; --k) {
        const int64_t extent =
            *k_.facts.ConstantExpr(info.stage->inner(k)) / (k == loops - 1 ? int64_t{at_.vector_lanes} : 1);
        llvm::Value* count = b_.getInt32(static_cast<uint32_t>(extent));
        llvm::Value* value = b_.CreateZExt(k == 0 ? rest : b_.CreateURem(rest, count), b_.getInt64Ty());
        if (k > 0) rest = b_.CreateUDiv(rest, count);
        at_.variables[first + k] = k == loops - 1 ? b_.CreateNSWMul(value, b_.I64(at_.vector_lanes)) : value;
      }
      EmitOps(info);
    };
    EmitTurns(thread, b_.I64(TurnsOf(k_.facts, chosen_, k_.NumberOf(info))),
              chosen_.unroll(k_.NumberOf(info)), turn);
  };
  if (at_.vector_lanes == 1) {
    emit();
    return;
  }
  at_.lanes = at_.vector_lanes;
  at_.vector_variable = first + loops - 1;
  if (chosen_.aligned() == v1::ALIGNED_STAGE) {
    for (int k = 0; k < loops; ++k) at_.variables[first + k] = b_.I64(0);
    thread_memory_.EmitByAlignment(thread_memory_.IsAligned({at_.stage}), emit);
  } else {
    emit();
  }
  at_.lanes = 1;
  at_.vector_variable = LoopState::kNoVariable;
}

// In 32 bits where they hold it: fewer instructions than in 64.
void ThreadEmitter::SetPoint(llvm::Value* number, llvm::ArrayRef<llvm::Value*> extents) {
  at_.variables.assign(k_.kernel.outer_size(), nullptr);
  const bool narrow = k_.kernel.outer_size() > 1 && PointsEstimate(k_.facts, kLoopMax) < kLoopMax;
  const auto width = [&](llvm::Value* v) { return narrow ? b_.CreateTrunc(v, b_.getInt32Ty()) : v; };
  number = width(number);
  for (int k = k_.kernel.outer_size() - 1; k >= 0; --k) {
    llvm::Value* value = k == 0 ? number : b_.CreateURem(number, width(extents[k]));
    at_.variables[k] = b_.CreateZExt(value, b_.getInt64Ty());
    if (k > 0) number = b_.CreateUDiv(number, width(extents[k]));
  }
}

// A point, or a vector of points: those left at the end are taken one at a time.
void ThreadEmitter::EmitPoint(llvm::Value* number, llvm::ArrayRef<llvm::Value*> extents) {
  SetPoint(number, extents);
  if (chosen_.has_rows() || at_.vector_lanes == 1) {
    EmitStages();
    return;
  }
  const uint32_t variable = k_.kernel.outer_size() - 1;
  llvm::Value* begin = b_.CreateNSWMul(at_.variables[variable], b_.I64(at_.vector_lanes));
  llvm::Value* end = b_.CreateNSWAdd(begin, b_.I64(at_.vector_lanes));
  llvm::Value* whole = b_.CreateICmpSLE(end, k_.outer_extents.back(), "whole");
  at_.variables[variable] = begin;
  at_.vector_variable = variable;
  std::vector<const StageInfo*> all;
  for (const StageInfo& info : k_.stages) all.push_back(&info);
  const auto vector = [&] {
    at_.lanes = at_.vector_lanes;
    if (chosen_.aligned() == v1::ALIGNED_POINT) {
      thread_memory_.EmitByAlignment(thread_memory_.IsAligned(all), [&] { EmitStages(); });
    } else {
      EmitStages();
    }
    at_.lanes = 1;
  };
  if (k_.facts.ConstantExpr(k_.kernel.outer(variable)).value_or(1) % at_.vector_lanes == 0) {
    vector();
    at_.vector_variable = LoopState::kNoVariable;
    return;
  }
  b_.Choose(whole, vector, [&] {
    at_.vector_variable = LoopState::kNoVariable;
    b_.ScalarLoop(begin, k_.outer_extents.back(), b_.I64(1), "single", [&](llvm::Value* i) {
      at_.variables[variable] = i;
      EmitStages();
    });
  });
}

// What one stage stored another may read, and with other loops it may be another thread that reads it.
// The last barrier keeps the next point's partial results out of the slots that are still being read.
void ThreadEmitter::EmitStages() {
  if (!chosen_.has_rows() || chosen_.aligned() != v1::ALIGNED_POINT || !strip_sums_.empty()) {
    EmitStagesInTurn();
    return;
  }
  thread_memory_.EmitByAlignment(thread_memory_.IsRowAligned(), [&] { EmitStagesInTurn(); });
}

void ThreadEmitter::EmitStagesInTurn() {
  const bool together = chosen_.has_rows() || chosen_.has_columns();
  std::optional<std::pair<int, int>> softmax;
  if (chosen_.rows().has_softmax()) {
    softmax.emplace(k_.NumberOf(k_.StageOf(chosen_.rows().softmax().maximum())),
                    k_.NumberOf(k_.StageOf(chosen_.rows().softmax().sum())));
  }
  size_t k = 0;
  const auto emit = [&] {
    if (softmax.has_value() && k == softmax->first) {
      EmitSoftmaxSum();
      k = softmax->second;
      return;
    }
    at_.stage = &k_.stages[k];
    EmitStage(k_.stages[k]);
  };
  // Of a point that several threads share the first row alone stores what has no loop. Where loops follow all
  // rows compute it, and the stages behind the last loop are the first row's.
  size_t common = k_.stages.size();
  while (rows_ > 1 && common > 0 && k_.stages[common - 1].stage->inner_size() == 0) --common;
  for (; k < common; ++k) {
    if (together && k > 0) block_.Barrier();
    emit();
  }
  if (k < k_.stages.size()) {
    block_.Barrier();
    IfFirstRow([&] {
      for (; k < k_.stages.size(); ++k) emit();
    });
  }
  if (together) block_.Barrier();
}

void ThreadEmitter::IfFirstRow(Body body) {
  b_.If(b_.CreateAnd(point_.active, b_.CreateICmpEQ(point_.row, b_.I64(0))), "first_row", [&] {
    in_first_row_ = true;
    body();
    in_first_row_ = false;
  });
}

void ThreadEmitter::VectorLoop(uint32_t variable, llvm::Value* lo, llvm::Value* hi, unsigned unroll,
                               Body body) {
  if (!chosen_.has_rows()) {
    KernelEmitter::VectorLoop(variable, lo, hi, unroll, body);
    return;
  }
  llvm::Value* thread = block_.Thread();
  llvm::Value* lanes = b_.I64(at_.vector_lanes);
  llvm::Value* whole_end = b_.CreateNSWSub(hi, b_.CreateURem(b_.CreateNSWSub(hi, lo), lanes), "whole");
  llvm::Value* turns = b_.CreateUDiv(b_.CreateNSWSub(hi, lo), lanes);
  const auto whole = [&] {
    EmitTurns(thread, turns, chosen_.unroll(k_.NumberOf(*at_.stage)), [&](llvm::Value* turn) {
      at_.variables[variable] = b_.CreateNSWAdd(lo, b_.CreateNSWMul(turn, lanes));
      body();
    });
  };
  if (at_.vector_lanes == 1) {
    whole();
    return;
  }
  at_.lanes = at_.vector_lanes;
  at_.vector_variable = variable;
  at_.variables[variable] = lo;
  if (chosen_.aligned() == v1::ALIGNED_STAGE) {
    thread_memory_.EmitByAlignment(thread_memory_.IsAligned({at_.stage}), whole);
  } else {
    whole();
  }
  llvm::Value* has_tail = b_.CreateICmpSLT(whole_end, hi);
  b_.If(has_tail, "tail", [&] {
    b_.If(b_.CreateICmpEQ(thread, b_.I64(0)), "first", [&] { MaskedVector(variable, whole_end, hi, body); });
  });
  at_.lanes = 1;
  at_.vector_variable = LoopState::kNoVariable;
}

}  // namespace kiln
