// What a hostile worker may say: frames whose bytes or fields were changed at random, lengths that lie,
// streams that end early. Promise: kilnd's side of it neither crashes nor takes what does not fit together;
// what it takes becomes an artifact whose every number names something.
//   KILN_SEED=N KILN_CASES=N   N frames from that seed on
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "compiler/graph/guards.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/proto_util.h"
#include "compiler/worker/frame.h"
#include "google/protobuf/descriptor.h"
#include "server/build/artifact.h"
#include "server/pool/worker_process.h"
#include "tests/fuzz/graph_mutator.h"
#include "tests/property/campaign.h"

namespace kiln {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// A plan of two kernels with every kind of step.
v1::Frame PlanFrame() {
  v1::Frame frame;
  frame.set_id(7);
  v1::PlanReply* plan = frame.mutable_plan_reply();
  v1::Program* program = plan->mutable_program();
  program->set_format_version(kProgramFormatVersion);
  for (int i = 0; i < 3; ++i) program->add_buffers()->set_dtype(v1::F32);
  for (const char* kernel : {"kernel one", "kernel two"}) {
    plan->add_kernels()->set_kernel(kernel);
    plan->mutable_kernels()->rbegin()->mutable_notes()->set_name(kernel);
  }
  program->add_steps()->mutable_alloc()->set_buffer(1);
  v1::Launch* launch = program->add_steps()->mutable_launch();
  launch->set_kernel(1);
  launch->add_buffers(0);
  launch->add_buffers(2);
  v1::LaunchGroup* group = program->add_steps()->mutable_launch_group();
  group->set_kernel(0);
  group->add_members()->add_buffers(1);
  v1::Call* call = program->add_steps()->mutable_call();
  call->set_target("aten.mm.default");
  call->add_results(2);
  program->add_steps()->mutable_free()->set_buffer(1);
  program->add_steps()->mutable_view()->set_buffer(0);
  program->add_steps()->mutable_seeds()->set_buffer(2);
  program->add_outputs()->set_buffer(2);
  v1::Guards* guards = plan->mutable_guards();
  v1::Symbol* symbol = guards->add_symbols();
  symbol->set_kind(v1::SYMBOL_INT);
  symbol->set_max(1'000);
  guards->add_exprs()->set_op(v1::EXPR_SYMBOL);
  v1::ExprNode* number = guards->add_exprs();
  number->set_op(v1::EXPR_CONST);
  number->set_value(5);
  v1::ExprNode* less = guards->add_exprs();
  less->set_op(v1::EXPR_LE);
  less->add_args(1);
  less->add_args(0);
  guards->add_conditions(2);
  return frame;
}

v1::Frame EmitFrame() {
  v1::Frame frame;
  frame.set_id(7);
  frame.mutable_emit_reply()->set_kind(v1::FLAT_IMAGE);
  frame.mutable_emit_reply()->set_object("machine code");
  frame.mutable_emit_reply()->set_listing("listing");
  return frame;
}

v1::Frame ErrorFrame() {
  v1::Frame frame;
  frame.set_id(7);
  frame.mutable_error()->set_code(3);
  frame.mutable_error()->set_message("the caller's fault");
  return frame;
}

// Changes one field of a message or of a part of it.
class FieldMutator {
 public:
  explicit FieldMutator(testing::GraphMutator* random) : random_(random) {}

  void Mutate(Message* message) {
    std::vector<Message*> parts;
    Collect(message, &parts);
    Message* part = parts[random_->Pick(parts.size())];
    const int fields = part->GetDescriptor()->field_count();
    if (fields == 0) return;
    Change(part,
           part->GetDescriptor()->field(static_cast<int>(random_->Pick(static_cast<uint64_t>(fields)))));
  }

 private:
  void Collect(Message* message, std::vector<Message*>* parts) {
    parts->push_back(message);
    const Reflection* reflection = message->GetReflection();
    std::vector<const FieldDescriptor*> set;
    reflection->ListFields(*message, &set);
    for (const FieldDescriptor* field : set) {
      if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
      if (!field->is_repeated()) {
        Collect(reflection->MutableMessage(message, field), parts);
        continue;
      }
      for (int i = 0; i < reflection->FieldSize(*message, field); ++i)
        Collect(reflection->MutableRepeatedMessage(message, field, i), parts);
    }
  }

  int64_t Number() {
    constexpr int64_t kNumbers[] = {0,   1,         2,         3,         -1,        -2,
                                    100, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, UINT32_MAX};
    return kNumbers[random_->Pick(std::size(kNumbers))];
  }

  void Change(Message* part, const FieldDescriptor* field) {
    const Reflection* reflection = part->GetReflection();
    if (random_->Pick(4) == 0) return reflection->ClearField(part, field);
    const bool many = field->is_repeated();
    switch (field->cpp_type()) {
#define KILN_CHANGE(TYPE, NAME, VALUE)                                                            \
  case FieldDescriptor::CPPTYPE_##TYPE:                                                           \
    many ? reflection->Add##NAME(part, field, VALUE) : reflection->Set##NAME(part, field, VALUE); \
    return
      KILN_CHANGE(INT32, Int32, static_cast<int32_t>(Number()));
      KILN_CHANGE(INT64, Int64, Number());
      KILN_CHANGE(UINT32, UInt32, static_cast<uint32_t>(Number()));
      KILN_CHANGE(UINT64, UInt64, static_cast<uint64_t>(Number()));
      KILN_CHANGE(DOUBLE, Double, static_cast<double>(Number()));
      KILN_CHANGE(FLOAT, Float, static_cast<float>(Number()));
      KILN_CHANGE(BOOL, Bool, random_->Pick(2) == 0);
      KILN_CHANGE(ENUM, EnumValue, static_cast<int>(random_->Pick(40)));
      KILN_CHANGE(STRING, String, random_->MutateBytes("aten.mm"));
#undef KILN_CHANGE
      case FieldDescriptor::CPPTYPE_MESSAGE:
        many ? reflection->AddMessage(part, field) : reflection->MutableMessage(part, field);
        return;
    }
  }

  testing::GraphMutator* const random_;
};

struct Socket {
  Socket() {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    workers = ends[0];
    channel = std::make_unique<FrameChannel>(ends[1]);
  }
  ~Socket() { Close(); }
  void Close() {
    if (workers >= 0) close(workers);
    workers = -1;
  }
  int workers = -1;
  std::unique_ptr<FrameChannel> channel;
};

std::string WithLength(absl::string_view bytes, uint32_t length) {
  std::string all(4, '\0');
  for (size_t i = 0; i < 4; ++i) all[i] = static_cast<char>((length >> (8 * i)) & 0xff);
  return all.append(bytes.data(), bytes.size());
}

struct Tally {
  uint64_t frames = 0, no_frames = 0, plans = 0, bad_plans = 0, kernels = 0, bad_kernels = 0, errors = 0;
};

// What kilnd does with the answer to a plan: checks it, and makes an artifact of it.
void TakePlan(v1::PlanReply plan, Tally* tally) {
  if (!CheckPlan(plan).ok()) {
    ++tally->bad_plans;
    return;
  }
  ++tally->plans;
  static const absl::StatusOr<EmittedKernel>& packed =
      *new absl::StatusOr<EmittedKernel>(PackKernel("key", "kernel", EmitFrame().emit_reply()));
  ASSERT_TRUE(packed.ok()) << packed.status();
  const std::vector<EmittedKernel> kernels(static_cast<size_t>(plan.kernels_size()), *packed);
  static const Signatures& signatures = *new Signatures(Signatures::OfThisProcess());
  ArtifactIngredients ingredients;
  ingredients.signatures = &signatures;
  ingredients.ns = "test";
  ingredients.compile_key = std::string(32, 'c');
  ingredients.request_key = std::string(32, 'r');
  ingredients.kernels = kernels;
  v1::Hints hints;
  hints.add_values(5);
  const Artifact artifact = AssembleArtifact(ingredients, std::move(plan));
  (void)GuardsHold(artifact.guards, hints);
  v1::Manifest manifest;
  ASSERT_TRUE(ParseProto(artifact.signed_manifest.manifest(), "manifest", &manifest).ok());
  for (const v1::Step& step : manifest.program().steps()) {
    ASSERT_TRUE(!step.has_launch() || step.launch().kernel() < manifest.kernels_size());
    ASSERT_TRUE(!step.has_launch_group() || step.launch_group().kernel() < manifest.kernels_size());
    for (const uint32_t buffer : step.launch().buffers())
      ASSERT_LT(buffer, manifest.program().buffers_size());
  }
}

void Take(absl::StatusOr<v1::Frame> frame, Tally* tally) {
  if (!frame.ok()) {
    const absl::Status& status = frame.status();
    ASSERT_TRUE(absl::IsUnavailable(status) || absl::IsDataLoss(status)) << status;
    ++tally->no_frames;
    return;
  }
  ++tally->frames;
  if (frame->has_error()) {
    ASSERT_FALSE(StatusOf(frame->error()).ok());
    ++tally->errors;
  }
  if (frame->has_emit_reply()) {
    ++(PackKernel("key", "kernel", frame->emit_reply()).ok() ? tally->kernels : tally->bad_kernels);
  }
  if (frame->has_plan_reply()) TakePlan(std::move(*frame->mutable_plan_reply()), tally);
}

std::string HostileBytes(uint64_t seed) {
  testing::GraphMutator random(seed);
  v1::Frame frame = PlanFrame();
  const uint64_t kind = random.Pick(8);
  if (kind == 0) frame = EmitFrame();
  if (kind == 1) frame = ErrorFrame();
  std::string bytes;
  if (random.Pick(2) == 0) {
    FieldMutator mutator(&random);
    for (uint64_t changes = 1 + random.Pick(3); changes > 0; --changes) mutator.Mutate(&frame);
    bytes = frame.SerializeAsString();
  } else {
    bytes = random.MutateBytes(frame.SerializeAsString());
  }
  uint32_t length = static_cast<uint32_t>(bytes.size());
  if (random.Pick(16) == 0) length = static_cast<uint32_t>(random.Pick(uint64_t{1} << 32));
  return WithLength(bytes, length);
}

TEST(WorkerFrames, AreTakenOrRefusedAndCrashNothing) {
  const auto [first, cases] = testing::CampaignFromEnv(1, 100'000, 1'000'000);
  google::protobuf::SetLogHandler(nullptr);  // text that is not UTF-8 is what this test sends
  Tally tally;
  for (uint64_t i = 0; i < cases; ++i) {
    SCOPED_TRACE("KILN_SEED=" + std::to_string(first + i));
    const std::string bytes = HostileBytes(first + i);
    Socket socket;
    ASSERT_EQ(write(socket.workers, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    socket.Close();
    Take(socket.channel->Read({}), &tally);
    if (HasFatalFailure()) return;
  }
  std::cout << cases << " hostile frames: " << tally.no_frames << " are none; plans " << tally.plans
            << " taken, " << tally.bad_plans << " refused; kernels " << tally.kernels << " taken, "
            << tally.bad_kernels << " refused; " << tally.errors << " errors\n";
  if (cases < 10'000) return;
  // They get far enough to be worth it.
  for (const uint64_t count :
       {tally.no_frames, tally.plans, tally.bad_plans, tally.kernels, tally.bad_kernels})
    EXPECT_GT(count, cases / 200);
}

// The control: what was not changed is taken.
TEST(WorkerFrames, ThatAreWellFormedAreTaken) {
  Tally tally;
  for (const v1::Frame& frame : {PlanFrame(), EmitFrame(), ErrorFrame()}) {
    const std::string bytes = frame.SerializeAsString();
    const std::string all = WithLength(bytes, static_cast<uint32_t>(bytes.size()));
    Socket socket;
    ASSERT_EQ(write(socket.workers, all.data(), all.size()), static_cast<ssize_t>(all.size()));
    Take(socket.channel->Read({}), &tally);
  }
  EXPECT_EQ(tally.plans + tally.kernels + tally.errors, 3);
}

// A plan each of whose numbers names what is not there.
TEST(WorkerFrames, PlansThatNameWhatIsNotThereAreRefused) {
  const v1::PlanReply good = PlanFrame().plan_reply();
  ASSERT_TRUE(CheckPlan(good).ok());
  const auto refused = [&](const std::function<void(v1::PlanReply*)>& change) {
    v1::PlanReply plan = good;
    change(&plan);
    return !CheckPlan(plan).ok();
  };
  const auto step = [](v1::PlanReply* plan, int i) { return plan->mutable_program()->mutable_steps(i); };
  EXPECT_TRUE(refused([&](v1::PlanReply* p) { step(p, 0)->mutable_alloc()->set_buffer(3); }));
  EXPECT_TRUE(refused([&](v1::PlanReply* p) { step(p, 1)->mutable_launch()->set_kernel(2); }));
  EXPECT_TRUE(refused([&](v1::PlanReply* p) { step(p, 1)->mutable_launch()->set_buffers(0, 3); }));
  EXPECT_TRUE(refused([&](v1::PlanReply* p) { step(p, 2)->mutable_launch_group()->set_kernel(2); }));
  EXPECT_TRUE(refused([&](v1::PlanReply* p) { step(p, 3)->mutable_call()->set_results(0, 3); }));
  EXPECT_TRUE(refused([&](v1::PlanReply* p) { step(p, 6)->mutable_seeds()->set_buffer(3); }));
  EXPECT_TRUE(refused([&](v1::PlanReply* p) { p->mutable_program()->mutable_outputs(0)->set_buffer(3); }));
  EXPECT_TRUE(refused([&](v1::PlanReply* p) { p->mutable_guards()->set_conditions(0, 3); }));
  EXPECT_TRUE(refused([&](v1::PlanReply* p) { p->mutable_kernels(0)->clear_kernel(); }));
}

}  // namespace
}  // namespace kiln
