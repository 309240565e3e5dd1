// A gemm of a graph as the message by which gemms are measured and choose schedules, where its sizes and
// strides are numbers. Threads: pure functions. Errors: none.
#pragma once

#include <optional>

#include "compiler/library/conv1x1_gemm.h"
#include "compiler/library/fixed_tensor.h"
#include "compiler/library/gemm.h"
#include "kiln/v1/tuning.pb.h"

namespace kiln {

// Of the dtypes that cuBLASLt, and kiln's kernel, multiply.
bool IsMultiplied(v1::DType dtype);

void WriteMatrix(const StridedMatrix& matrix, v1::MatrixOperand* operand);
// A matrix, or a batch of them; false for anything else.
bool DescribeMatrix(const FixedTensor& tensor, bool batched, v1::MatrixOperand* operand);

// Its factors and its result: dtype, batch, a, b and d, of at least one element each. No value for other
// dtypes than F16, BF16 and F32, or several. What is added, activation and precision are left out.
std::optional<v1::Gemm> FixedFactorsOf(const Graph& graph, const Gemm& gemm);

}  // namespace kiln
