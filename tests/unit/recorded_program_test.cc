// Programs that are recorded into a CUDA graph: which of their steps wait for which.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/runtime/program.h"
#include "gtest/gtest.h"
#include "tests/unit/plain_host.h"
#include "tests/unit/program_maker.h"
#include "tests/unit/recorded_graph.h"

namespace kiln::runtime {
namespace {

// Whose library calls are nodes of a graph; each call takes scratch memory where `scratch` says so.
class RecordingHost : public PlainHost {
 public:
  explicit RecordingHost(bool recorded) : recorded_(recorded) { set_in_memory(true); }

  absl::StatusOr<CallContext> Begin() override {
    CallContext call;
    call.recorded = recorded_;
    return call;
  }
  std::unique_ptr<Capture> NewCapture(const CallContext&) override {
    return std::make_unique<Forward>(graph);
  }
  absl::Status Call(const OperatorName& target, const CallArguments& arguments, absl::Span<Tensor> results,
                    bool into) override {
    graph.Record();
    return PlainHost::Call(target, arguments, results, into);
  }

  RecordedGraph graph;

 protected:
  bool CopyInMemory(const CallArguments& arguments, const MemoryResults& results,
                    CallContext& context) override {
    const bool done = PlainHost::CopyInMemory(arguments, results, context);
    if (done) graph.Record();
    return done;
  }

 private:
  struct Forward : Capture {
    explicit Forward(RecordedGraph& to) : to(to) {}
    bool Get(std::vector<Node>& nodes) override { return to.Get(nodes); }
    bool Set(absl::Span<const Node> nodes) override { return to.Set(nodes); }
    bool Add(absl::Span<const Node> nodes) override { return to.Add(nodes); }
    RecordedGraph& to;
  };
  const bool recorded_;
};

// Copies of the input in `first` and `second`, of the first again, by an opaque call of the second, of the
// input again.
v1::Manifest FiveCopies() {
  ProgramMaker maker;
  const uint32_t input = maker.Input({4});
  const uint32_t first = maker.Copy(input, maker.Owned({4})), second = maker.Copy(input, maker.Owned({4}));
  const uint32_t of_first = maker.Copy(first, maker.Owned({4}));
  const uint32_t opaque = maker.Call("test.transposed.default", second, maker.Owned({4}), false);
  const uint32_t last = maker.Copy(input, maker.Owned({4}));
  for (const uint32_t output : {of_first, opaque, last}) maker.Output(output);
  return maker.manifest();
}

void RunCopies(RecordingHost& host) {
  auto program = Program::Load(FiveCopies(), {}, "", &host);
  ASSERT_TRUE(program.ok()) << program.status();
  const int64_t size = 4, stride = 1;
  Value input;
  input.tensor = *host.Empty(v1::F32, {&size, 1}, {&stride, 1});
  for (int i = 0; i < 4; ++i) static_cast<float*>(*host.Data(input.tensor))[i] = static_cast<float>(i);
  std::vector<Value> outputs;
  ASSERT_TRUE((*program)->Run({&input, 1}, outputs).ok());
  for (const Value& output : outputs) {
    EXPECT_EQ(static_cast<float*>(*host.Data(output.tensor))[3], 3);
    host.Release(output.tensor);
  }
  EXPECT_EQ(host.live(), 0);
}

TEST(RecordedProgram, StepsWaitForTheMemoryTheyTouch) {
  RecordingHost host(true);
  const size_t before = host.graph.Record();
  RunCopies(host);
  const RecordedGraph& graph = host.graph;
  ASSERT_EQ(graph.nodes(), 6u);
  const size_t first = 2, second = 3, of_first = 4, opaque = 5, last = 6;
  EXPECT_TRUE(graph.Waits(first, before));
  EXPECT_FALSE(graph.Waits(second, first));
  EXPECT_TRUE(graph.Waits(of_first, first));
  EXPECT_FALSE(graph.Waits(of_first, second));
  for (const size_t node : {first, second, of_first}) EXPECT_TRUE(graph.Waits(opaque, node));
  EXPECT_TRUE(graph.Waits(last, opaque));
  const size_t after = host.graph.Record();
  for (size_t node = 1; node < after; ++node) EXPECT_TRUE(graph.Waits(after, node));
}

TEST(RecordedProgram, CallsThatAreNotRecordedStayInARow) {
  RecordingHost host(false);
  RunCopies(host);
  for (size_t node = 2; node <= host.graph.nodes(); ++node) EXPECT_TRUE(host.graph.Waits(node, node - 1));
}

}  // namespace
}  // namespace kiln::runtime
