#include "compiler/target/few_rows.h"

#include <limits>

#include "absl/strings/str_cat.h"

namespace kiln {
namespace {

constexpr int64_t kElementsMax = std::numeric_limits<int32_t>::max();
constexpr int64_t kTileColumns = 16;
constexpr int64_t kDepthMax = 1 << 16;  // of 64 pieces of F32, 256 additions in a row

absl::Status Unsupported(absl::string_view why) {
  return absl::UnimplementedError(absl::StrCat("unsupported: a gemm of few rows ", why));
}

}  // namespace

absl::StatusOr<SkinnyGemm> SkinnyGemm::Of(const v1::Gemm& gemm) {
  const v1::MatrixOperand &a = gemm.a(), &b = gemm.b(), &d = gemm.d();
  SkinnyGemm skinny;
  skinny.dtype = gemm.dtype();
  skinny.tensor_cores = skinny.dtype != v1::F32 || gemm.tf32();
  skinny.rows = d.rows();
  skinny.columns = d.columns();
  skinny.depth = a.columns();
  skinny.has_c = gemm.has_c();
  skinny.has_bias = gemm.bias();
  skinny.activation = gemm.activation();
  if (skinny.dtype != v1::F32 && skinny.dtype != v1::F16 && skinny.dtype != v1::BF16)
    return Unsupported("of this type");
  if (!v1::Activation_IsValid(skinny.activation)) return Unsupported("with this activation");
  if (gemm.batch() != 1) return Unsupported("in a batch");
  if (skinny.rows < 1 || skinny.columns < 1 || skinny.depth < 1 || a.rows() != skinny.rows ||
      b.rows() != skinny.depth || b.columns() != skinny.columns) {
    return absl::InvalidArgumentError("a gemm whose sizes do not fit together");
  }
  if (skinny.rows > (skinny.tensor_cores ? kRowsMax : kRowsByFmaMax))
    return Unsupported(absl::StrCat("with ", skinny.rows, " of them"));
  const auto aligned = [&](int64_t stride) { return stride >= 0 && stride % skinny.terms() == 0; };
  if (a.column_stride() != 1 || !aligned(a.row_stride()))
    return Unsupported("that do not each start at 16 bytes");
  skinny.a_stride = a.row_stride();
  if (skinny.depth % skinny.terms() != 0) return Unsupported("whose sums do not fill 16 bytes");
  if (b.row_stride() == 1 && aligned(b.column_stride())) {
    skinny.b_stride = b.column_stride();
  } else if (b.column_stride() == 1 && aligned(b.row_stride())) {
    skinny.b_stride = b.row_stride();
    skinny.along_n = true;
  } else {
    return Unsupported("with weights that do not start at 16 bytes");
  }
  for (const v1::MatrixOperand* m : {&a, &b, &d, gemm.has_c() ? &gemm.c() : &d}) {
    if (m->row_stride() < 0 || m->column_stride() < 0 || m->row_stride() > kElementsMax ||
        m->column_stride() > kElementsMax || m->rows() > kElementsMax / 256 ||
        m->columns() > kElementsMax / 256) {
      return Unsupported("of this size");
    }
  }
  if (gemm.has_c() && (gemm.c().rows() != d.rows() || gemm.c().columns() != d.columns()))
    return absl::InvalidArgumentError("a summand of another size than the gemm");
  skinny.c.row = gemm.c().row_stride();
  skinny.c.column = gemm.c().column_stride();
  skinny.d.row = d.row_stride();
  skinny.d.column = d.column_stride();
  return skinny;
}

bool FitsGemmLoops(const v1::Gemm& gemm) {
  const absl::StatusOr<SkinnyGemm> skinny = SkinnyGemm::Of(gemm);
  return skinny.ok() && skinny->columns % kTileColumns == 0 && skinny->depth <= kDepthMax;
}

}  // namespace kiln
