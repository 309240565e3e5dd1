// Targets that graphs are compiled for: this machine's CPU, by the features that code generation asks for and
// its row of compiler/target/machine.h, or a kind of GPU.
#pragma once

#include <cstdint>

#include "kiln/v1/artifact.pb.h"

namespace kiln::python {

v1::Target ThisCpu();
v1::Target GpuTarget(const char* architecture, int64_t multiprocessors);  // "sm_90"

}  // namespace kiln::python
