// Division of integers: the CPU raises by zero, as eager does; a GPU goes on, as eager's kernels do there.
#include <limits>
#include <optional>
#include <random>

#include "compiler/support/kernel_abi.h"
#include "tests/unit/lower_testing.h"

namespace kiln {
namespace {

enum class Division { kTrunc, kFloor, kFloorDivide, kRemainder, kFmod };
constexpr Division kDivisions[] = {Division::kTrunc, Division::kFloor, Division::kFloorDivide,
                                   Division::kRemainder, Division::kFmod};

bool RoundsDown(Division division) {
  return division == Division::kFloor || division == Division::kFloorDivide;
}

// `other`: a tensor beside the first input, unless it is given as a number.
LoopGraph Divide(Division division, v1::DType dtype, int64_t count, v1::DeviceType device,
                 std::optional<int64_t> number = {}) {
  GraphMaker maker;
  TensorType type = maker.Type(dtype, maker.Sizes({count}));
  type.device = device;
  const ValueId a = maker.InputOf(type);
  const Argument other =
      number.has_value() ? Argument(IntArg{maker.graph.exprs.Const(*number)}) : T(maker.InputOf(type));
  GraphMaker::Args args = {{"self", T(a)}, {"other", other}};
  std::string target = "aten.div.Tensor_mode";
  switch (division) {
    case Division::kTrunc: args.emplace_back("rounding_mode", StringArg{"trunc"}); break;
    case Division::kFloor: args.emplace_back("rounding_mode", StringArg{"floor"}); break;
    case Division::kFloorDivide: target = "aten.floor_divide.default"; break;
    case Division::kRemainder: target = "aten.remainder.Tensor"; break;
    case Division::kFmod: target = "aten.fmod.Tensor"; break;
  }
  maker.Output(maker.NodeOf(target, std::move(args), type));
  return Lower(maker);
}

int64_t Expected(Division division, int64_t a, int64_t b) {
  const int64_t quotient = a / b, rest = a % b;
  const bool below = rest != 0 && (rest < 0) != (b < 0);
  switch (division) {
    case Division::kTrunc: return quotient;
    case Division::kFloor:
    case Division::kFloorDivide: return quotient - below;
    case Division::kRemainder: return below ? rest + b : rest;
    case Division::kFmod: return rest;
  }
  return 0;
}

template <typename T>
std::vector<T> Quotients(const LoopGraph& graph, const std::vector<T>& a, const std::vector<T>& b,
                         int* code) {
  const LoopEvalResult result = Eval(graph, {Bytes<T>(a), Bytes<T>(b)});
  *code = result.status_code;
  return Values<T>(result.outputs[0]);
}

// The values are those of eager on an H200.
template <typename T>
void ByZero(v1::DType dtype, const std::vector<T>& a, const std::vector<T>& quotients) {
  const std::vector<T> zeros(a.size(), 0);
  for (const Division division : kDivisions) {
    int code = 0;
    Quotients<T>(Divide(division, dtype, std::ssize(a), v1::CPU), a, zeros, &code);
    EXPECT_EQ(code, KILN_INTEGER_DIVISION_BY_ZERO);
    std::vector<T> expected = quotients;
    for (size_t i = 0; i < a.size(); ++i) expected[i] -= RoundsDown(division) && a[i] < 0;
    EXPECT_EQ(Quotients<T>(Divide(division, dtype, std::ssize(a), v1::CUDA), a, zeros, &code), expected)
        << static_cast<int>(division);
    EXPECT_EQ(code, 0);
  }
}

TEST(LowerDivision, ByZeroOnAGpuGivesWhatEagerGives) {
  ByZero<uint8_t>(v1::U8, {7, 0, 100, 255, 1}, {255, 255, 255, 255, 255});
  ByZero<int32_t>(v1::I32, {7, -7, 0, 100, std::numeric_limits<int32_t>::min()}, {-1, -1, -1, -1, -1});
  constexpr int64_t kLow = 0xffffffff;
  ByZero<int64_t>(v1::I64, {7, -7, 0, kLow, kLow + 1}, {kLow, -1, kLow, kLow, -1});
}

TEST(LowerDivision, OtherDivisorsGiveTheSameOnBoth) {
  std::mt19937 random(7);
  std::vector<int32_t> a(64), b(64);
  for (size_t i = 0; i < a.size(); ++i) {
    a[i] = static_cast<int32_t>(random()) >> (random() % 31);
    b[i] = static_cast<int32_t>(random()) >> (random() % 31);
    if (b[i] == 0 || b[i] == -1) b[i] = 3;
  }
  for (const Division division : kDivisions) {
    std::vector<int32_t> expected;
    for (size_t i = 0; i < a.size(); ++i) {
      expected.push_back(static_cast<int32_t>(Expected(division, a[i], b[i])));
    }
    for (const v1::DeviceType device : {v1::CPU, v1::CUDA}) {
      int code = 0;
      EXPECT_EQ(Quotients<int32_t>(Divide(division, v1::I32, std::ssize(a), device), a, b, &code), expected);
      EXPECT_EQ(code, 0);
    }
  }
}

// A number that is known not to be zero costs nothing more.
TEST(LowerDivision, ANumberIsNotAskedWhetherItIsZero) {
  const auto asks = [](std::optional<int64_t> number) {
    const LoopGraph graph = Divide(Division::kRemainder, v1::I64, 8, v1::CUDA, number);
    size_t count = 0;
    const LoopBody& body = graph.nodes[0].loops.body;
    for (LoopOpId id = 0; id < body.size(); ++id) count += body.op(id).op == LoopOpcode::kWhere;
    return count;
  };
  EXPECT_EQ(asks(3), 0u);
  EXPECT_GT(asks({}), 0u);
}

}  // namespace
}  // namespace kiln
