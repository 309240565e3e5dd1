// kiln-worker itself, asked for one kernel from inside its sandbox.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "compiler/codegen/ptx_assembler.h"
#include "compiler/image/gpu_image.h"
#include "compiler/ir/kernel_builder.h"
#include "server/pool/worker_process.h"
#include "server/pool/zygote.h"
#include "tests/conformance/gpu_target.h"

namespace kiln {
namespace {

v1::Frame EmitForGpu() {
  KernelBuilder b;
  const uint32_t n = b.Symbol(0);
  const uint32_t x = b.Buffer(v1::F32, v1::READ, n), y = b.Buffer(v1::F32, v1::WRITE, n);
  b.Outer(n);
  b.BeginStage({});
  b.Store(y, b.Var(0), b.Load(x, b.Var(0)));
  b.Schedule(1, 64, v1::VECTOR_OUTER_LAST);
  v1::Frame frame;
  frame.mutable_emit()->set_kernel(b.Build().SerializeAsString());
  *frame.mutable_emit()->mutable_target() = GpuTarget("sm_90a");
  return frame;
}

TEST(Worker, MakesMachineCodeForAGpuInItsSandbox) {
  if (!HasPtxAssembler()) GTEST_SKIP() << "kiln was built without nvPTXCompiler";
  auto zygote =
      Zygote::Fork({.binary = KILN_WORKER, .args = {absl::StrCat("--memory-bytes=", uint64_t{4} << 30)}});
  ASSERT_TRUE(zygote.ok()) << zygote.status();
  const MonotonicTime deadline = MonotonicAfter(absl::Seconds(60));
  auto worker = WorkerProcess::Spawn(zygote->get(), deadline);
  ASSERT_TRUE(worker.ok()) << worker.status();
  auto reply = (*worker)->Call(EmitForGpu(), FrameWait{deadline, nullptr});
  ASSERT_TRUE(reply.ok()) << reply.status();
  auto image = ParseGpuImage(reply->emit_reply().object());
  ASSERT_TRUE(image.ok()) << image.status() << reply->error().message();
  EXPECT_TRUE(absl::StartsWith(image->cubin, "\177ELF"));
  EXPECT_TRUE(absl::StrContains(image->ptx, ".target sm_90a"));
}

}  // namespace
}  // namespace kiln
