// Random numbers: of a seed and a position, and which ones a caller may ask for.
#include "compiler/ir/scalar_ops.h"
#include "tests/unit/lower_testing.h"

namespace kiln {
namespace {

TEST(Lower, DropoutKeepsTheRightShareAndRepeatsWithItsSeed) {
  GraphMaker maker;
  const ValueId x = maker.Input(v1::F32, {20000});
  const ValueId out =
      maker.Node("aten.native_dropout.default",
                 {{"input", T(x)}, {"p", FloatArg{0.25}}, {"train", BoolArg{true}}}, v1::F32, {20000});
  const ValueId mask = maker.Value(maker.Type(v1::BOOL, maker.Sizes({20000})));
  maker.graph.nodes.back().results.push_back(mask);
  maker.Output(out);
  maker.Output(mask);
  const LoopGraph graph = Lower(maker);
  const BufferBytes ones = Bytes(std::vector<float>(20000, 1));
  const LoopEvalResult first = Eval(graph, {ones}, {}, 42);
  const std::vector<float> values = Values<float>(first.outputs[0]);
  const std::vector<uint8_t> kept = Values<uint8_t>(first.outputs[1]);
  int count = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_FLOAT_EQ(values[i], kept[i] ? 1 / 0.75f : 0);
    count += kept[i];
  }
  EXPECT_NEAR(count, 15000, 300);
  EXPECT_EQ(Eval(graph, {ones}, {}, 42).outputs[1], first.outputs[1]);
  EXPECT_NE(Eval(graph, {ones}, {}, 43).outputs[1], first.outputs[1]);

  LowerOptions options;
  options.fallback_random = true;
  EXPECT_EQ(Lower(maker, options).nodes[0].call.target, "aten.native_dropout.default");
}

// floor(w * count / 2^(32 n)) of the n = 2 or 3 words that a number of its own draws each, in 128 bits here.
TEST(Lower, RandomIntegersAreScaledWords) {
  constexpr int64_t kElements = 200, kSeed = 77;
  const auto drawn = [](int64_t element, uint64_t count) {
    const auto word = [&](int64_t number) {
      return static_cast<uint64_t>(RandomBits(kSeed, element, number));
    };
    unsigned __int128 scaled = 0;
    for (int64_t number = 0; number < (count >> 32 == 0 ? 2 : 3); ++number) {
      scaled = (static_cast<unsigned __int128>(word(number)) * count + scaled) >> 32;
    }
    return static_cast<uint64_t>(scaled);
  };
  const std::pair<int64_t, int64_t> spans[] = {{0, 1},
                                               {0, 7},
                                               {-5, 1000},
                                               {0, 3221225472},
                                               {0, (int64_t{1} << 32) - 1},
                                               {0, int64_t{1} << 32},
                                               {3, (int64_t{1} << 50) + 1},
                                               {0, INT64_MAX},
                                               {INT64_MIN, INT64_MAX}};
  for (const auto& [low, high] : spans) {
    GraphMaker maker;
    maker.Output(
        maker.Node("aten.randint.low",
                   {{"low", maker.Int(low)}, {"high", maker.Int(high)}, {"size", maker.Ints({kElements})}},
                   v1::I64, {kElements}));
    const std::vector<int64_t> values = Values<int64_t>(Eval(Lower(maker), {}, {}, kSeed).outputs[0]);
    const uint64_t count = static_cast<uint64_t>(high) - static_cast<uint64_t>(low);
    for (int64_t i = 0; i < kElements; ++i) {
      ASSERT_EQ(static_cast<uint64_t>(values[i]), static_cast<uint64_t>(low) + drawn(i, count))
          << low << " " << high;
    }
  }
}

TEST(Lower, RandomIntegersThatEagerRefusesAreTheCallers) {
  const auto status = [](int64_t low, int64_t high, v1::DType dtype) {
    GraphMaker maker;
    maker.Output(maker.Node("aten.randint.low",
                            {{"low", maker.Int(low)}, {"high", maker.Int(high)}, {"size", maker.Ints({4})}},
                            dtype, {4}));
    return LowerGraph(maker.graph, {}).status().code();
  };
  EXPECT_EQ(status(5, 5, v1::I64), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status(0, 257, v1::U8), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status(-1, 2, v1::U8), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status(0, 70000, v1::F16), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status(0, 256, v1::U8), absl::StatusCode::kOk);
  EXPECT_EQ(status(-128, 128, v1::I8), absl::StatusCode::kOk);
}

}  // namespace
}  // namespace kiln
