// Rows side by side.
//
// What walks a row more than once waits for memory in the first pass and leaves memory idle in the others.
// Where those compute much (a softmax's exponentials), the passes of neighbouring rows share one loop: the
// first pass of one row, the second of the row before it, the third of the one before that. So memory is
// asked for evenly, and the processor has something to compute meanwhile.
//
// A range of rows starts and ends with turns in which some pass has no row of its own and is left out. The
// others then run one after the other: each pass of each row runs once, after the row's passes before it. (A
// result may lie where an operand did, schedule/plan_memory.h: no row may be stored before it has been read.)
//
// What the last pass reads beside its row, alike for all rows (a layer norm's weights), would be driven out
// of the first-level cache before the next row asks for it. So where that is much, rows go in groups: while
// the rows of a group are walked for the first time, the results of the group before are made by blocks of
// columns, in which its rows take turns. The first passes go one by one, or, where the processor's own
// prefetching needs several rows in flight to keep memory busy, several side by side.
#include <algorithm>
#include <utility>

#include "compiler/codegen/kernel_emitter.h"
#include "compiler/schedule/row_pipeline.h"

namespace kiln {

void KernelEmitter::UseRowPipeline() {
  if (!rows_.has_pipeline()) return;
  const RowPasses all = *RowPassesOf(k_.facts, rows_);
  const auto stages = [&](const std::vector<size_t>& numbers) {
    std::vector<const StageInfo*> found;
    for (const size_t k : numbers) found.push_back(&k_.stages[k]);
    return found;
  };
  pipeline_.before = stages(all.before);
  for (const RowPasses::Pass& pass : all.passes) {
    pipeline_.passes.push_back({&k_.stages[pass.stage], stages(pass.after)});
  }
  for (uint32_t id = 0; id < k_.facts.ops().size(); ++id) {
    if (skipped_[id]) continue;
    for (uint32_t arg : k_.facts.op(id).args()) {
      const size_t maker = all.PassOf(k_.facts, arg), turns = all.PassOf(k_.facts, id) - maker;
      if (turns == 0) continue;
      const auto same = [&](const CarriedScalar& carried) { return carried.op == arg; };
      auto found = std::find_if(pipeline_.carried.begin(), pipeline_.carried.end(), same);
      if (found == pipeline_.carried.end()) found = pipeline_.carried.insert(found, {arg, maker, {}, {}});
      found->turns.resize(std::max(found->turns.size(), turns));
    }
  }
}

void KernelEmitter::EmitPipeline(llvm::Value* lo, llvm::Value* hi) {
  if (rows_.pipeline().group_rows() > 0) {
    EmitGroups(lo, hi);
    return;
  }
  b_.If(b_.CreateICmpSLT(lo, hi), "rows", [&] {
    for (CarriedScalar& carried : pipeline_.carried) {
      for (llvm::AllocaInst*& slot : carried.turns)
        slot = b_.Slot(k_.ScalarType(k_.DTypeOf(carried.op)), "carried");
    }
    llvm::Value* more = b_.I64(static_cast<int64_t>(pipeline_.passes.size()) - 1);
    llvm::Value* first = b_.CreateNSWAdd(lo, more);
    b_.ScalarLoop(lo, b_.CreateNSWAdd(hi, more), b_.I64(1), "turn", [&](llvm::Value* turn) {
      llvm::Value* whole = b_.CreateAnd(b_.CreateICmpSGE(turn, first), b_.CreateICmpSLT(turn, hi));
      b_.If(whole, "whole", [&] { EmitTurn(turn); });
      b_.If(b_.CreateNot(whole), "edge", [&] { EmitEdgeTurn(turn, lo, hi); });
    });
  });
}

void KernelEmitter::EmitPassStages(const std::vector<const StageInfo*>& stages) {
  for (const StageInfo* info : stages) {
    at_.stage = info;
    EmitStage(*info);
  }
}

bool KernelEmitter::IsShifted(const RowPass& pass) const { return shifted_ && pass.stage == shifted_->first; }

void KernelEmitter::InitPass(const RowPass& pass, unsigned unroll) {
  if (IsShifted(pass)) {
    InitShifted(unroll);
  } else {
    reductions_.Init(*pass.stage, unroll);
  }
}

void KernelEmitter::EmitPassOps(const RowPass& pass) {
  if (IsShifted(pass)) {
    EmitShiftedOps();
  } else {
    at_.stage = pass.stage;
    EmitOps(*at_.stage);
  }
}

void KernelEmitter::FinishPass(const RowPass& pass, llvm::Value* origin) {
  at_.stage = pass.stage;
  if (IsShifted(pass)) {
    SettleShifted(origin);
  } else {
    reductions_.Finish(*pass.stage);
  }
  EmitPassStages(pass.after);
}

// A turn is of the first pass of a group's rows and the last pass of those of the group before.
void KernelEmitter::EmitGroups(llvm::Value* lo, llvm::Value* hi) {
  for (CarriedScalar& carried : pipeline_.carried) {
    llvm::Type* rows = llvm::ArrayType::get(k_.ScalarType(k_.DTypeOf(carried.op)), 2 * GroupRows());
    carried.turns = {b_.Slot(rows, "carried")};
  }
  b_.If(b_.CreateICmpSLT(lo, hi), "groups", [&] {
    b_.ScalarLoop(lo, b_.CreateNSWAdd(hi, b_.I64(GroupRows())), b_.I64(GroupRows()), "group",
                  [&](llvm::Value* begin) {
                    llvm::Value* end = b_.CreateNSWAdd(begin, b_.I64(GroupRows()));
                    llvm::Value* whole = b_.CreateAnd(b_.CreateICmpSGT(begin, lo), b_.CreateICmpSLE(end, hi));
                    b_.If(whole, "whole", [&] { EmitGroup(begin); });
                    b_.If(b_.CreateNot(whole), "edge", [&] { EmitEdgeGroup(begin, lo, hi); });
                    for (const CarriedScalar& carried : pipeline_.carried) {
                      for (int64_t k = 0; k < GroupRows(); ++k) {
                        llvm::Value* value = b_.CreateLoad(k_.ScalarType(k_.DTypeOf(carried.op)),
                                                           CarriedOfGroup(carried, b_.I64(GroupRows() + k)));
                        b_.CreateStore(value, CarriedOfGroup(carried, b_.I64(k)));
                      }
                    }
                  });
  });
}

// Of the group before from 0 on, of the present one behind it.
llvm::Value* KernelEmitter::CarriedOfGroup(const CarriedScalar& carried, llvm::Value* number) {
  return b_.CreateInBoundsGEP(k_.ScalarType(k_.DTypeOf(carried.op)), carried.turns[0], number);
}

void KernelEmitter::TakeCarriedOfGroup(llvm::Value* number) {
  for (const CarriedScalar& carried : pipeline_.carried) {
    llvm::Type* type = k_.ScalarType(k_.DTypeOf(carried.op));
    at_.values[carried.op] = {b_.CreateLoad(type, CarriedOfGroup(carried, number)), false};
  }
}

void KernelEmitter::KeepCarriedOfGroup(llvm::Value* number) {
  llvm::Value* place = b_.CreateNSWAdd(number, b_.I64(GroupRows()));
  for (const CarriedScalar& carried : pipeline_.carried) {
    b_.CreateStore(at_.values[carried.op].v, CarriedOfGroup(carried, place));
  }
}

void KernelEmitter::EmitGroup(llvm::Value* begin) {
  b_.ScalarLoop(b_.I64(0), b_.I64(GroupRows()), b_.I64(int64_t{rows_.pipeline().rows_at_once()}), "rows",
                [&](llvm::Value* number) { EmitRowsOfGroup(begin, number); });
}

// The first pass of `rows_at_once` rows from `number` on, each with accumulators of its own.
std::vector<KernelEmitter::RowOfGroup> KernelEmitter::BeginRowsOfGroup(llvm::Value* begin,
                                                                       llvm::Value* number) {
  const RowPass& first = pipeline_.passes[0];
  std::vector<RowOfGroup> rows(rows_.pipeline().rows_at_once());
  for (size_t k = 0; k < rows.size(); ++k) {
    rows[k].number = b_.CreateNSWAdd(number, b_.I64(static_cast<int64_t>(k)));
    at_.variables = {b_.CreateNSWAdd(begin, rows[k].number)};
    EmitPassStages(pipeline_.before);
    if (shifted_) rows[k].origin = EmitShift();
    InitPass(first, Unroll(*first.stage));
    rows[k].values = at_.values;
    reductions_.Swap(&rows[k].accumulators);
  }
  return rows;
}

// The first pass of `rows_at_once` rows, which take turns at a vector each, and the results of as many
// vectors.
void KernelEmitter::EmitRowsOfGroup(llvm::Value* begin, llvm::Value* number) {
  const RowPass &first = pipeline_.passes[0], &last = pipeline_.passes[1];
  const int64_t at_once = int64_t{rows_.pipeline().rows_at_once()}, width = at_.vector_lanes;
  const int64_t blocks = *k_.facts.ConstantExpr(first.stage->stage->inner(0)) / BlockColumns();  // of a row
  const unsigned copies = Unroll(*first.stage);
  const int64_t turn_columns = copies * width;
  std::vector<RowOfGroup> rows = BeginRowsOfGroup(begin, number);
  b_.ScalarLoop(b_.I64(0), b_.I64(at_once * blocks), b_.I64(1), "block", [&](llvm::Value* block) {
    llvm::Value* step = b_.CreateNSWAdd(b_.CreateNSWMul(number, b_.I64(blocks)), block);
    llvm::Value* earlier = b_.CreateURem(step, b_.I64(GroupRows()));
    llvm::Value* earlier_row = b_.CreateNSWAdd(b_.CreateNSWSub(begin, b_.I64(GroupRows())), earlier);
    llvm::Value* earlier_column =
        b_.CreateNSWMul(b_.CreateUDiv(step, b_.I64(GroupRows())), b_.I64(BlockColumns()));
    llvm::Value* column = b_.CreateNSWMul(block, b_.I64(BlockColumns() / at_once));
    TakeCarriedOfGroup(earlier);
    const std::vector<LaneValue> before = at_.values;
    at_.variables.resize(2);
    VectorLoop(1, b_.I64(0), b_.I64(BlockColumns()), copies * at_once, [&] {
      llvm::Value* lane = at_.variables[1];
      at_.values = before;
      at_.variables = {earlier_row, b_.CreateNSWAdd(earlier_column, lane)};
      EmitPassOps(last);
      // Of the copies one in `at_once` is the row's.
      const unsigned copy = at_.copy;
      const bool unrolled = at_.unrolled;
      RowOfGroup& row = rows[copy % at_once];
      llvm::Value* turn = b_.CreateUDiv(b_.CreateNSWSub(lane, b_.I64(copy * width)), b_.I64(at_once));
      at_.copy /= at_once;
      at_.unrolled = false;  // a NaN is found at once
      at_.values = row.values;
      at_.variables = {b_.CreateNSWAdd(begin, row.number),
                       b_.CreateNSWAdd(column, b_.CreateNSWAdd(turn, b_.I64(at_.copy * width)))};
      reductions_.Swap(&row.accumulators);
      EmitPassOps(first);
      reductions_.Swap(&row.accumulators);
      at_.copy = copy;
      at_.unrolled = unrolled;
    });
    for (RowOfGroup& row : rows) {
      reductions_.Swap(&row.accumulators);
      reductions_.AddToTotals(b_.CreateNSWAdd(column, b_.I64(BlockColumns() / at_once - turn_columns)),
                              turn_columns, first.stage->extents[0]);
      reductions_.Swap(&row.accumulators);
    }
  });
  for (RowOfGroup& row : rows) {
    at_.values = row.values;
    at_.variables = {b_.CreateNSWAdd(begin, row.number), nullptr};
    reductions_.Swap(&row.accumulators);
    FinishPass(first, row.origin);
    KeepCarriedOfGroup(row.number);
  }
}

// One of a range's first or last groups: the rows that there are one after the other, results first.
void KernelEmitter::EmitEdgeGroup(llvm::Value* begin, llvm::Value* lo, llvm::Value* hi) {
  b_.ScalarLoop(b_.I64(0), b_.I64(GroupRows()), b_.I64(1), "result", [&](llvm::Value* number) {
    llvm::Value* row = b_.CreateNSWAdd(b_.CreateNSWSub(begin, b_.I64(GroupRows())), number);
    b_.If(b_.CreateAnd(b_.CreateICmpSGE(row, lo), b_.CreateICmpSLT(row, hi)), "pass", [&] {
      at_.variables[0] = row;
      TakeCarriedOfGroup(number);
      EmitPassStages({pipeline_.passes[1].stage});
    });
  });
  b_.ScalarLoop(b_.I64(0), b_.I64(GroupRows()), b_.I64(1), "first", [&](llvm::Value* number) {
    llvm::Value* row = b_.CreateNSWAdd(begin, number);
    b_.If(b_.CreateICmpSLT(row, hi), "pass", [&] {
      at_.variables[0] = row;
      EmitPassStages(pipeline_.before);
      EmitPassStages({pipeline_.passes[0].stage});
      EmitPassStages(pipeline_.passes[0].after);
      KeepCarriedOfGroup(number);
    });
  });
}

// Every pass has a row of its own.
void KernelEmitter::EmitTurn(llvm::Value* turn) {
  const size_t count = pipeline_.passes.size();
  std::vector<llvm::Value*> rows;
  for (size_t k = 0; k < count; ++k) rows.push_back(b_.CreateNSWSub(turn, b_.I64(static_cast<int64_t>(k))));
  for (CarriedScalar& carried : pipeline_.carried) carried.made = {};
  const auto keep = [&](size_t pass) {
    for (CarriedScalar& carried : pipeline_.carried) {
      if (carried.pass == pass) carried.made = at_.values[carried.op];
    }
  };
  at_.variables[0] = rows[0];
  EmitPassStages(pipeline_.before);
  llvm::Value* origin = shifted_ ? EmitShift() : nullptr;
  keep(0);

  unsigned unroll = 1;
  for (const RowPass& pass : pipeline_.passes) unroll = std::max(unroll, Unroll(*pass.stage));
  for (const RowPass& pass : pipeline_.passes) InitPass(pass, unroll);
  at_.variables.resize(2);
  VectorLoop(1, b_.I64(0), pipeline_.passes[0].stage->extents[0], unroll, [&] {
    // The last pass first: it reads what was kept of its row before the present one takes the place.
    for (size_t k = count; k-- > 0;) {
      TakeCarried(k, rows[k]);
      EmitPassOps(pipeline_.passes[k]);
    }
  });
  for (size_t k = 0; k < count; ++k) {
    TakeCarried(k, rows[k]);
    FinishPass(pipeline_.passes[k], origin);
    keep(k);
  }
  for (const CarriedScalar& carried : pipeline_.carried) {
    ShiftCarried(carried);
    b_.CreateStore(carried.made.v, carried.turns[0]);
  }
}

// One of a range's first or last turns. The last pass first, as in a whole turn.
void KernelEmitter::EmitEdgeTurn(llvm::Value* turn, llvm::Value* lo, llvm::Value* hi) {
  for (CarriedScalar& carried : pipeline_.carried) carried.made = {};
  for (size_t k = pipeline_.passes.size(); k-- > 0;) {
    for (const CarriedScalar& carried : pipeline_.carried) {
      if (carried.pass == k) ShiftCarried(carried);
    }
    llvm::Value* row = b_.CreateNSWSub(turn, b_.I64(static_cast<int64_t>(k)));
    b_.If(b_.CreateAnd(b_.CreateICmpSGE(row, lo), b_.CreateICmpSLT(row, hi)), "pass", [&] {
      TakeCarried(k, row);
      if (k == 0) EmitPassStages(pipeline_.before);
      EmitPassStages({pipeline_.passes[k].stage});
      EmitPassStages(pipeline_.passes[k].after);
      for (const CarriedScalar& carried : pipeline_.carried) {
        if (carried.pass == k) b_.CreateStore(at_.values[carried.op].v, carried.turns[0]);
      }
    });
  }
}

// A turn has gone by since the value was made.
void KernelEmitter::ShiftCarried(const CarriedScalar& carried) {
  for (size_t k = carried.turns.size(); k-- > 1;) {
    llvm::AllocaInst* from = carried.turns[k - 1];
    b_.CreateStore(b_.CreateLoad(from->getAllocatedType(), from), carried.turns[k]);
  }
}

// The values of a pass's row that earlier passes made, in this turn or in those before.
void KernelEmitter::TakeCarried(size_t pass, llvm::Value* row) {
  at_.variables[0] = row;
  for (const CarriedScalar& carried : pipeline_.carried) {
    if (carried.pass == pass && carried.made.v != nullptr) at_.values[carried.op] = carried.made;
    if (carried.pass >= pass || pass - carried.pass > carried.turns.size()) continue;
    llvm::AllocaInst* slot = carried.turns[pass - carried.pass - 1];
    at_.values[carried.op] = {b_.CreateLoad(slot->getAllocatedType(), slot), false};
  }
}

}  // namespace kiln
