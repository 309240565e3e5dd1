// Rows side by side.
//
// What walks a row more than once waits for memory in the first walk and leaves memory idle in the others.
// Where those compute much (a softmax's exponentials), the walks of neighbouring rows share one loop: the
// first walk of one row, the second of the row before it, the third of the one before that. So memory is
// asked for evenly, and the processor has something to compute meanwhile.
//
// A range of rows starts and ends with turns in which some walk has no row of its own and is left out. The
// others then run one after the other: each walk of each row runs once, after the row's walks before it. (A
// result may lie where an operand did, schedule/plan_memory.h: no row may be stored before it has been read.)
#include <algorithm>
#include <utility>

#include "compiler/codegen/kernel_emitter.h"

namespace kiln {
namespace {

// A range of rows takes a turn more for each walk but the first: few beside the rows of a thread, even where
// there are many threads.
constexpr int64_t kRowsMin = 1024;
constexpr int64_t kMemoryBytesMin = int64_t{16} << 20;  // of a buffer that comes from memory

}  // namespace

void KernelEmitter::ChoosePipeline() {
  if (on_gpu_ || tiled_ || vector_lanes_ == 1 || kernel_.outer_size() != 1 ||
      kernel_.schedule().vector_dim() != v1::VECTOR_INNER_LAST ||
      ConstantExpr(kernel_.outer(0)).value_or(0) < kRowsMin) {
    return;
  }
  const auto updated = [](const v1::KernelBuffer& buffer) {
    return buffer.access() != v1::READ && buffer.access() != v1::WRITE;
  };
  if (IndexesByValues() || std::any_of(kernel_.buffers().begin(), kernel_.buffers().end(), updated)) {
    return;
  }
  Pipeline pipeline;
  bool exponentials = false;
  for (const StageInfo& info : stages_) {
    if (!info.short_body || info.has_scan || info.stage->inner_size() > 1) return;
    for (const v1::LoopOp& op : info.stage->ops()) {
      const auto opcode = static_cast<LoopOpcode>(op.op());
      if (opcode == LoopOpcode::kStore && op.mode() != v1::STORE_PLAIN) return;
      exponentials |= opcode == LoopOpcode::kExp;
    }
    if (info.stage->inner_size() == 0) {
      (pipeline.walks.empty() ? pipeline.before : pipeline.walks.back().after).push_back(&info);
    } else if (pipeline.walks.empty() || info.stage->inner(0) == pipeline.walks[0].stage->stage->inner(0)) {
      pipeline.walks.push_back({&info, {}});
    } else {
      return;
    }
  }
  if (!exponentials || pipeline.walks.size() < 2) return;
  if (kept_ && WalkOf(pipeline, kept_->reader) != WalkOf(pipeline, kept_->writer) + 1) return;
  FindReads(pipeline);
  if (pipeline.reads.empty()) return;
  FindCarried(pipeline);
  pipeline_ = std::move(pipeline);
}

// The walk that an op belongs to, alone or as part of a stage beside it.
size_t KernelEmitter::WalkOf(const Pipeline& pipeline, uint32_t op) {
  size_t walk = 0;
  while (walk + 1 < pipeline.walks.size() && pipeline.walks[walk + 1].stage->first_op <= op) ++walk;
  return walk;
}

// The first load of each row that comes from memory.
void KernelEmitter::FindReads(Pipeline& pipeline) const {
  llvm::DenseSet<std::pair<uint32_t, uint32_t>> seen;
  for (const Walk& walk : pipeline.walks) {
    for (int k = 0; k < walk.stage->stage->ops_size(); ++k) {
      const v1::LoopOp& op = walk.stage->stage->ops(k);
      if (WalkedRowBytes(*walk.stage, k, kMemoryBytesMin) == 0) continue;
      if (seen.insert({op.buffer(), op.index()}).second) pipeline.reads.push_back(&op);
    }
  }
}

void KernelEmitter::FindCarried(Pipeline& pipeline) const {
  for (uint32_t id = 0; id < ops_.size(); ++id) {
    if (skipped_.contains(id)) continue;
    for (uint32_t arg : ops_[id]->args()) {
      const size_t maker = WalkOf(pipeline, arg), turns = WalkOf(pipeline, id) - maker;
      if (turns == 0) continue;
      const auto same = [&](const Carried& carried) { return carried.op == arg; };
      auto found = std::find_if(pipeline.carried.begin(), pipeline.carried.end(), same);
      if (found == pipeline.carried.end()) found = pipeline.carried.insert(found, {arg, maker, {}, {}});
      found->turns.resize(std::max(found->turns.size(), turns));
    }
  }
}

void KernelEmitter::EmitPipeline(llvm::Value* lo, llvm::Value* hi) {
  If(b_.CreateICmpSLT(lo, hi), "rows", [&] {
    for (Carried& carried : pipeline_.carried) {
      for (llvm::AllocaInst*& slot : carried.turns) slot = Slot(ScalarType(DTypeOf(carried.op)), "carried");
    }
    llvm::Value* more = I64(static_cast<int64_t>(pipeline_.walks.size()) - 1);
    llvm::Value* first = b_.CreateNSWAdd(lo, more);
    ScalarLoop(lo, b_.CreateNSWAdd(hi, more), I64(1), "turn", [&](llvm::Value* turn) {
      llvm::Value* whole = b_.CreateAnd(b_.CreateICmpSGE(turn, first), b_.CreateICmpSLT(turn, hi));
      If(whole, "whole", [&] { EmitTurn(turn); });
      If(b_.CreateNot(whole), "edge", [&] { EmitEdgeTurn(turn, lo, hi); });
    });
  });
}

void KernelEmitter::EmitWalksStages(const std::vector<const StageInfo*>& stages) {
  for (const StageInfo* info : stages) {
    stage_ = info;
    EmitStage(*info);
  }
}

// Every walk has a row of its own.
void KernelEmitter::EmitTurn(llvm::Value* turn) {
  const size_t count = pipeline_.walks.size();
  std::vector<llvm::Value*> rows;
  for (size_t k = 0; k < count; ++k) rows.push_back(b_.CreateNSWSub(turn, I64(static_cast<int64_t>(k))));
  for (Carried& carried : pipeline_.carried) carried.made = {};
  const auto keep = [&](size_t walk) {
    for (Carried& carried : pipeline_.carried) {
      if (carried.walk == walk) carried.made = values_[carried.op];
    }
  };
  variables_[0] = rows[0];
  EmitWalksStages(pipeline_.before);
  keep(0);

  unsigned unroll = 1;
  for (const Walk& walk : pipeline_.walks) unroll = std::max(unroll, Unroll(*walk.stage));
  for (const Walk& walk : pipeline_.walks) InitAccumulators(*walk.stage, unroll);
  variables_.resize(2);
  VectorLoop(1, I64(0), pipeline_.walks[0].stage->extents[0], unroll, [&] {
    // The last walk first: it reads what was kept of its row before the present one takes the place.
    for (size_t k = count; k-- > 0;) {
      TakeCarried(k, rows[k]);
      stage_ = pipeline_.walks[k].stage;
      EmitOps(*stage_);
    }
  });
  for (size_t k = 0; k < count; ++k) {
    TakeCarried(k, rows[k]);
    stage_ = pipeline_.walks[k].stage;
    FinishAccumulators(*stage_);
    EmitWalksStages(pipeline_.walks[k].after);
    keep(k);
  }
  for (const Carried& carried : pipeline_.carried) {
    ShiftCarried(carried);
    b_.CreateStore(carried.made.v, carried.turns[0]);
  }
}

// One of a range's first or last turns. The last walk first, as in a whole turn.
void KernelEmitter::EmitEdgeTurn(llvm::Value* turn, llvm::Value* lo, llvm::Value* hi) {
  for (Carried& carried : pipeline_.carried) carried.made = {};
  for (size_t k = pipeline_.walks.size(); k-- > 0;) {
    for (const Carried& carried : pipeline_.carried) {
      if (carried.walk == k) ShiftCarried(carried);
    }
    llvm::Value* row = b_.CreateNSWSub(turn, I64(static_cast<int64_t>(k)));
    If(b_.CreateAnd(b_.CreateICmpSGE(row, lo), b_.CreateICmpSLT(row, hi)), "walk", [&] {
      TakeCarried(k, row);
      if (k == 0) EmitWalksStages(pipeline_.before);
      EmitWalksStages({pipeline_.walks[k].stage});
      EmitWalksStages(pipeline_.walks[k].after);
      for (const Carried& carried : pipeline_.carried) {
        if (carried.walk == k) b_.CreateStore(values_[carried.op].v, carried.turns[0]);
      }
    });
  }
}

// A turn has gone by since the value was made.
void KernelEmitter::ShiftCarried(const Carried& carried) {
  for (size_t k = carried.turns.size(); k-- > 1;) {
    llvm::AllocaInst* from = carried.turns[k - 1];
    b_.CreateStore(b_.CreateLoad(from->getAllocatedType(), from), carried.turns[k]);
  }
}

// The values of a walk's row that earlier walks made, in this turn or in those before.
void KernelEmitter::TakeCarried(size_t walk, llvm::Value* row) {
  variables_[0] = row;
  for (const Carried& carried : pipeline_.carried) {
    if (carried.walk == walk && carried.made.v != nullptr) values_[carried.op] = carried.made;
    if (carried.walk >= walk || walk - carried.walk > carried.turns.size()) continue;
    llvm::AllocaInst* slot = carried.turns[walk - carried.walk - 1];
    values_[carried.op] = {b_.CreateLoad(slot->getAllocatedType(), slot), false};
  }
}

}  // namespace kiln
