// What mode max-autotune measures of a program: its gemms and convolutions of fixed sizes, each once, in
// falling order of their arithmetic in the program, so that a time limit cuts off what matters least.
// Threads: pure functions.
#pragma once

#include <vector>

#include "kiln/v1/artifact.pb.h"
#include "kiln/v1/compile.pb.h"
#include "kiln/v1/tuning.pb.h"
#include "kiln/v1/worker.pb.h"

namespace kiln {

std::vector<v1::Tunable> TunablesOf(const v1::Program& program, const v1::Numerics& numerics);
// Those of its convolutions and their gradients, and the calls that have none.
v1::ImageConvolutions ImageConvolutionsOf(const v1::Program& program, const v1::Numerics& numerics);

}  // namespace kiln
