// Targets that graphs are compiled for: this machine's CPU, by the features that code generation asks for, or
// a kind of GPU.
#pragma once

#include "kiln/v1/artifact.pb.h"

namespace kiln::python {

v1::Target ThisCpu();
// Whether MKL, which does ATen's products, computes with 256 bits where 512 would do: on all CPUs but
// Intel's.
bool MklLeavesAvx512Unused();
v1::Target GpuTarget(const char* architecture);  // "sm_90"

}  // namespace kiln::python
