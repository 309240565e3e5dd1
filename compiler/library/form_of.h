// The row of an operator in a table of those that are one thing (GemmForms, AttentionForms). Pure function.
#pragma once

#include "absl/types/span.h"
#include "compiler/graph/operator_name.h"

namespace kiln {

// nullptr for an operator without a row.
template <typename Form>
const Form* FormOf(absl::Span<const Form> forms, const OperatorName& target) {
  for (const Form& form : forms) {
    if (target == form.target) return &form;
  }
  return nullptr;
}

}  // namespace kiln
