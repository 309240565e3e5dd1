#include "compiler/graph/operator_name.h"

#include <iterator>

#include "absl/container/flat_hash_map.h"

namespace kiln {
namespace {

constexpr absl::string_view kNames[] = {
    "",
#define KILN_OPERATOR(Enum, name) name,
#include "compiler/graph/operators.def"
#undef KILN_OPERATOR
};

const absl::flat_hash_map<absl::string_view, Op>& Numbers() {
  static const auto* numbers = [] {
    auto* map = new absl::flat_hash_map<absl::string_view, Op>;
    for (size_t i = 1; i < std::size(kNames); ++i) map->emplace(kNames[i], static_cast<Op>(i));
    return map;
  }();
  return *numbers;
}

}  // namespace

absl::string_view NameOf(Op op) { return kNames[static_cast<size_t>(op)]; }

OperatorName::OperatorName(absl::string_view text) {
  const auto found = Numbers().find(text);
  if (found != Numbers().end()) {
    op_ = found->second;
  } else {
    other_ = std::string(text);
  }
}

}  // namespace kiln
