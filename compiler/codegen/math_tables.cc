// Float functions for vectors of sixteen: AVX-512 looks a table of sixteen up in one instruction, which
// stands for the terms of a polynomial that a narrower range does without.
#include <algorithm>
#include <array>

#include "compiler/codegen/math.h"
#include "compiler/codegen/math_exponent.h"
#include "llvm/Analysis/VectorUtils.h"
#include "llvm/IR/Constants.h"
#include "llvm/IR/IntrinsicsX86.h"

namespace kiln {
namespace {

using V = llvm::Value*;
using Table = std::array<float, 16>;

// 2^(i/32)
constexpr std::array<float, 32> kPowers = {
    1.0f,       1.0218972f, 1.0442737f, 1.0671405f, 1.0905077f, 1.1143868f, 1.1387886f, 1.1637249f,
    1.1892071f, 1.2152474f, 1.2418578f, 1.269051f,  1.2968396f, 1.3252367f, 1.3542556f, 1.38391f,
    1.4142135f, 1.4451808f, 1.4768262f, 1.5091645f, 1.5422108f, 1.5759809f, 1.6104903f, 1.6457555f,
    1.6817929f, 1.7186193f, 1.7562522f, 1.7947091f, 1.8340081f, 1.8741677f, 1.9152066f, 1.9571441f};

constexpr double kStepMagic = 393216.0;  // 1.5 * 2^18: the last place is 1/32

// erf(i d + t) in powers of t, the constant terms first, for |t| ≤ d/2; Chebyshev interpolants. The last
// one starts at 1, where erf rounds to it.
constexpr double kErfStep = 0x1.0b9af8p-2;      // d
constexpr double kErfStepInverse = 3.82653046;  // 1/d
constexpr double kErfEnd = 0x1.f5c290p+1;       // 15 d
constexpr std::array<Table, 6> kErfTerms = {{
    {0.0f, 0.288305402f, 0.540191531f, 0.732459128f, 0.86067909f, 0.935384035f, 0.973410189f, 0.990320385f,
     0.996890008f, 0.999119699f, 0.999780834f, 0.999952078f, 0.999990821f, 0.99999845f, 0.999999762f, 1.0f},
    {1.12837911f, 1.05388904f, 0.858646274f, 0.610257804f, 0.37834847f, 0.204621017f, 0.0965357348f,
     0.0397288129f, 0.0142627312f, 0.00446662446f, 0.00122021348f, 0.000290784898f, 6.04487868e-05f,
     1.09618295e-05f, 1.7340368e-06f, 2.39296014e-07f},
    {0.0f, -0.27540946f, -0.448777735f, -0.478438407f, -0.395501763f, -0.267375141f, -0.151370808f,
     -0.0726782084f, -0.0298184063f, -0.0105049871f, -0.00318844407f, -0.000835720275f, -0.000189495389f,
     -3.72190516e-05f, -6.33877016e-06f, -9.36828883e-07f},
    {-0.376121968f, -0.303310156f, -0.129839674f, 0.046643395f, 0.149501413f, 0.164703071f, 0.126052439f,
     0.0753919035f, 0.0368066616f, 0.0149837518f, 0.00514879217f, 0.00150495849f, 0.000376129872f,
     8.06772441e-05f, 1.48918989e-05f, 2.40869917e-06f},
    {0.0f, 0.130368933f, 0.18227011f, 0.140619248f, 0.0539250225f, -0.0179129411f, -0.0479368642f,
     -0.044583153f, -0.0285686608f, -0.0141990772f, -0.00572413206f, -0.00191402982f, -0.000537815678f,
     -0.000128054526f, -2.59851913e-05f, -3.80502001e-06f},
    {0.112149686f, 0.0768625513f, 0.000765802979f, -0.057788793f, -0.0669606179f, -0.0397204198f,
     -0.00762584899f, 0.00997544453f, 0.0127629833f, 0.0087881051f, 0.00439442461f, 0.00172913598f,
     0.000554393104f, 0.000147587052f, 3.30019066e-05f, 9.44827116e-06f},
}};

V Entries(MathBuilder& m, llvm::ArrayRef<float> table) {
  return llvm::ConstantDataVector::get(m.b.getContext(), table);
}

// Of the lowest four bits of each number.
V LookUp(MathBuilder& m, const Table& table, V numbers) {
  return m.b.CreateIntrinsic(llvm::Intrinsic::x86_avx512_permvar_sf_512, llvm::ArrayRef<llvm::Type*>{},
                             llvm::ArrayRef<V>{Entries(m, table), numbers});
}

// Of the lowest five bits of each number.
V PowerOf(MathBuilder& m, V numbers) {
  const llvm::ArrayRef<float> powers(kPowers);
  return m.b.CreateIntrinsic(
      llvm::Intrinsic::x86_avx512_vpermi2var_ps_512, llvm::ArrayRef<llvm::Type*>{},
      llvm::ArrayRef<V>{Entries(m, powers.take_front(16)), numbers, Entries(m, powers.drop_front(16))});
}

constexpr int kCurrentRounding = 4;

V ScaledByPower(MathBuilder& m, V x, V power) {  // x * 2^floor(power), rounded once
  return m.b.CreateIntrinsic(
      llvm::Intrinsic::x86_avx512_mask_scalef_ps_512, llvm::ArrayRef<llvm::Type*>{},
      llvm::ArrayRef<V>{x, power, x, m.b.getInt16(0xFFFF), m.b.getInt32(kCurrentRounding)});
}

// `function`, which takes vectors of sixteen, of a scalar or a vector of any length, so that a value has the
// same bits in a vector and in a loop over what is left.
V InSixteens(MathBuilder& m, V x, V (*function)(MathBuilder&, V)) {
  constexpr unsigned kLanes = 16;
  auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(m.type);
  const unsigned lanes = vector == nullptr ? 1 : vector->getNumElements();
  if (vector != nullptr && lanes == kLanes) return function(m, x);
  llvm::IRBuilder<>& b = m.b;
  MathBuilder sixteen(b, llvm::FixedVectorType::get(b.getFloatTy(), kLanes));
  if (vector == nullptr) {
    V first = b.CreateInsertElement(llvm::Constant::getNullValue(sixteen.type), x, uint64_t{0});
    return b.CreateExtractElement(function(sixteen, first), uint64_t{0});
  }
  llvm::SmallVector<V, 4> parts;
  for (unsigned first = 0; first < lanes; first += kLanes) {
    llvm::SmallVector<int, kLanes> taken;
    for (unsigned lane = 0; lane < kLanes; ++lane) taken.push_back(std::min(first + lane, lanes - 1));
    parts.push_back(function(sixteen, b.CreateShuffleVector(x, taken)));
  }
  llvm::SmallVector<int, 64> kept;
  for (unsigned lane = 0; lane < lanes; ++lane) kept.push_back(lane);
  return b.CreateShuffleVector(llvm::concatenateVectors(b, parts), kept);
}

V TimesPowerOfTwo(MathBuilder& m, V x, V whole, V n) {
  auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(m.type);
  const bool whole_register = vector != nullptr && vector->getNumElements() == 16;
  return whole_register ? ScaledByPower(m, x, whole) : Scale(m, x, n);
}

// e^x = 2^n 2^(i/32) e^r for x = (n + i/32) ln2 + r, |r| ≤ ln2/64. The sum of `magic` and n + i/32 has i in
// its lowest bits. Where |x| is so large that r is not small or not finite, or x is NaN, n alone decides the
// result, if the polynomial is positive, as it is for |r| < 2: clearing the top bit of r's exponent gives
// such an r and leaves a small one as it is, and, unlike a minimum and a maximum, does not wait for the
// multipliers.
V ExpOfSixteen(MathBuilder& m, V x) {
  const V magic = m.C(kStepMagic);
  V shifted = m.Fma(x, m.C(MathBuilder::kLog2E), magic);
  V steps = m.Sub(shifted, magic);
  V r = m.Fma(steps, m.C(-MathBuilder::kLn2HighF), x);
  r = m.Fma(steps, m.C(-MathBuilder::kLn2LowF), r);
  r = m.FromBits(m.b.CreateAnd(m.Bits(r), m.I(~int64_t{0x40000000})));
  V power = PowerOf(m, m.Bits(shifted));
  V p = m.Fma(r, m.C(0.5), m.C(1.00001466));  // (e^r - 1) / r, Chebyshev: to 2^-24 of e^r
  return ScaledByPower(m, m.Fma(m.Mul(power, r), p, power), steps);
}

// sum + e^x, where e^x = 2^n 2^(i/32) 2^r for z = x log2(e) = n + i/32 + r, 0 ≤ r < 1/32. Rounding z adds an
// error of half its last place times e^x, less than 2^-25. The sum of z and `magic`, rounded down, has i in
// its lowest bits; VREDUCEPS gives r, 0 for an infinity.
V PlusTableExp(MathBuilder& m, V sum, V x) {
  constexpr int kDown = 9, kStepsDown = (5 << 4) | 1;  // rounding; of how many bits below 1
  V z = m.Mul(x, MathBuilder::kLog2E);
  V shifted = m.b.CreateIntrinsic(llvm::Intrinsic::x86_avx512_add_ps_512, llvm::ArrayRef<llvm::Type*>{},
                                  llvm::ArrayRef<V>{z, m.C(kStepMagic), m.b.getInt32(kDown)});
  V r = m.b.CreateIntrinsic(llvm::Intrinsic::x86_avx512_mask_reduce_ps_512, llvm::ArrayRef<llvm::Type*>{},
                            llvm::ArrayRef<V>{z, m.b.getInt32(kStepsDown), z, m.b.getInt16(0xFFFF),
                                              m.b.getInt32(kCurrentRounding)});
  V p = m.Fma(r, m.C(0.24265268), m.C(0.69312376));  // (2^r - 1) / r, to 2^-23.8 of 2^r
  return m.Fma(ScaledByPower(m, PowerOf(m, m.Bits(shifted)), z), m.Fma(p, r, m.C(1.0)), sum);
}

// A polynomial of the fifth degree of the interval's own.
V ErfOfSixteen(MathBuilder& m, V x) {
  V a = m.Abs(x);
  V bounded = m.Sel(m.Gt(a, m.C(kErfEnd)), m.C(kErfEnd), a);  // NaN passes
  V shifted = m.Fma(bounded, m.C(kErfStepInverse), Magic(m));
  V interval = m.Sub(shifted, Magic(m));
  V t = m.Fma(interval, m.C(-kErfStep), bounded);
  V number = m.Bits(shifted);
  V p = LookUp(m, kErfTerms[5], number);
  for (int k = 4; k >= 0; --k) p = m.Fma(p, t, LookUp(m, kErfTerms[k], number));
  return m.CopySign(p, x);
}

V TableExp(MathBuilder& m, V x) { return InSixteens(m, x, ExpOfSixteen); }
V TableErf(MathBuilder& m, V x) { return InSixteens(m, x, ErfOfSixteen); }

}  // namespace

const FloatFunctions MathEmitter::kTableFunctions = {
    .exp = TableExp, .plus_exp = PlusTableExp, .erf = TableErf, .times_power_of_two = TimesPowerOfTwo};

}  // namespace kiln
