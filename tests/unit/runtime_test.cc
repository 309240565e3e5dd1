// The runtime: loading checks, sizes, kernels, errors.
#include <cmath>
#include <cstring>
#include <numeric>
#include <thread>

#include "tests/unit/program_maker.h"
#include "tests/unit/runtime_testing.h"

namespace kiln::runtime {
namespace {

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

// A call tells a symbol its result's size: y is x twice over, of what the call gives.
constexpr char kSizeOfACall[] = R"pb(
  symbols { kind: SYMBOL_UNBACKED min: 1 max: 100 }
  symbols {
    kind: SYMBOL_INT
    binding { source: INPUT_SIZE input: 0 dim: 0 }
  }
  exprs { op: EXPR_SYMBOL }
  exprs { op: EXPR_CONST value: 64 }
  exprs {
    op: EXPR_CEILDIV
    args: [ 0, 1 ]
  }
  exprs { op: EXPR_CONST value: 7 }
  exprs {
    op: EXPR_NE
    args: [ 0, 3 ]
  }
  exprs { op: EXPR_SYMBOL value: 1 }
  inputs {
    tensor {
      dtype: F32
      device { type: CPU }
      sizes { expr: 5 }
      strides { value: 1 }
    }
  }
  buffers {
    kind: INPUT
    dtype: F32
    device { type: CPU }
    sizes { expr: 5 }
    strides { value: 1 }
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
  steps {
    call {
      target: "test.copy.default"
      args {
        name: "self"
        value { as_tensor: 0 }
      }
      results: 1
      binds { symbol: 0 result: 0 dim: 0 }
    }
  }
  steps { check { condition: 4 message: "not seven" } }
  steps { alloc { buffer: 2 reuse: -1 } }
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
)pb";

TEST_F(RuntimeTest, KnowsASizeThatACallTells) {
  Parse(kSizeOfACall);
  AddDouble();
  auto program = Load();
  ASSERT_TRUE(program.ok()) << program.status();
  for (const size_t size : {1, 2, 7, 65, 100, 101, 0}) {
    std::vector<float> values(size, 1.5f);
    const Value input = NewTensor(values);
    std::vector<Value> outputs;
    const absl::Status status = (*program)->Run({&input, 1}, outputs);
    if (size == 7 || size == 0 || size == 101) {  // a check, and a range
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
      EXPECT_NE(std::string(status.message()).find(size == 7 ? "not seven" : "not from 1 to 100"),
                std::string::npos)
          << status;
      EXPECT_TRUE(outputs.empty());
    } else {
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_EQ(Floats(outputs[0]), std::vector<float>(size, 3.0f));
      EXPECT_EQ(outputs[1].number, static_cast<int64_t>(size));
    }
    ReleaseAll(outputs);
    EXPECT_EQ(host_.live(), 0);
  }
}

TEST_F(RuntimeTest, RefusesSizesThatNoCallTells) {
  const auto status = [&](auto change) {
    Parse(kSizeOfACall);
    manifest_.clear_kernels();
    AddDouble();
    change(manifest_.mutable_program()->mutable_steps(0)->mutable_call());
    return Load().status().code();
  };
  EXPECT_EQ(status([](v1::Call* call) { call->mutable_binds(0)->set_symbol(2); }),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status([](v1::Call* call) { call->mutable_binds(0)->set_result(1); }),
            absl::StatusCode::kInvalidArgument);
  Parse(kSizeOfACall);
  manifest_.mutable_program()->mutable_steps(0)->mutable_call()->mutable_binds(0)->set_dim(1);
  auto program = Load();
  ASSERT_TRUE(program.ok());
  const Value input = NewTensor({1, 2});
  std::vector<Value> outputs;
  EXPECT_TRUE((*program)->Run({&input, 1}, outputs).GetPayload(kContradictionPayload).has_value());
  EXPECT_EQ(host_.live(), 0);
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

TEST_F(RuntimeTest, TensorsAndLaunchesHaveLimits) {
  AddDouble();
  const auto loaded = [&](size_t rank, size_t buffers) {
    ProgramMaker maker;
    const uint32_t x = maker.Input(ProgramMaker::Sizes(rank, 1));
    v1::Launch* launch = maker.program().add_steps()->mutable_launch();
    launch->mutable_buffers()->Resize(static_cast<int>(buffers), x);
    launch->add_symbols()->set_value(1);
    launch->mutable_units()->set_value(1);
    maker.Output(x);
    Use(maker.program());
    return Load().status();
  };
  EXPECT_EQ(loaded(kRankMax, kKernelBuffersMax), absl::OkStatus());
  const absl::Status rank = loaded(kRankMax + 1, 2), buffers = loaded(1, kKernelBuffersMax + 1);
  for (const absl::Status& status : {rank, buffers})
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_NE(rank.message().find("17 dimensions, limit 16"), absl::string_view::npos) << rank;
  EXPECT_NE(buffers.message().find("step 0: 257 buffers, limit 256"), absl::string_view::npos) << buffers;
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
    std::memcpy(*host_.Data(inputs[0].tensor), indices, sizeof indices);
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
