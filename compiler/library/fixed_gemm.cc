#include "compiler/library/fixed_gemm.h"

#include "compiler/graph/dtypes.h"

namespace kiln {

bool IsMultiplied(v1::DType dtype) { return IsHalf(dtype) || dtype == v1::F32; }

void WriteMatrix(const StridedMatrix& matrix, v1::MatrixOperand* operand) {
  operand->set_rows(matrix.rows);
  operand->set_columns(matrix.columns);
  operand->set_row_stride(matrix.row_stride);
  operand->set_column_stride(matrix.column_stride);
  operand->set_batch_stride(matrix.batch_stride);
}

bool DescribeMatrix(const FixedTensor& tensor, bool batched, v1::MatrixOperand* operand) {
  const size_t first = batched ? 1 : 0;
  if (tensor.sizes.size() != first + 2) return false;
  WriteMatrix({tensor.sizes[first], tensor.sizes[first + 1], tensor.strides[first], tensor.strides[first + 1],
               batched ? tensor.strides[0] : 0},
              operand);
  return true;
}

std::optional<v1::Gemm> FixedFactorsOf(const Graph& graph, const Gemm& gemm) {
  const std::optional<FixedTensor> a = FixedOf(graph, gemm.a), b = FixedOf(graph, gemm.b),
                                   d = FixedOf(graph, gemm.d);
  if (!a || !b || !d || !HasOneDType(graph, gemm)) return std::nullopt;
  if (!IsMultiplied(d->dtype)) return std::nullopt;
  const bool batched = gemm.form->batched;
  v1::Gemm fixed;
  fixed.set_dtype(d->dtype);
  fixed.set_batch(batched ? d->sizes[0] : 1);
  if (!DescribeMatrix(*a, batched, fixed.mutable_a()) || !DescribeMatrix(*b, batched, fixed.mutable_b()) ||
      !DescribeMatrix(*d, batched, fixed.mutable_d())) {
    return std::nullopt;
  }
  if (fixed.batch() < 1 || fixed.d().rows() < 1 || fixed.d().columns() < 1 || fixed.a().columns() < 1)
    return std::nullopt;
  return fixed;
}

}  // namespace kiln
