// The name of an operator's overload as torch prints it, "aten.add.Tensor".
//
// The operators that the compiler itself names are one closed list, operators.def: a name of the list is a
// number, to compare and to hash. Any other name (a composite that is looked up by its text, a custom
// operator of a caller's) is its text: a table of those for the whole process would grow with every caller.
//
// Value semantics. Threads: none shared; the list is constant. Errors: none.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"

namespace kiln {

enum class Op : uint16_t {
  kOther,  // a name that is not in the list
#define KILN_OPERATOR(Enum, name) k##Enum,
#include "compiler/graph/operators.def"
#undef KILN_OPERATOR
};

// Of an operator of the list; empty for kOther. Lives as long as the process.
absl::string_view NameOf(Op op);

class OperatorName {
 public:
  OperatorName() = default;                                                  // empty
  OperatorName(Op op) : op_(op) {}                                           // NOLINT: implicit by design
  OperatorName(absl::string_view text);                                      // NOLINT
  OperatorName(const char* text) : OperatorName(absl::string_view(text)) {}  // NOLINT
  OperatorName(const std::string& text) : OperatorName(absl::string_view(text)) {}  // NOLINT

  Op op() const { return op_; }
  absl::string_view text() const { return op_ == Op::kOther ? absl::string_view(other_) : NameOf(op_); }
  bool empty() const { return op_ == Op::kOther && other_.empty(); }
  operator absl::string_view() const { return text(); }  // NOLINT

  friend bool operator==(const OperatorName& a, const OperatorName& b) {
    return a.op_ == b.op_ && a.other_ == b.other_;
  }
  friend bool operator==(const OperatorName& a, Op b) { return a.op_ == b; }
  template <typename H>
  friend H AbslHashValue(H h, const OperatorName& name) {
    return H::combine(std::move(h), name.op_, name.other_);
  }

 private:
  Op op_ = Op::kOther;
  std::string other_;  // the text of a name that is not in the list
};

}  // namespace kiln
