#include "compiler/codegen/row_pipeline_emitter.h"

#include <algorithm>
#include <utility>

#include "compiler/schedule/row_pipeline.h"

namespace kiln {

RowPipelineEmitter::RowPipelineEmitter(KernelContext* context, LoopState* state, StageEmitter* stages,
                                       ReduceEmitter* reductions, ShiftedReductionEmitter* shifted)
    : k_(*context),
      at_(*state),
      b_(k_.b),
      stages_(*stages),
      reductions_(*reductions),
      shifted_(*shifted),
      schedule_(k_.kernel.schedule().vectors().rows().pipeline()) {}

void RowPipelineEmitter::Enter(const RowCacheEmitter& cache) {
  const v1::RowSchedule& rows = k_.kernel.schedule().vectors().rows();
  if (!rows.has_pipeline()) return;
  const RowPasses all = *RowPassesOf(k_.facts, rows);
  const auto stages = [&](const std::vector<size_t>& numbers) {
    Stages found;
    for (const size_t k : numbers) found.push_back(&k_.stages[k]);
    return found;
  };
  before_ = stages(all.before);
  for (const RowPasses::Pass& pass : all.passes) {
    passes_.push_back({&k_.stages[pass.stage], stages(pass.after)});
  }
  for (uint32_t id = 0; id < k_.facts.ops().size(); ++id) {
    if (cache.Skips(id)) continue;
    for (uint32_t arg : k_.facts.op(id).args()) {
      const size_t maker = all.PassOf(k_.facts, arg), iterations = all.PassOf(k_.facts, id) - maker;
      if (iterations == 0) continue;
      const auto same = [&](const CarriedScalar& carried) { return carried.op == arg; };
      auto found = std::find_if(carried_.begin(), carried_.end(), same);
      if (found == carried_.end()) found = carried_.insert(found, {arg, maker, {}, {}});
      found->iterations.resize(std::max(found->iterations.size(), iterations));
    }
  }
}

void RowPipelineEmitter::Rows(llvm::Value* lo, llvm::Value* hi) {
  if (schedule_.group_rows() > 0) {
    Groups(lo, hi);
    return;
  }
  b_.If(b_.CreateICmpSLT(lo, hi), "rows", [&] {
    for (CarriedScalar& carried : carried_) {
      for (llvm::AllocaInst*& slot : carried.iterations)
        slot = b_.Slot(k_.ScalarType(k_.DTypeOf(carried.op)), "carried");
    }
    llvm::Value* more = b_.I64(static_cast<int64_t>(passes_.size()) - 1);
    llvm::Value* first = b_.CreateNSWAdd(lo, more);
    b_.ScalarLoop(lo, b_.CreateNSWAdd(hi, more), b_.I64(1), "iteration", [&](llvm::Value* iteration) {
      llvm::Value* whole = b_.CreateAnd(b_.CreateICmpSGE(iteration, first), b_.CreateICmpSLT(iteration, hi));
      b_.If(whole, "whole", [&] { Iteration(iteration); });
      b_.If(b_.CreateNot(whole), "edge", [&] { EdgeIteration(iteration, lo, hi); });
    });
  });
}

void RowPipelineEmitter::PassStages(const Stages& stages) {
  for (const StageInfo* info : stages) shifted_.Stage(*info);
}

void RowPipelineEmitter::InitPass(const RowPass& pass, unsigned unroll) {
  if (IsShifted(pass)) {
    shifted_.Init(unroll);
  } else {
    reductions_.Init(*pass.stage, unroll);
  }
}

void RowPipelineEmitter::PassOps(const RowPass& pass) {
  if (IsShifted(pass)) {
    shifted_.Ops();
  } else {
    at_.stage = pass.stage;
    stages_.Ops(*at_.stage);
  }
}

void RowPipelineEmitter::FinishPass(const RowPass& pass, llvm::Value* origin) {
  at_.stage = pass.stage;
  if (IsShifted(pass)) {
    shifted_.Settle(origin);
  } else {
    reductions_.Finish(*pass.stage);
  }
  PassStages(pass.after);
}

// An iteration is of the first pass of a group's rows and the last pass of those of the group before.
void RowPipelineEmitter::Groups(llvm::Value* lo, llvm::Value* hi) {
  for (CarriedScalar& carried : carried_) {
    llvm::Type* rows = llvm::ArrayType::get(k_.ScalarType(k_.DTypeOf(carried.op)), 2 * GroupRows());
    carried.iterations = {b_.Slot(rows, "carried")};
  }
  b_.If(b_.CreateICmpSLT(lo, hi), "groups", [&] {
    b_.ScalarLoop(lo, b_.CreateNSWAdd(hi, b_.I64(GroupRows())), b_.I64(GroupRows()), "group",
                  [&](llvm::Value* begin) {
                    llvm::Value* end = b_.CreateNSWAdd(begin, b_.I64(GroupRows()));
                    llvm::Value* whole = b_.CreateAnd(b_.CreateICmpSGT(begin, lo), b_.CreateICmpSLE(end, hi));
                    b_.If(whole, "whole", [&] { Group(begin); });
                    b_.If(b_.CreateNot(whole), "edge", [&] { EdgeGroup(begin, lo, hi); });
                    for (const CarriedScalar& carried : carried_) {
                      for (int64_t k = 0; k < GroupRows(); ++k) {
                        llvm::Value* value = b_.CreateLoad(k_.ScalarType(k_.DTypeOf(carried.op)),
                                                           CarriedOfGroup(carried, b_.I64(GroupRows() + k)));
                        b_.CreateStore(value, CarriedOfGroup(carried, b_.I64(k)));
                      }
                    }
                  });
  });
}

// Slots [0, n) hold the previous group's scalars, [n, 2n) the current group's; n: the rows of a group.
llvm::Value* RowPipelineEmitter::CarriedOfGroup(const CarriedScalar& carried, llvm::Value* number) {
  return b_.CreateInBoundsGEP(k_.ScalarType(k_.DTypeOf(carried.op)), carried.iterations[0], number);
}

void RowPipelineEmitter::TakeCarriedOfGroup(llvm::Value* number) {
  for (const CarriedScalar& carried : carried_) {
    llvm::Type* type = k_.ScalarType(k_.DTypeOf(carried.op));
    at_.values[carried.op] = {b_.CreateLoad(type, CarriedOfGroup(carried, number)), false};
  }
}

void RowPipelineEmitter::KeepCarriedOfGroup(llvm::Value* number) {
  llvm::Value* place = b_.CreateNSWAdd(number, b_.I64(GroupRows()));
  for (const CarriedScalar& carried : carried_) {
    b_.CreateStore(at_.values[carried.op].v, CarriedOfGroup(carried, place));
  }
}

void RowPipelineEmitter::Group(llvm::Value* begin) {
  b_.ScalarLoop(b_.I64(0), b_.I64(GroupRows()), b_.I64(int64_t{schedule_.rows_at_once()}), "rows",
                [&](llvm::Value* number) { RowsOfGroup(begin, number); });
}

// The first pass of `rows_at_once` rows from `number` on, each with accumulators of its own.
std::vector<RowPipelineEmitter::RowOfGroup> RowPipelineEmitter::BeginRowsOfGroup(llvm::Value* begin,
                                                                                 llvm::Value* number) {
  const RowPass& first = passes_[0];
  std::vector<RowOfGroup> rows(schedule_.rows_at_once());
  for (size_t k = 0; k < rows.size(); ++k) {
    rows[k].number = b_.CreateNSWAdd(number, b_.I64(static_cast<int64_t>(k)));
    at_.variables = {b_.CreateNSWAdd(begin, rows[k].number)};
    PassStages(before_);
    if (shifted_.exists()) rows[k].origin = shifted_.Estimate();
    InitPass(first, stages_.Unroll(*first.stage));
    rows[k].values = at_.values;
    reductions_.Swap(&rows[k].accumulators);
  }
  return rows;
}

// The first pass of `rows_at_once` rows, interleaved by vectors, and the results of as many vectors.
void RowPipelineEmitter::RowsOfGroup(llvm::Value* begin, llvm::Value* number) {
  const RowPass &first = passes_[0], &last = passes_[1];
  const int64_t at_once = int64_t{schedule_.rows_at_once()}, width = at_.vector_lanes;
  const int64_t blocks = *k_.facts.ConstantExpr(first.stage->stage->inner(0)) / BlockColumns();  // of a row
  const unsigned copies = stages_.Unroll(*first.stage);
  const int64_t iteration_columns = copies * width;
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
    stages_.VectorLoop(1, b_.I64(0), b_.I64(BlockColumns()), copies * at_once, [&] {
      llvm::Value* lane = at_.variables[1];
      at_.values = before;
      at_.variables = {earlier_row, b_.CreateNSWAdd(earlier_column, lane)};
      PassOps(last);
      // Of the copies one in `at_once` is the row's.
      const unsigned copy = at_.copy;
      const bool unrolled = at_.unrolled;
      RowOfGroup& row = rows[copy % at_once];
      llvm::Value* iteration = b_.CreateUDiv(b_.CreateNSWSub(lane, b_.I64(copy * width)), b_.I64(at_once));
      at_.copy /= at_once;
      at_.unrolled = false;  // a NaN is found at once
      at_.values = row.values;
      at_.variables = {b_.CreateNSWAdd(begin, row.number),
                       b_.CreateNSWAdd(column, b_.CreateNSWAdd(iteration, b_.I64(at_.copy * width)))};
      reductions_.Swap(&row.accumulators);
      PassOps(first);
      reductions_.Swap(&row.accumulators);
      at_.copy = copy;
      at_.unrolled = unrolled;
    });
    for (RowOfGroup& row : rows) {
      reductions_.Swap(&row.accumulators);
      reductions_.AddToTotals(b_.CreateNSWAdd(column, b_.I64(BlockColumns() / at_once - iteration_columns)),
                              iteration_columns, first.stage->extents[0]);
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
void RowPipelineEmitter::EdgeGroup(llvm::Value* begin, llvm::Value* lo, llvm::Value* hi) {
  b_.ScalarLoop(b_.I64(0), b_.I64(GroupRows()), b_.I64(1), "result", [&](llvm::Value* number) {
    llvm::Value* row = b_.CreateNSWAdd(b_.CreateNSWSub(begin, b_.I64(GroupRows())), number);
    b_.If(b_.CreateAnd(b_.CreateICmpSGE(row, lo), b_.CreateICmpSLT(row, hi)), "pass", [&] {
      at_.variables[0] = row;
      TakeCarriedOfGroup(number);
      PassStages({passes_[1].stage});
    });
  });
  b_.ScalarLoop(b_.I64(0), b_.I64(GroupRows()), b_.I64(1), "first", [&](llvm::Value* number) {
    llvm::Value* row = b_.CreateNSWAdd(begin, number);
    b_.If(b_.CreateICmpSLT(row, hi), "pass", [&] {
      at_.variables[0] = row;
      PassStages(before_);
      PassStages({passes_[0].stage});
      PassStages(passes_[0].after);
      KeepCarriedOfGroup(number);
    });
  });
}

// Every pass has a row of its own.
void RowPipelineEmitter::Iteration(llvm::Value* iteration) {
  const size_t count = passes_.size();
  std::vector<llvm::Value*> rows;
  for (size_t k = 0; k < count; ++k)
    rows.push_back(b_.CreateNSWSub(iteration, b_.I64(static_cast<int64_t>(k))));
  for (CarriedScalar& carried : carried_) carried.made = {};
  const auto keep = [&](size_t pass) {
    for (CarriedScalar& carried : carried_) {
      if (carried.pass == pass) carried.made = at_.values[carried.op];
    }
  };
  at_.variables[0] = rows[0];
  PassStages(before_);
  llvm::Value* origin = shifted_.exists() ? shifted_.Estimate() : nullptr;
  keep(0);

  unsigned unroll = 1, side_by_side = 1;
  for (const RowPass& pass : passes_) {
    unroll = std::max(unroll, stages_.Unroll(*pass.stage));
    side_by_side = std::max(side_by_side, stages_.SideBySide(*pass.stage));
  }
  for (const RowPass& pass : passes_) InitPass(pass, unroll);
  at_.variables.resize(2);
  stages_.VectorLoop(1, b_.I64(0), passes_[0].stage->extents[0], side_by_side, [&] {
    // The last pass first: it reads what was kept of its row before the present one takes the place.
    for (size_t k = count; k-- > 0;) {
      TakeCarried(k, rows[k]);
      PassOps(passes_[k]);
    }
  });
  for (size_t k = 0; k < count; ++k) {
    TakeCarried(k, rows[k]);
    FinishPass(passes_[k], origin);
    keep(k);
  }
  for (const CarriedScalar& carried : carried_) {
    ShiftCarried(carried);
    b_.CreateStore(carried.made.v, carried.iterations[0]);
  }
}

// One of a range's first or last iterations. The last pass first, as in a whole iteration.
void RowPipelineEmitter::EdgeIteration(llvm::Value* iteration, llvm::Value* lo, llvm::Value* hi) {
  for (CarriedScalar& carried : carried_) carried.made = {};
  for (size_t k = passes_.size(); k-- > 0;) {
    for (const CarriedScalar& carried : carried_) {
      if (carried.pass == k) ShiftCarried(carried);
    }
    llvm::Value* row = b_.CreateNSWSub(iteration, b_.I64(static_cast<int64_t>(k)));
    b_.If(b_.CreateAnd(b_.CreateICmpSGE(row, lo), b_.CreateICmpSLT(row, hi)), "pass", [&] {
      TakeCarried(k, row);
      if (k == 0) PassStages(before_);
      PassStages({passes_[k].stage});
      PassStages(passes_[k].after);
      for (const CarriedScalar& carried : carried_) {
        if (carried.pass == k) b_.CreateStore(at_.values[carried.op].v, carried.iterations[0]);
      }
    });
  }
}

// An iteration has gone by since the value was made.
void RowPipelineEmitter::ShiftCarried(const CarriedScalar& carried) {
  for (size_t k = carried.iterations.size(); k-- > 1;) {
    llvm::AllocaInst* from = carried.iterations[k - 1];
    b_.CreateStore(b_.CreateLoad(from->getAllocatedType(), from), carried.iterations[k]);
  }
}

// The values of a pass's row that earlier passes made, in this iteration or in those before.
void RowPipelineEmitter::TakeCarried(size_t pass, llvm::Value* row) {
  at_.variables[0] = row;
  for (const CarriedScalar& carried : carried_) {
    if (carried.pass == pass && carried.made.v != nullptr) at_.values[carried.op] = carried.made;
    if (carried.pass >= pass || pass - carried.pass > carried.iterations.size()) continue;
    llvm::AllocaInst* slot = carried.iterations[pass - carried.pass - 1];
    at_.values[carried.op] = {b_.CreateLoad(slot->getAllocatedType(), slot), false};
  }
}

}  // namespace kiln
