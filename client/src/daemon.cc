#include "client/src/daemon.h"

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pwd.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/digest.h"
#include "compiler/support/private_directory.h"
#include "compiler/support/status_macros.h"

extern char** environ;

namespace kiln {
namespace {

absl::Status Errno(absl::string_view what) {
  return absl::UnavailableError(absl::StrCat(what, ": ", strerror(errno)));
}

// The GNU build id note of an ELF file.
absl::StatusOr<std::string> ElfBuildId(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  Elf64_Ehdr header;
  if (!file.read(reinterpret_cast<char*>(&header), sizeof header) ||
      memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_phentsize != sizeof(Elf64_Phdr)) {
    return absl::NotFoundError(absl::StrCat(path, " is not an ELF program"));
  }
  for (int i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    file.seekg(header.e_phoff + i * sizeof segment);
    if (!file.read(reinterpret_cast<char*>(&segment), sizeof segment)) break;
    if (segment.p_type != PT_NOTE || segment.p_filesz > (1 << 16)) continue;
    std::string notes(segment.p_filesz, '\0');
    file.seekg(segment.p_offset);
    if (!file.read(notes.data(), notes.size())) break;
    for (size_t at = 0; at + sizeof(Elf64_Nhdr) <= notes.size();) {
      Elf64_Nhdr note;
      memcpy(&note, notes.data() + at, sizeof note);
      const size_t name = at + sizeof note;
      const size_t data = name + ((note.n_namesz + 3) & ~size_t{3});
      const size_t next = data + ((note.n_descsz + 3) & ~size_t{3});
      if (next > notes.size()) break;
      if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 &&
          memcmp(notes.data() + name, "GNU", 4) == 0) {
        return notes.substr(data, note.n_descsz);
      }
      at = next;
    }
  }
  return absl::NotFoundError(absl::StrCat(path, " has no build id"));
}

bool OnNetworkFileSystem(const std::string& path) {
  struct statfs info;
  std::string existing = path;
  while (!existing.empty() && statfs(existing.c_str(), &info) != 0) {
    const size_t slash = existing.rfind('/');
    existing = slash == 0 || slash == std::string::npos ? "/" : existing.substr(0, slash);
    if (existing == "/") {
      if (statfs("/", &info) != 0) return false;
      break;
    }
  }
  switch (static_cast<uint32_t>(info.f_type)) {
    case 0x6969u:      // NFS
    case 0xFF534D42u:  // CIFS
    case 0xFE534D42u:  // SMB2
    case 0x517Bu:      // SMB
    case 0x0BD00BD0u:  // Lustre
    case 0x47504653u:  // GPFS
    case 0x00C36400u:  // Ceph
    case 0x5346414Fu:  // AFS
      return true;
    default: return false;
  }
}

std::string HomeDir() {
  if (const char* home = getenv("HOME"); home != nullptr && home[0] == '/') return home;
  const passwd* entry = getpwuid(geteuid());
  return entry != nullptr ? entry->pw_dir : "/";
}

// Each text once a process.
void Notice(const std::string& text) {
  static std::mutex mutex;
  static auto* said = new std::set<std::string>();
  const std::lock_guard<std::mutex> lock(mutex);
  if (said->insert(text).second) fprintf(stderr, "kiln: %s\n", text.c_str());
}

std::string CacheHome() {
  if (const char* cache = getenv("XDG_CACHE_HOME"); cache != nullptr && cache[0] == '/') return cache;
  return absl::StrCat(HomeDir(), "/.cache");
}

// The file of a library that this process has loaded; empty where it has not.
std::string LoadedLibrary(const char* name) {
  void* const library = dlopen(name, RTLD_NOLOAD | RTLD_LAZY);
  if (library == nullptr) return "";
  const link_map* map = nullptr;
  const bool found = dlinfo(library, RTLD_DI_LINKMAP, &map) == 0;
  std::string path = found ? map->l_name : "";
  dlclose(library);
  return !path.empty() && path[0] == '/' ? path : "";
}

// What max-autotune measures with is what its caller runs with: torch brings its own cuBLASLt and cuDNN.
void AddCudaLibraries(const CudaLibraries& libraries, std::vector<std::string>& words) {
  if (!libraries.cublas_lt.empty()) words.insert(words.end(), {"--cublas-lt", libraries.cublas_lt});
  if (!libraries.cudnn.empty()) words.insert(words.end(), {"--cudnn", libraries.cudnn});
  if (!libraries.driver.empty()) words.insert(words.end(), {"--cuda-driver", libraries.driver});
}

void AddUpstream(const DaemonPlace& place, std::vector<std::string>& words) {
  if (place.upstream.empty()) return;
  words.insert(words.end(), {"--upstream", place.upstream});
  if (place.tls.certificate.empty()) return;
  words.insert(words.end(), {"--upstream-cert", place.tls.certificate, "--upstream-key", place.tls.key,
                             "--upstream-ca", place.tls.authority});
}

// The daemon runs in another working directory. One directory has one name.
std::string Absolute(const std::string& path) {
  if (path.empty()) return path;
  std::string name = std::filesystem::absolute(path).lexically_normal().string();
  if (name.size() > 1 && name.back() == '/') name.pop_back();
  return name;
}

std::string SocketIn(const std::string& directory) { return absl::StrCat(directory, "/kilnd.sock"); }

bool FitsSocket(const std::string& directory) {
  return SocketIn(directory).size() < sizeof(sockaddr_un::sun_path);
}

std::vector<std::string> OwnDirectoriesIn(const std::vector<std::string>& shared) {
  std::vector<std::string> own;
  for (const std::string& directory : shared) own.push_back(absl::StrCat(directory, "/kiln-", geteuid()));
  return own;
}

// `name` in the first of `parents` that is private or can be made so.
absl::StatusOr<std::string> FirstPrivate(const std::vector<std::string>& parents, const std::string& name,
                                         absl::string_view variable) {
  absl::Status first;
  for (const std::string& parent : parents) {
    const std::string place = absl::StrCat(parent, "/", name);
    absl::Status made = MakePrivateDirectory(parent);
    if (made.ok()) made = MakePrivateDirectory(place);
    if (made.ok()) return place;
    first.Update(made);
  }
  return absl::Status(first.code(), absl::StrCat(first.message(), "; no other place will do either: name a ",
                                                 "directory of your own by ", variable));
}

// The directory of the socket, which is short enough for one. `id` tells builds apart.
absl::StatusOr<std::string> PlaceSocket(const std::string& named, const std::string& store,
                                        const std::string& id, const SharedDirectories& shared) {
  const auto digest = [](const std::string& text, size_t digits) {
    return ToHex(Sha256(text)).substr(0, digits);
  };
  if (!named.empty() && FitsSocket(named)) {
    KILN_RETURN_IF_ERROR(MakePrivateDirectory(named));
    return named;
  }
  // A store of the caller's choice has a daemon of its own: another one's would serve from another store.
  const std::string name = !named.empty()  ? absl::StrCat("named-", digest(named, 16))
                           : store.empty() ? id
                                           : absl::StrCat(id, "-", digest(store, 8));
  std::vector<std::string> parents = OwnDirectoriesIn(shared.socket);
  std::string too_long = named;
  if (const char* xdg = getenv("XDG_RUNTIME_DIR");
      named.empty() && xdg != nullptr && xdg[0] == '/' && access(xdg, W_OK) == 0) {
    const std::string parent = absl::StrCat(xdg, "/kiln");
    if (FitsSocket(absl::StrCat(parent, "/", name))) {
      parents.insert(parents.begin(), parent);
    } else {
      too_long = parent;
    }
  }
  KILN_ASSIGN_OR_RETURN(const std::string place, FirstPrivate(parents, name, "KILN_RUNTIME_DIR"));
  if (!too_long.empty())
    Notice(absl::StrCat("the name ", too_long, " is too long for a socket; kilnd's is in ", place));
  return place;
}

// The store where none is named: at home, unless that is away or refused.
absl::StatusOr<std::string> PlaceStore(const std::string& id, const SharedDirectories& shared) {
  const std::string home = absl::StrCat(CacheHome(), "/kiln/", id);
  std::string why;
  if (OnNetworkFileSystem(home)) {
    why = absl::StrCat(home, " is on a network file system");
  } else if (const absl::Status made = MakePrivateDirectory(home); !made.ok()) {
    why = std::string(made.message());
  } else {
    return home;
  }
  absl::StatusOr<std::string> place = FirstPrivate(OwnDirectoriesIn(shared.store), id, "KILN_STORE");
  if (!place.ok()) {
    return absl::Status(place.status().code(), absl::StrCat(why, "; ", place.status().message()));
  }
  Notice(absl::StrCat(why, "; the cache is in ", *place));
  return place;
}

// What a daemon's processes can't do without; the limit is inherited, and only root may raise the hard one.
absl::Status CheckOpenFiles() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return Errno("RLIMIT_NOFILE");
  if (limit.rlim_max >= kDaemonOpenFilesMin) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("at most ", limit.rlim_max, " files may be open here (RLIMIT_NOFILE), and kilnd needs ",
                   kDaemonOpenFilesMin,
                   ": raise the hard limit (ulimit -Hn), or start kilnd elsewhere and name it "
                   "by KILN_ADDRESS"));
}

}  // namespace

absl::StatusOr<std::string> DaemonBuildId(const std::string& daemon_binary) {
  if (daemon_binary.empty()) {
    return absl::UnavailableError(
        "kilnd was not found beside Python or on PATH; KILN_DAEMON or KILN_ADDRESS can name one");
  }
  KILN_ASSIGN_OR_RETURN(std::string daemon, ElfBuildId(daemon_binary));
  const size_t slash = daemon_binary.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : daemon_binary.substr(0, slash);
  const auto worker = ElfBuildId(absl::StrCat(folder, "/kiln-worker"));
  return ToHex(Sha256(absl::StrCat(daemon, worker.ok() ? *worker : ""))).substr(0, 16);
}

absl::StatusOr<DaemonPlace> PlaceDaemon(const ClientOptions& options, const SharedDirectories& shared) {
  DaemonPlace place;
  KILN_ASSIGN_OR_RETURN(std::string id, DaemonBuildId(options.daemon_binary));
  if (!options.upstream.empty()) {
    place.upstream = options.upstream;
    if (!absl::StartsWith(place.upstream, "unix:")) {
      place.tls = {Absolute(options.tls.certificate), Absolute(options.tls.key),
                   Absolute(options.tls.authority)};
    }
    id = ToHex(Sha256(absl::StrCat(id, "\n", place.upstream, "\n", place.tls.certificate, "\n", place.tls.key,
                                   "\n", place.tls.authority)))
             .substr(0, id.size());
  }
  place.cuda_libraries = options.cuda_libraries;
  place.store_dir = Absolute(options.store_dir);
  KILN_ASSIGN_OR_RETURN(place.runtime_dir,
                        PlaceSocket(Absolute(options.runtime_dir), place.store_dir, id, shared));
  place.socket = SocketIn(place.runtime_dir);
  if (!place.store_dir.empty()) {  // the daemon makes it, or refuses it
    place.keys_dir = absl::StrCat(place.store_dir, ".keys");
    return place;
  }
  KILN_ASSIGN_OR_RETURN(place.store_dir, PlaceStore(id, shared));
  place.keys_dir = absl::StrCat(place.store_dir.substr(0, place.store_dir.rfind('/')), "/keys");
  return place;
}

absl::StatusOr<std::string> FindAddress(const ClientOptions& options) {
  if (!options.address.empty()) return options.address;
  KILN_ASSIGN_OR_RETURN(const DaemonPlace place, PlaceDaemon(options));
  return absl::StrCat("unix:", place.socket);
}

std::string AddressText(const ClientOptions& options) {
  const absl::StatusOr<std::string> address = FindAddress(options);
  return address.ok() ? *address : std::string(address.status().message());
}

CudaLibraries LoadedCudaLibraries() {
  CudaLibraries libraries;
  libraries.cublas_lt = LoadedLibrary("libcublasLt.so.13");
  if (libraries.cublas_lt.empty()) libraries.cublas_lt = LoadedLibrary("libcublasLt.so.12");
  libraries.cudnn = LoadedLibrary("libcudnn.so.9");
  libraries.driver = LoadedLibrary("libcuda.so.1");
  return libraries;
}

std::string PlaceSigningKey(const DaemonPlace& place) {
  std::string why;
  if (OnNetworkFileSystem(place.keys_dir)) {
    why = absl::StrCat(place.keys_dir, " is on a network file system");
  } else if (const absl::Status made = MakePrivateDirectory(place.keys_dir); !made.ok()) {
    why = std::string(made.message());
  } else {
    return absl::StrCat(place.keys_dir, "/signing.pem");
  }
  Notice(absl::StrCat(why, "; kilnd's signing key is in ", place.runtime_dir,
                      ", and what it compiles is kept for as long as that is"));
  return absl::StrCat(place.runtime_dir, "/signing.pem");
}

absl::StatusOr<bool> ProbeSocket(const std::string& socket_path, MonotonicTime deadline) {
  // A full backlog is told at once, and not waited for without limit.
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return Errno("socket");
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path, socket_path.c_str(), std::min(socket_path.size(), sizeof(address.sun_path) - 1));
  const auto connects = [&] {
    return connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  };
  bool up = connects();
  while (!up && errno == EAGAIN && MonotonicNow() < deadline) {
    absl::SleepFor(absl::Milliseconds(10));
    up = connects();
  }
  const bool full = !up && errno == EAGAIN;
  ucred peer = {};
  socklen_t size = sizeof peer;
  const bool known = up && getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0;
  close(fd);
  if (full) return absl::UnavailableError(absl::StrCat("too many wait for ", socket_path));
  if (known && peer.uid != geteuid()) {
    return absl::FailedPreconditionError(absl::StrCat(socket_path, " is served by another user"));
  }
  return known;
}

absl::Status SpawnDaemon(const std::string& daemon_binary, const DaemonPlace& place) {
  const std::string log = absl::StrCat(place.runtime_dir, "/kilnd.log");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addchdir_np(&actions, "/");
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  posix_spawn_file_actions_addclosefrom_np(&actions, 3);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  // By way of a shell that leaves at once, so that the daemon is nobody's child here.
  std::vector<std::string> words = {"/bin/sh",
                                    "-c",
                                    "\"$@\" &",
                                    "sh",
                                    Absolute(daemon_binary),
                                    "--embedded",
                                    "--runtime-dir",
                                    place.runtime_dir,
                                    "--store",
                                    place.store_dir,
                                    "--signing-key",
                                    PlaceSigningKey(place)};
  AddUpstream(place, words);
  AddCudaLibraries(place.cuda_libraries.IsEmpty() ? LoadedCudaLibraries() : place.cuda_libraries, words);
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  std::vector<char*> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const absl::string_view text(*entry);
    for (absl::string_view allowed :
         {"PATH=", "HOME=", "LANG=", "LC_ALL=", "TMPDIR=", "TZ=", "USER=", "XDG_RUNTIME_DIR=",
          "XDG_CACHE_HOME=", "KILN_", "CUDA_VISIBLE_DEVICES="}) {
      if (absl::StartsWith(text, allowed)) environment.push_back(*entry);
    }
  }
  environment.push_back(nullptr);
  pid_t pid = 0;
  const int error = posix_spawn(&pid, "/bin/sh", &actions, &attributes, arguments.data(), environment.data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error != 0)
    return absl::UnavailableError(absl::StrCat("cannot start ", daemon_binary, ": ", strerror(error)));
  while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> EnsureDaemon(const std::string& daemon_binary, const DaemonPlace& place,
                                  MonotonicTime deadline) {
  absl::Duration pause = absl::Milliseconds(5);
  std::optional<MonotonicTime> spawned;
  bool left_behind = false;
  while (true) {
    KILN_ASSIGN_OR_RETURN(bool up, ProbeSocket(place.socket, deadline));
    if (up) return left_behind;
    const MonotonicTime now = MonotonicNow();
    if (now >= deadline) {
      return absl::UnavailableError(absl::StrCat("kilnd did not answer on ", place.socket,
                                                 " in time; its log is ", place.runtime_dir, "/kilnd.log"));
    }
    if (!spawned.has_value() && access(place.socket.c_str(), F_OK) == 0) {
      // Nobody accepts on a socket that is there. A daemon that is just starting does soon.
      absl::SleepFor(pause);
      KILN_ASSIGN_OR_RETURN(up, ProbeSocket(place.socket, deadline));
      if (up) return false;
      left_behind = true;
    }
    if (!spawned.has_value() || now - *spawned > std::chrono::seconds(2)) {
      KILN_RETURN_IF_ERROR(CheckOpenFiles());
      KILN_RETURN_IF_ERROR(SpawnDaemon(daemon_binary, place));
      spawned = MonotonicNow();
    }
    absl::SleepFor(std::min(pause, absl::Milliseconds(100)));
    pause *= 1.5;
  }
}

}  // namespace kiln
