// Early returns for absl::Status and absl::StatusOr, and one-line wrapping at a boundary.
//
//   KILN_RETURN_IF_ERROR(Check(x));
//   KILN_ASSIGN_OR_RETURN(auto value, Parse(bytes));
//   return StatusWrap(status, "plan graph");   // "plan graph: <message>", code and payloads kept
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kiln {

// The same code with `what` (a noun phrase) before the message; OK stays OK.
absl::Status StatusWrap(const absl::Status& status, absl::string_view what);

}  // namespace kiln

#define KILN_MACRO_CONCAT_INNER(a, b) a##b
#define KILN_MACRO_CONCAT(a, b) KILN_MACRO_CONCAT_INNER(a, b)

#define KILN_RETURN_IF_ERROR(expr)                              \
  do {                                                          \
    if (absl::Status kiln_status = (expr); !kiln_status.ok()) { \
      return kiln_status;                                       \
    }                                                           \
  } while (false)

#define KILN_ASSIGN_OR_RETURN(lhs, expr) \
  KILN_ASSIGN_OR_RETURN_IMPL(KILN_MACRO_CONCAT(kiln_status_or_, __LINE__), lhs, expr)

#define KILN_ASSIGN_OR_RETURN_IMPL(var, lhs, expr) /* NOLINTBEGIN(bugprone-macro-parentheses) */ \
  auto var = (expr);                                                                             \
  if (!var.ok()) return std::move(var).status();                                                 \
  lhs = *std::move(var) /* NOLINTEND(bugprone-macro-parentheses) */
