// The limits of kernels and of their code in support/compiler_limits.h: what is at one is taken, what is one
// above it is refused by the name of the limit.
#include <cstring>
#include <functional>
#include <string>

#include "compiler/image/flat_image.h"
#include "compiler/image/gpu_image.h"
#include "compiler/ir/kernel_builder.h"
#include "compiler/ir/verify_kernel.h"
#include "compiler/support/compiler_limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kiln {
namespace {

using ::testing::HasSubstr;

// Two buffers, one outer loop, one stage of three ops, three expressions at least.
v1::Kernel ExpKernel() {
  KernelBuilder b;
  const uint32_t n = b.Symbol(0);
  const uint32_t x = b.Buffer(v1::F32, v1::READ, n), y = b.Buffer(v1::F32, v1::WRITE, n);
  b.Outer(n);
  b.BeginStage({});
  b.Store(y, b.Var(0), b.Op(LoopOpcode::kExp, v1::F32, {b.Load(x, b.Var(0))}));
  b.Schedule(1, 1, v1::VECTOR_OUTER_LAST);
  return b.Build();
}

v1::ExprNode* AddExpr(v1::Kernel* k, v1::ExprOp op, int64_t value) {
  v1::ExprNode* node = k->add_exprs();
  node->set_op(op);
  node->set_value(value);
  return node;
}

void AddOps(v1::Kernel* k, size_t count) {
  for (size_t i = 0; i < count; ++i) *k->mutable_stages(0)->add_ops() = k->stages(0).ops(0);
}

struct Limit {
  const char* says;
  size_t most;
  std::function<void(v1::Kernel*, size_t count)> set;
};

TEST(KernelLimits, HoldExactly) {
  const Limit kLimits[] = {
      {"4097 symbols, limit 4096", kGraphSymbolsMax,
       [](v1::Kernel* k, size_t n) { k->set_symbol_count(static_cast<uint32_t>(n)); }},
      {"257 buffers, limit 256", kKernelBuffersMax,
       [](v1::Kernel* k, size_t n) {
         while (k->buffers_size() < static_cast<int>(n)) *k->add_buffers() = k->buffers(0);
       }},
      {"257 stages, limit 256", kKernelStagesMax,
       [](v1::Kernel* k, size_t n) {
         while (k->stages_size() < static_cast<int>(n)) k->add_stages();
       }},
      {"17 loops, limit 16", kKernelLoopsMax,
       [](v1::Kernel* k, size_t n) {
         k->mutable_stages(0)->mutable_inner()->Resize(static_cast<int>(n) - 1, 0);
       }},
      {"20001 ops, limit 20000", kKernelOpsMax, [](v1::Kernel* k, size_t n) { AddOps(k, n - 3); }},
      {"4000001 expressions, limit 4000000", kExprNodesMax,
       [](v1::Kernel* k, size_t n) {
         while (k->exprs_size() < static_cast<int>(n)) AddExpr(k, v1::EXPR_CONST, 0);
       }},
      {"65 arguments, limit 64", kExprArgsMax,
       [](v1::Kernel* k, size_t n) {
         AddExpr(k, v1::EXPR_ADD, 0)->mutable_args()->Resize(static_cast<int>(n), 0);
       }},
      {"reads 65 ops, limit 64", kKernelIndirectsMax,
       [](v1::Kernel* k, size_t n) {
         AddOps(k, n);
         for (size_t i = 0; i < n; ++i) {
           AddExpr(k, v1::EXPR_INDIRECT, static_cast<int64_t>(i));
           v1::ExprNode* sum = AddExpr(k, v1::EXPR_ADD, 0);  // to the sum so far
           sum->add_args(k->exprs_size() - 2);
           sum->add_args(i == 0 ? 0 : k->exprs_size() - 3);
         }
       }},
  };
  for (const Limit& limit : kLimits) {
    v1::Kernel kernel = ExpKernel();
    limit.set(&kernel, limit.most);
    EXPECT_EQ(VerifyKernel(kernel), absl::OkStatus()) << limit.says;
    kernel = ExpKernel();
    limit.set(&kernel, limit.most + 1);
    const absl::Status status = VerifyKernel(kernel);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << limit.says << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(limit.says));
  }
}

TEST(ImageLimits, OfACpusCode) {
  FlatImageHeader header = {};
  std::memcpy(header.magic, kFlatImageMagic, sizeof(kFlatImageMagic));
  header.abi_version = KILN_KERNEL_ABI_VERSION;
  header.header_size = header.text_offset = header.entry_offset = sizeof(header);
  header.text_size = 1;
  std::string image(kFlatImageBytesMax + 1, '\0');
  const auto check = [&](size_t bytes) {
    header.total_size = bytes;
    std::memcpy(image.data(), &header, sizeof(header));
    return CheckFlatImage(absl::string_view(image).substr(0, bytes));
  };
  EXPECT_EQ(check(kFlatImageBytesMax), absl::OkStatus());
  const absl::Status status = check(kFlatImageBytesMax + 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("268435457 bytes, limit 268435456"));
}

TEST(ImageLimits, OfAGpusThreads) {
  GpuImage image;
  image.threads = 32;
  image.ptx = "ptx";
  image.points_per_block = image.threads * kPointsPerThreadMax;
  EXPECT_EQ(ParseGpuImage(SerializeGpuImage(image)).status(), absl::OkStatus());
  image.points_per_block += image.threads;
  const absl::Status status = ParseGpuImage(SerializeGpuImage(image)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("544 points by 32 threads"));
}

}  // namespace
}  // namespace kiln
