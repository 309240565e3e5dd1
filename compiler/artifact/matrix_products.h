// The matrix products of a program that are worth measuring: what the runtime gives to cuBLASLt as it stands.
//
// A product counts if every size and stride of it is fixed; it is described by what the runtime will see of
// it (client/runtime/tuned_products.h), each once, in the order of the program. Precision is as at compile
// time. One that the runtime sees otherwise runs by cuBLASLt's own choice. Threads: pure function.
#pragma once

#include <vector>

#include "kiln/v1/artifact.pb.h"
#include "kiln/v1/compile.pb.h"
#include "kiln/v1/tuning.pb.h"

namespace kiln {

std::vector<v1::MatrixProduct> MatrixProductsOf(const v1::Program& program, const v1::Numerics& numerics);

}  // namespace kiln
