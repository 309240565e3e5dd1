// Namespaces for workers, made by who starts them before it forks the first: of users, mounts, network,
// System V objects and processes. Each is had where the host allows it, and the others do not wait for it. In
// them a worker finds no network interface, no object or process but its fellows', and whoever is root there
// is nobody outside.
//
// The process itself stays in its own namespace of processes, so that it names workers by the pids that all
// know; the workers' own has a first process, kFirstProcess, that does nothing and without which there would
// be none. Threads: for a process with one.
#pragma once

#include <sys/types.h>

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "compiler/worker/sandbox_layer.h"

namespace kiln {

inline constexpr char kFirstProcess[] = "kilnd-pid1";
// Of workers, where kilnd is root's. No account of Debian's or systemd's has it, and a container's 65,536 ids
// do.
inline constexpr uid_t kWorkerUid = 65528;

class Namespaces {
 public:
  // `gpu`: for users of NVIDIA's driver, as SandboxOptions::gpu; they keep the host's processes. `only` is
  // for tests, which see what each layer does alone.
  static Namespaces Enter(bool gpu, const std::optional<std::set<std::string>>& only = std::nullopt);

  const std::vector<SandboxLayer>& layers() const { return layers_; }
  // An empty file tree that may not be written, for EnterSandbox; -1 where there is none. Close-on-exec.
  int empty_root() const { return empty_root_; }

  // False for good once somebody has killed the first process: nothing can be forked any more.
  bool Live() const;

 private:
  absl::Status NewProcesses();
  bool StartFirstProcess();

  std::vector<SandboxLayer> layers_;
  int empty_root_ = -1;
  int life_ = -1;  // a socket to the first process
};

}  // namespace kiln
