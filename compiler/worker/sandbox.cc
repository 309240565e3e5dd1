#include "compiler/worker/sandbox.h"

#include <errno.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/close_range.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <new>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/status_macros.h"
#include "compiler/worker/system_calls.h"

namespace kiln {
namespace {

// Writable: devices, what is its own of /proc, and a file that the driver makes, unlinks and keeps open.
constexpr const char* kDriverWrites[] = {"/dev", "/proc", "/tmp"};
constexpr const char* kDriverReads[] = {
    "/etc/ld.so.cache", "/etc/nvidia", "/lib", "/lib64", "/opt", "/sys", "/usr"};

// Of a library's. Python packages of CUDA's libraries lie side by side in one folder and load each other.
std::string FolderOf(const std::string& library) {
  const std::string packages_folder = "/nvidia/";
  const size_t packages = library.rfind(packages_folder);
  return library.substr(
      0, packages != std::string::npos ? packages + packages_folder.size() : library.rfind('/'));
}

absl::Status Errno(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", strerror(errno)));
}

absl::Status Prctl(int option, unsigned long value) {
  return prctl(option, value, 0, 0, 0) == 0 ? absl::OkStatus() : Errno("prctl");
}

absl::Status Limit(int resource, rlim_t value, absl::string_view what) {
  const rlimit limit{value, value};
  return setrlimit(static_cast<__rlimit_resource>(resource), &limit) == 0 ? absl::OkStatus() : Errno(what);
}

absl::Status TakeUser(uint32_t user) {
  if (user == 0) return absl::UnavailableError("only root can give workers a user of their own");
  if (setgroups(0, nullptr) != 0) return Errno("setgroups");
  if (setresgid(user, user, user) != 0) return Errno("setresgid");
  return setresuid(user, user, user) == 0 ? absl::OkStatus() : Errno("setresuid");
}

absl::Status EnterRoot(const SandboxOptions& options) {
  if (options.gpu) return absl::UnavailableError("the driver loads its libraries by name");
  if (options.empty_root < 0) return absl::UnavailableError("there is no empty file tree");
  if (fchdir(options.empty_root) != 0 || chroot(".") != 0) return Errno("chroot");
  return absl::OkStatus();
}

absl::Status DropCapabilities() {
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  const __user_cap_data_struct none[2] = {};
  return syscall(SYS_capset, &header, none) == 0 ? absl::OkStatus() : Errno("capset");
}

absl::Status SetLimits(const SandboxOptions& options) {
  KILN_RETURN_IF_ERROR(Limit(RLIMIT_CORE, 0, "RLIMIT_CORE"));
  rlimit files = {};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return Errno("RLIMIT_NOFILE");
  const rlim_t files_max =
      std::min(files.rlim_max, options.gpu ? kGpuWorkerOpenFilesMax : kWorkerOpenFilesMax);
  KILN_RETURN_IF_ERROR(Limit(RLIMIT_NOFILE, files_max, "RLIMIT_NOFILE"));
  if (kBoundAddressSpace && options.memory_bytes > 0) {
    KILN_RETURN_IF_ERROR(Limit(RLIMIT_AS, options.memory_bytes, "RLIMIT_AS"));
  }
  if (options.gpu) return absl::OkStatus();  // the driver has threads, and files of its own
  KILN_RETURN_IF_ERROR(Limit(RLIMIT_NPROC, 0, "RLIMIT_NPROC"));
  // A write beyond it fails, and ends nobody.
  signal(SIGXFSZ, SIG_IGN);
  return Limit(RLIMIT_FSIZE, 0, "RLIMIT_FSIZE");
}

absl::Status FilterCalls(const SandboxOptions& options) {
  return options.gpu ? DenyStrangersCalls() : AllowCompilersCalls(options.frame_fd);
}

class Layers {
 public:
  explicit Layers(const SandboxOptions& options) : options_(options), layers_(options.entered) {}

  bool Wanted(absl::string_view name) const {
    return !options_.only.has_value() || options_.only->contains(std::string(name));
  }
  template <typename Step>
  void Try(absl::string_view name, Step step) {
    if (Wanted(name)) layers_.push_back(LayerOf(name, step()));
  }
  // Of one that was decided outside and does not hold here.
  void TurnOff(absl::string_view name, const absl::Status& why) {
    for (SandboxLayer& layer : layers_) {
      if (layer.name == name && layer.on) layer = LayerOf(name, why);
    }
  }

  absl::StatusOr<std::vector<SandboxLayer>> Finish() {
    for (const SandboxLayer& layer : layers_) {
      if (layer.on || !absl::c_linear_search(kMandatoryLayers, layer.name)) continue;
      return absl::FailedPreconditionError(
          absl::StrCat("no worker without this layer of its sandbox: ", layer.name, ": ", layer.why_not));
    }
    return std::move(layers_);
  }

 private:
  const SandboxOptions& options_;
  std::vector<SandboxLayer> layers_;
};

}  // namespace

std::vector<FileTree> DriverTrees(const std::vector<std::string>& libraries) {
  std::vector<FileTree> trees;
  for (const char* path : kDriverWrites) trees.push_back({path, true});
  for (const char* path : kDriverReads) trees.push_back({path, false});
  for (const std::string& library : libraries) {
    if (library.rfind('/') != std::string::npos) trees.push_back({FolderOf(library), false});
  }
  return trees;
}

bool TakeSandboxWord(absl::string_view word, SandboxOptions* options) {
  if (absl::ConsumePrefix(&word, "--fd=")) return absl::SimpleAtoi(word, &options->frame_fd);
  if (absl::ConsumePrefix(&word, "--empty-root=")) return absl::SimpleAtoi(word, &options->empty_root);
  if (absl::ConsumePrefix(&word, "--own-user=")) return absl::SimpleAtoi(word, &options->own_user);
  if (!absl::ConsumePrefix(&word, "--layer=")) return false;
  options->entered.push_back(ParseLayerWord(word));
  return true;
}

absl::StatusOr<std::vector<SandboxLayer>> EnterSandbox(const SandboxOptions& options) {
  Layers layers(options);
  if (!options.gpu) (void)nice(kWorkerNiceness);  // advice
  // Nothing is left to unwind with, and what LLVM holds would be in no known state.
  std::set_new_handler([] { _exit(kExitOutOfMemory); });
  // Before its descriptor is closed.
  const absl::Status rooted = EnterRoot(options);
  if (!rooted.ok()) layers.TurnOff("mount", rooted);
  if (options.frame_fd > 3) close_range(3, options.frame_fd - 1, 0);
  close_range(options.frame_fd + 1, ~0u, 0);
  layers.Try("uid", [&] {
    return options.gpu ? absl::UnavailableError("the devices are open to kilnd's user")
                       : TakeUser(options.own_user);
  });
  layers.Try("capabilities", DropCapabilities);
  layers.Try("no_new_privs", [] { return Prctl(PR_SET_NO_NEW_PRIVS, 1); });
  layers.Try("not_dumpable", [&] {
    return options.gpu ? absl::UnavailableError("the driver reads files of /proc about itself")
                       : Prctl(PR_SET_DUMPABLE, 0);
  });
  layers.Try("limits", [&] { return SetLimits(options); });
  layers.Try("landlock", [&] {
    return RestrictFiles(options.gpu ? DriverTrees(options.libraries) : std::vector<FileTree>());
  });
  layers.Try("seccomp", [&] { return FilterCalls(options); });
  return layers.Finish();
}

}  // namespace kiln
