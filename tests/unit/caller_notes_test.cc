#include "compiler/graph/caller_notes.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "compiler/support/compiler_limits.h"

namespace kiln {
namespace {

using ::google::protobuf::RepeatedPtrField;

v1::ExprNode* Add(RepeatedPtrField<v1::ExprNode>* exprs, v1::ExprOp op, int64_t value = 0) {
  v1::ExprNode* node = exprs->Add();
  node->set_op(op);
  node->set_value(value);
  return node;
}

v1::SymInt Expr(uint32_t position) {
  v1::SymInt bytes;
  bytes.set_expr(position);
  return bytes;
}

TEST(BytesMoved, AreThoseOfTheSizesAtHand) {
  RepeatedPtrField<v1::ExprNode> exprs;
  Add(&exprs, v1::EXPR_SYMBOL, 1);
  Add(&exprs, v1::EXPR_CONST, 4);
  v1::ExprNode* product = Add(&exprs, v1::EXPR_MUL);
  product->add_args(0);
  product->add_args(1);
  v1::Hints hints;
  hints.add_values(7);
  hints.add_values(100);
  EXPECT_EQ(BytesMoved(exprs, hints).Of(Expr(2)), 400u);
  hints.set_values(1, 3);
  EXPECT_EQ(BytesMoved(exprs, hints).Of(Expr(2)), 12u);
  v1::SymInt fixed;
  fixed.set_value(64);
  EXPECT_EQ(BytesMoved(exprs, hints).Of(fixed), 64u);
}

TEST(BytesMoved, AreNoneOfWhatMakesNoSense) {
  RepeatedPtrField<v1::ExprNode> exprs;
  Add(&exprs, v1::EXPR_SYMBOL, 0);
  Add(&exprs, v1::EXPR_SYMBOL, -1);
  Add(&exprs, v1::EXPR_MUL)->add_args(0);  // one operand
  v1::ExprNode* itself = Add(&exprs, v1::EXPR_ADD);
  itself->add_args(3);
  itself->add_args(4000);
  v1::ExprNode* overflow = Add(&exprs, v1::EXPR_MUL);
  Add(&exprs, v1::EXPR_CONST, INT64_MAX);
  overflow->add_args(0);
  overflow->add_args(0);
  Add(&exprs, v1::EXPR_CONST, -5);
  v1::Hints hints;
  const BytesMoved without(exprs, hints);
  hints.add_values(INT64_MAX);
  const BytesMoved with(exprs, hints);
  EXPECT_EQ(without.Of(Expr(0)), 0u);
  EXPECT_EQ(with.Of(Expr(0)), static_cast<uint64_t>(INT64_MAX));
  for (uint32_t i : {1, 2, 3, 4, 6, 7, 1000}) EXPECT_EQ(with.Of(Expr(i)), 0u) << i;
}

TEST(SourcesOf, AreTheCallersLinesEachOnce) {
  v1::GraphNotes caller;
  for (const char* line : {"a.py:1 in f", "", "a.py:1 in f", "b.py:9 in g"}) caller.add_source_lines(line);
  v1::KernelNotes kernel;
  kernel.add_sources("somebody's.py:3");
  for (uint32_t node : {0, 1, 2, 3, 400}) kernel.add_origins(node);
  const std::vector<std::string> lines = {"a.py:1 in f", "b.py:9 in g"};
  EXPECT_EQ(SourcesOf(kernel, caller.source_lines()), lines);
  const v1::KernelNotes with = WithSources(kernel, caller.source_lines());
  EXPECT_EQ(std::vector<std::string>(with.sources().begin(), with.sources().end()), lines);
}

// Notes of `count` texts of each kind, each of so many bytes.
v1::GraphNotes Notes(int names, int lines, int guards, size_t bytes) {
  v1::GraphNotes notes;
  for (int i = 0; i < names; ++i) notes.add_node_names(std::string(bytes, 'n'));
  for (int i = 0; i < lines; ++i) notes.add_source_lines(std::string(bytes, 'l'));
  for (int i = 0; i < guards; ++i) notes.add_guards(std::string(bytes, 'g'));
  return notes;
}

TEST(LimitNotes, DropsWhatIsTooMuchAndKeepsWhatTellsMost) {
  constexpr size_t kText = 1024, kHalf = kNotesBytesMax / (kText + sizeof(std::string)) / 2;
  v1::GraphNotes notes = Notes(kHalf, 1, kHalf - 1, kText);
  notes.mutable_guards(0)->append(kNotesBytesMax - 2 * kHalf * (kText + sizeof(std::string)), 'g');
  const std::string before = notes.SerializeAsString();
  LimitNotes(&notes);
  EXPECT_EQ(notes.SerializeAsString(), before) << "at the limit";
  notes.mutable_guards(0)->push_back('g');
  LimitNotes(&notes);
  EXPECT_EQ(notes.node_names_size(), 0);
  EXPECT_EQ(notes.guards_size(), kHalf - 1);
  notes = Notes(2 * kHalf, 2, kHalf, kText);
  LimitNotes(&notes);
  EXPECT_EQ(notes.node_names_size(), 0);
  EXPECT_EQ(notes.source_lines_size(), 2);
  EXPECT_EQ(notes.guards_size(), kHalf);
  notes = Notes(0, kHalf, 3 * kHalf, kText);
  LimitNotes(&notes);
  EXPECT_EQ(notes.source_lines_size() + notes.guards_size(), 0);
  notes = Notes(0, kNotesBytesMax / sizeof(std::string) + 1, 1, 0);
  LimitNotes(&notes);
  EXPECT_EQ(notes.source_lines_size(), 0) << "empty ones take memory too";
  EXPECT_EQ(notes.guards_size(), 1);
}

TEST(LimitNotes, CutsATitleBetweenCharacters) {
  v1::GraphNotes notes;
  notes.set_title(std::string(kTitleBytesMax, 'x'));
  LimitNotes(&notes);
  EXPECT_EQ(notes.title().size(), kTitleBytesMax);
  notes.set_title(absl::StrCat(std::string(kTitleBytesMax - 1, 'x'), "é"));
  LimitNotes(&notes);
  EXPECT_EQ(notes.title(), std::string(kTitleBytesMax - 1, 'x'));
}

}  // namespace
}  // namespace kiln
