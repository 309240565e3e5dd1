// A worker that does what the graph tells it: the daemon's tests need crashes, hangs and refusals on
// demand. It enters the real sandbox and speaks the real frames. A graph is lines of words:
//   kernels N          plan N kernels (default 1)
//   name TEXT          goes into the kernels' bytes, so that they differ between graphs
//   guarded            the variant holds for hint 0 in the same hundred as this call's
//   around N           likewise, for hint 0 at most N from this call's
//   sleep_ms N         before planning
//   slow_from N        three seconds more, where hint 0 is N or more
//   refuse CODE TEXT   answer with this error
//   crash [WORD]       while planning: by abort, "segv" or "exit"
//   hang               while planning
//   exhaust            take memory until there is none, while planning
//   emit WORD          crash, hang or exhaust while emitting, or "slow": 200 ms a kernel
//   gemms N …          of max-autotune: one to measure for each, as scripted_tuner.cc says. One of so many
//                      rows has kernels of its own: 9 "wrong", "hang" and "faster", 10 none as the worker
//                      crashes
//   convolutions N …   likewise, after those
//   traced N …         the plan has images channels-last; those are the same program's convolutions with
//   images
//                      as traced, whose kernels are others. "traced crash": when that is planned
//   tells_hint         a kernel says that it writes hint 0 bytes: a hole, which must not be
//   bytes N M          that the kernels move, channels-last and as traced
//   others N M         convolutions that can't be measured, likewise
//   calls WORD         a library call of the plan with images as traced
//   object_kib N       of bytes at random in each kernel's code
//   rows N             of the gemms (default 8)
//   schedules N …      the same with kernels; candidate 256 crashes the worker that emits it
//   take_mib N         take so much memory and free it, while planning
//   keep_mib N         and keep it
//   remember TEXT      in the process
//   recall             the plan's calls list what the process remembers
//   say N              as many lines on standard error
//   lie SEED           answer by the frame with some bits flipped
//   probe PID          try what the sandbox denies, some of it on that process; the plan's calls list what
//   got
//                      through
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <iostream>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "compiler/image/gpu_image.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/digest.h"
#include "compiler/support/proto_util.h"
#include "compiler/worker/frame.h"
#include "compiler/worker/sandbox.h"
#include "tests/fault/sandbox_probe.h"

namespace kiln {
namespace {

constexpr int64_t kScheduledElements = 1000;
constexpr uint32_t kCrashesWorker = 256;

using Script = std::map<std::string, std::string>;

Script ParseScript(const std::string& text) {
  Script script;
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(' ', 1));
    script[std::string(parts.first)] = std::string(parts.second);
  }
  return script;
}

[[noreturn]] void Hang() {
  while (true) absl::SleepFor(absl::Seconds(10));
}

[[noreturn]] void Exhaust() {
  std::vector<std::string> taken;
  while (true) taken.emplace_back(size_t{1} << 20, '\0');
}

[[noreturn]] void Crash(const std::string& how) {
  if (how == "exit") _exit(1);
  if (how == "segv") {
    signal(SIGSEGV, SIG_DFL);
    raise(SIGSEGV);
  }
  abort();
}

// Touched, so that it is the process' own.
void TakeMemory(Script& script) {
  static std::vector<std::string> kept;
  int64_t number = 0;
  if (absl::SimpleAtoi(script["take_mib"], &number)) {
    std::vector<std::string> taken;
    for (; number > 0; --number) taken.emplace_back(size_t{1} << 20, 'x');
  }
  if (!absl::SimpleAtoi(script["keep_mib"], &number)) return;
  for (; number > 0; --number) kept.emplace_back(size_t{1} << 20, 'x');
}

void Misbehave(const std::string& how) {
  if (how == "exhaust") Exhaust();
  if (how == "crash") abort();
  if (how == "hang") Hang();
  if (how == "slow") absl::SleepFor(absl::Milliseconds(200));
}

// From `low` to below `high`.
void AddGuards(int64_t low, int64_t high, v1::Guards* guards) {
  v1::Symbol* symbol = guards->add_symbols();
  symbol->set_kind(v1::SYMBOL_INT);
  symbol->set_min(0);
  symbol->set_max(1'000'000);
  const auto add = [&](v1::ExprOp op, int64_t value, const std::vector<uint32_t>& args) {
    v1::ExprNode* node = guards->add_exprs();
    node->set_op(op);
    node->set_value(value);
    for (uint32_t arg : args) node->add_args(arg);
  };
  add(v1::EXPR_SYMBOL, 0, {});
  add(v1::EXPR_CONST, low, {});
  add(v1::EXPR_LE, 0, {1, 0});
  add(v1::EXPR_CONST, high, {});
  add(v1::EXPR_LT, 0, {0, 3});
  guards->add_conditions(2);
  guards->add_conditions(4);
}

void AddConvolution(int64_t images, bool channels_last, v1::Convolution* convolution) {
  const auto sizes = [](std::initializer_list<int64_t> numbers,
                        google::protobuf::RepeatedField<int64_t>* to) {
    to->Assign(numbers.begin(), numbers.end());
  };
  convolution->set_direction(images % 2 == 1 ? v1::Convolution::FORWARD : v1::Convolution::WEIGHT_GRADIENT);
  convolution->set_dtype(v1::F32);
  sizes({images, 3, 8, 8}, convolution->mutable_input());
  sizes({4, 3, 3, 3}, convolution->mutable_weight());
  sizes({images, 4, 4, 4}, convolution->mutable_output());
  sizes({2, 2}, convolution->mutable_stride());
  sizes({1, 1}, convolution->mutable_padding());
  sizes({1, 1}, convolution->mutable_dilation());
  convolution->set_channels_last(channels_last);
}

void AddGemm(int64_t batch, int64_t rows, v1::Gemm* gemm) {
  const auto describe = [](int64_t rows, int64_t columns, v1::MatrixOperand* operand) {
    operand->set_rows(rows);
    operand->set_columns(columns);
    operand->set_row_stride(columns);
    operand->set_column_stride(1);
    operand->set_batch_stride(rows * columns);
  };
  gemm->set_dtype(v1::F32);
  gemm->set_batch(batch);
  describe(rows, 16, gemm->mutable_a());
  describe(16, 4, gemm->mutable_b());
  describe(rows, 4, gemm->mutable_d());
}

// A kernel that is a message, with candidates: a schedule of as many "threads" each.
void AddScheduled(int64_t number, int64_t candidates, v1::PlanReply* reply) {
  v1::Kernel kernel;
  kernel.set_format_version(static_cast<uint32_t>(number) + 1);
  v1::PlannedKernel* planned = reply->add_kernels();
  planned->set_kernel(SerializeDeterministic(kernel));
  planned->mutable_notes()->set_name(absl::StrCat("scheduled_", number));
  v1::KernelTunable* tunable = reply->add_tunables()->mutable_kernel();
  tunable->set_digest(Sha256(planned->kernel()));
  tunable->set_units(kScheduledElements);
  for (const v1::BufferAccess access : {v1::READ, v1::WRITE}) {
    v1::KernelOperand* operand = tunable->add_operands();
    operand->set_dtype(v1::F32);
    operand->set_elements(kScheduledElements);
    operand->set_access(access);
  }
  tunable->add_schedules()->mutable_threads()->set_threads(64);
  for (uint32_t bit = 1; bit <= candidates; bit *= 2) {
    if ((candidates & bit) != 0) tunable->add_schedules()->mutable_threads()->set_threads(bit);
  }
}

// Of "N M" the first for images channels-last, the second for those as traced; 0 where nothing is said.
int64_t NumberFor(const v1::PlanRequest& request, const std::string& words) {
  const std::vector<std::string> numbers = absl::StrSplit(words, ' ', absl::SkipEmpty());
  int64_t number = 0;
  if (!numbers.empty() && !absl::SimpleAtoi(numbers.at(request.keep_traced_layout() ? 1 : 0), &number))
    abort();
  return number;
}

void AddConvolutions(const v1::PlanRequest& request, Script& script, v1::PlanReply* reply) {
  const bool traced = request.keep_traced_layout();
  if (traced) Misbehave(script["traced"]);
  std::map<std::string, int> uses;
  for (absl::string_view word :
       absl::StrSplit(script[traced ? "traced" : "convolutions"], ' ', absl::SkipEmpty())) {
    int64_t number = 0;
    if (!absl::SimpleAtoi(word, &number)) abort();
    v1::Tunable tunable;
    AddConvolution(number, !traced, tunable.mutable_convolution());
    const auto [use, first] = uses.emplace(word, reply->images().measured_size());
    if (first) *reply->add_tunables() = tunable;
    if (!script.contains("traced")) continue;
    if (first) *reply->mutable_images()->add_measured()->mutable_tunable() = tunable;
    v1::ImageConvolutions::Use* counted = reply->mutable_images()->mutable_measured(use->second);
    counted->set_calls(counted->calls() + 1);
  }
  if (!script.contains("traced")) return;
  reply->mutable_images()->set_others(static_cast<uint32_t>(NumberFor(request, script["others"])));
  if (traced && script.contains("calls"))
    reply->mutable_program()->add_steps()->mutable_call()->set_target(script["calls"]);
}

v1::Frame Plan(const v1::PlanRequest& request) {
  v1::Frame frame;
  Script script = ParseScript(request.graph());
  int64_t number = 0;
  if (absl::SimpleAtoi(script["sleep_ms"], &number)) absl::SleepFor(absl::Milliseconds(number));
  if (absl::SimpleAtoi(script["slow_from"], &number) && request.hints().values(0) >= number)
    absl::SleepFor(absl::Seconds(3));
  if (script.contains("crash")) Crash(script["crash"]);
  TakeMemory(script);
  if (script.contains("hang")) Hang();
  if (script.contains("exhaust")) Exhaust();
  if (script.contains("refuse")) {
    std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(script["refuse"], absl::MaxSplits(' ', 1));
    int32_t code = 0;
    if (!absl::SimpleAtoi(parts.first, &code)) abort();
    frame.mutable_error()->set_code(code);
    frame.mutable_error()->set_message(std::string(parts.second));
    return frame;
  }
  v1::PlanReply* reply = frame.mutable_plan_reply();
  reply->mutable_program()->set_format_version(kProgramFormatVersion);
  if (script.contains("guarded")) {
    const int64_t low = request.hints().values(0) / 100 * 100;
    AddGuards(low, low + 100, reply->mutable_guards());
  }
  if (absl::SimpleAtoi(script["around"], &number)) {
    const int64_t hint = request.hints().values(0);
    AddGuards(hint - number, hint + number + 1, reply->mutable_guards());
  }
  if (script.contains("probe")) {
    ProbeTargets targets;
    if (!absl::SimpleAtoi(script["probe"], &targets.daemon)) abort();
    for (const std::string& door : OpenDoors(/*gpu=*/false, targets))
      reply->mutable_program()->add_steps()->mutable_call()->set_target(door);
  }
  if (absl::SimpleAtoi(script["say"], &number)) {
    for (; number > 0; --number) std::cerr << "words\n";
  }
  static std::vector<std::string> remembered;
  if (script.contains("remember")) remembered.push_back(script["remember"]);
  if (script.contains("recall")) {
    for (const std::string& text : remembered)
      reply->mutable_program()->add_steps()->mutable_call()->set_target(text);
  }
  if (!request.debug_dir().empty()) {
    for (const char* name : {"00_graph.txt", "../escape.txt", "/etc/passwd"}) {
      v1::DebugFile* file = reply->add_debug_files();
      file->set_name(name);
      file->set_contents(absl::StrCat(request.graph(), request.keep_traced_layout() ? " as traced" : ""));
    }
  }
  for (absl::string_view word : absl::StrSplit(script["gemms"], ' ', absl::SkipEmpty())) {
    int64_t rows = 8;
    if (!absl::SimpleAtoi(word, &number)) abort();
    if (script.contains("rows") && !absl::SimpleAtoi(script["rows"], &rows)) abort();
    AddGemm(number, rows, reply->add_tunables()->mutable_gemm());
  }
  AddConvolutions(request, script, reply);
  for (absl::string_view word : absl::StrSplit(script["schedules"], ' ', absl::SkipEmpty())) {
    if (!absl::SimpleAtoi(word, &number)) abort();
    AddScheduled(reply->kernels_size(), number, reply);
  }
  int64_t kernels = 1;
  if (script.contains("kernels") && !absl::SimpleAtoi(script["kernels"], &kernels)) abort();
  for (int64_t i = 0; i < kernels; ++i) {
    v1::PlannedKernel* kernel = reply->add_kernels();
    kernel->set_kernel(
        absl::StrCat("kernel ", i, "\nname ", script["name"], "\nemit ", script["emit"],
                     request.keep_traced_layout() ? "\nas traced" : "",
                     script.contains("object_kib") ? "\nobject_kib " + script["object_kib"] : ""));
    kernel->mutable_bytes_read()->set_value(NumberFor(request, script["bytes"]));
    if (script.contains("tells_hint")) kernel->mutable_bytes_written()->set_value(request.hints().values(0));
    kernel->mutable_notes()->set_name(absl::StrCat("kernel_", i));
    reply->mutable_program()->add_steps()->mutable_launch()->set_kernel(reply->kernels_size() - 1);
  }
  return frame;
}

v1::Frame EmitGemm(const v1::Gemm& gemm) {
  v1::Frame frame;
  v1::EmitReply* reply = frame.mutable_emit_reply();
  if (gemm.d().rows() == 10) abort();
  if (gemm.d().rows() != 9) return frame;
  for (const char* name : {"wrong", "hang", "faster"}) {
    v1::NativeKernel* native = reply->add_natives();
    native->set_name(name);
    native->set_image("code");
    native->set_units(1);
  }
  return frame;
}

// An image of whose code the schedule is all that is known. The machine code is none that scripted_cuda.cc
// loads.
v1::Frame EmitScheduled(const v1::Kernel& kernel) {
  const uint32_t threads = kernel.schedule().threads().threads();
  if (threads == kCrashesWorker) abort();
  GpuImage image;
  image.threads = image.points_per_block = 32;
  image.buffers = 2;
  image.cubin = "of another GPU";
  image.ptx = absl::StrCat("schedule ", threads);
  v1::Frame frame;
  frame.mutable_emit_reply()->set_kind(v1::GPU_IMAGE);
  frame.mutable_emit_reply()->set_object(SerializeGpuImage(image));
  return frame;
}

v1::Frame Emit(const v1::EmitRequest& request) {
  if (request.has_gemm()) return EmitGemm(request.gemm());
  v1::Kernel kernel;
  if (!absl::StartsWith(request.kernel(), "kernel ") && kernel.ParseFromString(request.kernel()))
    return EmitScheduled(kernel);
  Script script = ParseScript(request.kernel());
  Misbehave(script["emit"]);
  v1::Frame frame;
  frame.mutable_emit_reply()->set_kind(v1::FLAT_IMAGE);
  std::string& object = *frame.mutable_emit_reply()->mutable_object();
  object = absl::StrCat("object of ", request.kernel());
  int64_t kib = 0;
  if (absl::SimpleAtoi(script["object_kib"], &kib)) {
    std::mt19937_64 random(std::hash<std::string>()(object));
    for (int64_t i = 0; i < kib * 128; ++i) {
      const uint64_t word = random();
      object.append(reinterpret_cast<const char*>(&word), sizeof(word));
    }
  }
  if (request.want_listing()) frame.mutable_emit_reply()->set_listing("listing of " + request.kernel());
  return frame;
}

// Bytes in the place of a frame: those of one, of which a seed says which bits are others.
bool Lie(int fd, const v1::Frame& frame, int64_t seed) {
  std::string bytes(4, '\0');
  const size_t length = frame.ByteSizeLong();
  for (size_t i = 0; i < 4; ++i) bytes[i] = static_cast<char>((length >> (8 * i)) & 0xff);
  frame.AppendToString(&bytes);
  std::minstd_rand random(static_cast<uint32_t>(seed));
  for (int flips = 1 + static_cast<int>(random() % 8); flips > 0; --flips)
    bytes[random() % bytes.size()] ^= static_cast<char>(1 << (random() % 8));
  return write(fd, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size());
}

int Main(int argc, char** argv) {
  SandboxOptions sandbox;
  for (int i = 1; i < argc; ++i) {
    std::pair<absl::string_view, absl::string_view> flag = absl::StrSplit(argv[i], '=');
    if (TakeSandboxWord(argv[i], &sandbox)) continue;
    if (flag.first == "--memory-bytes" && !absl::SimpleAtoi(flag.second, &sandbox.memory_bytes)) return 2;
  }
  absl::StatusOr<std::vector<SandboxLayer>> layers = EnterSandbox(sandbox);
  if (!layers.ok()) return 3;
  FrameChannel channel(sandbox.frame_fd);
  v1::Frame hello;
  hello.mutable_hello()->set_build_id("scripted");
  hello.mutable_hello()->set_compiler_fingerprint(FINGERPRINT);
  hello.mutable_hello()->set_graph_format(kGraphFormatVersion);
  hello.mutable_hello()->set_program_format(kProgramFormatVersion);
  hello.mutable_hello()->add_targets("x86_64-linux-gnu");
  // By this name it is a compiler of later formats, and by the next it says that it lacks a layer.
  if (absl::StrContains(argv[0], "of_other_formats"))
    hello.mutable_hello()->set_program_format(kProgramFormatVersion + 1);
  if (absl::StrContains(argv[0], "without_seccomp"))
    *absl::c_find_if(*layers, [](const SandboxLayer& layer) { return layer.name == "seccomp"; }) = {
        "seccomp", false, "so says the test"};
  TellLayers(*layers, hello.mutable_hello());
  if (!channel.Write(hello, {}).ok()) return 4;
  while (true) {
    absl::StatusOr<v1::Frame> request = channel.Read({});
    if (!request.ok()) return 0;
    v1::Frame reply = request->has_plan() ? Plan(request->plan()) : Emit(request->emit());
    reply.set_id(request->id());
    int64_t seed = 0;
    if (absl::SimpleAtoi(ParseScript(request->plan().graph())["lie"], &seed)) {
      if (!Lie(sandbox.frame_fd, reply, seed)) return 0;
      continue;
    }
    if (!channel.Write(reply, {}).ok()) return 0;
  }
}

}  // namespace
}  // namespace kiln

int main(int argc, char** argv) { return kiln::Main(argc, argv); }
