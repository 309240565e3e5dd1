// The sandbox of workers. Promises: no probe of sandbox_probe.h gets through, whoever runs kilnd; each layer
// alone stops something that gets through without it; a layer that the host does not give is off and says
// why. The control: without a layer the probes get through.
#include "compiler/worker/sandbox.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <grp.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "compiler/worker/namespaces.h"
#include "gtest/gtest.h"
#include "tests/fault/process_facts.h"
#include "tests/fault/sandbox_probe.h"
#include "tests/fault/test_daemon.h"

namespace kiln {
namespace {

constexpr uid_t kSomebody = 1500;
constexpr size_t kProbesMin = 35;  // that get through without the sandbox, for root and for another user
using Only = std::optional<std::set<std::string>>;

enum class Outcome { kDenied, kThrough, kNotGiven, kNoSandbox };
constexpr int kExitNotGiven = 43;
constexpr int kExitOnlyRanges = 77;

// In a process of its own, as a zygote and its worker have them.
Outcome Try(const Only& only, const ProbeTargets& targets, const std::function<bool()>& gets_through,
            uid_t user = 0) {
  const pid_t zygote = fork();
  if (zygote == 0) {
    if (user != 0 && (setgroups(0, nullptr) != 0 || setresgid(user, user, user) != 0 ||
                      setresuid(user, user, user) != 0 || prctl(PR_SET_DUMPABLE, 1) != 0))
      _exit(1);
    SandboxOptions options;
    options.own_user = geteuid() == 0 ? kWorkerUid : 0;
    options.frame_fd = targets.socket;
    options.memory_bytes = uint64_t{4} << 30;
    options.only = only;
    const Namespaces namespaces = Namespaces::Enter(false, only);
    options.entered = namespaces.layers();
    options.empty_root = namespaces.empty_root();
    const pid_t worker = fork();
    if (worker == 0) {
      const absl::StatusOr<std::vector<SandboxLayer>> layers = EnterSandbox(options);
      if (!layers.ok()) _exit(1);
      const bool given = absl::c_all_of(*layers, [](const SandboxLayer& layer) { return layer.on; });
      if (only.has_value() && !given) _exit(kExitNotGiven);
      _exit(gets_through() ? kExitThrough : 0);
    }
    int status = 0;
    waitpid(worker, &status, 0);
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 2);
  }
  int status = 0;
  waitpid(zygote, &status, 0);
  if (!WIFEXITED(status)) return Outcome::kNoSandbox;
  switch (WEXITSTATUS(status)) {
    case 0: return Outcome::kDenied;
    case kExitThrough: return Outcome::kThrough;
    case kExitNotGiven: return Outcome::kNotGiven;
    default: return Outcome::kNoSandbox;
  }
}

// A process to aim at, a folder that everybody may write, a connected socket.
class Range : public testing::Test {
 protected:
  Range() {
    targets_.daemon = fork();
    if (targets_.daemon == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      while (true) pause();
    }
    char path[] = "/tmp/kiln-sandbox-XXXXXX";
    targets_.directory = mkdtemp(path);
    chmod(path, 0777);
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair_), 0);
    targets_.socket = dup2(pair_[0], 100);
  }
  ~Range() override {
    kill(targets_.daemon, SIGKILL);
    waitpid(targets_.daemon, nullptr, 0);
    std::filesystem::remove_all(targets_.directory);
    for (const int descriptor : {pair_[0], pair_[1], targets_.socket}) close(descriptor);
  }
  ProbeTargets targets_;

 private:
  int pair_[2];
};

TEST_F(Range, EveryProbeIsStoppedAndMostGetThroughWithoutTheSandbox) {
  size_t proven = 0;
  std::printf("%-34s %-8s %s\n", "probe", "without", "within");
  for (const Probe& probe : Probes(targets_)) {
    const Outcome without = Try(std::set<std::string>(), targets_, probe.gets_through);
    const Outcome within = Try(std::nullopt, targets_, probe.gets_through);
    proven += without == Outcome::kThrough && within == Outcome::kDenied;
    std::printf("%-34s %-8s %s\n", probe.name.c_str(), without == Outcome::kThrough ? "through" : "denied",
                within == Outcome::kThrough ? "THROUGH" : "denied");
    EXPECT_EQ(within, Outcome::kDenied) << probe.name;
  }
  EXPECT_GE(proven, kProbesMin) << "of user " << geteuid() << "; the others prove nothing on this host";
}

// ---- each layer alone ------------------------------------------------------------------------

bool OpensFile(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY);
  if (file >= 0) close(file);
  return file >= 0;
}

class Layers : public Range {
 protected:
  void SetUp() override {
    if (Try(std::set<std::string>(), targets_, [] { return true; }, kSomebody) != Outcome::kThrough) {
      GTEST_SKIP() << "only root, who can be another user, gets through what a layer stops";
    }
  }
  std::string FileOf(uid_t owner, const std::string& name) {
    const std::string path = targets_.directory + "/" + name;
    std::ofstream(path) << "secret";
    EXPECT_EQ(chmod(path.c_str(), 0600), 0);
    EXPECT_EQ(chown(path.c_str(), owner, owner), 0);
    return path;
  }
};

// A server of this machine, for the time of the test.
int ListenOnLoopback(sockaddr_in* address) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  address->sin_family = AF_INET;
  address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof *address;
  EXPECT_EQ(bind(listener, reinterpret_cast<sockaddr*>(address), size), 0);
  EXPECT_EQ(listen(listener, 64), 0);
  EXPECT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(address), &size), 0);
  return listener;
}

bool ConnectsTo(const sockaddr_in& address) {
  const int from = socket(AF_INET, SOCK_STREAM, 0);
  const bool connected = connect(from, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  close(from);
  return connected;
}

bool IsMandatory(const std::string& layer) { return absl::c_linear_search(kMandatoryLayers, layer); }

// What a set-uid program of root's finds itself to be.
bool BecomesRoot(const std::string& program) {
  const pid_t child = fork();
  if (child == 0) {
    execl(program.c_str(), program.c_str(), "-u", nullptr);
    _exit(1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST_F(Layers, EachAloneStopsWhatGetsThroughWithout) {
  struct Shown {
    std::string layer, probe;
    std::function<bool()> gets_through;
    uid_t user = 0;
  };
  sockaddr_in server = {};
  const int listener = ListenOnLoopback(&server);
  const int segment = shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600);
  const pid_t daemon = targets_.daemon;
  const std::string own = FileOf(0, "of_root"), others = FileOf(kSomebody, "of_somebody");
  const std::vector<Shown> shown = {
      {"user", "raise its priority", [] { return setpriority(PRIO_PROCESS, 0, -1) == 0; }},
      {"mount", "read a file", [] { return OpensFile("/etc/passwd"); }},
      {"net", "connect to this host", [&] { return ConnectsTo(server); }},
      {"ipc", "attach a segment",
       [&] { return shmat(segment, nullptr, SHM_RDONLY) != reinterpret_cast<void*>(-1); }},
      {"pid", "see the daemon", [&] { return kill(daemon, 0) == 0; }},
      {"uid", "read a file of root's", [&] { return OpensFile(own); }},
      {"capabilities", "read a file of another's", [&] { return OpensFile(others); }},
      {"not_dumpable", "read its own environment", [] { return OpensFile("/proc/self/environ"); }, kSomebody},
      {"limits", "hide memory in a memfd",
       [] {
         const int file = static_cast<int>(memfd_create("probe", 0));
         return file >= 0 && ftruncate(file, 1'536l << 20) == 0;
       }},
      {"landlock", "read a file", [] { return OpensFile("/etc/passwd"); }},
      {"seccomp", "make a socket", [] { return socket(AF_UNIX, SOCK_STREAM, 0) >= 0; }}};
  std::printf("%-14s %-26s", "layer", "probe");
  for (const Shown& column : shown) std::printf(" %.4s", column.layer.c_str());
  std::printf("  (each layer alone: # stops it)\n");
  for (const Shown& row : shown) {
    const auto alone = [&](std::set<std::string> layers) {
      if (layers.contains("landlock")) layers.insert("no_new_privs");  // without which it is root's alone
      return Try(layers, targets_, row.gets_through, row.user);
    };
    const Outcome without = alone({}), with = alone({row.layer});
    if (with == Outcome::kNotGiven || (without == Outcome::kDenied && !IsMandatory(row.layer))) {
      std::printf("%-14s %-26s this host does not give the layer, or stops the probe itself\n",
                  row.layer.c_str(), row.probe.c_str());
      continue;
    }
    EXPECT_EQ(without, Outcome::kThrough) << row.probe << " without any layer";
    EXPECT_EQ(with, Outcome::kDenied) << row.probe << " with " << row.layer << " alone";
    std::printf("%-14s %-26s", row.layer.c_str(), row.probe.c_str());
    for (const Shown& column : shown) {
      const Outcome outcome = alone({column.layer});
      std::printf(" %s   ", outcome == Outcome::kDenied ? "#" : outcome == Outcome::kThrough ? "." : "?");
    }
    std::printf("\n");
  }
  shmctl(segment, IPC_RMID, nullptr);
  close(listener);
}

// Of no_new_privs: a set-uid program of root's, started by somebody.
TEST_F(Layers, NoProgramGivesPrivileges) {
  const std::string program = targets_.directory + "/set_uid";
  std::filesystem::copy("/proc/self/exe", program);
  EXPECT_EQ(chmod(program.c_str(), 04755), 0);
  const auto becomes_root = [&] { return BecomesRoot(program); };
  EXPECT_EQ(Try(std::set<std::string>(), targets_, becomes_root, kSomebody), Outcome::kThrough)
      << "is /tmp mounted nosuid?";
  EXPECT_EQ(Try(std::set<std::string>{"no_new_privs"}, targets_, becomes_root, kSomebody), Outcome::kDenied);
}

// ---- within kilnd ----------------------------------------------------------------------------

std::vector<std::string> DoorsOf(TestDaemon& daemon) {
  std::vector<std::string> doors;
  const CompileResult result = daemon.Compile(absl::StrCat("probe ", daemon.pid()));
  if (!result.done) doors.push_back(absl::StrCat("no answer: ", result.failed_reason));
  for (const v1::Step& step : result.manifest.program().steps()) {
    if (step.has_call()) doors.push_back(step.call().target());
  }
  return doors;
}

TEST(SandboxOfKilnd, NoProbeGetsThrough) {
  TestDaemon daemon;
  EXPECT_EQ(absl::StrJoin(DoorsOf(daemon), ", "), "");
}

// The same as another user: all of it again in a process that is one. Where that may not read the build
// folder, it starts no kilnd, and all but that holds.
TEST(SandboxOfKilnd, NoProbeGetsThroughForAnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can be another user";
  const pid_t somebody = fork();
  if (somebody == 0) {
    if (setgroups(0, nullptr) != 0 || setresgid(kSomebody, kSomebody, kSomebody) != 0 ||
        setresuid(kSomebody, kSomebody, kSomebody) != 0)
      _exit(1);
    const bool reads = access(SCRIPTED_WORKER, X_OK) == 0;
    execl("/proc/self/exe", "sandbox_test",
          reads ? "--gtest_filter=SandboxOfKilnd.NoProbeGetsThrough:Range.*" : "--gtest_filter=Range.*",
          reads ? nullptr : "--only-ranges", nullptr);
    _exit(1);
  }
  int status = 0;
  waitpid(somebody, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kExitOnlyRanges)
    GTEST_SKIP() << "another user may not read the build folder: the probes hold, and kilnd is not asked";
  EXPECT_EQ(status, 0);
}

size_t LinesWith(TestDaemon& daemon, const std::string& words) {
  std::ifstream log(daemon.directory() + "/log");
  size_t lines = 0;
  for (std::string line; std::getline(log, line);) lines += absl::StrContains(line, words);
  return lines;
}

TEST(SandboxOfKilnd, WhatAWorkerSaysIsLoggedWithinBounds) {
  constexpr size_t kFlood = 3'000;
  TestDaemon daemon("", {}, "", 1);
  ASSERT_TRUE(daemon.Compile("say 3").done);
  EXPECT_TRUE(Eventually([&] { return LinesWith(daemon, "a worker says: words") == 3; }));
  ASSERT_TRUE(daemon.Compile(absl::StrCat("say ", kFlood)).done);
  int call = 0;
  EXPECT_TRUE(Eventually([&] {
    EXPECT_TRUE(daemon.Compile(absl::StrCat("say 1\nname ", ++call)).done);
    return LinesWith(daemon, "more lines of workers are left out") > 0;
  }));
  EXPECT_LT(LinesWith(daemon, "a worker says: words"), kFlood / 2);
}

// Nothing can start workers any more, which shows when one is wanted: another daemon can.
TEST(SandboxOfKilnd, ADaemonWhoseNamespaceIsKilledEnds) {
  TestDaemon daemon("", {}, "", 1);
  ASSERT_TRUE(daemon.Compile("name before").done);
  const std::vector<pid_t> zygotes = ChildrenOf(daemon.pid());
  ASSERT_EQ(zygotes.size(), 1u);
  const std::vector<pid_t> workers = daemon.Workers();
  pid_t first = -1;
  for (const pid_t child : ChildrenOf(zygotes[0])) {
    if (!absl::c_linear_search(workers, child)) first = child;
  }
  if (first < 0) GTEST_SKIP() << "this host gives no namespace of processes";
  kill(first, SIGKILL);
  // The kernel ends them with it, and takes its time.
  ASSERT_TRUE(Eventually([&] {
    return absl::c_all_of(MembersOf(zygotes[0]),
                          [](const ProcessFacts& worker) { return worker.state == 'Z'; });
  }));
  EXPECT_FALSE(daemon.Compile("name after").done);
  EXPECT_NE(daemon.Wait(absl::Seconds(60)), -1);
}

}  // namespace
}  // namespace kiln

// Started with "-u", it says by its exit code whether it is root.
int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "-u") return geteuid() == 0 ? 0 : 1;
  testing::InitGoogleTest(&argc, argv);
  const int failed = RUN_ALL_TESTS();
  const bool only_ranges = argc == 2 && std::string(argv[1]) == "--only-ranges";
  return failed == 0 && only_ranges ? kiln::kExitOnlyRanges : failed;
}
