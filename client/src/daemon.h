// Finding and starting the embedded daemon (one for all of a user's processes and one build).
//
// The socket, lock and store directories are named by the build id of kilnd and kiln-worker, and by an
// upstream and whose certificate it is asked with, so daemons of an upgrade, a second virtual environment or
// another upstream don't collide. The client connects, else spawns and connects again with growing pauses
// until its deadline; it never unlinks a socket: only the daemon that holds the lock does, and a daemon that
// loses the race exits.
//
// Where nothing is named, the first place that is private will do: a pod's /tmp may be one that is not. What
// is named and not private is refused. A directory whose name is too long for a socket is not used: a name by
// its digest in a SharedDirectories::socket takes its place, which is told once.
//
// Threads: pure functions but for the file system. Errors: FAILED_PRECONDITION for a directory of
// another owner or writable by others, and where too few files may be open for a daemon; UNAVAILABLE when no
// daemon answers in time.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "compiler/support/monotonic_time.h"
#include "compiler/support/tls_files.h"
#include "kiln/client.h"

namespace kiln {

struct DaemonPlace {
  std::string runtime_dir;
  std::string store_dir;
  std::string socket;    // runtime_dir/kilnd.sock
  std::string keys_dir;  // beside the stores of all builds, or the one that was named
  std::string upstream;  // whom the daemon asks for what it lacks; empty: nobody
  TlsFiles tls;          // with which
  CudaLibraries cuda_libraries;
};

// Directories of all users where kiln-UID is made, each once those before it have been refused.
struct SharedDirectories {
  std::vector<std::string> socket = {"/tmp", "/var/tmp", "/dev/shm"};
  std::vector<std::string> store = {"/var/tmp", "/tmp"};
};

// 16 hexadecimal digits from the ELF build ids of kilnd and of the kiln-worker beside it.
absl::StatusOr<std::string> DaemonBuildId(const std::string& daemon_binary);

// Chooses and makes the directories. Where all were refused: why the first was, and what can name another.
absl::StatusOr<DaemonPlace> PlaceDaemon(const ClientOptions& options, const SharedDirectories& shared = {});

// The address that was named, or "unix:/path" of the embedded daemon, which is not started. Errors are
// PlaceDaemon's.
absl::StatusOr<std::string> FindAddress(const ClientOptions& options);
// For people: the address, or why there is none.
std::string AddressText(const ClientOptions& options);

// The files of those that this process has loaded.
CudaLibraries LoadedCudaLibraries();

// The file of the key by which the place's daemons sign: in `keys_dir`, which is made, so that daemons of
// other builds and after a restart have it. Where that can't be, or is on a network file system, it is beside
// the socket, which is told once.
std::string PlaceSigningKey(const DaemonPlace& place);

// True when a process of this user accepts on the socket. UNAVAILABLE where so many wait for it that by
// `deadline` it takes nobody else.
absl::StatusOr<bool> ProbeSocket(const std::string& socket, MonotonicTime deadline);

// Starts kilnd detached: session of its own, stdio to a log file, no inherited descriptor, clean
// signal mask and environment; it is told of the place's CUDA libraries, or where this process found them.
absl::Status SpawnDaemon(const std::string& daemon_binary, const DaemonPlace& place);

// Connect → spawn → back off, until `deadline`. True where an earlier daemon had left its socket behind: it
// was killed, or the machine restarted.
absl::StatusOr<bool> EnsureDaemon(const std::string& daemon_binary, const DaemonPlace& place,
                                  MonotonicTime deadline);

}  // namespace kiln
