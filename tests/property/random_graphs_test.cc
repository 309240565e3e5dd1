// Random graphs through the whole compiler and the runtime against their right answers: on the reference
// interpreter, and on generated code for x86 and for a GPU where there is one. KILN_FULL=1 runs 2,000 graphs
// instead of 200; KILN_SEED says where to start, KILN_CASES how many.
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>

#include "client/runtime/program.h"
#include "compiler/artifact/plan.h"
#include "compiler/codegen/codegen_backend.h"
#include "compiler/graph/canonical.h"
#include "compiler/ir/half.h"
#include "compiler/support/digest.h"
#include "compiler/support/status_macros.h"
#include "gtest/gtest.h"
#include "tests/conformance/gpu_device.h"
#include "tests/conformance/host_target.h"
#include "tests/property/campaign.h"
#include "tests/property/random_graph.h"
#include "tests/unit/plain_host.h"

namespace kiln::testing {
namespace {

using runtime::Program;
using runtime::Tensor;

// With a gemm, which these graphs leave to the library, or the ReLU of one.
class MatmulHost : public runtime::PlainHost {
 public:
  // Of kernels on `gpu`, or on the CPU where it is nullptr. A GPU's tensors lie in memory of both.
  explicit MatmulHost(GpuDevice* gpu) : gpu_(gpu) {}

  absl::StatusOr<runtime::CallContext> Begin() override {
    return gpu_ == nullptr ? runtime::CallContext() : gpu_->context();
  }
  absl::Status Copy(Tensor to, Tensor from) override {
    KILN_RETURN_IF_ERROR(Wait());
    return PlainHost::Copy(to, from);
  }
  // Until kernels have ended, so that their results can be read.
  absl::Status Wait() { return gpu_ == nullptr ? absl::OkStatus() : gpu_->Wait(); }

  absl::Status Call(const OperatorName& target, const runtime::CallArguments& arguments,
                    absl::Span<Tensor> results, bool into) override {
    KILN_RETURN_IF_ERROR(Wait());
    const bool relu = target == Op::kAddmmActivation;  // that adds nothing
    if (!relu && target != Op::kMm) return PlainHost::Call(target, arguments, results, into);
    Tensor a = arguments.Find(relu ? "mat1" : "self")->tensor;
    Tensor b = arguments.Find("mat2")->tensor;
    int64_t rows = (*Sizes(a))[0], inner = (*Sizes(a))[1], columns = (*Sizes(b))[1];
    if (!into) {
      const int64_t sizes[] = {rows, columns}, strides[] = {columns, 1};
      auto made = Empty(*Type(a), sizes, strides);
      if (!made.ok()) return made.status();
      results[0] = *made;
    }
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        double sum = 0;
        for (int64_t k = 0; k < inner; ++k) sum += Element(a, At(a, i, k)) * Element(b, At(b, k, j));
        SetElement(results[0], At(results[0], i, j), relu ? std::max(sum, 0.0) : sum);
      }
    }
    return absl::OkStatus();
  }

  // An element, by its place from the tensor's first one.
  double Element(Tensor t, int64_t at) {
    switch (*Type(t)) {
      case v1::I64: return static_cast<double>(static_cast<int64_t*>(*Data(t))[at]);
      case v1::F16: return FromF16(static_cast<uint16_t*>(*Data(t))[at]);
      case v1::BF16: return FromBF16(static_cast<uint16_t*>(*Data(t))[at]);
      default: return static_cast<float*>(*Data(t))[at];
    }
  }
  void SetElement(Tensor t, int64_t at, double value) {
    const float rounded = static_cast<float>(value);
    switch (*Type(t)) {
      case v1::I64: static_cast<int64_t*>(*Data(t))[at] = static_cast<int64_t>(value); break;
      case v1::F16: static_cast<uint16_t*>(*Data(t))[at] = ToF16(rounded); break;
      case v1::BF16: static_cast<uint16_t*>(*Data(t))[at] = ToBF16(rounded); break;
      default: static_cast<float*>(*Data(t))[at] = rounded;
    }
  }

 protected:
  std::shared_ptr<char> Allocate(size_t bytes) override {
    if (gpu_ == nullptr) return PlainHost::Allocate(bytes);
    auto memory = gpu_->Allocate(bytes);
    EXPECT_TRUE(memory.ok()) << memory.status();
    return memory.ok() ? *memory : PlainHost::Allocate(bytes);
  }

 private:
  int64_t At(Tensor t, int64_t i, int64_t j) { return i * (*Strides(t))[0] + j * (*Strides(t))[1]; }

  GpuDevice* const gpu_;
};

v1::PlanRequest RequestOf(const RandomGraph& random) {
  v1::PlanRequest request;
  auto canonical = Canonicalize(random.graph);
  EXPECT_TRUE(canonical.ok()) << canonical.status();
  if (!canonical.ok()) return request;
  request.set_graph(canonical->bytes);
  request.mutable_sections()->set_facts(random.facts.SerializeAsString());
  auto hints = CanonicalHints(*canonical, random.hints);
  if (hints.ok()) *request.mutable_hints() = *hints;
  return request;
}

RandomGraphOptions OptionsOf(uint64_t seed, v1::DeviceType device = v1::CPU) {
  RandomGraphOptions options;
  options.device = device;
  options.nodes = 4 + static_cast<int>(seed % 24);
  options.symbolic = seed % 3 == 1;
  options.mutation = seed % 5 == 2;
  if (seed % 4 == 3) options.dtype = seed % 8 == 3 ? v1::F16 : v1::BF16;
  return options;
}

class Runner {
 public:
  // Graphs of tensors on `device`, on the interpreter without `backend`, otherwise with its code: on `gpu`,
  // or on the CPU where that is nullptr.
  Runner(v1::DeviceType device, std::unique_ptr<CodegenBackend> backend, GpuDevice* gpu)
      : device_(device), backend_(std::move(backend)), gpu_(gpu) {}

  void Check(uint64_t seed) {
    SCOPED_TRACE("KILN_SEED=" + std::to_string(seed));
    RandomGraphOptions options = OptionsOf(seed, device_);
    RandomGraph random = MakeRandomGraph(seed, options);
    if (random.outputs.empty() && random.mutated.empty()) return;
    options.round_each_node = true;
    const RandomGraph rounded = MakeRandomGraph(seed, options);
    if (rounded.graph.SerializeAsString() != random.graph.SerializeAsString()) return;
    v1::PlanRequest request = RequestOf(random);
    auto reply = PlanGraph(request);
    ASSERT_TRUE(reply.ok()) << reply.status() << "\n" << random.graph.ShortDebugString();
    kernels_ += reply->statistics().kernels();
    v1::Manifest manifest;
    runtime::ObjectMap objects;
    ASSERT_NO_FATAL_FAILURE(Emit(*reply, &manifest, &objects));
    MatmulHost host(gpu_);
    auto program = Program::Load(manifest, objects, backend_ != nullptr ? "" : "all", &host);
    ASSERT_TRUE(program.ok()) << program.status() << "\n" << reply->program().DebugString();
    std::vector<runtime::Value> inputs, outputs;
    std::vector<Tensor> kept;
    for (const RandomTensor& tensor : random.inputs) {
      runtime::Value value;
      value.tensor = Import(host, tensor);
      inputs.push_back(value);
      kept.push_back(*host.Share(value.tensor));
    }
    absl::Status status = (*program)->Run(inputs, outputs);
    ASSERT_TRUE(status.ok()) << status;
    status = host.Wait();
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_EQ(outputs.size(), random.outputs.size());
    for (size_t i = 0; i < outputs.size(); ++i) {
      Compare(host, outputs[i].tensor, random.outputs[i], Slack(random.outputs[i], rounded.outputs[i]),
              "output " + std::to_string(i));
      host.Release(outputs[i].tensor);
    }
    for (size_t i = 0; i < kept.size(); ++i) {
      auto mutated = random.mutated.find(i);
      const bool written = mutated != random.mutated.end();
      const RandomTensor& after = written ? mutated->second : random.inputs[i];
      const RandomTensor& after_rounded = written ? rounded.mutated.at(i) : after;
      Compare(host, kept[i], after, Slack(after, after_rounded), "input " + std::to_string(i));
      host.Release(kept[i]);
    }
    EXPECT_EQ(host.live(), 0);
  }

  int64_t kernels() const { return kernels_; }

 private:
  void Emit(const v1::PlanReply& reply, v1::Manifest* manifest, runtime::ObjectMap* objects) {
    *manifest->mutable_program() = reply.program();
    for (const v1::PlannedKernel& planned : reply.kernels()) {
      v1::ManifestKernel* entry = manifest->add_kernels();
      std::string digest = Sha256(planned.kernel());
      (*objects)[digest] = std::make_shared<const std::string>(planned.kernel());
      entry->mutable_loop_ir()->set_digest(digest);
      entry->mutable_loop_ir()->set_kind(v1::LOOP_IR);
      if (backend_ == nullptr) continue;
      v1::Kernel kernel;
      ASSERT_TRUE(kernel.ParseFromString(planned.kernel()));
      auto object = backend_->Emit(kernel, {}, false);
      ASSERT_TRUE(object.ok()) << object.status() << "\n" << kernel.DebugString();
      digest = Sha256(object->bytes);
      entry->mutable_object()->set_digest(digest);
      entry->mutable_object()->set_kind(object->kind);
      (*objects)[digest] = std::make_shared<const std::string>(std::move(object->bytes));
    }
  }

  static int64_t OffsetOf(const std::vector<int64_t>& sizes, absl::Span<const int64_t> strides,
                          int64_t flat) {
    int64_t offset = 0;
    for (size_t d = sizes.size(); d-- > 0;) {
      offset += flat % sizes[d] * strides[d];
      flat /= sizes[d];
    }
    return offset;
  }

  static Tensor Import(MatmulHost& host, const RandomTensor& tensor) {
    Tensor made = *host.Empty(tensor.dtype, tensor.sizes, tensor.strides);
    for (size_t i = 0; i < tensor.data.size(); ++i) {
      int64_t at = OffsetOf(tensor.sizes, tensor.strides, static_cast<int64_t>(i));
      host.SetElement(made, at, tensor.data[i]);
    }
    return made;
  }

  // How far an element may be from `want`: what rounding after each node does to the tensor, for halves.
  static double Slack(const RandomTensor& want, const RandomTensor& rounded) {
    if (want.dtype == v1::F32) return 2e-4;
    double most = 0;
    for (size_t i = 0; i < want.data.size(); ++i) {
      most = std::max(most, std::abs(want.data[i] - rounded.data[i]));
    }
    return 4 * most + (want.dtype == v1::F16 ? 0x1p-10 : 0x1p-7);
  }

  static void Compare(MatmulHost& host, Tensor got, const RandomTensor& want, double slack,
                      const std::string& what) {
    ASSERT_EQ(std::vector<int64_t>(host.Sizes(got)->begin(), host.Sizes(got)->end()), want.sizes) << what;
    if (want.dtype == v1::I64) return;
    ASSERT_EQ(*host.Type(got), want.dtype) << what;
    for (size_t d = 0; d < want.sizes.size(); ++d) {
      int64_t stride = want.sizes[d] == 1 ? (*host.Strides(got))[d] : want.strides[d];
      EXPECT_EQ((*host.Strides(got))[d], stride) << what << " dimension " << d;
    }
    for (size_t i = 0; i < want.data.size(); ++i) {
      int64_t at = OffsetOf(want.sizes, *host.Strides(got), static_cast<int64_t>(i));
      ASSERT_NEAR(host.Element(got, at), want.data[i], slack * (1 + std::abs(want.data[i])))
          << what << " element " << i;
    }
  }

  const v1::DeviceType device_;
  const std::unique_ptr<CodegenBackend> backend_;
  GpuDevice* const gpu_;
  int64_t kernels_ = 0;
};

void RunAll(v1::DeviceType device, const v1::Target* target, GpuDevice* gpu) {
  std::unique_ptr<CodegenBackend> backend;
  if (target != nullptr) {
    auto made = NewCodegenBackend(*target);
    ASSERT_TRUE(made.ok()) << made.status();
    backend = *std::move(made);
  }
  Runner runner(device, std::move(backend), gpu);
  const auto [first, cases] = CampaignFromEnv(1, 200, 2000);
  for (uint64_t i = 0; i < cases; ++i) {
    runner.Check(first + i);
    if (::testing::Test::HasFatalFailure()) return;
  }
  EXPECT_GT(runner.kernels(), 0);
}

TEST(RandomGraphs, InterpreterAgreesWithTheReference) { RunAll(v1::CPU, nullptr, nullptr); }

// What is planned for a GPU needs none to be checked, but for its code.
TEST(RandomGraphs, PlanForGpuAgreesWithTheReference) { RunAll(v1::CUDA, nullptr, nullptr); }

TEST(RandomGraphs, X86AgreesWithTheReference) {
  const v1::Target target = X86Target(HostHasAvx512());
  RunAll(v1::CPU, &target, nullptr);
}

TEST(RandomGraphs, GpuAgreesWithTheReference) {
  auto gpu = GpuDevice::Find();
  if (absl::IsUnavailable(gpu.status())) GTEST_SKIP() << gpu.status().message();
  ASSERT_TRUE(gpu.ok()) << gpu.status();
  RunAll(v1::CUDA, &(*gpu)->target(), *gpu);
}

TEST(RandomGraphs, SameRequestSameBytes) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    v1::PlanRequest request = RequestOf(MakeRandomGraph(seed, OptionsOf(seed)));
    auto first = PlanGraph(request);
    auto second = PlanGraph(request);
    ASSERT_TRUE(first.ok()) << "seed " << seed << ": " << first.status();
    ASSERT_TRUE(second.ok());
    EXPECT_EQ(first->SerializeAsString(), second->SerializeAsString()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace kiln::testing
