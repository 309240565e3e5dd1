// NVIDIA's driver in the sandbox of who measures on a GPU. Promise: it starts and takes memory under every
// layer that the host gives. Without a GPU there is nothing to show. Where it fails, the table says which
// layer is why.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "client/tuner/gpu.h"
#include "compiler/worker/namespaces.h"
#include "compiler/worker/sandbox.h"
#include "gtest/gtest.h"

namespace kiln {
namespace {

using Only = std::optional<std::set<std::string>>;

constexpr const char* kLayers[] = {"user",         "mount",        "net",    "ipc",      "pid",
                                   "capabilities", "no_new_privs", "limits", "landlock", "seccomp"};

std::string StartDriver() {
  const absl::StatusOr<std::unique_ptr<tuner::Gpu>> gpu = tuner::Gpu::Open(0, "");
  return gpu.ok() ? "" : std::string(gpu.status().message());
}

// In a process of its own, as a zygote and its tuner have them. Empty: the driver works. Else why it does
// not.
std::string Within(const Only& only) {
  int answer[2];
  if (pipe(answer) != 0) return "no pipe";
  const int frames = dup2(answer[1], 100);
  const pid_t zygote = fork();
  if (zygote == 0) {
    SandboxOptions options;
    options.gpu = true;
    options.frame_fd = frames;
    options.only = only;
    const Namespaces namespaces = Namespaces::Enter(true, only);
    options.entered = namespaces.layers();
    options.empty_root = namespaces.empty_root();
    const pid_t tuner = fork();
    if (tuner == 0) {
      const absl::StatusOr<std::vector<SandboxLayer>> layers = EnterSandbox(options);
      const std::string error = layers.ok() ? StartDriver() : std::string(layers.status().message());
      if (write(frames, error.data(), error.size()) < 0) _exit(1);
      _exit(0);
    }
    int status = 1;
    waitpid(tuner, &status, 0);
    _exit(status == 0 ? 0 : 1);
  }
  close(answer[1]);
  close(frames);
  std::string error;
  char part[256];
  for (ssize_t got; (got = read(answer[0], part, sizeof part)) > 0;)
    error.append(part, static_cast<size_t>(got));
  close(answer[0]);
  int status = 1;
  waitpid(zygote, &status, 0);
  return status == 0 ? error : error + " (it ended)";
}

void PrintWhich() {
  const std::set<std::string> all(std::begin(kLayers), std::end(kLayers));
  for (const std::string& layer : all) {
    std::set<std::string> others = all;
    others.erase(layer);
    std::set<std::string> alone = {layer};
    if (layer == "landlock") alone.insert("no_new_privs");
    std::printf("%-14s alone: %-60s all but it: %s\n", layer.c_str(), Within(alone).c_str(),
                Within(others).c_str());
  }
}

TEST(DriverSandbox, TheDriverWorksUnderEveryLayer) {
  const std::string without = Within(std::set<std::string>());
  if (!without.empty()) GTEST_SKIP() << "no GPU here: " << without;
  const std::string within = Within(std::nullopt);
  EXPECT_EQ(within, "");
  if (!within.empty()) PrintWhich();
}

}  // namespace
}  // namespace kiln
