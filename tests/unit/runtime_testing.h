// A fixture for tests of the runtime: programs as text with kernels compiled for this machine, on a host
// without torch. Threads: one.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "client/runtime/program.h"
#include "compiler/codegen/codegen_backend.h"
#include "compiler/ir/kernel_builder.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/digest.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "tests/unit/plain_host.h"

namespace kiln::runtime {

class RuntimeTest : public ::testing::Test {
 protected:
  // A manifest from a text program; kernels are added with AddKernel.
  void Parse(const std::string& text) {
    v1::Program program;
    ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &program));
    Use(program);
  }
  void Use(const v1::Program& program) {
    *manifest_.mutable_program() = program;
    manifest_.mutable_program()->set_format_version(kProgramFormatVersion);
  }
  void AddKernel(const v1::Kernel& kernel) {
    v1::Target target;
    target.set_triple("x86_64-linux-gnu");
    for (const char* feature : {"avx2", "f16c", "fma"}) target.add_features(feature);
    auto backend = NewCodegenBackend(target);
    ASSERT_TRUE(backend.ok()) << backend.status();
    auto object = (*backend)->Emit(kernel, {}, false);
    ASSERT_TRUE(object.ok()) << object.status();
    const std::string digest = Sha256(object->bytes);
    objects_[digest] = std::make_shared<const std::string>(object->bytes);
    v1::ManifestKernel* entry = manifest_.add_kernels();
    entry->mutable_object()->set_digest(digest);
    entry->mutable_object()->set_kind(object->kind);
    const std::string loop_ir = kernel.SerializeAsString();
    entry->mutable_loop_ir()->set_digest(Sha256(loop_ir));
    objects_[Sha256(loop_ir)] = std::make_shared<const std::string>(loop_ir);
  }
  // y[i] = x[i] + x[i] for i < symbol 0.
  void AddDouble() {
    KernelBuilder b;
    const uint32_t n = b.Symbol(0);
    const uint32_t x = b.Buffer(v1::F32, v1::READ, n), y = b.Buffer(v1::F32, v1::WRITE, n);
    b.Outer(n);
    b.BeginStage({});
    const uint32_t value = b.Load(x, b.Var(0));
    b.Store(y, b.Var(0), b.Op(LoopOpcode::kAdd, v1::F32, {value, value}));
    b.Schedule(1, 64, v1::VECTOR_OUTER_LAST);
    AddKernel(b.Build());
  }
  Value NewTensor(std::vector<float> values) {
    const int64_t size = values.size(), stride = 1;
    Value value;
    value.tensor = *host_.Empty(v1::F32, {&size, 1}, {&stride, 1});
    std::copy(values.begin(), values.end(), static_cast<float*>(*host_.Data(value.tensor)));
    return value;
  }
  std::vector<float> Floats(const Value& value) {
    const auto* data = static_cast<const float*>(*host_.Data(value.tensor));
    return {data, data + (*host_.Sizes(value.tensor))[0]};
  }
  absl::StatusOr<std::shared_ptr<const Program>> Load(const std::string& interpret = "") {
    return Program::Load(manifest_, objects_, interpret, &host_);
  }
  void ReleaseAll(std::vector<Value>& values) {
    for (Value& value : values) {
      if (value.tensor != nullptr) host_.Release(value.tensor);
    }
    values.clear();
  }

  PlainHost host_;
  v1::Manifest manifest_;
  ObjectMap objects_;
};

}  // namespace kiln::runtime
