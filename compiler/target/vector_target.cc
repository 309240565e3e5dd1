#include "compiler/target/vector_target.h"

#include <iterator>
#include <set>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace kiln {
namespace {

struct InstructionRow {
  InstructionSet instructions;
  absl::string_view architecture;  // that a triple begins with
  absl::string_view needed;        // features
  unsigned register_lanes;
  unsigned accumulators;
};
// Of an architecture the richer ones first.
constexpr InstructionRow kRows[] = {
    {InstructionSet::kAvx512, "x86_64", "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl", 16, 16},
    {InstructionSet::kAvx2, "x86_64", "avx2,fma,f16c", 8, 8},
    {InstructionSet::kNeon, "aarch64", "neon", 4, 4},
};

struct Architecture {
  absl::string_view name;
  absl::string_view triple;       // of targets
  absl::string_view llvm_triple;  // the same in full
};
constexpr Architecture kArchitectures[] = {
    {"x86_64", "x86_64-linux-gnu", "x86_64-unknown-linux-gnu"},
    {"aarch64", "aarch64-linux-gnu", "aarch64-unknown-linux-gnu"},
};

// The first of `needed` that is not there; "": all are.
absl::string_view Missing(absl::string_view needed, const std::set<std::string>& features) {
  for (absl::string_view feature : absl::StrSplit(needed, ',')) {
    if (features.count(std::string(feature)) == 0) return feature;
  }
  return "";
}

}  // namespace

absl::StatusOr<VectorTarget> VectorTarget::FromProto(const v1::Target& target) {
  const auto* architecture = absl::c_find_if(kArchitectures, [&](const Architecture& each) {
    return absl::StartsWith(target.triple(), absl::StrCat(each.name, "-"));
  });
  if (architecture == std::end(kArchitectures)) {
    return absl::UnimplementedError(absl::StrCat("unsupported: target ", target.triple()));
  }
  std::set<std::string> features;
  for (absl::string_view feature : target.features()) {
    features.emplace(absl::StripPrefix(feature, "+"));
  }
  absl::string_view missing;
  for (const InstructionRow& row : kRows) {
    if (row.architecture != architecture->name) continue;
    missing = Missing(row.needed, features);
    if (!missing.empty()) continue;
    VectorTarget result;
    result.instructions = row.instructions;
    result.machine = MachineOf(target);
    result.lanes = static_cast<unsigned>(result.machine.cpu.vector_lanes);
    result.triple = std::string(architecture->llvm_triple);
    result.features = absl::StrJoin(features, ",", [](std::string* out, const std::string& feature) {
      absl::StrAppend(out, "+", feature);
    });
    result.register_lanes = row.register_lanes;
    result.accumulators = row.accumulators;
    return result;
  }
  return absl::UnimplementedError(
      absl::StrCat("unsupported: ", architecture->name, " target without the feature ", missing));
}

std::vector<absl::string_view> CpuTriples() {
  std::vector<absl::string_view> triples;
  for (const Architecture& architecture : kArchitectures) triples.push_back(architecture.triple);
  return triples;
}

}  // namespace kiln
