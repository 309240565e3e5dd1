// The target of an AArch64 processor with NEON, by its row of the table of machines ("": generic).
#pragma once

#include <string>

#include "kiln/v1/artifact.pb.h"

namespace kiln {

inline v1::Target NeonTarget(const std::string& machine = "") {
  v1::Target target;
  target.set_triple("aarch64-linux-gnu");
  target.add_features("neon");
  target.set_machine(machine);
  return target;
}

}  // namespace kiln
