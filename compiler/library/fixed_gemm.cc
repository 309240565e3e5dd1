#include "compiler/library/fixed_gemm.h"

#include "compiler/graph/dtypes.h"

namespace kiln {

bool DescribeMatrix(const FixedTensor& tensor, bool batched, v1::MatrixOperand* operand) {
  const size_t first = batched ? 1 : 0;
  if (tensor.sizes.size() != first + 2) return false;
  operand->set_rows(tensor.sizes[first]);
  operand->set_columns(tensor.sizes[first + 1]);
  operand->set_row_stride(tensor.strides[first]);
  operand->set_column_stride(tensor.strides[first + 1]);
  operand->set_batch_stride(batched ? tensor.strides[0] : 0);
  return true;
}

std::optional<v1::Gemm> FixedFactorsOf(const Graph& graph, const Gemm& gemm) {
  const std::optional<FixedTensor> a = FixedOf(graph, gemm.a), b = FixedOf(graph, gemm.b),
                                   d = FixedOf(graph, gemm.d);
  if (!a || !b || !d || !HasOneDType(graph, gemm)) return std::nullopt;
  if (!IsHalf(d->dtype) && d->dtype != v1::F32) return std::nullopt;
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
