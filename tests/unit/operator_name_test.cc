#include "compiler/graph/operator_name.h"

#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/hash/hash_testing.h"
#include "gtest/gtest.h"

namespace kiln {
namespace {

constexpr Op kAll[] = {
#define KILN_OPERATOR(Enum, name) Op::k##Enum,
#include "compiler/graph/operators.def"
#undef KILN_OPERATOR
};

TEST(OperatorName, IsANumberForEachRowOfTheList) {
  std::string last;
  for (const Op op : kAll) {
    const OperatorName name(NameOf(op));
    EXPECT_EQ(name.op(), op) << NameOf(op) << " has two rows";
    EXPECT_EQ(name, OperatorName(op));
    EXPECT_EQ(name.text(), NameOf(op));
    EXPECT_LT(last, NameOf(op)) << "rows are sorted by name";
    last = std::string(NameOf(op));
  }
}

TEST(OperatorName, KeepsTheTextOfOthers) {
  const OperatorName one("mylib.f.default"), same(std::string("mylib.f.default")), other("mylib.g.default");
  EXPECT_EQ(one.op(), Op::kOther);
  EXPECT_EQ(one.text(), "mylib.f.default");
  EXPECT_EQ(one, same);
  EXPECT_NE(one, other);
  EXPECT_NE(one, Op::kAddTensor);
  EXPECT_FALSE(one.empty());
}

TEST(OperatorName, IsEmptyUntilItIsGivenOne) {
  OperatorName name;
  EXPECT_TRUE(name.empty());
  EXPECT_EQ(name, OperatorName(""));
  EXPECT_EQ(NameOf(Op::kOther), "");
  name = Op::kMm;
  EXPECT_FALSE(name.empty());
  EXPECT_EQ(name, Op::kMm);
  name = "aten.addmm.default";
  EXPECT_EQ(name, Op::kAddmm);
}

TEST(OperatorName, HashesAsItCompares) {
  EXPECT_TRUE(absl::VerifyTypeImplementsAbslHashCorrectly(
      {OperatorName(), OperatorName(Op::kMm), OperatorName("aten.mm.default"), OperatorName(Op::kAddmm),
       OperatorName("mylib.f.default"), OperatorName("mylib.g.default")}));
  absl::flat_hash_map<OperatorName, int> table = {{Op::kMm, 1}, {"mylib.f.default", 2}};
  EXPECT_EQ(table.at("aten.mm.default"), 1);
  EXPECT_EQ(table.at("mylib.f.default"), 2);
}

}  // namespace
}  // namespace kiln
