// The text of symbolic integers, for pools and for messages. Threads: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kiln/v1/graph.pb.h"

namespace kiln {

struct PrintedExpr {
  std::string text = "?";
  int precedence = 4;  // an atom's; see expr_print.cc
};

// What stands before a leaf's number.
struct ExprLeafNames {
  const char* variable = "v";
  const char* indirect = "t";
};

// One operator over printed arguments, of a valid number. Very long text is cut.
PrintedExpr PrintExpr(v1::ExprOp op, int64_t value, const std::vector<PrintedExpr>& args,
                      const ExprLeafNames& names);

}  // namespace kiln
