#include "compiler/codegen/thread_points.h"

#include <vector>

#include "compiler/schedule/thread_walk.h"

namespace kiln {

ThreadPoints::ThreadPoints(KernelContext* context, LoopState* state, ThreadStages* stages,
                           ThreadMemory* memory, ThreadBlock* block, SharedPoint* point)
    : k_(*context),
      at_(*state),
      b_(k_.b),
      stages_(*stages),
      memory_(*memory),
      block_(*block),
      point_(*point),
      chosen_(k_.kernel.schedule().threads()),
      threads_(chosen_.threads()) {}

void ThreadPoints::Emit() {
  if (chosen_.has_columns()) {
    Columns();
  } else if (chosen_.has_points()) {
    PointsOfThreads();
  } else {
    Rows();
  }
}

llvm::Value* ThreadPoints::Count(llvm::ArrayRef<llvm::Value*> extents) {
  llvm::Value* points = b_.I64(1);
  for (llvm::Value* extent : extents) points = b_.CreateNSWMul(points, extent);
  return points;
}

std::vector<const StageInfo*> ThreadPoints::AllStages() const {
  std::vector<const StageInfo*> all;
  for (const StageInfo& info : k_.stages) all.push_back(&info);
  return all;
}

void ThreadPoints::Rows() {
  const unsigned warps = chosen_.rows().points_per_block();
  llvm::Value* points = Count(k_.outer_extents);
  llvm::Value* first = block_.Number();
  llvm::Value* step = block_.Count();
  if (warps > 1) {
    llvm::Value* warp = block_.Warp();
    first = b_.CreateNSWAdd(b_.CreateNSWMul(first, b_.I64(warps)), warp);
    step = b_.CreateNSWMul(step, b_.I64(warps));
  }
  b_.ScalarLoop(first, points, step, "point", [&](llvm::Value* point) { Point(point, k_.outer_extents); });
}

void ThreadPoints::PointsOfThreads() {
  std::vector<llvm::Value*> extents = k_.outer_extents;
  if (at_.vector_lanes > 1) {
    extents.back() = b_.CreateUDiv(b_.CreateNSWAdd(extents.back(), b_.I64(at_.vector_lanes - 1)),
                                   b_.I64(at_.vector_lanes), "vectors");
  }
  llvm::Value* points = Count(extents);
  const auto emit = [&] { IterationsOfThreads(points, extents); };
  if (chosen_.aligned() != v1::ALIGNED_KERNEL) {
    emit();
    return;
  }
  at_.variables.assign(k_.kernel.outer_size(), b_.I64(0));
  at_.vector_variable = k_.kernel.outer_size() - 1;
  llvm::Value* aligned = memory_.IsAligned(AllStages());
  at_.vector_variable = LoopState::kNoVariable;
  memory_.EmitByAlignment(aligned, emit);
}

// Neighbours take neighbouring points in every iteration.
void ThreadPoints::IterationsOfThreads(llvm::Value* points, llvm::ArrayRef<llvm::Value*> extents) {
  const unsigned iterations = chosen_.points().vectors_per_group();
  llvm::Value* in_block = b_.I64(int64_t{threads_} * iterations);
  llvm::Value* block = block_.Number();
  llvm::Value* step = b_.CreateNSWMul(block_.Count(), in_block);
  llvm::Value* first = b_.CreateNSWAdd(b_.CreateNSWMul(block, in_block), block_.Thread());
  b_.ScalarLoop(first, points, step, "point", [&](llvm::Value* point) {
    if (iterations == 1) {
      Point(point, extents);
      return;
    }
    llvm::Value* last = b_.CreateNSWAdd(point, b_.I64(int64_t{threads_} * (iterations - 1)));
    b_.Choose(
        b_.CreateICmpSLT(last, points, "every_iteration"),
        [&] {
          for (unsigned iteration = 0; iteration < iterations; ++iteration)
            Point(b_.CreateNSWAdd(point, b_.I64(int64_t{threads_} * iteration)), extents);
        },
        [&] {
          b_.ScalarLoop(point, points, b_.I64(threads_), "iteration",
                        [&](llvm::Value* number) { Point(number, extents); });
        });
  });
}

// All threads of a block take part in every iteration, for the sake of the barriers in it.
void ThreadPoints::Columns() {
  llvm::Value* points = Count(k_.outer_extents);
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
    Point(b_.CreateSelect(point_.active, point, b_.CreateNSWSub(points, b_.I64(1))), k_.outer_extents);
  });
}

void ThreadPoints::SetPoint(llvm::Value* number, llvm::ArrayRef<llvm::Value*> extents) {
  at_.variables.assign(k_.kernel.outer_size(), nullptr);
  const bool narrow = k_.kernel.outer_size() > 1 && !chosen_.wide_points();
  const auto width = [&](llvm::Value* v) { return narrow ? b_.CreateTrunc(v, b_.getInt32Ty()) : v; };
  number = width(number);
  for (int k = k_.kernel.outer_size() - 1; k >= 0; --k) {
    llvm::Value* value = k == 0 ? number : b_.CreateURem(number, width(extents[k]));
    at_.variables[k] = b_.CreateZExt(value, b_.getInt64Ty());
    if (k > 0) number = b_.CreateUDiv(number, width(extents[k]));
  }
}

// A point, or a vector of points: those left at the end are taken one at a time.
void ThreadPoints::Point(llvm::Value* number, llvm::ArrayRef<llvm::Value*> extents) {
  SetPoint(number, extents);
  if (chosen_.has_rows() || at_.vector_lanes == 1) {
    stages_.Stages();
    return;
  }
  const uint32_t variable = k_.kernel.outer_size() - 1;
  llvm::Value* begin = b_.CreateNSWMul(at_.variables[variable], b_.I64(at_.vector_lanes));
  llvm::Value* end = b_.CreateNSWAdd(begin, b_.I64(at_.vector_lanes));
  llvm::Value* whole = b_.CreateICmpSLE(end, k_.outer_extents.back(), "whole");
  at_.variables[variable] = begin;
  at_.vector_variable = variable;
  if (k_.facts.ConstantExpr(k_.kernel.outer(variable)).value_or(1) % at_.vector_lanes == 0) {
    Vector();
    at_.vector_variable = LoopState::kNoVariable;
    return;
  }
  b_.Choose(
      whole, [&] { Vector(); },
      [&] {
        at_.vector_variable = LoopState::kNoVariable;
        b_.ScalarLoop(begin, k_.outer_extents.back(), b_.I64(1), "single", [&](llvm::Value* i) {
          at_.variables[variable] = i;
          stages_.Stages();
        });
      });
}

void ThreadPoints::Vector() {
  at_.lanes = at_.vector_lanes;
  if (chosen_.aligned() == v1::ALIGNED_POINT) {
    memory_.EmitByAlignment(memory_.IsAligned(AllStages()), [&] { stages_.Stages(); });
  } else {
    stages_.Stages();
  }
  at_.lanes = 1;
}

}  // namespace kiln
