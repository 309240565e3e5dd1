// The arena of a call's temporaries: where they lie, and which buffers must not lie there.
#include "client/runtime/arena.h"

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "client/runtime/program.h"
#include "compiler/support/glibc.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/plain_host.h"
#include "tests/unit/program_maker.h"

namespace kiln::runtime {
namespace {

TEST(ArenaTest, ReusesPlacesOfTheDead) {
  const Lifetime lives[] = {{0, 2, 1000}, {2, 4, 1000}, {3, 4, 1000}, {5, 6, 2024}};
  const Arena arena = PlaceInArena(lives);
  // Two of the first three are there at once; the last has the place of both.
  EXPECT_EQ(arena.bytes, 2024);
  EXPECT_EQ(arena.offsets[0], arena.offsets[2]);
  EXPECT_EQ(arena.offsets[3], 0);
}

TEST(ArenaTest, NoneAtOneStepOverlap) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<Lifetime> lives(1 + random() % 60);
    for (Lifetime& life : lives) {
      life.first = random() % 40;
      life.last = life.first + random() % 10;
      life.bytes = 1 + random() % 5000;
    }
    const Arena arena = PlaceInArena(lives);
    int64_t together = 0, end = 0;
    for (size_t step = 0; step < 50; ++step) {
      int64_t bytes = 0;
      for (const Lifetime& life : lives) {
        if (life.first <= step && step <= life.last) bytes += life.bytes + kArenaAlignment;
      }
      together = std::max(together, bytes);
    }
    for (size_t a = 0; a < lives.size(); ++a) {
      EXPECT_EQ(arena.offsets[a] % kArenaAlignment, 0);
      end = std::max(end, arena.offsets[a] + lives[a].bytes);
      for (size_t b = 0; b < a; ++b) {
        if (lives[a].first > lives[b].last || lives[b].first > lives[a].last) continue;
        EXPECT_TRUE(arena.offsets[a] >= arena.offsets[b] + lives[b].bytes ||
                    arena.offsets[b] >= arena.offsets[a] + lives[a].bytes);
      }
    }
    EXPECT_EQ(arena.bytes, end);
    EXPECT_LE(arena.bytes, 2 * together);
  }
}

TEST(ArenaTest, LeavesOutWhatAloneMakesItLarge) {
  constexpr int64_t kLarge = kMappedBytesMin + 1, kSmall = int64_t{1} << 20;
  const auto placed = [](const std::vector<Lifetime>& lives) { return PlaceInSmallArena(lives); };
  const Arena apart = placed({{4, 9, kSmall}, {0, 3, kLarge}, {2, 5, kSmall}});
  EXPECT_THAT(apart.offsets, testing::ElementsAre(testing::Ge(0), Arena::kApart, testing::Ge(0)));
  EXPECT_EQ(apart.bytes, 2 * kSmall);
  // Not where others need the room as well, in their turn, nor what lies on malloc's heap.
  EXPECT_THAT(placed({{0, 3, kLarge}, {4, 9, kLarge}}).offsets, testing::ElementsAre(0, 0));
  EXPECT_THAT(placed({{0, 3, kLarge}, {4, 9, kLarge / 2 + kSmall}}).offsets, testing::ElementsAre(0, 0));
  EXPECT_THAT(placed({{0, 3, kLarge - 1}, {4, 9, kSmall}}).offsets, testing::ElementsAre(0, 0));
  // One after the other, the largest first.
  EXPECT_THAT(placed({{0, 3, kLarge}, {3, 5, 3 * kLarge}, {5, 9, kSmall}}).offsets,
              testing::ElementsAre(Arena::kApart, Arena::kApart, 0));
  EXPECT_EQ(placed({{0, 3, kLarge}}).bytes, 0);
}

// Programs of vectors of `size` numbers and copies of them.
class ArenaProgramTest : public ::testing::Test {
 protected:
  explicit ArenaProgramTest(int64_t size = 8) : size_(size), input_(maker_.Input({size})) {}
  uint32_t Owned() { return maker_.Owned({size_}); }
  // A copy in memory that the program allocates.
  uint32_t Copied(uint32_t from) { return maker_.Copy(from, Owned()); }

  std::shared_ptr<const Program> Load() {
    auto program = Program::Load(maker_.manifest(), {}, "", &host_);
    EXPECT_TRUE(program.ok()) << program.status();
    return program.ok() ? *program : nullptr;
  }
  Value Counting(int64_t n) {
    const int64_t stride = 1;
    Value input;
    input.tensor = *host_.Empty(v1::F32, {&n, 1}, {&stride, 1});
    for (int64_t i = 0; i < n; ++i) static_cast<float*>(*host_.Data(input.tensor))[i] = i;
    return input;
  }
  // Allocations of a call on 0, 1, …, n - 1, whose every output must be that.
  int64_t CountCall(const Program& program, int64_t n) {
    const Value input = Counting(n);
    const int64_t before = host_.allocations();
    std::vector<Value> outputs;
    const absl::Status status = program.Run({&input, 1}, outputs);
    EXPECT_TRUE(status.ok()) << status;
    const int64_t allocations = host_.allocations() - before;
    for (Value& output : outputs) {
      EXPECT_EQ((*host_.Sizes(output.tensor))[0], n);
      for (int64_t i = 0; i < n; ++i) EXPECT_EQ(static_cast<float*>(*host_.Data(output.tensor))[i], i);
      host_.Release(output.tensor);
    }
    EXPECT_EQ(host_.live(), 0);
    return allocations;
  }

  PlainHost host_;
  ProgramMaker maker_;
  const int64_t size_;
  const uint32_t input_;
};

TEST_F(ArenaProgramTest, HoldsAllTemporariesOfACall) {
  uint32_t value = input_;
  for (int i = 0; i < 5; ++i) {
    const uint32_t next = Copied(value);
    if (value != input_) maker_.Free(value);
    value = next;
  }
  maker_.Output(value);
  EXPECT_EQ(CountCall(*Load(), 8), 2);  // the arena and the output
}

TEST_F(ArenaProgramTest, HoldsNoLargeTemporaryOfAFewSteps) {
  const uint32_t first = Copied(input_), large = Copied(first);
  maker_.Free(first);
  const uint32_t second = Copied(large);
  maker_.Free(large);
  maker_.Output(Copied(second));
  const auto set_large = [&](int64_t stride) {
    maker_.program().mutable_buffers(static_cast<int>(large))->mutable_strides(0)->set_value(stride);
  };
  constexpr int64_t kElementsMax = kMappedBytesMin / 4;  // seven steps and a number
  set_large((kElementsMax - 1) / 7);
  EXPECT_EQ(CountCall(*Load(), 8), 2);  // the arena and the output
  set_large(kElementsMax / 7 + 1);
  EXPECT_EQ(CountCall(*Load(), 8), 3);
}

// On a GPU what is small lies there, unless a CUDA graph is recorded.
TEST_F(ArenaProgramTest, HoldsSmallTemporariesOfAGpu) {
  const uint32_t first = Copied(input_), second = Copied(first);
  const uint32_t large = maker_.Copy(second, maker_.Owned({8}));
  maker_.Output(maker_.Copy(large, Owned()));
  for (v1::ProgramBuffer& buffer : *maker_.program().mutable_buffers()) {
    buffer.mutable_device()->set_type(v1::CUDA);
  }
  const auto set_large = [&](int64_t stride) {
    maker_.program().mutable_buffers(static_cast<int>(large))->mutable_strides(0)->set_value(stride);
  };
  EXPECT_EQ(CountCall(*Load(), 8), 2);  // the arena and the output
  host_.set_recorded(true);
  EXPECT_EQ(CountCall(*Load(), 8), 4);
  host_.set_recorded(false);
  set_large(((int64_t{1} << 20) - 1) / 7);  // just fits: seven steps and a number
  EXPECT_EQ(CountCall(*Load(), 8), 2);
  set_large((int64_t{1} << 20) / 7 + 1);
  EXPECT_EQ(CountCall(*Load(), 8), 3);
}

class LargeArenaProgramTest : public ArenaProgramTest {
 protected:
  LargeArenaProgramTest() : ArenaProgramTest(kSize) {}
  static constexpr int64_t kSize = int64_t{64} << 10;
};

// Beside results that are as large there is none: what a call holds at most would be more.
TEST_F(LargeArenaProgramTest, HoldsNothingOfAGpuBesideLargeResults) {
  const uint32_t first = Copied(input_), second = Copied(first), kept = Copied(second);
  maker_.Free(first);
  maker_.Free(second);
  const uint32_t next = Copied(kept);
  for (const uint32_t result : {kept, next, Copied(next)}) maker_.Output(result);
  EXPECT_EQ(CountCall(*Load(), kSize), 4);  // on a CPU the arena and the results
  for (v1::ProgramBuffer& buffer : *maker_.program().mutable_buffers()) {
    buffer.mutable_device()->set_type(v1::CUDA);
  }
  EXPECT_EQ(CountCall(*Load(), kSize), 5);
}

TEST(ArenaTest, AlignsAsItIsTold) {
  const Lifetime lives[] = {{0, 2, 600}, {0, 2, 1000}, {1, 2, 1}};
  const Arena arena = PlaceInArena(lives, kGpuArenaAlignment);
  EXPECT_EQ(arena.offsets, (std::vector<int64_t>{1024, 0, 2048}));
}

// From a call's first step to its last an arena is there, beside all that training saves.
TEST(ArenaTest, HoldsNothingThatRaisesWhatIsHeldAtMost) {
  constexpr int64_t kMax = int64_t{4} << 20, kLarge = int64_t{3} << 20, kSmall = int64_t{100} << 10;
  std::vector<Held> buffers = {{{0, 1, kLarge}, true}, {{1, 2, kSmall}, true}};
  EXPECT_EQ(LargestInArena(buffers, kMax, kGpuArenaAlignment), kMax);
  buffers.push_back({{3, SIZE_MAX, int64_t{1} << 30}, false});  // saved
  EXPECT_EQ(LargestInArena(buffers, kMax, kGpuArenaAlignment), kMax / 4);
  buffers.back().life.first = 1;  // now what is held at most holds the large one, too
  EXPECT_EQ(LargestInArena(buffers, kMax, kGpuArenaAlignment), kMax);
  buffers.back().life.first = 3;
  for (size_t n = 0; n < 200; ++n) buffers.push_back({{0, 0, int64_t{16} << 10}, true});
  EXPECT_EQ(LargestInArena(buffers, kMax, kGpuArenaAlignment), 0);
  // Of a small program an eighth more is much.
  buffers = {{{0, 0, kSmall}, true}, {{1, SIZE_MAX, kSmall}, false}};
  EXPECT_EQ(LargestInArena(buffers, kMax, kGpuArenaAlignment), int64_t{64} << 10);
  // Of a tiny one an allocation saved is worth more.
  for (Held& held : buffers) held.life.bytes = kSmall / 2;
  EXPECT_EQ(LargestInArena(buffers, kMax, kGpuArenaAlignment), kMax);
}

// What a library call returns may be its argument's memory, and is read after that is freed.
TEST_F(ArenaProgramTest, HoldsNoArgumentOfACallThatMayGiveItBack) {
  const uint32_t first = Copied(input_);
  const uint32_t alias = maker_.Call("test.alias.default", first, Owned(), false);
  maker_.Free(first);
  const uint32_t second = Copied(Copied(input_));
  maker_.Free(second);
  maker_.Output(alias);
  EXPECT_EQ(CountCall(*Load(), 8), 2);  // the argument, and an arena of the others
}

TEST_F(ArenaProgramTest, HoldsNoOutputSeenThroughAView) {
  const uint32_t value = Copied(input_);
  const uint32_t view = maker_.View(value, {8}, {1});
  maker_.program().add_steps()->mutable_view()->set_buffer(view);
  maker_.Output(view);
  EXPECT_EQ(CountCall(*Load(), 8), 1);
}

// Buffers of as many numbers as the input has.
class DynamicArenaProgramTest : public ArenaProgramTest {
 protected:
  DynamicArenaProgramTest() {
    v1::Program& program = maker_.program();
    for (int i = 0; i < 2; ++i) {  // of the input's size, and of a step
      v1::Symbol* symbol = program.add_symbols();
      symbol->set_kind(v1::SYMBOL_INT);
      symbol->set_max(1000);
      v1::ExprNode* size = program.add_exprs();
      size->set_op(v1::EXPR_SYMBOL);
      size->set_value(i);
    }
    program.mutable_symbols(0)->mutable_binding()->set_source(v1::SymbolBinding::INPUT_SIZE);
    program.mutable_inputs(0)->mutable_tensor()->mutable_sizes(0)->set_expr(0);
    program.mutable_buffers(0)->mutable_sizes(0)->set_expr(0);
  }

  uint32_t SizedCopy(uint32_t from, uint32_t expr = 0, int64_t reuse = -1) {
    const uint32_t to = Owned();
    maker_.program().mutable_buffers(to)->mutable_sizes(0)->set_expr(expr);
    return maker_.Copy(from, to, reuse);
  }
};

TEST_F(DynamicArenaProgramTest, HoldsTemporariesOfSizesThatChangeBetweenCalls) {
  uint32_t value = input_;
  for (int i = 0; i < 5; ++i) {
    const uint32_t next = SizedCopy(value);
    if (value != input_) maker_.Free(value);
    value = next;
  }
  maker_.Output(value);
  const std::shared_ptr<const Program> program = Load();
  for (int64_t n : {8, 300, 0, 8, 1, 300, 17, 0}) EXPECT_EQ(CountCall(*program, n), 2) << n;  // arena, output
}

TEST_F(DynamicArenaProgramTest, HoldsNoOutputThatTookOverATemporary) {
  const uint32_t first = SizedCopy(input_);
  maker_.Output(SizedCopy(input_, 0, first));
  const std::shared_ptr<const Program> program = Load();
  for (int64_t n : {8, 0, 20}) EXPECT_EQ(CountCall(*program, n), 1) << n;
  EXPECT_EQ(host_.overs(), 0);
}

// A negative size is found by the step that allocates it, as it is without an arena.
TEST_F(DynamicArenaProgramTest, LeavesWhatIsNoSizeToItsStep) {
  v1::Program& program = maker_.program();
  for (int64_t value : {10, -1}) {
    v1::ExprNode* number = program.add_exprs();
    number->set_op(v1::EXPR_CONST);
    number->set_value(value);
  }
  v1::ExprNode* product = program.add_exprs();  // 10 // n: none for n = 0
  product->set_op(v1::EXPR_FLOORDIV);
  product->add_args(2);
  product->add_args(0);
  const uint32_t first = SizedCopy(input_);
  maker_.Free(SizedCopy(first, 4));
  maker_.Output(SizedCopy(first));
  const Value input = Counting(0);
  std::vector<Value> outputs;
  EXPECT_EQ(Load()->Run({&input, 1}, outputs).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(host_.live(), 0);
}

// Sizes that only a step knows may still fit what was freed, and what takes it over may be an output.
TEST_F(DynamicArenaProgramTest, HoldsNothingThatSizesNotKnownYetMayTakeOver) {
  v1::Step::Let* let = maker_.program().add_steps()->mutable_let();
  let->set_symbol(1);
  let->mutable_expr()->set_expr(0);
  const uint32_t first = SizedCopy(input_);
  maker_.Output(SizedCopy(input_, 1, first));
  const std::shared_ptr<const Program> program = Load();
  EXPECT_EQ(CountCall(*program, 8), 1);
  EXPECT_EQ(host_.overs(), 0);
}

}  // namespace
}  // namespace kiln::runtime
