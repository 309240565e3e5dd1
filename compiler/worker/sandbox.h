// What a worker may do. Called once, before the first frame is read, while the process has one thread; what
// it was started with and where are the zygote's matter (namespaces.h).
//
// Afterwards: lower priority than kilnd's, which answers hits while they compile (not for `gpu`, whose owner
// measures time); every descriptor but stdio and the frame socket closed; and the layers of sandbox_layer.h.
// Those that the host does not give are off and say why; without a mandatory one there is no worker.
//
// A worker that needs more memory than it may have ends by kExitOutOfMemory: `new` never fails in it.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "compiler/worker/landlock.h"
#include "compiler/worker/sandbox_layer.h"

namespace kiln {

inline constexpr int kExitOutOfMemory = 78;
inline constexpr int kWorkerNiceness = 5;

// A sanitizer maps terabytes of shadow.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kBoundAddressSpace = false;
#else
inline constexpr bool kBoundAddressSpace = true;
#endif

struct SandboxOptions {
  int frame_fd = -1;
  uint64_t memory_bytes = 0;  // RLIMIT_AS; 0 = unbounded
  // Of the zygote's words (zygote.cc):
  int empty_root = -1;                // a tree to go into; taken
  uint32_t own_user = 0;              // to become; 0: kilnd is not root's
  std::vector<SandboxLayer> entered;  // layers that are decided already
  // A user of NVIDIA's driver: it keeps its user and the host's file tree, of which it may open DriverTrees;
  // it makes threads and sockets, and reads files of /proc about itself.
  bool gpu = false;
  std::vector<std::string> libraries;         // with `gpu`: files, whose folders it may read besides
  std::optional<std::set<std::string>> only;  // for tests, which see what each layer does alone
};

// What a user of NVIDIA's driver may open.
std::vector<FileTree> DriverTrees(const std::vector<std::string>& libraries);

// True for a word of the command line that the zygote adds, which is now part of `options`.
bool TakeSandboxWord(absl::string_view word, SandboxOptions* options);

// The layers, all of them, on or off.
absl::StatusOr<std::vector<SandboxLayer>> EnterSandbox(const SandboxOptions& options);

}  // namespace kiln
