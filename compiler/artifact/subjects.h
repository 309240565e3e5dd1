// What mode max-autotune measures of a program: its matrix products and convolutions of fixed sizes, each
// once, those with most arithmetic in the program first, so that time that is too short is spent well.
// Threads: pure function.
#pragma once

#include <vector>

#include "kiln/v1/artifact.pb.h"
#include "kiln/v1/compile.pb.h"
#include "kiln/v1/tuning.pb.h"

namespace kiln {

std::vector<v1::Subject> SubjectsOf(const v1::Program& program, const v1::Numerics& numerics);

}  // namespace kiln
