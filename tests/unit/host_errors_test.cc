// Every call of the runtime into its host may fail: the error is the program's, nothing else is asked of the
// host afterwards but to take back what it gave, and nothing leaks.
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "compiler/support/status_macros.h"
#include "tests/unit/program_maker.h"
#include "tests/unit/runtime_testing.h"

namespace kiln::runtime {
namespace {

// Refuses the call of one number. What is asked of it afterwards is a mistake of the runtime's.
class RefusingHost : public PlainHost {
 public:
  static constexpr char kError[] = "an error of the host's own";

  explicit RefusingHost(int64_t refused) : refused_(refused) {}

  absl::StatusOr<CallContext> Begin() override {
    KILN_RETURN_IF_ERROR(Turn("Begin"));
    return PlainHost::Begin();
  }
  absl::StatusOr<Tensor> Empty(v1::DType dtype, absl::Span<const int64_t> sizes,
                               absl::Span<const int64_t> strides) override {
    KILN_RETURN_IF_ERROR(Turn("Empty"));
    return PlainHost::Empty(dtype, sizes, strides);
  }
  absl::StatusOr<Tensor> View(Tensor base, absl::Span<const int64_t> sizes, absl::Span<const int64_t> strides,
                              int64_t offset) override {
    KILN_RETURN_IF_ERROR(Turn("View"));
    return PlainHost::View(base, sizes, strides, offset);
  }
  absl::StatusOr<Tensor> Share(Tensor tensor) override {
    KILN_RETURN_IF_ERROR(Turn("Share"));
    return PlainHost::Share(tensor);
  }
  absl::StatusOr<Tensor> Over(void* data, v1::DType dtype, absl::Span<const int64_t> sizes,
                              absl::Span<const int64_t> strides) override {
    KILN_RETURN_IF_ERROR(Turn("Over"));
    return PlainHost::Over(data, dtype, sizes, strides);
  }
  absl::StatusOr<void*> Data(Tensor tensor) override {
    KILN_RETURN_IF_ERROR(Turn("Data"));
    return PlainHost::Data(tensor);
  }
  absl::StatusOr<absl::Span<const int64_t>> Sizes(Tensor tensor) override {
    KILN_RETURN_IF_ERROR(Turn("Sizes"));
    return PlainHost::Sizes(tensor);
  }
  absl::StatusOr<absl::Span<const int64_t>> Strides(Tensor tensor) override {
    KILN_RETURN_IF_ERROR(Turn("Strides"));
    return PlainHost::Strides(tensor);
  }
  absl::StatusOr<v1::DType> Type(Tensor tensor) override {
    KILN_RETURN_IF_ERROR(Turn("Type"));
    return PlainHost::Type(tensor);
  }
  absl::Status Copy(Tensor to, Tensor from) override {
    KILN_RETURN_IF_ERROR(Turn("Copy"));
    return PlainHost::Copy(to, from);
  }
  absl::StatusOr<Tensor> Seeds(uint32_t count) override {
    KILN_RETURN_IF_ERROR(Turn("Seeds"));
    const Inside inside(within_);
    return PlainHost::Seeds(count);
  }
  absl::Status ParallelFor(int64_t units, int64_t grain,
                           absl::FunctionRef<void(int64_t, int64_t, uint32_t)> body) override {
    KILN_RETURN_IF_ERROR(Turn("ParallelFor"));
    return PlainHost::ParallelFor(units, grain, body);
  }
  absl::Status Call(const OperatorName& target, const CallArguments& arguments, absl::Span<Tensor> results,
                    bool into) override {
    KILN_RETURN_IF_ERROR(Turn("Call"));
    const Inside inside(within_);
    return PlainHost::Call(target, arguments, results, into);
  }

  const std::map<std::string, int>& calls() const { return calls_; }
  int64_t count() const { return count_; }
  int64_t after() const { return after_; }  // calls after the refused one
  const std::string& refused() const { return refused_call_; }

 private:
  // What the host asks of itself is no call of the runtime's.
  struct Inside {
    explicit Inside(bool& within) : within(within) { within = true; }
    ~Inside() { within = false; }
    bool& within;
  };

  absl::Status Turn(const char* call) {
    if (within_) return absl::OkStatus();
    ++calls_[call];
    const int64_t number = count_++;
    if (refused_ >= 0 && number > refused_) ++after_;
    if (number != refused_) return absl::OkStatus();
    refused_call_ = call;
    return absl::ResourceExhaustedError(kError);
  }
  const int64_t refused_;
  std::map<std::string, int> calls_;
  std::string refused_call_;
  int64_t count_ = 0, after_ = 0;
  bool within_ = false;
};

constexpr int64_t kRows = 64, kColumns = 1024;

class HostErrorsTest : public RuntimeTest {
 protected:
  void Double(ProgramMaker& maker, uint32_t from, uint32_t to) {
    v1::Launch* launch = maker.program().add_steps()->mutable_launch();
    for (const uint32_t buffer : {from, to}) launch->add_buffers(buffer);
    launch->add_symbols()->set_value(kRows * kColumns);
    launch->mutable_units()->set_value(kRows * kColumns / 64);
  }

  // A program with every kind of step that asks the host: an input that lies otherwise and is written,
  // kernels on threads, calls whose results lie otherwise, seeds, copies, views of temporaries and of
  // results.
  void MakeProgram() {
    ProgramMaker maker;
    const uint32_t x = maker.Input({kRows, kColumns}, /*written=*/true);
    const uint32_t doubled = maker.Owned({kRows, kColumns}), transposed = maker.Owned({kRows, kColumns});
    const uint32_t again = maker.Owned({kRows, kColumns}), last = maker.Owned({kRows, kColumns});
    const uint32_t seeds = maker.Owned({3});
    maker.program().mutable_buffers(static_cast<int>(seeds))->set_dtype(v1::I64);
    Double(maker, x, x);
    maker.Alloc(doubled);
    Double(maker, x, doubled);
    maker.Call("test.transposed.default", doubled, transposed, false);
    v1::Step::Seeds* draw = maker.program().add_steps()->mutable_seeds();
    draw->set_buffer(seeds);
    draw->set_count(3);
    maker.Copy(transposed, again);
    maker.Free(transposed);
    maker.Alloc(last, again);
    Double(maker, doubled, last);
    maker.Output(maker.View(last, {kColumns}, {1}, kColumns));
    maker.Output(last);
    maker.Output(seeds);
    maker.Output(x);
    Use(maker.program());
    AddDouble();
  }

  absl::Status RunOn(RefusingHost& host, std::vector<Value>& outputs) {
    auto program = Program::Load(manifest_, objects_, "", &host);
    if (!program.ok()) return program.status();
    const int64_t sizes[] = {kRows, kColumns}, columns[] = {1, kRows};
    Value input;
    input.tensor = *host.PlainHost::Empty(v1::F32, sizes, columns);
    return (*program)->Run({&input, 1}, outputs);
  }
};

TEST_F(HostErrorsTest, EveryCallIsChecked) {
  MakeProgram();
  std::vector<Value> outputs;
  RefusingHost willing(-1);
  const absl::Status fine = RunOn(willing, outputs);
  ASSERT_TRUE(fine.ok()) << fine;
  for (const Value& output : outputs) willing.Release(output.tensor);
  outputs.clear();
  EXPECT_EQ(willing.live(), 0);
  for (const char* call : {"Begin", "Empty", "View", "Share", "Data", "Sizes", "Strides", "Type", "Copy",
                           "Seeds", "ParallelFor", "Call"}) {
    EXPECT_TRUE(willing.calls().contains(call)) << call << " is not tried here";
  }
  for (int64_t refused = 0; refused < willing.count(); ++refused) {
    RefusingHost host(refused);
    const absl::Status status = RunOn(host, outputs);
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << refused << " " << host.refused();
    EXPECT_NE(status.message().find(RefusingHost::kError), absl::string_view::npos) << status;
    EXPECT_EQ(host.after(), 0) << "asked the host after " << host.refused() << ", call " << refused;
    EXPECT_TRUE(outputs.empty());
    EXPECT_EQ(host.live(), 0) << refused << " " << host.refused();
  }
}

}  // namespace
}  // namespace kiln::runtime
