// Rewrites that leave the same bits, and those that would not.
#include "compiler/passes/algebra.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "compiler/library/gemm.h"
#include "tests/unit/graph_maker.h"

namespace kiln {
namespace {

TEST(Algebra, DoubleTransposesAndOnesVanish) {
  Maker m;
  ValueId x = m.Input({4, 8});
  ValueId one = m.Node("aten.mul.Tensor", {{"self", T(x)}, {"other", m.Int(1)}}, m.Type({4, 8}));
  TensorType transposed = m.Type({8, 4});
  std::swap(transposed.strides[0], transposed.strides[1]);
  transposed.strides = {m.graph.exprs.Const(1), m.graph.exprs.Const(8)};
  ValueId t = m.Node("aten.permute.default", {{"self", T(one)}, {"dims", m.Ints({1, 0})}}, transposed);
  ValueId back = m.Node("aten.permute.default", {{"self", T(t)}, {"dims", m.Ints({1, 0})}}, m.Type({4, 8}));
  m.Output(m.Node("aten.exp.default", {{"self", T(back)}}, m.Type({4, 8})));
  ASSERT_TRUE(SimplifyAlgebra(m.graph).ok());
  EXPECT_EQ(Targets(m.graph), std::vector<std::string>{"aten.exp.default"});
}

// -0 + 0 is 0: not the same bits.
TEST(Algebra, AddingZeroStays) {
  Maker m;
  ValueId x = m.Input({4});
  ValueId sum = m.Node("aten.add.Tensor", {{"self", T(x)}, {"other", m.Int(0)}}, m.Type({4}));
  m.Output(m.Node("aten.exp.default", {{"self", T(sum)}}, m.Type({4})));
  ASSERT_TRUE(SimplifyAlgebra(m.graph).ok());
  EXPECT_EQ(m.graph.nodes.size(), 2u);
}

// A gemm, or an input, plus values that are summed into `fill`s.
Maker SumOfScatter(double fill, bool accumulate, bool used_twice, bool gemm = true) {
  Maker m;
  const ValueId a = m.Input({8, 4}), b = m.Input({4, 4}), values = m.Input({3, 4});
  const ValueId x = gemm ? m.Node("kiln.gemm.default", GemmArguments({.a = a, .b = b}), m.Type({8, 4})) : a;
  const ValueId index = m.Input({3}, v1::I64);
  const ValueId full =
      m.Node("aten.full.default", {{"size", m.Ints({8, 4})}, {"fill_value", FloatArg{fill}}}, m.Type({8, 4}));
  const ValueId put = m.Node("aten._unsafe_index_put.default",
                             {{"self", T(full)},
                              {"indices", TensorListArg{{index}}},
                              {"values", T(values)},
                              {"accumulate", BoolArg{accumulate}}},
                             m.Type({8, 4}));
  m.Output(m.Node("aten.add.Tensor", {{"self", T(put)}, {"other", T(x)}}, m.Type({8, 4})));
  if (used_twice) m.Output(m.Node("aten.exp.default", {{"self", T(put)}}, m.Type({8, 4})));
  return m;
}

TEST(Algebra, SumsIntoTheOtherAddend) {
  Maker m = SumOfScatter(0, true, false);
  ASSERT_TRUE(SimplifyAlgebra(m.graph).ok());
  ASSERT_EQ(Targets(m.graph),
            (std::vector<std::string>{"kiln.gemm.default", "aten._unsafe_index_put.default"}));
  EXPECT_EQ(std::get<TensorArg>(*m.graph.nodes[1].Find("self")).value, m.graph.nodes[0].results[0]);
}

// An element of 2^25 plus a thousand ones one by one stays 2^25.
TEST(Algebra, SumsIntoGemmsOnly) {
  Maker m = SumOfScatter(0, true, false, false);
  ASSERT_TRUE(SimplifyAlgebra(m.graph).ok());
  EXPECT_EQ(Targets(m.graph), (std::vector<std::string>{"aten.full.default", "aten._unsafe_index_put.default",
                                                        "aten.add.Tensor"}));
}

TEST(Algebra, SumsIntoTheOtherAddendOnlyWhatStartsAtZeroAndIsSummed) {
  for (Maker m : {SumOfScatter(1, true, false), SumOfScatter(0, false, false), SumOfScatter(0, true, true)}) {
    const size_t nodes = m.graph.nodes.size();
    ASSERT_TRUE(SimplifyAlgebra(m.graph).ok());
    EXPECT_EQ(m.graph.nodes.size(), nodes);
  }
}

}  // namespace
}  // namespace kiln
