// What the emulator of AArch64 tells of a kernel: its results, its failure, and how it ended.
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "compiler/codegen/codegen_backend.h"
#include "compiler/image/flat_image.h"
#include "compiler/ir/kernel_builder.h"
#include "tests/conformance/arm_target.h"
#include "tests/conformance/host_target.h"
#include "tests/conformance/with_emulated_cpu.h"

namespace kiln::testing {
namespace {

// out = x / y of four integers.
std::string Quotients(const v1::Target& target) {
  KernelBuilder b;
  const uint32_t n = b.Const(4);
  const uint32_t x = b.Buffer(v1::I64, v1::READ, n), y = b.Buffer(v1::I64, v1::READ, n);
  const uint32_t out = b.Buffer(v1::I64, v1::WRITE, n);
  b.Outer(n);
  b.BeginStage({});
  b.Store(out, b.Var(0), b.Op(LoopOpcode::kTruncDiv, v1::I64, {b.Load(x, b.Var(0)), b.Load(y, b.Var(0))}));
  b.Schedule(1, 4, v1::VECTOR_OUTER_LAST);
  auto backend = NewCodegenBackend(target);
  EXPECT_TRUE(backend.ok()) << backend.status();
  auto object = (*backend)->Emit(b.Build(), {}, false);
  EXPECT_TRUE(object.ok()) << object.status();
  return object->bytes;
}

std::string Bytes(const std::vector<int64_t>& numbers) {
  return std::string(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(int64_t));
}

class EmulatedCpuTest : public WithEmulatedCpu {
 protected:
  absl::StatusOr<EmulatedReply> Run(int64_t divisor) {
    out_ = Bytes({0, 0, 0, 0});
    std::string x = Bytes({30, 31, 32, -33}), y = Bytes({3, divisor, -8, 3});
    return cpu_->Run({{&x, 0}, {&y, 8}, {&out_, 16}}, {}, {{0, 1}});
  }

  std::string out_;
};

TEST_F(EmulatedCpuTest, TellsResultsAndFailuresOfOneImageAfterAnother) {
  for (const uint64_t place : {0, 64, 4032}) {
    ASSERT_TRUE(cpu_->Load(Quotients(NeonTarget()), place).ok());
    auto reply = Run(2);
    ASSERT_TRUE(reply.ok()) << reply.status();
    EXPECT_EQ(reply->code, KILN_OK);
    EXPECT_EQ(out_, Bytes({10, 15, -4, -11}));
    reply = Run(0);
    ASSERT_TRUE(reply.ok()) << reply.status();
    EXPECT_EQ(reply->code, KILN_INTEGER_DIVISION_BY_ZERO);
    EXPECT_EQ(reply->status.value, 31);
  }
}

TEST_F(EmulatedCpuTest, SaysHowAKernelEndedTheProcess) {
  std::string image = Quotients(NeonTarget());
  FlatImageHeader header;
  std::memcpy(&header, image.data(), sizeof(header));
  std::memset(image.data() + header.text_offset, 0, header.text_size);  // no instruction
  ASSERT_TRUE(cpu_->Load(image, 0).ok());
  const auto reply = Run(2);
  EXPECT_EQ(reply.status().message(), "emulator: ended by Illegal instruction");
  EXPECT_EQ(Run(2).status().code(), absl::StatusCode::kInternal);  // and stays so
}

TEST_F(EmulatedCpuTest, TakesNoCodeOfX86) {
  EXPECT_EQ(cpu_->Load(Quotients(X86Target(/*avx512=*/false)), 0).code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace kiln::testing
