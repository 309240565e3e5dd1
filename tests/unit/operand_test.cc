// How kiln-tuner compares results: every element, whatever its neighbours are.
#include "client/tuner/operand.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "compiler/ir/half.h"

namespace kiln::tuner {
namespace {

constexpr size_t kElements = 10'000;  // more than are compared at once, and not a multiple
constexpr double kTolerance = 0.02;

std::string Encoded(v1::DType dtype, const std::vector<float>& values) {
  std::string bytes(values.size() * BytesOf(dtype), '\0');
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t half = dtype == v1::F16 ? ToF16(values[i]) : ToBF16(values[i]);
    const double wide = values[i];
    const void* from = &values[i];
    if (dtype == v1::F16 || dtype == v1::BF16) from = &half;
    if (dtype == v1::F64) from = &wide;
    std::memcpy(&bytes[i * BytesOf(dtype)], from, BytesOf(dtype));
  }
  return bytes;
}

std::string Difference(v1::DType dtype, const std::vector<float>& got, const std::vector<float>& wanted) {
  return FirstDifference(Encoded(dtype, got), Encoded(dtype, wanted), dtype, kTolerance);
}

TEST(FirstDifference, FindsOneAmongManyThatAgree) {
  const float none = std::numeric_limits<float>::quiet_NaN(),
              endless = std::numeric_limits<float>::infinity();
  for (const v1::DType dtype : {v1::F32, v1::F16, v1::BF16, v1::F64}) {
    std::vector<float> wanted(kElements), near(kElements);
    for (size_t i = 0; i < kElements; ++i) {
      wanted[i] = static_cast<float>(i % 200) / 100 - 1;
      near[i] = wanted[i] + 0.01f;
    }
    EXPECT_EQ(Difference(dtype, near, wanted), "") << dtype;
    for (const size_t at : {size_t{0}, size_t{4095}, size_t{4096}, size_t{5000}, kElements - 1}) {
      for (const float wrong : {wanted[at] + 0.1f, none, endless, -endless}) {
        std::vector<float> got = near;
        got[at] = wrong;
        const std::string difference = Difference(dtype, got, wanted);
        EXPECT_EQ(difference.rfind("element " + std::to_string(at) + " ", 0), 0u) << dtype << difference;
        EXPECT_NE(Difference(dtype, wanted, got), "") << dtype;
      }
      // NaN agrees with NaN, and infinity with itself.
      for (const float odd : {none, endless}) {
        std::vector<float> got = near, same = wanted;
        got[at] = same[at] = odd;
        EXPECT_EQ(Difference(dtype, got, same), "") << dtype;
      }
    }
  }
}

TEST(FirstDifference, KnowsTheSmallestAndTheLargestHalves) {
  const std::vector<float> edges = {0x1p-24f, -0x1p-24f, 0x1.ffcp-15f, 0x1p-14f, 65504, -65504};
  for (const float edge : edges) {
    EXPECT_EQ(Difference(v1::F16, {edge}, {edge}), "");
    EXPECT_NE(Difference(v1::F16, {edge + 0.05f * (1 + std::abs(edge))}, {edge}), "");
  }
  EXPECT_NE(Difference(v1::F16, {65504}, {std::numeric_limits<float>::infinity()}), "");
}

TEST(FirstDifference, OfIntegersIsAnyOther) {
  std::string wanted(kElements, '\3'), got = wanted;
  EXPECT_EQ(FirstDifference(got, wanted, v1::U8, 1), "");
  got[4097] = '\2';
  EXPECT_EQ(FirstDifference(got, wanted, v1::U8, 1), "element 4097 is 2, not 3");
}

}  // namespace
}  // namespace kiln::tuner
