// The runtime: loading checks, sizes, memory, kernels, library calls, errors.
#include <cmath>
#include <cstring>
#include <numeric>
#include <thread>

#include "client/runtime/program.h"
#include "compiler/codegen/codegen_backend.h"
#include "compiler/ir/kernel_builder.h"
#include "compiler/support/digest.h"
#include "compiler/support/limits.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "tests/unit/plain_host.h"

namespace kiln::runtime {
namespace {

class RuntimeTest : public ::testing::Test {
 protected:
  // A manifest from a text program; kernels are added with AddKernel.
  void Parse(const std::string& text) {
    manifest_.mutable_program()->Clear();
    ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(text, manifest_.mutable_program()));
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
    std::copy(values.begin(), values.end(), static_cast<float*>(host_.Data(value.tensor)));
    return value;
  }
  std::vector<float> Floats(const Value& value) {
    const auto* data = static_cast<const float*>(host_.Data(value.tensor));
    return {data, data + host_.Sizes(value.tensor)[0]};
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

// One dynamic input, doubled twice, the first result's storage taken over by the second.
constexpr char kDoubleTwice[] = R"pb(
  symbols {
    kind: SYMBOL_INT
    min: 0
    max: 1000000
    binding { source: INPUT_SIZE input: 0 dim: 0 }
  }
  exprs { op: EXPR_SYMBOL value: 0 }
  exprs { op: EXPR_CONST value: 64 }
  exprs {
    op: EXPR_CEILDIV
    args: [ 0, 1 ]
  }
  inputs {
    tensor {
      dtype: F32
      device { type: CPU }
      sizes { expr: 0 }
      strides { value: 1 }
    }
  }
  buffers {
    kind: INPUT
    dtype: F32
    device { type: CPU }
    sizes { expr: 0 }
    strides { value: 1 }
    input: 0
  }
  buffers {
    kind: OWNED
    dtype: F32
    device { type: CPU }
    sizes { expr: 0 }
    strides { value: 1 }
  }
  buffers {
    kind: OWNED
    dtype: F32
    device { type: CPU }
    sizes { expr: 0 }
    strides { value: 1 }
  }
  steps { alloc { buffer: 1 reuse: -1 } }
  steps {
    launch {
      kernel: 0
      buffers: [ 0, 1 ]
      symbols { expr: 0 }
      units { expr: 2 }
    }
  }
  steps { free { buffer: 0 } }
  steps { alloc { buffer: 2 reuse: 1 } }
  steps {
    launch {
      kernel: 0
      buffers: [ 1, 2 ]
      symbols { expr: 0 }
      units { expr: 2 }
    }
  }
  outputs { buffer: 2 }
  outputs { sym_int { expr: 0 } }
  outputs { none: true }
)pb";

TEST_F(RuntimeTest, RunsDynamicSizesAndReusesStorage) {
  Parse(kDoubleTwice);
  AddDouble();
  auto program = Load();
  ASSERT_TRUE(program.ok()) << program.status();
  for (size_t size : {0, 1, 7, 64, 65, 100000}) {
    std::vector<float> values(size);
    std::iota(values.begin(), values.end(), 0.5f);
    const int64_t before = host_.allocations();
    std::vector<Value> outputs;
    const Value input = NewTensor(values);
    ASSERT_TRUE((*program)->Run({&input, 1}, outputs).ok());
    EXPECT_EQ(host_.allocations() - before, 2);  // the input and one buffer
    ASSERT_EQ(outputs.size(), 3u);
    for (float& value : values) value *= 4;
    EXPECT_EQ(Floats(outputs[0]), values);
    EXPECT_EQ(outputs[1].number, static_cast<int64_t>(size));
    EXPECT_TRUE(outputs[2].tensor == nullptr && !outputs[2].is_number);
    ReleaseAll(outputs);
    EXPECT_EQ(host_.live(), 0);
  }
}

TEST_F(RuntimeTest, IsReentrant) {
  Parse(kDoubleTwice);
  AddDouble();
  auto program = Load();
  ASSERT_TRUE(program.ok());
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        std::vector<Value> outputs;
        const Value input = NewTensor(std::vector<float>(100 + t, t));
        ASSERT_TRUE((*program)->Run({&input, 1}, outputs).ok());
        EXPECT_EQ(Floats(outputs[0]), std::vector<float>(100 + t, 4.0f * t));
        ReleaseAll(outputs);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(host_.live(), 0);
}

TEST_F(RuntimeTest, RefusesOtherInputs) {
  Parse(kDoubleTwice);
  AddDouble();
  auto program = Load();
  ASSERT_TRUE(program.ok());
  std::vector<Value> outputs;
  Value number;
  number.is_number = true;
  EXPECT_EQ((*program)->Run({&number, 1}, outputs).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ((*program)->Run({}, outputs).code(), absl::StatusCode::kFailedPrecondition);
  const int64_t sizes[] = {2, 3}, strides[] = {3, 1};
  Value matrix;
  matrix.tensor = *host_.Empty(v1::F32, sizes, strides);
  EXPECT_EQ((*program)->Run({&matrix, 1}, outputs).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(host_.live(), 0);
}

TEST_F(RuntimeTest, RefusesBrokenPrograms) {
  AddDouble();
  const std::vector<std::pair<const char*, const char*>> broken = {
      {"use after free", "steps { free { buffer: 0 } } outputs { buffer: 0 }"},
      {"never allocated", "outputs { buffer: 1 }"},
      {"unknown buffer", "steps { free { buffer: 9 } }"},
      {"unknown kernel", "steps { launch { kernel: 5 } }"},
      {"allocated twice", "steps { alloc { buffer: 1 reuse: -1 } } steps { alloc { buffer: 1 reuse: -1 } }"},
      {"unknown symbol", "steps { let { symbol: 3 expr { value: 1 } } }"},
      {"unknown expression", "outputs { sym_int { expr: 7 } }"},
      {"later expression", "exprs { op: EXPR_NOT args: 0 }"}};
  const std::string head = R"pb(
    inputs {
      tensor {
        dtype: F32
        device { type: CPU }
        sizes { value: 4 }
        strides { value: 1 }
      }
    }
    buffers {
      kind: INPUT
      dtype: F32
      device { type: CPU }
      sizes { value: 4 }
      strides { value: 1 }
      input: 0
    }
    buffers {
      kind: OWNED
      dtype: F32
      device { type: CPU }
      sizes { value: 4 }
      strides { value: 1 }
    }
  )pb";
  for (const auto& [what, text] : broken) {
    Parse(head + text);
    EXPECT_EQ(Load().status().code(), absl::StatusCode::kInvalidArgument) << what;
  }
  Parse(head);
  manifest_.mutable_program()->set_format_version(kProgramFormatVersion + 1);
  EXPECT_EQ(Load().status().code(), absl::StatusCode::kUnimplemented);
}

TEST_F(RuntimeTest, CopiesResultsOfAnotherLayout) {
  Parse(R"pb(
    inputs {
      tensor {
        dtype: F32
        device { type: CPU }
        sizes { value: 2 }
        sizes { value: 3 }
        strides { value: 3 }
        strides { value: 1 }
      }
    }
    buffers {
      kind: INPUT
      dtype: F32
      device { type: CPU }
      sizes { value: 2 }
      sizes { value: 3 }
      strides { value: 3 }
      strides { value: 1 }
      input: 0
    }
    buffers {
      kind: OWNED
      dtype: F32
      device { type: CPU }
      sizes { value: 2 }
      sizes { value: 3 }
      strides { value: 3 }
      strides { value: 1 }
    }
    buffers {
      kind: VIEW
      dtype: F32
      device { type: CPU }
      sizes { value: 2 }
      strides { value: 3 }
      storage_offset { value: 1 }
      base: 1
    }
    steps {
      call {
        target: "test.transposed.default"
        args {
          name: "self"
          value { as_tensor: 0 }
        }
        results: 1
      }
    }
    outputs { buffer: 1 }
    outputs { buffer: 2 }
  )pb");
  auto program = Load();
  ASSERT_TRUE(program.ok()) << program.status();
  const int64_t sizes[] = {2, 3}, strides[] = {3, 1};
  Value input;
  input.tensor = *host_.Empty(v1::F32, sizes, strides);
  for (int i = 0; i < 6; ++i) static_cast<float*>(host_.Data(input.tensor))[i] = i;
  std::vector<Value> outputs;
  ASSERT_TRUE((*program)->Run({&input, 1}, outputs).ok());
  EXPECT_EQ((*program)->counts().stride_copies.load(), 1u);
  EXPECT_EQ(host_.Strides(outputs[0].tensor)[0], 3);
  EXPECT_EQ(static_cast<float*>(host_.Data(outputs[0].tensor))[4], 4);
  EXPECT_EQ(static_cast<float*>(host_.Data(outputs[1].tensor))[0], 1);
  ReleaseAll(outputs);
  EXPECT_EQ(host_.live(), 0);
}

// Copies the second row of its input; `into` says whether into a buffer that stands ready.
std::string CopyOfRow(bool into) {
  return absl::StrCat(R"pb(
                        inputs {
                          tensor {
                            dtype: F32
                            device { type: CPU }
                            sizes { value: 2 }
                            sizes { value: 3 }
                            strides { value: 3 }
                            strides { value: 1 }
                          }
                        }
                        buffers {
                          kind: INPUT
                          dtype: F32
                          device { type: CPU }
                          sizes { value: 2 }
                          sizes { value: 3 }
                          strides { value: 3 }
                          strides { value: 1 }
                          input: 0
                        }
                        buffers {
                          kind: VIEW
                          dtype: F32
                          device { type: CPU }
                          sizes { value: 3 }
                          strides { value: 1 }
                          storage_offset { value: 3 }
                          base: 0
                        }
                        buffers {
                          kind: OWNED
                          dtype: F32
                          device { type: CPU }
                          sizes { value: 3 }
                          strides { value: 1 }
                        }
                        outputs { buffer: 2 }
                      )pb",
                      into ? "steps { alloc { buffer: 2 reuse: -1 } }" : "",
                      R"pb(
                        steps { call { target: "test.copy.default"
                                       args {
                                         name: "self"
                                         value { as_tensor: 1 }
                                       }
                                       results: 2
                      )pb",
                      into ? "into_results: true } }" : "} }");
}

TEST_F(RuntimeTest, CallsInMemoryWithoutHandles) {
  for (const bool into : {false, true}) {
    for (const bool in_memory : {false, true}) {
      Parse(CopyOfRow(into));
      auto program = Load();
      ASSERT_TRUE(program.ok()) << program.status();
      host_.set_in_memory(in_memory);
      const int64_t sizes[] = {2, 3}, strides[] = {3, 1};
      Value input;
      input.tensor = *host_.Empty(v1::F32, sizes, strides);
      for (int i = 0; i < 6; ++i) static_cast<float*>(host_.Data(input.tensor))[i] = i;
      const int64_t views = host_.views();
      std::vector<Value> outputs;
      ASSERT_TRUE((*program)->Run({&input, 1}, outputs).ok());
      EXPECT_EQ(host_.views() - views, in_memory ? 0 : 1);
      EXPECT_EQ((*program)->counts().library_calls.load(), 1u);
      for (int i = 0; i < 3; ++i) EXPECT_EQ(static_cast<float*>(host_.Data(outputs[0].tensor))[i], 3 + i);
      ReleaseAll(outputs);
      EXPECT_EQ(host_.live(), 0);
    }
  }
}

// Copies the input, [2, 3], as six numbers into memory that held it in its own layout, and back again.
constexpr char kReuseInAnotherLayout[] = R"pb(
  inputs {
    tensor {
      dtype: F32
      device { type: CPU }
      sizes { value: 2 }
      sizes { value: 3 }
      strides { value: 3 }
      strides { value: 1 }
    }
  }
  buffers {
    kind: INPUT
    dtype: F32
    device { type: CPU }
    sizes { value: 2 }
    sizes { value: 3 }
    strides { value: 3 }
    strides { value: 1 }
  }
  buffers {
    kind: OWNED
    dtype: F32
    device { type: CPU }
    sizes { value: 2 }
    sizes { value: 3 }
    strides { value: 3 }
    strides { value: 1 }
  }
  buffers {
    kind: VIEW
    dtype: F32
    device { type: CPU }
    sizes { value: 6 }
    strides { value: 1 }
    base: 0
  }
  buffers {
    kind: OWNED
    dtype: F32
    device { type: CPU }
    sizes { value: 6 }
    strides { value: 1 }
  }
  buffers {
    kind: OWNED
    dtype: F32
    device { type: CPU }
    sizes { value: 2 }
    sizes { value: 3 }
    strides { value: 3 }
    strides { value: 1 }
  }
  steps { alloc { buffer: 1 reuse: -1 } }
  steps {
    call {
      target: "test.copy.default"
      args {
        name: "self"
        value { as_tensor: 0 }
      }
      results: 1
      into_results: true
    }
  }
  steps { alloc { buffer: 3 reuse: 1 } }
  steps {
    call {
      target: "test.copy.default"
      args {
        name: "self"
        value { as_tensor: 2 }
      }
      results: 3
      into_results: true
    }
  }
  steps { alloc { buffer: 4 reuse: 3 } }
  steps {
    call {
      target: "test.copy.default"
      args {
        name: "self"
        value { as_tensor: 0 }
      }
      results: 4
      into_results: true
    }
  }
  outputs { buffer: 4 }
)pb";

TEST_F(RuntimeTest, ReusesStorageInAnotherLayoutWithoutHandles) {
  for (const bool in_memory : {false, true}) {
    Parse(kReuseInAnotherLayout);
    auto program = Load();
    ASSERT_TRUE(program.ok()) << program.status();
    host_.set_in_memory(in_memory);
    const int64_t sizes[] = {2, 3}, strides[] = {3, 1};
    Value input;
    input.tensor = *host_.Empty(v1::F32, sizes, strides);
    for (int i = 0; i < 6; ++i) static_cast<float*>(host_.Data(input.tensor))[i] = i;
    const int64_t views = host_.views(), allocations = host_.allocations();
    std::vector<Value> outputs;
    ASSERT_TRUE((*program)->Run({&input, 1}, outputs).ok());
    EXPECT_EQ(host_.allocations() - allocations, 1);
    // The output's own; of a call with handles also its argument's and results'.
    EXPECT_EQ(host_.views() - views, in_memory ? 1 : 4);
    EXPECT_EQ(host_.Sizes(outputs[0].tensor), absl::MakeConstSpan(sizes));
    EXPECT_EQ(host_.Strides(outputs[0].tensor), absl::MakeConstSpan(strides));
    for (int i = 0; i < 6; ++i) EXPECT_EQ(static_cast<float*>(host_.Data(outputs[0].tensor))[i], i);
    ReleaseAll(outputs);
    EXPECT_EQ(host_.live(), 0);
  }
}

// Doubles its input, [2, 3] in row-major order, in place; returns it and a view of its second row.
constexpr char kDoubleInPlace[] = R"pb(
  inputs {
    tensor {
      dtype: F32
      device { type: CPU }
      sizes { value: 2 }
      sizes { value: 3 }
      strides { value: 3 }
      strides { value: 1 }
    }
    written: true
  }
  buffers {
    kind: INPUT
    dtype: F32
    device { type: CPU }
    sizes { value: 2 }
    sizes { value: 3 }
    strides { value: 3 }
    strides { value: 1 }
    input: 0
  }
  buffers {
    kind: VIEW
    dtype: F32
    device { type: CPU }
    sizes { value: 3 }
    strides { value: 1 }
    storage_offset { value: 3 }
    base: 0
  }
  steps {
    launch {
      kernel: 0
      buffers: [ 0, 0 ]
      symbols { value: 6 }
      units { value: 1 }
    }
  }
  outputs { buffer: 0 }
  outputs { buffer: 1 }
)pb";

class WrittenInputTest : public RuntimeTest {
 protected:
  // Runs `text` on 1 … 6 in memory order, of which `strides` make [2, 3]; what is in that memory afterwards.
  std::vector<float> MemoryAfter(const std::string& text, absl::Span<const int64_t> strides) {
    const int64_t sizes[] = {2, 3};
    Parse(text);
    AddDouble();
    auto program = Load();
    EXPECT_TRUE(program.ok()) << program.status();
    Value input;
    input.tensor = *host_.Empty(v1::F32, sizes, strides);
    float* memory = static_cast<float*>(host_.Data(input.tensor));
    std::iota(memory, memory + 6, 1.0f);
    Tensor mine = *host_.Share(input.tensor);
    status_ = (*program)->Run({&input, 1}, outputs_);
    copies_ = (*program)->counts().stride_copies.load();
    std::vector<float> after(memory, memory + 6);
    same_memory_ = !outputs_.empty() && host_.Data(outputs_[0].tensor) == memory;
    if (outputs_.size() > 1) {
      const float* row = static_cast<const float*>(host_.Data(outputs_[1].tensor));
      second_row_.assign(row, row + 3);
    }
    ReleaseAll(outputs_);
    host_.Release(mine);
    EXPECT_EQ(host_.live(), 0);
    return after;
  }

  static constexpr int64_t kRows[] = {3, 1}, kColumns[] = {1, 2};
  const std::vector<float> once_ = {1, 2, 3, 4, 5, 6}, doubled_ = {2, 4, 6, 8, 10, 12};
  std::vector<Value> outputs_;
  absl::Status status_;
  uint64_t copies_ = 0;
  bool same_memory_ = false;
  std::vector<float> second_row_;
};

TEST_F(WrittenInputTest, IsWrittenInPlaceInTheLayoutCompiledFor) {
  EXPECT_EQ(MemoryAfter(kDoubleInPlace, kRows), doubled_);
  EXPECT_TRUE(status_.ok()) << status_;
  EXPECT_EQ(copies_, 0u);
  EXPECT_TRUE(same_memory_);
  EXPECT_EQ(second_row_, std::vector<float>({8, 10, 12}));
}

TEST_F(WrittenInputTest, IsCopiedBackInAnotherLayout) {
  EXPECT_EQ(MemoryAfter(kDoubleInPlace, kColumns), doubled_);
  EXPECT_TRUE(status_.ok()) << status_;
  EXPECT_EQ(copies_, 2u);  // there and back
  EXPECT_TRUE(same_memory_);
  EXPECT_EQ(second_row_, std::vector<float>({4, 8, 12}));
}

TEST_F(WrittenInputTest, IsCopiedBackAfterItsBufferIsFreed) {
  std::string freed = kDoubleInPlace;
  freed.resize(freed.find("outputs"));
  freed += "steps { free { buffer: 0 } }";
  EXPECT_EQ(MemoryAfter(freed, kColumns), doubled_);
}

// The flag is what does it: without it the stores stay in the copy.
TEST_F(WrittenInputTest, LosesTheStoresWhenNotMarked) {
  std::string unmarked = kDoubleInPlace;
  unmarked.erase(unmarked.find("written: true"), std::strlen("written: true"));
  EXPECT_EQ(MemoryAfter(unmarked, kColumns), once_);
  EXPECT_EQ(copies_, 1u);
}

TEST_F(WrittenInputTest, IsLeftAloneWhenTheProgramFails) {
  std::string failing = kDoubleInPlace;
  failing += R"pb(exprs { op: EXPR_CONST value: 0 }
                  steps { check { condition: 0 message: "no" } })pb";
  EXPECT_EQ(MemoryAfter(failing, kColumns), once_);
  EXPECT_EQ(status_.code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(RuntimeTest, ReportsAnIndexOutOfRange) {
  KernelBuilder b;
  const uint32_t three = b.Const(3), five = b.Const(5);
  const uint32_t index = b.Buffer(v1::I64, v1::READ, three), x = b.Buffer(v1::F32, v1::READ, five),
                 y = b.Buffer(v1::F32, v1::WRITE, three);
  b.Outer(three);
  b.BeginStage({});
  const uint32_t checked = b.CheckIndex(b.Load(index, b.Var(0)), five);
  b.Store(y, b.Var(0), b.Load(x, b.Indirect(checked)));
  b.Schedule(0, 1, v1::VECTOR_NONE);
  AddKernel(b.Build());
  Parse(R"pb(
    inputs {
      tensor {
        dtype: I64
        device { type: CPU }
        sizes { value: 3 }
        strides { value: 1 }
      }
    }
    inputs {
      tensor {
        dtype: F32
        device { type: CPU }
        sizes { value: 5 }
        strides { value: 1 }
      }
    }
    buffers {
      kind: INPUT
      dtype: I64
      device { type: CPU }
      sizes { value: 3 }
      strides { value: 1 }
      input: 0
    }
    buffers {
      kind: INPUT
      dtype: F32
      device { type: CPU }
      sizes { value: 5 }
      strides { value: 1 }
      input: 1
    }
    buffers {
      kind: OWNED
      dtype: F32
      device { type: CPU }
      sizes { value: 3 }
      strides { value: 1 }
    }
    steps { alloc { buffer: 2 reuse: -1 } }
    steps {
      launch {
        kernel: 0
        buffers: [ 0, 1, 2 ]
        units { value: 1 }
      }
    }
    outputs { buffer: 2 }
  )pb");
  auto program = Load();
  ASSERT_TRUE(program.ok()) << program.status();
  for (const int64_t bad : {int64_t{1}, int64_t{5}, int64_t{-6}}) {
    const int64_t size = 3, stride = 1;
    Value inputs[2];
    inputs[0].tensor = *host_.Empty(v1::I64, {&size, 1}, {&stride, 1});
    inputs[1] = NewTensor({0, 10, 20, 30, 40});
    const int64_t indices[] = {-1, bad, 0};
    std::memcpy(host_.Data(inputs[0].tensor), indices, sizeof indices);
    std::vector<Value> outputs;
    const absl::Status status = (*program)->Run(inputs, outputs);
    if (bad == 1) {
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_EQ(Floats(outputs[0]), (std::vector<float>{40, 10, 0}));
    } else {
      EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange) << status;
    }
    ReleaseAll(outputs);
    EXPECT_EQ(host_.live(), 0);
  }
}

TEST_F(RuntimeTest, DividesByZeroOnlyWhereUsed) {
  // where(s0 != 0, 8 // s0, -1)
  Parse(R"pb(
    symbols {
      kind: SYMBOL_INT
      binding { source: INPUT_VALUE input: 0 }
    }
    exprs { op: EXPR_SYMBOL value: 0 }
    exprs { op: EXPR_CONST value: 0 }
    exprs {
      op: EXPR_NE
      args: [ 0, 1 ]
    }
    exprs { op: EXPR_CONST value: 8 }
    exprs {
      op: EXPR_FLOORDIV
      args: [ 3, 0 ]
    }
    exprs { op: EXPR_CONST value: -1 }
    exprs {
      op: EXPR_WHERE
      args: [ 2, 4, 5 ]
    }
    inputs { sym_int { expr: 0 } }
    outputs { sym_int { expr: 6 } }
  )pb");
  auto guarded = Load();
  ASSERT_TRUE(guarded.ok()) << guarded.status();
  manifest_.mutable_program()->mutable_outputs(0)->mutable_sym_int()->set_expr(4);
  auto bare = Load();
  ASSERT_TRUE(bare.ok());
  for (const auto& [symbol, expected] : std::vector<std::pair<int64_t, int64_t>>{{0, -1}, {3, 2}, {-3, -3}}) {
    Value value;
    value.is_number = true;
    value.number = symbol;
    std::vector<Value> outputs;
    ASSERT_TRUE((*guarded)->Run({&value, 1}, outputs).ok());
    EXPECT_EQ(outputs[0].number, expected);
    EXPECT_EQ((*bare)->Run({&value, 1}, outputs).ok(), symbol != 0);
  }
}

TEST_F(RuntimeTest, RefusesABadInterpretList) {
  Parse("");
  EXPECT_EQ(Load("x").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Load("all").ok());
}

TEST_F(RuntimeTest, InterpretsChosenKernels) {
  Parse(kDoubleTwice);
  AddDouble();
  auto native = Load(), interpreted = Load("0");
  ASSERT_TRUE(native.ok() && interpreted.ok()) << interpreted.status();
  std::vector<float> values(1000);
  std::iota(values.begin(), values.end(), -300.25f);
  std::vector<Value> expected, actual;
  Value input = NewTensor(values);
  ASSERT_TRUE((*native)->Run({&input, 1}, expected).ok());
  input = NewTensor(values);
  ASSERT_TRUE((*interpreted)->Run({&input, 1}, actual).ok());
  EXPECT_EQ(Floats(expected[0]), Floats(actual[0]));
  ReleaseAll(expected);
  ReleaseAll(actual);
}

TEST_F(RuntimeTest, RefusesAMissingObject) {
  Parse(kDoubleTwice);
  AddDouble();
  objects_.clear();
  EXPECT_EQ(Load().status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace kiln::runtime
