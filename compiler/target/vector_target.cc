#include "compiler/target/vector_target.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"

namespace kiln {

absl::StatusOr<VectorTarget> VectorTarget::FromProto(const v1::Target& target) {
  std::set<std::string> features;
  for (absl::string_view feature : target.features()) {
    features.emplace(absl::StripPrefix(feature, "+"));
  }
  for (const char* needed : {"avx2", "fma", "f16c"}) {
    if (features.count(needed) == 0) {
      return absl::UnimplementedError(absl::StrCat("unsupported: x86 target without the feature ", needed));
    }
  }
  VectorTarget result;
  result.machine = MachineOf(target);
  result.lanes = static_cast<unsigned>(result.machine.cpu.vector_lanes);
  result.triple = "x86_64-unknown-linux-gnu";
  result.features = absl::StrJoin(features, ",", [](std::string* out, const std::string& feature) {
    absl::StrAppend(out, "+", feature);
  });
  result.avx512 = features.count("avx512f") && features.count("avx512bw") && features.count("avx512dq") &&
                  features.count("avx512vl");
  result.register_lanes = result.avx512 ? 16 : 8;
  return result;
}

}  // namespace kiln
