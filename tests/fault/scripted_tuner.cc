// A kiln-tuner that needs no GPU and does what the gemm says: the daemon's tests need candidates that
// crash, hang and lie on demand. It enters the real sandbox and speaks the real frames. A gemm's `batch`
// or a convolution's images is a sum of the candidates to offer beside the default, by their names; a plan of
// a convolution has its number for an engine, a kernel's schedules for threads:
//   1 faster   0.8 of the default's time
//   2 crash    4 hang   8 wrong   16 nonsense (an answer to another question)
//   32 lucky   fast in a short measurement, not in a long one
//   64         crash while listing
//   128 slow   takes 300 ms to measure, and is no faster
//   4096 probe tries what the sandbox denies; wrong where something went through, else fast
//   8192 own   about 0.6 of the default's time, by the moment of the measurement: two daemons find two times
//   16384 seen 0.5 of the default's time where the process has measured something before
// A kernel of our own does what its name says; the faster one takes 0.6 of the default's time. What is no
// copy takes 10 µs by default; a copy takes one, and one more for each MiB.
#include <stdlib.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "compiler/image/gpu_image.h"
#include "compiler/worker/frame.h"
#include "compiler/worker/sandbox.h"
#include "tests/fault/sandbox_probe.h"

namespace kiln {
namespace {

constexpr uint32_t kShortRounds = 20;
constexpr std::pair<int64_t, const char*> kOffers[] = {
    {2, "crash"},  {4, "hang"},     {8, "wrong"},  {16, "nonsense"}, {32, "lucky"},
    {128, "slow"}, {4096, "probe"}, {8192, "own"}, {16384, "seen"},  {1, "faster"}};

v1::Frame List(const v1::Tunable& tunable) {
  if (tunable.has_copy()) {
    v1::Frame frame;
    frame.mutable_candidates()->add_candidates();
    return frame;
  }
  const bool convolves = tunable.has_convolution();
  const int64_t sum = convolves ? tunable.convolution().input(0) : tunable.gemm().batch();
  if ((sum & 64) != 0) abort();
  v1::Frame frame;
  const auto offer = [&](int64_t bit, const char* name) {
    v1::Candidate* candidate = frame.mutable_candidates()->add_candidates();
    if (convolves) {
      candidate->mutable_plan()->set_engine(bit);
    } else {
      candidate->mutable_algorithm()->set_data(name);
    }
  };
  offer(0, "default");
  for (const auto& [bit, name] : kOffers) {
    if ((sum & bit) != 0) offer(bit, name);
  }
  return frame;
}

// A kernel's candidates come with their code, in which the schedule stands (scripted_worker.cc).
v1::Frame ListSchedules(const v1::ListCandidates& request) {
  const v1::KernelTunable& kernel = request.tunable().kernel();
  if (request.images_size() != kernel.schedules_size()) abort();
  v1::Frame frame;
  for (int k = 0; k < request.images_size(); ++k) {
    const absl::StatusOr<GpuImage> image = ParseGpuImage(request.images(k));
    const uint32_t threads = k == 0 ? 0 : kernel.schedules(k).threads().threads();
    if (!image.ok() || image->ptx != absl::StrCat("schedule ", threads)) abort();
    *frame.mutable_candidates()->add_candidates()->mutable_schedule() = kernel.schedules(k);
  }
  return frame;
}

std::string NameOf(const v1::Candidate& candidate) {
  for (const auto& [bit, name] : kOffers) {
    if (candidate.has_plan() && candidate.plan().engine() == bit) return name;
    if (candidate.has_schedule() && candidate.schedule().threads().threads() == bit) return name;
  }
  return candidate.has_native() ? candidate.native().name() : candidate.algorithm().data();
}

double DefaultMicroseconds(const v1::Tunable& tunable) {
  return tunable.has_copy() ? 1.0 + static_cast<double>(tunable.copy().bytes()) / (1 << 20) : 10.0;
}

// `lists`: how many this process was asked for.
v1::Frame Measure(const v1::Tunable& tunable, const v1::MeasureCandidate& request, int lists) {
  const bool native = request.candidate().has_native();
  const std::string name = NameOf(request.candidate());
  v1::Frame frame;
  v1::Measured* measured = frame.mutable_measured();
  measured->set_default_microseconds(DefaultMicroseconds(tunable));
  measured->set_ratio(1);
  if (name == "crash") abort();
  while (name == "hang") absl::SleepFor(absl::Seconds(10));
  if (name == "wrong") measured->set_wrong("element 7 is 1, not 2");
  if (name == "wrong") measured->set_ratio(0.1);
  if (name == "nonsense") return List(v1::Tunable());
  if (name == "slow") absl::SleepFor(absl::Milliseconds(300));
  if (name == "lucky" && request.rounds() < kShortRounds) measured->set_ratio(0.5);
  if (name == "faster") measured->set_ratio(native ? 0.6 : 0.8);
  if (name == "seen" && lists > 1) measured->set_ratio(0.5);
  if (name == "own")
    measured->set_ratio(0.6 + 1e-10 * static_cast<double>(absl::GetCurrentTimeNanos() % 1'000'000'000));
  if (name == "probe") {
    measured->set_wrong(absl::StrJoin(OpenDoors(/*gpu=*/true, ProbeTargets()), ", "));
    measured->set_ratio(0.5);
  }
  measured->set_microseconds(measured->default_microseconds() * measured->ratio());
  return frame;
}

int Main(int argc, char** argv) {
  SandboxOptions sandbox;
  sandbox.gpu = true;
  for (int i = 1; i < argc; ++i) TakeSandboxWord(argv[i], &sandbox);
  const absl::StatusOr<std::vector<SandboxLayer>> layers = EnterSandbox(sandbox);
  if (!layers.ok()) return 3;
  FrameChannel channel(sandbox.frame_fd);
  v1::Frame hello;
  hello.mutable_hello()->set_build_id("scripted");
  if (!channel.Write(hello, {}).ok()) return 4;
  v1::Tunable listed;
  int lists = 0;
  while (true) {
    absl::StatusOr<v1::Frame> request = channel.Read({});
    if (!request.ok()) return 0;
    v1::Frame reply;
    if (request->has_open_gpu()) {
      reply.mutable_gpu()->set_name("scripted GPU");
      reply.mutable_gpu()->set_architecture(90);
      reply.mutable_gpu()->set_cublas_lt_version(1);
    } else if (request->has_measure() && listed.kind_case() == v1::Tunable::KIND_NOT_SET) {
      reply.mutable_error()->set_code(static_cast<int>(absl::StatusCode::kFailedPrecondition));
      reply.mutable_error()->set_message("a measurement before its list");
    } else {
      if (!request->has_measure()) {
        listed = request->list_candidates().tunable();
        ++lists;
      }
      reply = request->has_measure() ? Measure(listed, request->measure(), lists)
              : listed.has_kernel()  ? ListSchedules(request->list_candidates())
                                     : List(listed);
    }
    reply.set_id(request->id());
    if (!channel.Write(reply, {}).ok()) return 0;
  }
}

}  // namespace
}  // namespace kiln

int main(int argc, char** argv) { return kiln::Main(argc, argv); }
