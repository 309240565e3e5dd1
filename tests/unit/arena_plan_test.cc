// Places for sizes that only a call knows: found again, recomputed, forgotten.
#include "client/runtime/arena_plan.h"

#include <random>
#include <thread>

#include "client/client_limits.h"
#include "gtest/gtest.h"

namespace kiln::runtime {
namespace {

// Vectors of n and 2·n numbers, and a program's symbol that no size depends on.
class ArenaPlanTest : public ::testing::Test {
 protected:
  ArenaPlanTest() {
    v1::Program program;
    program.add_symbols();
    program.add_symbols();
    v1::ExprNode* n = program.add_exprs();
    n->set_op(v1::EXPR_SYMBOL);
    n->set_value(1);
    v1::ExprNode* two = program.add_exprs();
    two->set_op(v1::EXPR_CONST);
    two->set_value(2);
    v1::ExprNode* twice = program.add_exprs();
    twice->set_op(v1::EXPR_MUL);
    twice->add_args(0);
    twice->add_args(1);
    exprs_ = *ExprProgram::Load(program);
    plan_.Add(Vector(0, 1, {0, 0}));
    plan_.Add(Vector(1, 2, {0, 2}));
    plan_.Add({0, 2, 100, {}});
    plan_.Finish(exprs_);
  }

  static ArenaPlan::Storage Vector(size_t first, size_t last, Dim size) {
    return {first, last, 0, {{4, {size}, {{1, -1}}}}};
  }

  std::shared_ptr<const Arena> For(int64_t n, int64_t other = 0) const {
    ExprFrame frame;
    exprs_.Start(frame);
    frame.symbols = {other, n};
    exprs_.Evaluate(0, frame);
    return plan_.For(frame);
  }

  ExprProgram exprs_;
  ArenaPlan plan_;
};

TEST_F(ArenaPlanTest, PlacesOnceForASetOfSizes) {
  const auto ten = For(10), twenty = For(20);
  EXPECT_NE(ten, twenty);
  for (int call = 0; call < 100; ++call) {
    EXPECT_EQ(For(10), ten);
    EXPECT_EQ(For(20, call), twenty);  // a number that changes with each call moves nothing
  }
  EXPECT_EQ(plan_.placements(), 2);
}

TEST_F(ArenaPlanTest, FitsTheSizes) {
  for (int64_t n : {1, 16, 17, 1000}) {
    const auto arena = For(n);
    ASSERT_NE(arena, nullptr);
    const int64_t bytes[] = {4 * n, 8 * n, 100};
    EXPECT_GE(arena->bytes, 12 * n + 100);
    for (int a = 0; a < 3; ++a) {
      EXPECT_LE(arena->offsets[a] + bytes[a], arena->bytes);
      for (int b = 0; b < a; ++b) {  // each pair is there at step 1
        EXPECT_TRUE(arena->offsets[a] >= arena->offsets[b] + bytes[b] ||
                    arena->offsets[b] >= arena->offsets[a] + bytes[a]);
      }
    }
  }
}

TEST_F(ArenaPlanTest, HasAnAddressForNoElements) {
  const auto arena = For(0);
  ASSERT_NE(arena, nullptr);
  for (int64_t offset : arena->offsets) EXPECT_LT(offset, arena->bytes);
}

TEST_F(ArenaPlanTest, HasNoPlacesForWhatIsNoSize) {
  EXPECT_EQ(For(-1), nullptr);
  EXPECT_EQ(For(INT64_MAX), nullptr);         // twice that overflows
  EXPECT_EQ(For(int64_t{1} << 60), nullptr);  // its bytes would
  EXPECT_NE(For(1), nullptr);
}

TEST_F(ArenaPlanTest, ForgetsWhatWasUsedLongestAgo) {
  const auto first = For(1);
  for (size_t n = 2; n <= kArenaPlacementsMax; ++n) For(n);
  EXPECT_EQ(For(1), first);      // all are kept
  For(kArenaPlacementsMax + 1);  // in the place of 2
  const uint64_t before = plan_.placements();
  EXPECT_EQ(For(1), first);
  EXPECT_EQ(plan_.placements(), before);
  For(2);
  EXPECT_EQ(plan_.placements(), before + 1);
}

TEST_F(ArenaPlanTest, ServesThreadsOfDifferentSizes) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      for (int call = 0; call < 2000; ++call) {
        const int64_t n = 1 + random() % (2 * kArenaPlacementsMax);
        const auto arena = For(n);
        ASSERT_NE(arena, nullptr);
        EXPECT_GE(arena->bytes, 12 * n + 100);
        EXPECT_LT(arena->bytes, 12 * n + 100 + 3 * kArenaAlignment);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(ArenaPlanOfFixedSizesTest, IsPlacedWhenFinished) {
  ArenaPlan plan;
  plan.Add({0, 1, 100, {}});
  plan.Add({2, 3, 100, {}});
  plan.Finish(ExprProgram());
  const ExprFrame frame;
  EXPECT_EQ(plan.For(frame), plan.For(frame));
  EXPECT_EQ(plan.For(frame)->bytes, 100);
}

}  // namespace
}  // namespace kiln::runtime
