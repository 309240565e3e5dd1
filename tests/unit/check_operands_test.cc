// Numbers and dtypes that eager refuses are refused by name.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "compiler/graph/dtype_range.h"
#include "compiler/passes/pipeline.h"
#include "tests/unit/graph_maker.h"

namespace kiln {
namespace {

TEST(CheckNumbers, RefusesByNameWhatEagerRefuses) {
  const auto fill = [](const char* target, const char* argument, Argument number, v1::DType dtype) {
    Maker m;
    ValueId x = m.Input({4}, dtype);
    m.Output(m.Node(absl::StrCat("aten.", target), {{"self", T(x)}, {argument, number}}, m.Type({4}, dtype)));
    return RunPasses(m.graph, {});
  };
  const absl::Status real = fill("clamp_min.default", "min", FloatArg{-1e9}, v1::F16);
  EXPECT_EQ(real.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(real.message().find("clamp_min: min = -1e+09"), std::string::npos) << real;
  EXPECT_TRUE(fill("clamp_min.default", "min", FloatArg{-65504}, v1::F16).ok());
  EXPECT_TRUE(fill("clamp_min.default", "min", FloatArg{-1e9}, v1::BF16).ok());
  EXPECT_TRUE(fill("leaky_relu.default", "negative_slope", FloatArg{1e9}, v1::F16).ok());
  EXPECT_FALSE(fill("leaky_relu.default", "negative_slope", FloatArg{1e39}, v1::F16).ok());
  EXPECT_TRUE(fill("mul.Scalar", "other", FloatArg{1e39}, v1::F16).ok());
}

TEST(CheckNumbers, RefusesWhatAnOperatorIsNotDefinedFor) {
  const auto passes = [](const char* target, const char* argument, double number) {
    Maker m;
    ValueId x = m.Input({4});
    m.Output(
        m.Node(absl::StrCat("aten.", target), {{"self", T(x)}, {argument, FloatArg{number}}}, m.Type({4})));
    return RunPasses(m.graph, {});
  };
  EXPECT_TRUE(passes("celu.default", "alpha", -1).ok() && passes("bernoulli.p", "p", 1).ok());
  const absl::Status zero = passes("celu.default", "alpha", 0);
  EXPECT_EQ(zero.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(zero.message().find("celu: alpha = 0"), std::string::npos) << zero;
  EXPECT_FALSE(passes("bernoulli.p", "p", 1.25).ok() || passes("bernoulli.p", "p", -0.5).ok());
}

TEST(CheckDTypes, RefusesByNameWhatEagerRefuses) {
  const auto norm = [](v1::DType input, v1::DType weight, v1::DType bias) {
    Maker m;
    ValueId x = m.Input({2, 4}, input), w = m.Input({4}, weight), b = m.Input({4}, bias);
    m.Output(m.Node("aten.native_layer_norm.default",
                    {{"input", T(x)},
                     {"normalized_shape", IntListArg{{m.graph.exprs.Const(4)}}},
                     {"weight", T(w)},
                     {"bias", T(b)},
                     {"eps", FloatArg{1e-5}}},
                    m.Type({2, 4}, input)));
    return RunPasses(m.graph, {});
  };
  for (v1::DType same : {v1::F32, v1::F64, v1::BF16}) EXPECT_TRUE(norm(same, same, same).ok());
  EXPECT_TRUE(norm(v1::BF16, v1::F32, v1::F32).ok());
  const absl::Status mixed = norm(v1::F32, v1::F64, v1::F64);
  EXPECT_EQ(mixed.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(mixed.message().find("weight is f64 beside input of f32"), std::string::npos) << mixed;
  EXPECT_FALSE(norm(v1::BF16, v1::F32, v1::BF16).ok() || norm(v1::F32, v1::BF16, v1::BF16).ok());
}

TEST(CheckDTypes, WantsNumbersOfOneOperandOrOfEither) {
  const auto sub = [](v1::DType self, v1::DType other, v1::DType result) {
    Maker m;
    ValueId x = m.Input({4}, self), y = m.Input({4}, other);
    m.Output(m.Node("aten.sub.Tensor", {{"self", T(x)}, {"other", T(y)}}, m.Type({4}, result)));
    return RunPasses(m.graph, {});
  };
  EXPECT_TRUE(sub(v1::U8, v1::F32, v1::F32).ok());
  EXPECT_NE(sub(v1::F32, v1::BOOL, v1::F32).message().find("sub.Tensor: other is bool"), std::string::npos);
  EXPECT_FALSE(sub(v1::BOOL, v1::F32, v1::F32).ok() || sub(v1::BOOL, v1::BOOL, v1::BOOL).ok());
  const auto pow = [](v1::DType self, v1::DType exponent, v1::DType result) {
    Maker m;
    ValueId x = m.Input({4}, self), y = m.Input({4}, exponent);
    m.Output(m.Node("aten.pow.Tensor_Tensor", {{"self", T(x)}, {"exponent", T(y)}}, m.Type({4}, result)));
    return RunPasses(m.graph, {});
  };
  EXPECT_TRUE(pow(v1::BOOL, v1::F32, v1::F32).ok() && pow(v1::F32, v1::BOOL, v1::F32).ok());
  EXPECT_FALSE(pow(v1::BOOL, v1::BOOL, v1::BOOL).ok());
  const auto frac = [](v1::DType dtype) {
    Maker m;
    m.Output(m.Node("aten.frac.default", {{"self", T(m.Input({4}, dtype))}}, m.Type({4}, dtype)));
    return RunPasses(m.graph, {});
  };
  EXPECT_TRUE(frac(v1::F32).ok() && frac(v1::BF16).ok());
  EXPECT_FALSE(frac(v1::I64).ok() || frac(v1::BOOL).ok());
}

TEST(DTypeRange, AsTorchConverts) {
  for (auto [dtype, end] :
       {std::pair(v1::I8, int64_t{1} << 7), {v1::I16, int64_t{1} << 15}, {v1::I32, int64_t{1} << 31}}) {
    EXPECT_TRUE(Converts(end - 1, dtype) && Converts(-end, dtype));
    EXPECT_FALSE(Converts(end, dtype) || Converts(-end - 1, dtype));
    EXPECT_FALSE(Converts(static_cast<double>(end) - 0.5, dtype) || Converts(std::nan(""), dtype));
  }
  EXPECT_TRUE(Converts(int64_t{-255}, v1::U8) && Converts(int64_t{255}, v1::U8));
  EXPECT_FALSE(Converts(int64_t{-256}, v1::U8) || Converts(int64_t{256}, v1::U8) || Converts(-0.5, v1::U8));
  EXPECT_TRUE(Converts(0x1p63, v1::I64) && !Converts(0x1.1p63, v1::I64) && Converts(-0x1p63, v1::I64));
  EXPECT_TRUE(Converts(65504.0, v1::F16) && !Converts(65504.5, v1::F16) &&
              !Converts(int64_t{65505}, v1::F16));
  EXPECT_EQ(LargestFinite(v1::BF16), 3.3895313892515355e38);  // torch.finfo's
  EXPECT_EQ(IntegersEnd(v1::BF16), 257u);
  EXPECT_EQ(IntegersEnd(v1::F64), (uint64_t{1} << 53) + 1);
  EXPECT_TRUE(Converts(std::nan(""), v1::F16) && Converts(-HUGE_VAL, v1::F32) && Converts(1e300, v1::BOOL));
  EXPECT_TRUE(AllConvert(v1::I64, v1::F32) && AllConvert(v1::BF16, v1::F32) && AllConvert(v1::I8, v1::U8));
  EXPECT_FALSE(AllConvert(v1::F32, v1::F16) || AllConvert(v1::U8, v1::I8) || AllConvert(v1::F32, v1::I64));
}

}  // namespace
}  // namespace kiln
