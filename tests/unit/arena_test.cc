// The arena of a call's temporaries: where they lie, and which buffers must not lie there.
#include "client/runtime/arena.h"

#include <algorithm>
#include <random>

#include "client/runtime/program.h"
#include "compiler/support/limits.h"
#include "gtest/gtest.h"
#include "tests/unit/plain_host.h"

namespace kiln::runtime {
namespace {

TEST(ArenaTest, ReusesPlacesOfTheDead) {
  const Lifetime lives[] = {{0, 2, 1000}, {2, 4, 1000}, {3, 4, 1000}, {5, 6, 2024}};
  const Arena arena = PlaceInArena(lives);
  // Two of the first three are there at once; the last has the place of both.
  EXPECT_EQ(arena.bytes, 2024);
  EXPECT_EQ(arena.offsets[0], arena.offsets[2]);
  EXPECT_EQ(arena.offsets[3], 0);
}

TEST(ArenaTest, NoneAtOneStepOverlap) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<Lifetime> lives(1 + random() % 60);
    for (Lifetime& life : lives) {
      life.first = random() % 40;
      life.last = life.first + random() % 10;
      life.bytes = 1 + random() % 5000;
    }
    const Arena arena = PlaceInArena(lives);
    int64_t together = 0, end = 0;
    for (size_t step = 0; step < 50; ++step) {
      int64_t bytes = 0;
      for (const Lifetime& life : lives) {
        if (life.first <= step && step <= life.last) bytes += life.bytes + kArenaAlignment;
      }
      together = std::max(together, bytes);
    }
    for (size_t a = 0; a < lives.size(); ++a) {
      EXPECT_EQ(arena.offsets[a] % kArenaAlignment, 0);
      end = std::max(end, arena.offsets[a] + lives[a].bytes);
      for (size_t b = 0; b < a; ++b) {
        if (lives[a].first > lives[b].last || lives[b].first > lives[a].last) continue;
        EXPECT_TRUE(arena.offsets[a] >= arena.offsets[b] + lives[b].bytes ||
                    arena.offsets[b] >= arena.offsets[a] + lives[a].bytes);
      }
    }
    EXPECT_EQ(arena.bytes, end);
    EXPECT_LE(arena.bytes, 2 * together);
  }
}

// Programs of vectors of eight numbers and copies of them.
class ArenaProgramTest : public ::testing::Test {
 protected:
  ArenaProgramTest() {
    v1::Program& program = *manifest_.mutable_program();
    program.set_format_version(kProgramFormatVersion);
    AddBuffer(v1::ProgramBuffer::INPUT);
    v1::TensorMeta* input = program.add_inputs()->mutable_tensor();
    input->set_dtype(v1::F32);
    input->mutable_device()->set_type(v1::CPU);
    input->add_sizes()->set_value(8);
    input->add_strides()->set_value(1);
  }

  uint32_t AddBuffer(v1::ProgramBuffer::Kind kind) {
    v1::ProgramBuffer* buffer = manifest_.mutable_program()->add_buffers();
    buffer->set_kind(kind);
    buffer->set_dtype(v1::F32);
    buffer->mutable_device()->set_type(v1::CPU);
    buffer->add_sizes()->set_value(8);
    buffer->add_strides()->set_value(1);
    return manifest_.program().buffers_size() - 1;
  }
  v1::Step* AddStep() { return manifest_.mutable_program()->add_steps(); }
  void Free(uint32_t buffer) { AddStep()->mutable_free()->set_buffer(buffer); }
  void AddOutput(uint32_t buffer) { manifest_.mutable_program()->add_outputs()->set_buffer(buffer); }

  uint32_t Call(const std::string& target, uint32_t from, uint32_t to, bool into) {
    v1::Call* call = AddStep()->mutable_call();
    call->set_target(target);
    v1::NamedArgument* self = call->add_args();
    self->set_name("self");
    self->mutable_value()->set_as_tensor(from);
    call->add_results(to);
    call->set_into_results(into);
    return to;
  }
  // A copy in memory that the program allocates.
  uint32_t Copied(uint32_t from) {
    const uint32_t to = AddBuffer(v1::ProgramBuffer::OWNED);
    AddStep()->mutable_alloc()->set_buffer(to);
    manifest_.mutable_program()->mutable_steps()->rbegin()->mutable_alloc()->set_reuse(-1);
    return Call("test.copy.default", from, to, true);
  }

  // Allocations of a run of the program on 0, 1, …, 7, whose every output must be that.
  int64_t RunAndCount() {
    auto program = Program::Load(manifest_, {}, "", &host_);
    EXPECT_TRUE(program.ok()) << program.status();
    const int64_t size = 8, stride = 1;
    Value input;
    input.tensor = *host_.Empty(v1::F32, {&size, 1}, {&stride, 1});
    for (int i = 0; i < 8; ++i) static_cast<float*>(host_.Data(input.tensor))[i] = i;
    const int64_t before = host_.allocations();
    std::vector<Value> outputs;
    const absl::Status status = (*program)->Run({&input, 1}, outputs);
    EXPECT_TRUE(status.ok()) << status;
    const int64_t allocations = host_.allocations() - before;
    for (Value& output : outputs) {
      for (int i = 0; i < 8; ++i) EXPECT_EQ(static_cast<float*>(host_.Data(output.tensor))[i], i);
      host_.Release(output.tensor);
    }
    EXPECT_EQ(host_.live(), 0);
    return allocations;
  }

  PlainHost host_;
  v1::Manifest manifest_;
};

TEST_F(ArenaProgramTest, HoldsAllTemporariesOfACall) {
  uint32_t value = 0;
  for (int i = 0; i < 5; ++i) {
    const uint32_t next = Copied(value);
    if (value != 0) Free(value);
    value = next;
  }
  AddOutput(value);
  EXPECT_EQ(RunAndCount(), 2);  // the arena and the output
}

// What a library call gives back may be its argument's memory, and is read after that is freed.
TEST_F(ArenaProgramTest, HoldsNoArgumentOfACallThatMayGiveItBack) {
  const uint32_t first = Copied(0);
  const uint32_t alias = Call("test.alias.default", first, AddBuffer(v1::ProgramBuffer::OWNED), false);
  Free(first);
  const uint32_t second = Copied(Copied(0));
  Free(second);
  AddOutput(alias);
  EXPECT_EQ(RunAndCount(), 2);  // the argument, and an arena of the others
}

TEST_F(ArenaProgramTest, HoldsNoOutputSeenThroughAView) {
  const uint32_t value = Copied(0);
  const uint32_t view = AddBuffer(v1::ProgramBuffer::VIEW);
  manifest_.mutable_program()->mutable_buffers(view)->set_base(value);
  AddStep()->mutable_view()->set_buffer(view);
  AddOutput(view);
  EXPECT_EQ(RunAndCount(), 1);
}

// Buffers of as many numbers as the input has.
class DynamicArenaProgramTest : public ArenaProgramTest {
 protected:
  DynamicArenaProgramTest() {
    v1::Program& program = *manifest_.mutable_program();
    for (int i = 0; i < 2; ++i) {  // of the input's size, and of a step
      v1::Symbol* symbol = program.add_symbols();
      symbol->set_kind(v1::SYMBOL_INT);
      symbol->set_max(1000);
      v1::ExprNode* size = program.add_exprs();
      size->set_op(v1::EXPR_SYMBOL);
      size->set_value(i);
    }
    program.mutable_symbols(0)->mutable_binding()->set_source(v1::SymbolBinding::INPUT_SIZE);
    program.mutable_inputs(0)->mutable_tensor()->mutable_sizes(0)->set_expr(0);
    program.mutable_buffers(0)->mutable_sizes(0)->set_expr(0);
  }

  uint32_t AddSized(uint32_t expr) {
    const uint32_t buffer = AddBuffer(v1::ProgramBuffer::OWNED);
    manifest_.mutable_program()->mutable_buffers(buffer)->mutable_sizes(0)->set_expr(expr);
    return buffer;
  }
  uint32_t SizedCopy(uint32_t from, uint32_t expr = 0, int64_t reuse = -1) {
    const uint32_t to = AddSized(expr);
    v1::Step::Alloc* alloc = AddStep()->mutable_alloc();
    alloc->set_buffer(to);
    alloc->set_reuse(reuse);
    return Call("test.copy.default", from, to, true);
  }

  // Allocations of a call on 0, 1, …, n - 1, whose every output must be that.
  int64_t CountCall(const Program& program, int64_t n) {
    const int64_t stride = 1;
    Value input;
    input.tensor = *host_.Empty(v1::F32, {&n, 1}, {&stride, 1});
    for (int64_t i = 0; i < n; ++i) static_cast<float*>(host_.Data(input.tensor))[i] = i;
    const int64_t before = host_.allocations();
    std::vector<Value> outputs;
    const absl::Status status = program.Run({&input, 1}, outputs);
    EXPECT_TRUE(status.ok()) << status;
    const int64_t allocations = host_.allocations() - before;
    for (Value& output : outputs) {
      EXPECT_EQ(host_.Sizes(output.tensor)[0], n);
      for (int64_t i = 0; i < n; ++i) EXPECT_EQ(static_cast<float*>(host_.Data(output.tensor))[i], i);
      host_.Release(output.tensor);
    }
    EXPECT_EQ(host_.live(), 0);
    return allocations;
  }
};

TEST_F(DynamicArenaProgramTest, HoldsTemporariesOfSizesThatChangeBetweenCalls) {
  uint32_t value = 0;
  for (int i = 0; i < 5; ++i) {
    const uint32_t next = SizedCopy(value);
    if (value != 0) Free(value);
    value = next;
  }
  AddOutput(value);
  auto program = Program::Load(manifest_, {}, "", &host_);
  ASSERT_TRUE(program.ok()) << program.status();
  for (int64_t n : {8, 300, 0, 8, 1, 300, 17, 0})
    EXPECT_EQ(CountCall(**program, n), 2) << n;  // arena, output
}

TEST_F(DynamicArenaProgramTest, HoldsNoOutputThatTookOverATemporary) {
  const uint32_t first = SizedCopy(0);
  AddOutput(SizedCopy(0, 0, first));
  auto program = Program::Load(manifest_, {}, "", &host_);
  ASSERT_TRUE(program.ok()) << program.status();
  for (int64_t n : {8, 0, 20}) EXPECT_EQ(CountCall(**program, n), 1) << n;
  EXPECT_EQ(host_.overs(), 0);
}

// A negative size is found by the step that allocates it, as it is without an arena.
TEST_F(DynamicArenaProgramTest, LeavesWhatIsNoSizeToItsStep) {
  v1::Program& program = *manifest_.mutable_program();
  for (int64_t value : {10, -1}) {
    v1::ExprNode* number = program.add_exprs();
    number->set_op(v1::EXPR_CONST);
    number->set_value(value);
  }
  v1::ExprNode* product = program.add_exprs();  // 10 // n: none for n = 0
  product->set_op(v1::EXPR_FLOORDIV);
  product->add_args(2);
  product->add_args(0);
  const uint32_t first = SizedCopy(0);
  Free(SizedCopy(first, 4));
  AddOutput(SizedCopy(first));
  auto loaded = Program::Load(manifest_, {}, "", &host_);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const int64_t n = 0, stride = 1;
  Value input;
  input.tensor = *host_.Empty(v1::F32, {&n, 1}, {&stride, 1});
  std::vector<Value> outputs;
  EXPECT_EQ((*loaded)->Run({&input, 1}, outputs).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(host_.live(), 0);
}

// Sizes that only a step knows may still fit what was freed, and what takes it over may be an output.
TEST_F(DynamicArenaProgramTest, HoldsNothingThatSizesNotKnownYetMayTakeOver) {
  v1::Step::Let* let = AddStep()->mutable_let();
  let->set_symbol(1);
  let->mutable_expr()->set_expr(0);
  const uint32_t first = SizedCopy(0);
  AddOutput(SizedCopy(0, 1, first));
  auto program = Program::Load(manifest_, {}, "", &host_);
  ASSERT_TRUE(program.ok()) << program.status();
  EXPECT_EQ(CountCall(**program, 8), 1);
  EXPECT_EQ(host_.overs(), 0);
}

}  // namespace
}  // namespace kiln::runtime
