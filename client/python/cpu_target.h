// Targets that graphs are compiled for: this machine's CPU, by the features that code generation asks for, or
// a kind of GPU.
#pragma once

#include "kiln/v1/artifact.pb.h"

namespace kiln::python {

v1::Target ThisCpu();
v1::Target GpuTarget(const char* architecture);  // "sm_90"

}  // namespace kiln::python
