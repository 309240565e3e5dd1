// Sine, cosine, tangent and their inverses. Arguments up to 2^20 are reduced in three parts; larger
// ones, if any lane has one, by as many bits of 2/π as they need (Payne and Hanek).
#include <array>

#include "compiler/codegen/math.h"
#include "compiler/codegen/math_exponent.h"
#include "compiler/codegen/math_formulas.h"

namespace kiln {
namespace {

using V = llvm::Value*;

constexpr double kPiOver2 = 0x1.921fb54442d18p+0;
constexpr double kPiOver2Low = 0x1.1a62633145c07p-54;
constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;

// 64 zero bits, then the bits of 2/π behind the point.
constexpr std::array<uint64_t, 21> kTwoOverPiBits = {
    0x0000000000000000, 0xA2F9836E4E441529, 0xFC2757D1F534DDC0, 0xDB6295993C439041, 0xFE5163ABDEBBC561,
    0xB7246E3A424DD2E0, 0x06492EEA09D1921C, 0xFE1DEB1CB129A73E, 0xE88235F52EBB4484, 0xE99C7026B45F7E41,
    0x3991D639835339F4, 0x9C845F8BBDF9283B, 0x1FF897FFDE05980F, 0xEF2F118B5A0A6D1F, 0x6D367ECF27CB09B7,
    0x4F463F669E5FEA2D, 0x7527BAC7EBE5F17B, 0x3D0739F78A5292EA, 0x6BFB5FB11F8D5D08, 0x56033046FC7B6BAB,
    0xF0CFBC209AF4361D};

// For one finite double ≥ 2^20: the remainder, and through `quadrant` n mod 4 (i64).
V ReduceOne(llvm::IRBuilder<>& b, llvm::GlobalVariable* table, V x, V* quadrant) {
  llvm::Type* i64 = b.getInt64Ty();
  llvm::Type* i128 = b.getInt128Ty();
  llvm::Type* f64 = b.getDoubleTy();
  const auto shifted_word = [&](V high, V low, V shift) {
    return b.CreateIntrinsic(llvm::Intrinsic::fshl, llvm::ArrayRef<llvm::Type*>{i64},
                             llvm::ArrayRef<llvm::Value*>{high, low, shift});
  };
  V bits = b.CreateBitCast(x, i64);
  V exponent = b.CreateAnd(b.CreateLShr(bits, 52), b.getInt64(0x7FF));
  V mantissa =
      b.CreateOr(b.CreateAnd(bits, b.getInt64((uint64_t{1} << 52) - 1)), b.getInt64(uint64_t{1} << 52));
  // x = mantissa * 2^e; the bits of 2/π before position e - 1 give multiples of 4.
  V position = b.CreateSub(exponent, b.getInt64(1075 - 62));
  V word = b.CreateLShr(position, 6);
  V shift = b.CreateAnd(position, b.getInt64(63));
  V words[4];
  for (uint64_t k = 0; k < 4; ++k) {
    V at = b.CreateAdd(word, b.getInt64(k));
    words[k] = b.CreateLoad(i64, b.CreateGEP(i64, table, at));
  }
  V w2 = shifted_word(words[0], words[1], shift);
  V w1 = shifted_word(words[1], words[2], shift);
  V w0 = shifted_word(words[2], words[3], shift);
  V wide = b.CreateZExt(mantissa, i128);
  V low = b.CreateMul(wide, b.CreateZExt(w0, i128));
  V middle = b.CreateAdd(b.CreateMul(wide, b.CreateZExt(w1, i128)), b.CreateLShr(low, 64));
  V high = b.CreateAdd(b.CreateMul(mantissa, w2), b.CreateTrunc(b.CreateLShr(middle, 64), i64));
  // high : low 64 bits of middle = x * 2/π mod 4 in units of 2^-126.
  V n = b.CreateLShr(b.CreateAdd(high, b.getInt64(uint64_t{1} << 61)), 62);
  V signed_high = b.CreateSub(high, b.CreateShl(n, 62));
  V fraction = b.CreateOr(b.CreateShl(b.CreateZExt(signed_high, i128), 64),
                          b.CreateZExt(b.CreateTrunc(middle, i64), i128));
  V negative = b.CreateICmpSLT(signed_high, b.getInt64(0));
  V magnitude = b.CreateSelect(negative, b.CreateNeg(fraction), fraction);
  V zeros = b.CreateIntrinsic(llvm::Intrinsic::ctlz, llvm::ArrayRef<llvm::Type*>{i128},
                              llvm::ArrayRef<llvm::Value*>{magnitude, b.getFalse()});
  zeros = b.CreateAnd(zeros, llvm::ConstantInt::get(i128, 127));
  V top = b.CreateTrunc(b.CreateLShr(b.CreateShl(magnitude, zeros), 65), i64);  // 63 bits
  // value = top * 2^(65 - zeros - 126)
  V scale_exponent = b.CreateSub(b.getInt64(1023 + 65 - 126), b.CreateTrunc(zeros, i64));
  V scale = b.CreateBitCast(b.CreateShl(scale_exponent, 52), f64);
  V value = b.CreateFMul(b.CreateSIToFP(top, f64), scale);
  value = b.CreateFMul(value, llvm::ConstantFP::get(f64, kPiOver2));
  V result = b.CreateSelect(negative, b.CreateFNeg(value), value);
  // Of a negative argument both change sign.
  V below = b.CreateICmpSLT(bits, b.getInt64(0));
  *quadrant = b.CreateSelect(below, b.CreateNeg(n), n);
  return b.CreateSelect(below, b.CreateFNeg(result), result);
}

}  // namespace

// Lane by lane: it is rare. Returns {r, n}; lanes that are not large are left alone.
V MathEmitter::ReduceLarge(llvm::IRBuilder<>& b, V x) {
  llvm::Type* type = x->getType();
  llvm::Type* int_type = type->getWithNewType(b.getInt64Ty());
  auto* pair = llvm::StructType::get(type, int_type);
  return Outlined(b, "reduce_large", {x}, pair, [&](llvm::IRBuilder<>& f, llvm::ArrayRef<V> args) -> V {
    llvm::LLVMContext& context = f.getContext();
    llvm::Function* function = f.GetInsertBlock()->getParent();
    function->addFnAttr(llvm::Attribute::Cold);
    auto* data = llvm::ConstantDataArray::get(context, kTwoOverPiBits);
    auto* table = new llvm::GlobalVariable(*module_, data->getType(), true, llvm::GlobalValue::PrivateLinkage,
                                           data, "kiln_two_over_pi");
    auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(type);
    const unsigned lanes = vector == nullptr ? 1 : vector->getNumElements();
    llvm::Type* f64 = f.getDoubleTy();
    llvm::Type* i64 = f.getInt64Ty();
    V in = f.CreateAlloca(type);
    V remainders = f.CreateAlloca(type);
    V quadrants = f.CreateAlloca(int_type);
    f.CreateStore(args[0], in);
    f.CreateStore(llvm::Constant::getNullValue(type), remainders);
    f.CreateStore(llvm::Constant::getNullValue(int_type), quadrants);
    auto* head = llvm::BasicBlock::Create(context, "lane", function);
    auto* reduce = llvm::BasicBlock::Create(context, "reduce", function);
    auto* next = llvm::BasicBlock::Create(context, "next", function);
    auto* done = llvm::BasicBlock::Create(context, "done", function);
    llvm::BasicBlock* entry = f.GetInsertBlock();
    f.CreateBr(head);
    f.SetInsertPoint(head);
    llvm::PHINode* lane = f.CreatePHI(i64, 2);
    lane->addIncoming(f.getInt64(0), entry);
    V value = f.CreateLoad(f64, f.CreateGEP(f64, in, lane));
    V magnitude = f.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, value);
    V large = f.CreateAnd(f.CreateFCmpOGE(magnitude, llvm::ConstantFP::get(f64, kLargeArgument)),
                          f.CreateFCmpOLT(magnitude, llvm::ConstantFP::getInfinity(f64)));
    f.CreateCondBr(large, reduce, next);
    f.SetInsertPoint(reduce);
    V quadrant;
    V remainder = ReduceOne(f, table, value, &quadrant);
    f.CreateStore(remainder, f.CreateGEP(f64, remainders, lane));
    f.CreateStore(quadrant, f.CreateGEP(i64, quadrants, lane));
    f.CreateBr(next);
    f.SetInsertPoint(next);
    V following = f.CreateAdd(lane, f.getInt64(1));
    lane->addIncoming(following, next);
    f.CreateCondBr(f.CreateICmpULT(following, f.getInt64(lanes)), head, done);
    f.SetInsertPoint(done);
    V result = f.CreateInsertValue(llvm::PoisonValue::get(pair), f.CreateLoad(type, remainders), 0);
    return f.CreateInsertValue(result, f.CreateLoad(int_type, quadrants), 1);
  });
}

MathEmitter::Quadrant MathEmitter::ReduceWhereLarge(MathBuilder& m, V x, const Quadrant& near, V any,
                                                    absl::FunctionRef<V()> large) {
  llvm::IRBuilder<>& b = m.b;
  llvm::Function* function = b.GetInsertBlock()->getParent();
  llvm::BasicBlock* before = b.GetInsertBlock();
  auto* slow = llvm::BasicBlock::Create(b.getContext(), "large", function);
  auto* join = llvm::BasicBlock::Create(b.getContext(), "reduced", function);
  b.CreateCondBr(any, slow, join);
  b.SetInsertPoint(slow);
  V reduced = ReduceLarge(b, m.is_double ? x : b.CreateFPExt(x, m.type->getWithNewType(b.getDoubleTy())));
  V r = b.CreateExtractValue(reduced, 0);
  V n = b.CreateExtractValue(reduced, 1);
  if (!m.is_double) {
    r = b.CreateFPTrunc(r, m.type);
    n = b.CreateTrunc(n, m.int_type);
  }
  V lanes = large();
  r = m.Sel(lanes, r, near.r);
  n = m.Sel(lanes, n, near.n);
  b.CreateBr(join);
  b.SetInsertPoint(join);
  llvm::PHINode* r_phi = b.CreatePHI(m.type, 2);
  r_phi->addIncoming(near.r, before);
  r_phi->addIncoming(r, slow);
  llvm::PHINode* n_phi = b.CreatePHI(m.int_type, 2);
  n_phi->addIncoming(near.n, before);
  n_phi->addIncoming(n, slow);
  return {r_phi, n_phi, join};
}

V MathEmitter::SinCos(MathBuilder& m, V x, LoopOpcode op) {
  if (own_.sin_cos != nullptr && !m.is_double && op != LoopOpcode::kTan)
    return (this->*own_.sin_cos)(m, x, op);
  llvm::IRBuilder<>& b = m.b;
  V n;
  V whole = Nearest(m, m.Mul(x, kTwoOverPi), &n);
  V r;
  if (m.is_double) {
    r = m.Fma(whole, m.C(-kPiOver2), x);
    r = m.Fma(whole, m.C(-kPiOver2Low), r);
    r = m.Fma(whole, m.C(0x1.f1976b7ed8fbcp-110), r);
  } else {
    r = m.Fma(whole, m.C(-0x1.921fb6p+0), x);
    r = m.Fma(whole, m.C(0x1.777a5cp-25), r);
    r = m.Fma(whole, m.C(0x1.ee59dap-50), r);
  }
  // The slow way, for lanes that need it. Infinities fall through to NaN below.
  V large = b.CreateFCmpOGE(m.Abs(x), m.C(kLargeArgument));
  V any = large;
  if (auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(large->getType())) {
    V bits = b.CreateBitCast(large, b.getIntNTy(vector->getNumElements()));
    any = b.CreateICmpNE(bits, llvm::ConstantInt::get(bits->getType(), 0));
  }
  const Quadrant quadrant = ReduceWhereLarge(m, x, {r, n}, any, [&] { return large; });
  r = quadrant.r;
  n = quadrant.n;

  V z = m.Mul(r, r);
  V sine, cosine;
  if (m.is_double) {
    V s = m.Poly(z, {1.58969099521155010221e-10, -2.50507602534068634195e-08, 2.75573137070700676789e-06,
                     -1.98412698298579493134e-04, 8.33333333332248946124e-03, -1.66666666666666324348e-01});
    sine = m.Fma(m.Mul(z, r), s, r);
    V c = m.Poly(z, {-1.13596475577881948265e-11, 2.08757232129817482790e-09, -2.75573143513906633035e-07,
                     2.48015872894767294178e-05, -1.38888888888741095749e-03, 4.16666666666666019037e-02});
    V half = m.Mul(z, 0.5);
    V w = m.Sub(m.C(1.0), half);
    cosine = m.Add(w, m.Fma(m.Mul(z, z), c, m.Sub(m.Sub(m.C(1.0), w), half)));
  } else {
    V s = m.Poly(z, {-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1});
    sine = m.Fma(m.Mul(z, r), s, r);
    V c = m.Poly(z, {2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2});
    V w = m.Fma(z, m.C(-0.5), m.C(1.0));
    cosine = m.Fma(m.Mul(z, z), c, w);
  }
  V odd = b.CreateICmpNE(b.CreateAnd(n, m.I(1)), m.I(0));
  if (op == LoopOpcode::kTan) {
    V quotient = m.Div(m.Sel(odd, cosine, sine), m.Sel(odd, sine, cosine));
    quotient = m.Sel(odd, m.Neg(quotient), quotient);
    // Keeps the sign of zero; the reduction of an infinity is none.
    quotient = m.Sel(m.Eq(x, m.C(0.0)), x, quotient);
    return m.Sel(m.Lt(m.Abs(x), m.Inf()), quotient, m.NaN());
  }
  V index = op == LoopOpcode::kCos ? b.CreateAdd(n, m.I(1)) : n;
  V value = op == LoopOpcode::kCos ? m.Sel(odd, sine, cosine) : m.Sel(odd, cosine, sine);
  V sign = b.CreateShl(b.CreateAnd(index, m.I(2)), m.is_double ? 62 : 30);
  value = m.FromBits(b.CreateXor(m.Bits(value), sign));
  if (op == LoopOpcode::kSin) value = m.Sel(m.Eq(x, m.C(0.0)), x, value);
  return m.Sel(m.Lt(m.Abs(x), m.Inf()), value, m.NaN());
}

namespace {

// (asin(s) - s) / s for z = s² ≤ 1/4, as in fdlibm.
V AsinTail(MathBuilder& m, V z) {
  V p = m.Poly(z, {3.47933107596021167570e-05, 7.91534994289814532176e-04, -4.00555345006794114027e-02,
                   2.01212532134862925881e-01, -3.25565818622400915405e-01, 1.66666666666666657415e-01});
  V q = m.Poly(z, {7.70381505559019352791e-02, -6.88283971605453293030e-01, 2.02094576023350569471e+00,
                   -2.40339491173441421878e+00, 1.0});
  return m.Div(m.Mul(z, p), q);
}

// atan of a quotient in [0, ∞], given as numerator and denominator ≥ 0.
V AtanOfQuotient(MathBuilder& m, V a, V c) {
  V above_middle = m.Gt(a, m.Mul(c, 2.414213562373095));
  V above_low = m.Gt(a, m.Mul(c, 0.4142135623730950));
  V numerator = m.Sel(above_middle, m.Neg(c), m.Sel(above_low, m.Sub(a, c), a));
  V denominator = m.Sel(above_middle, a, m.Sel(above_low, m.Add(a, c), c));
  V t = m.Div(numerator, denominator);
  t = m.Sel(m.Eq(a, m.C(0.0)), m.C(0.0), t);
  V z = m.Mul(t, t);
  V p = m.Poly(z, {1.62858201153657823623e-02, -3.65315727442169155270e-02, 4.97687799461593236017e-02,
                   -5.83357013379057348645e-02, 6.66107313738753120669e-02, -7.69187620504482999495e-02,
                   9.09088713343650656196e-02, -1.11111104054623557880e-01, 1.42857142725034663711e-01,
                   -1.99999999998764832476e-01, 3.33333333333329318027e-01});
  V offset = m.Sel(above_middle, m.C(kPiOver2), m.Sel(above_low, m.C(kPiOver2 / 2), m.C(0.0)));
  V offset_low = m.Sel(above_middle, m.C(kPiOver2Low), m.Sel(above_low, m.C(kPiOver2Low / 2), m.C(0.0)));
  return m.Add(offset, m.Add(offset_low, m.Fma(m.Mul(t, z), m.Neg(p), t)));
}

}  // namespace

V formulas::Asin(MathBuilder& m, V x) {
  V a = m.Abs(x);
  V outer = m.Gt(a, m.C(0.5));
  V z = m.Sel(outer, m.Mul(m.Sub(m.C(1.0), a), 0.5), m.Mul(a, a));
  V s = m.Sel(outer, m.Sqrt(z), a);
  V value = m.Fma(s, AsinTail(m, z), s);
  V from_top = m.Sub(m.C(kPiOver2), m.Sub(m.Mul(value, 2.0), m.C(kPiOver2Low)));
  return m.CopySign(m.Sel(outer, from_top, value), x);  // NaN by the square root of a negative
}

V formulas::Acos(MathBuilder& m, V x) {
  V a = m.Abs(x);
  V outer = m.Gt(a, m.C(0.5));
  V z = m.Sel(outer, m.Mul(m.Sub(m.C(1.0), a), 0.5), m.Mul(a, a));
  V s = m.Sel(outer, m.Sqrt(z), x);
  V value = m.Fma(s, AsinTail(m, z), s);
  V inner_result = m.Sub(m.C(kPiOver2), m.Sub(value, m.C(kPiOver2Low)));
  V twice = m.Mul(value, 2.0);
  V negative = m.Sub(m.C(2 * kPiOver2), m.Sub(twice, m.C(2 * kPiOver2Low)));
  return m.Sel(outer, m.Sel(m.Lt(x, m.C(0.0)), negative, twice), inner_result);
}

V formulas::Atan(MathBuilder& m, V x) { return m.CopySign(AtanOfQuotient(m, m.Abs(x), m.C(1.0)), x); }

V formulas::Atan2(MathBuilder& m, V y, V x) {
  V a = m.Abs(y);
  V c = m.Abs(x);
  V both_infinite = m.And(m.Eq(a, m.Inf()), m.Eq(c, m.Inf()));
  V scale = m.Sel(m.Gt(m.Max(a, c), m.C(1e300)), m.C(0.0625), m.C(1.0));  // the sum must not overflow
  a = m.Sel(both_infinite, m.C(1.0), m.Mul(a, scale));
  c = m.Sel(both_infinite, m.C(1.0), m.Mul(c, scale));
  V angle = AtanOfQuotient(m, a, c);
  V negative = m.b.CreateICmpSLT(m.Bits(x), m.I(0));
  V reflected = m.Sub(m.C(2 * kPiOver2), m.Sub(angle, m.C(2 * kPiOver2Low)));
  V result = m.CopySign(m.Sel(negative, reflected, angle), y);
  return m.Sel(m.Or(m.IsNan(x), m.IsNan(y)), m.NaN(), result);
}

}  // namespace kiln
