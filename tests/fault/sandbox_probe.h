// What the sandbox of a worker stops, tried in earnest: each probe does what an intruder would, and without a
// sandbox gets through where the host lets it (sandbox_test.cc sees that). Threads: one.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

namespace kiln {

struct ProbeTargets {
  pid_t daemon = 1;                    // a process of the same user's
  std::string directory = "/var/tmp";  // may be written by that user
  int socket = 3;                      // an open one
};

struct Probe {
  std::string name;
  std::function<bool()> gets_through;
  bool of_driver = false;  // stopped in a sandbox with SandboxOptions::gpu as well
};

// `targets` outlives them.
std::vector<Probe> Probes(const ProbeTargets& targets);

// Names of the probes that got through, and of what should work and does not. `gpu`: in a sandbox with
// SandboxOptions::gpu.
std::vector<std::string> OpenDoors(bool gpu, const ProbeTargets& targets);

// A probe that starts a program has it exit so, where it gets through.
inline constexpr int kExitThrough = 42;

}  // namespace kiln
