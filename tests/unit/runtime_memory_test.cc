// The runtime's memory: storage that is reused, results and inputs of other layouts, inputs that are written.
#include <numeric>
#include <string>
#include <vector>

#include "tests/unit/program_maker.h"
#include "tests/unit/runtime_testing.h"

namespace kiln::runtime {
namespace {

class MemoryTest : public RuntimeTest {
 protected:
  // 0, 1, 2 … in memory order, of which `strides` make [2, 3].
  Value Matrix(absl::Span<const int64_t> strides = {3, 1}) {
    const int64_t sizes[] = {2, 3};
    Value input;
    input.tensor = *host_.Empty(v1::F32, sizes, strides);
    std::iota(Memory(input), Memory(input) + 6, 0.0f);
    return input;
  }
  float* Memory(const Value& value) { return static_cast<float*>(*host_.Data(value.tensor)); }
};

TEST_F(MemoryTest, CopiesResultsOfAnotherLayout) {
  ProgramMaker maker;
  const uint32_t x = maker.Input({2, 3}), y = maker.Owned({2, 3}), column = maker.View(y, {2}, {3}, 1);
  maker.Call("test.transposed.default", x, y, false);
  maker.Output(y);
  maker.Output(column);
  Use(maker.program());
  auto program = Load();
  ASSERT_TRUE(program.ok()) << program.status();
  const Value input = Matrix();
  std::vector<Value> outputs;
  ASSERT_TRUE((*program)->Run({&input, 1}, outputs).ok());
  EXPECT_EQ((*program)->counts().stride_copies.load(), 1u);
  EXPECT_EQ((*host_.Strides(outputs[0].tensor))[0], 3);
  EXPECT_EQ(Memory(outputs[0])[4], 4);
  EXPECT_EQ(Memory(outputs[1])[0], 1);
  ReleaseAll(outputs);
  EXPECT_EQ(host_.live(), 0);
}

// A seed is read where it is, but by a kernel.
TEST_F(MemoryTest, BringsResultsOnTheCpuToTheGpuButSeeds) {
  for (const bool seed : {false, true}) {
    for (const bool in_kernel : {false, true}) {
      ProgramMaker maker;
      const uint32_t x = maker.Input({2, 3}), drawn = maker.Owned({2, 3}), doubled = maker.Owned({2, 3});
      maker.Call(seed ? "test.seed.default" : "test.on_cpu.default", x, drawn, false);
      maker.Output(drawn);
      if (in_kernel) {
        maker.Alloc(doubled);
        v1::Launch* launch = maker.program().add_steps()->mutable_launch();
        launch->add_buffers(maker.View(drawn, {3}, {1}, 3));
        launch->add_buffers(doubled);
        launch->add_symbols()->set_value(3);
        launch->mutable_units()->set_value(3);
      }
      manifest_.clear_kernels();
      AddDouble();
      Use(maker.program());
      auto program = Load();
      ASSERT_TRUE(program.ok()) << program.status();
      const Value input = Matrix();
      std::vector<Value> outputs;
      ASSERT_TRUE((*program)->Run({&input, 1}, outputs).ok());
      EXPECT_EQ(*host_.PlaceOf(outputs[0].tensor) == Host::Place::kOnCpu, seed && !in_kernel);
      for (int i = 0; i < 6; ++i) EXPECT_EQ(Memory(outputs[0])[i], i);
      ReleaseAll(outputs);
      EXPECT_EQ(host_.live(), 0);
    }
  }
}

// Copies the second row of its input; `into` says whether into a buffer that stands ready.
v1::Program CopyOfRow(bool into) {
  ProgramMaker maker;
  const uint32_t x = maker.Input({2, 3}), row = maker.View(x, {3}, {1}, 3), copy = maker.Owned({3});
  if (into) maker.Alloc(copy);
  maker.Call("test.copy.default", row, copy, into);
  maker.Output(copy);
  return maker.program();
}

TEST_F(MemoryTest, CallsInMemoryWithoutHandles) {
  for (const bool into : {false, true}) {
    for (const bool in_memory : {false, true}) {
      Use(CopyOfRow(into));
      auto program = Load();
      ASSERT_TRUE(program.ok()) << program.status();
      host_.set_in_memory(in_memory);
      const Value input = Matrix();
      const int64_t views = host_.views();
      std::vector<Value> outputs;
      ASSERT_TRUE((*program)->Run({&input, 1}, outputs).ok());
      EXPECT_EQ(host_.views() - views, in_memory ? 0 : 1);
      EXPECT_EQ((*program)->counts().library_calls.load(), 1u);
      for (int i = 0; i < 3; ++i) EXPECT_EQ(Memory(outputs[0])[i], 3 + i);
      ReleaseAll(outputs);
      EXPECT_EQ(host_.live(), 0);
    }
  }
}

// Copies the input, [2, 3], as six numbers into memory that held it in its own layout, and back again.
v1::Program ReuseInAnotherLayout() {
  ProgramMaker maker;
  const uint32_t x = maker.Input({2, 3}), first = maker.Owned({2, 3}), line = maker.View(x, {6}, {1});
  const uint32_t second = maker.Owned({6}), third = maker.Owned({2, 3});
  maker.Alloc(first);
  maker.Call("test.copy.default", x, first, true);
  maker.Alloc(second, first);
  maker.Call("test.copy.default", line, second, true);
  maker.Alloc(third, second);
  maker.Call("test.copy.default", x, third, true);
  maker.Output(third);
  return maker.program();
}

TEST_F(MemoryTest, ReusesStorageInAnotherLayoutWithoutHandles) {
  for (const bool in_memory : {false, true}) {
    Use(ReuseInAnotherLayout());
    auto program = Load();
    ASSERT_TRUE(program.ok()) << program.status();
    host_.set_in_memory(in_memory);
    const int64_t sizes[] = {2, 3}, strides[] = {3, 1};
    const Value input = Matrix();
    const int64_t views = host_.views(), allocations = host_.allocations();
    std::vector<Value> outputs;
    ASSERT_TRUE((*program)->Run({&input, 1}, outputs).ok());
    EXPECT_EQ(host_.allocations() - allocations, 1);
    // The output's own; of a call with handles also its argument's and results'.
    EXPECT_EQ(host_.views() - views, in_memory ? 1 : 4);
    EXPECT_EQ(*host_.Sizes(outputs[0].tensor), absl::MakeConstSpan(sizes));
    EXPECT_EQ(*host_.Strides(outputs[0].tensor), absl::MakeConstSpan(strides));
    for (int i = 0; i < 6; ++i) EXPECT_EQ(Memory(outputs[0])[i], i);
    ReleaseAll(outputs);
    EXPECT_EQ(host_.live(), 0);
  }
}

// Doubles its input, [2, 3] in row-major order, in place; returns it and a view of its second row.
v1::Program DoubleInPlace(bool marked = true) {
  ProgramMaker maker;
  const uint32_t x = maker.Input({2, 3}, marked), row = maker.View(x, {3}, {1}, 3);
  v1::Launch* launch = maker.program().add_steps()->mutable_launch();
  for (const uint32_t buffer : {x, x}) launch->add_buffers(buffer);
  launch->add_symbols()->set_value(6);
  launch->mutable_units()->set_value(1);
  maker.Output(x);
  maker.Output(row);
  return maker.program();
}

class WrittenInputTest : public MemoryTest {
 protected:
  // Runs it on 0 … 5 in memory order, of which `strides` make [2, 3]; what is in that memory afterwards.
  std::vector<float> MemoryAfter(const v1::Program& doubling, absl::Span<const int64_t> strides) {
    Use(doubling);
    AddDouble();
    auto program = Load();
    EXPECT_TRUE(program.ok()) << program.status();
    const Value input = Matrix(strides);
    const float* memory = Memory(input);
    Tensor mine = *host_.Share(input.tensor);
    status_ = (*program)->Run({&input, 1}, outputs_);
    copies_ = (*program)->counts().stride_copies.load();
    std::vector<float> after(memory, memory + 6);
    same_memory_ = !outputs_.empty() && *host_.Data(outputs_[0].tensor) == memory;
    if (outputs_.size() > 1) {
      second_row_.assign(Memory(outputs_[1]), Memory(outputs_[1]) + 3);
    }
    ReleaseAll(outputs_);
    host_.Release(mine);
    EXPECT_EQ(host_.live(), 0);
    return after;
  }

  static constexpr int64_t kRows[] = {3, 1}, kColumns[] = {1, 2};
  const std::vector<float> once_ = {0, 1, 2, 3, 4, 5}, doubled_ = {0, 2, 4, 6, 8, 10};
  std::vector<Value> outputs_;
  absl::Status status_;
  uint64_t copies_ = 0;
  bool same_memory_ = false;
  std::vector<float> second_row_;
};

TEST_F(WrittenInputTest, IsWrittenInPlaceInTheLayoutCompiledFor) {
  EXPECT_EQ(MemoryAfter(DoubleInPlace(), kRows), doubled_);
  EXPECT_TRUE(status_.ok()) << status_;
  EXPECT_EQ(copies_, 0u);
  EXPECT_TRUE(same_memory_);
  EXPECT_EQ(second_row_, std::vector<float>({6, 8, 10}));
}

TEST_F(WrittenInputTest, IsCopiedBackInAnotherLayout) {
  EXPECT_EQ(MemoryAfter(DoubleInPlace(), kColumns), doubled_);
  EXPECT_TRUE(status_.ok()) << status_;
  EXPECT_EQ(copies_, 2u);  // there and back
  EXPECT_TRUE(same_memory_);
  EXPECT_EQ(second_row_, std::vector<float>({2, 6, 10}));
}

TEST_F(WrittenInputTest, IsCopiedBackAfterItsBufferIsFreed) {
  v1::Program freed = DoubleInPlace();
  freed.clear_outputs();
  freed.add_steps()->mutable_free()->set_buffer(0);
  EXPECT_EQ(MemoryAfter(freed, kColumns), doubled_);
}

// The flag is what does it: without it the stores stay in the copy.
TEST_F(WrittenInputTest, LosesTheStoresWhenNotMarked) {
  EXPECT_EQ(MemoryAfter(DoubleInPlace(/*marked=*/false), kColumns), once_);
  EXPECT_EQ(copies_, 1u);
}

TEST_F(WrittenInputTest, IsLeftAloneWhenTheProgramFails) {
  v1::Program failing = DoubleInPlace();
  failing.add_exprs()->set_op(v1::EXPR_CONST);
  failing.add_steps()->mutable_check()->set_condition(0);
  EXPECT_EQ(MemoryAfter(failing, kColumns), once_);
  EXPECT_EQ(status_.code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace kiln::runtime
