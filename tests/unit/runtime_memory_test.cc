// The runtime's memory: storage that is reused, results and inputs of other layouts, inputs that are written.
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/unit/runtime_testing.h"

namespace kiln::runtime {
namespace {

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

}  // namespace
}  // namespace kiln::runtime
