// Layers of a worker's sandbox by name, and whether they hold. Each is a wall of its own: what one lets
// through by mistake, another stops (tests/fault/sandbox_test.cc shows which stops what).
//
//   user, mount, net, ipc, pid   namespaces, made by who starts workers (namespaces.h)
//   uid             a user of the workers' own, where kilnd is root's
//   capabilities    none is left
//   no_new_privs    no program gives it more
//   not_dumpable    no process of the same user reads its memory, and it reads no secrets in its own /proc
//   limits          of memory, descriptors, processes; no file grows, a memfd neither; no core file
//   landlock        no file by name
//   seccomp         no system call but those that a compiler needs
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "kiln/v1/worker.pb.h"

namespace kiln {

struct SandboxLayer {
  std::string name;
  bool on = false;
  std::string why_not;  // of one that is off
};

// Without these no worker serves.
inline constexpr absl::string_view kMandatoryLayers[] = {"capabilities", "limits", "no_new_privs", "seccomp"};

SandboxLayer LayerOf(absl::string_view name, const absl::Status& status);

// One as a word of a command line, "net" or "net=why it is off", and back.
std::string LayerWord(const SandboxLayer& layer);
SandboxLayer ParseLayerWord(absl::string_view word);

void TellLayers(const std::vector<SandboxLayer>& layers, v1::WorkerHello* hello);

}  // namespace kiln
