// The target of this machine: its triple and the CPU features that code generation asks for.
#pragma once

#include "kiln/v1/artifact.pb.h"

namespace kiln::python {

v1::Target ThisCpu();

}  // namespace kiln::python
