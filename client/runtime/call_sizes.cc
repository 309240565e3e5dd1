#include "client/runtime/call_sizes.h"

#include "absl/strings/str_cat.h"

namespace kiln::runtime {

absl::Status CallSizes::OutOfRange(int64_t value, const Program::Range& range) {
  return absl::FailedPreconditionError(
      absl::StrCat("Runtime assertion failed: a number that the graph computes is ", value,
                   range.max == INT64_MAX ? absl::StrCat(", less than ", range.min)
                                          : absl::StrCat(", not from ", range.min, " to ", range.max)));
}

}  // namespace kiln::runtime
