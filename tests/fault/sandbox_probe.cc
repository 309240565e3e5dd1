#include "tests/fault/sandbox_probe.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/io_uring.h>
#include <linux/perf_event.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "compiler/worker/sandbox.h"

namespace kiln {
namespace {

constexpr long kFchmodat2 = 452;  // newer than headers

bool Opened(int descriptor) {
  if (descriptor >= 0) close(descriptor);
  return descriptor >= 0;
}

bool Waited(long pid) {
  if (pid == 0) _exit(0);
  if (pid < 0) return false;
  waitpid(static_cast<pid_t>(pid), nullptr, 0);
  return true;
}

char* const kExitWords[] = {const_cast<char*>("sh"), const_cast<char*>("-c"), const_cast<char*>("exit 42"),
                            nullptr};

bool StartsAThread() {
  pthread_t thread;
  if (pthread_create(&thread, nullptr, [](void*) -> void* { return nullptr; }, nullptr) != 0) return false;
  pthread_join(thread, nullptr);
  return true;
}

bool TakesMemoryOf(size_t bytes) {
  void* const memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return false;
  munmap(memory, bytes);
  return true;
}

bool HidesMemoryInAFile() {
  const int file = static_cast<int>(syscall(SYS_memfd_create, "probe", 0));
  const bool grown = file >= 0 && ftruncate(file, 1'536l << 20) == 0;
  if (file >= 0) close(file);
  return grown;
}

bool SharesMemory() {
  const int segment = shmget(IPC_PRIVATE, 1 << 20, IPC_CREAT | 0600);
  if (segment < 0) return false;
  shmctl(segment, IPC_RMID, nullptr);
  return true;
}

bool MakesCode() {
  void* const memory =
      mmap(nullptr, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return false;
  munmap(memory, 4096);
  return true;
}

bool TurnsMemoryIntoCode() {
  void* const memory = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const bool turned = mprotect(memory, 4096, PROT_READ | PROT_EXEC) == 0;
  munmap(memory, 4096);
  return turned;
}

bool ReadsMemoryOf(pid_t process) {
  static int value = 1;
  int copy = 0;
  const iovec here = {&copy, sizeof copy}, there = {&value, sizeof value};
  return process_vm_readv(process, &here, 1, &there, 1, 0) > 0 || errno == EFAULT;
}

bool Traces(pid_t process) {
  if (ptrace(PTRACE_SEIZE, process, nullptr, nullptr) != 0) return false;
  ptrace(PTRACE_DETACH, process, nullptr, nullptr);
  return true;
}

bool Mounts(const std::string& directory) {
  if (mount("none", directory.c_str(), "tmpfs", 0, nullptr) != 0) return false;
  umount2(directory.c_str(), MNT_DETACH);
  return true;
}

bool AsksRing() {
  io_uring_params parameters = {};
  return Opened(static_cast<int>(syscall(SYS_io_uring_setup, 1, &parameters)));
}

bool MakesBpfMap() {
  bpf_attr attributes = {};
  attributes.map_type = BPF_MAP_TYPE_ARRAY;
  attributes.key_size = attributes.value_size = 4;
  attributes.max_entries = 1;
  return Opened(static_cast<int>(syscall(SYS_bpf, BPF_MAP_CREATE, &attributes, sizeof attributes)));
}

bool CountsEvents() {
  perf_event_attr attributes = {};
  attributes.type = PERF_TYPE_SOFTWARE;
  attributes.size = sizeof attributes;
  attributes.config = PERF_COUNT_SW_CPU_CLOCK;
  attributes.exclude_kernel = 1;
  return Opened(static_cast<int>(syscall(SYS_perf_event_open, &attributes, 0, -1, -1, 0)));
}

bool SendsByUdp() {
  const int from = socket(AF_INET, SOCK_DGRAM, 0);
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(9);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool sent = sendto(from, "x", 1, 0, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 1;
  return Opened(from) && sent;
}

bool SendsToAName() {
  const int from = socket(AF_UNIX, SOCK_DGRAM, 0);
  const sockaddr_un to = {AF_UNIX, "/dev/log"};
  const bool sent = sendto(from, "x", 1, 0, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 1;
  const int error = errno;
  return Opened(from) && (sent || error == ENOENT || error == ECONNREFUSED);  // looked for whom to send to
}

bool Connects() {
  const int from = socket(AF_UNIX, SOCK_STREAM, 0);
  const sockaddr_un to = {AF_UNIX, "/tmp/kiln-nobody"};
  const bool tried = connect(from, reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0 && errno == ENOENT;
  return Opened(from) && tried;
}

bool ListensOnTcp() {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  const bool listens = listen(listener, 1) == 0;
  return Opened(listener) && listens;
}

// Descriptors of the daemon's would travel so.
bool SendsAMessage(int to) {
  char byte = 0;
  iovec part = {&byte, 1};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  return sendmsg(to, &message, MSG_NOSIGNAL) == 1;
}

bool Schedules(int policy) {
  const sched_param parameters = {};
  return sched_setscheduler(0, policy, &parameters) == 0;
}

void AddFiles(const ProbeTargets& targets, std::vector<Probe>* probes) {
  const std::string& directory = targets.directory;
  const std::string file = directory + "/probe", other = directory + "/other";
  const auto with_file = [file](const std::function<bool()>& probe) {
    return [file, probe] {
      Opened(open(file.c_str(), O_WRONLY | O_CREAT, 0600));
      const bool through = probe();
      unlink(file.c_str());
      return through;
    };
  };
  probes->insert(
      probes->end(),
      {{"read a file", [] { return Opened(open("/etc/passwd", O_RDONLY)); }, true},
       {"read its own maps", [] { return Opened(open("/proc/self/maps", O_RDONLY)); }},
       {"list a directory", [] { return Opened(open("/", O_RDONLY | O_DIRECTORY)); }},
       {"stat a file",
        [] {
          struct stat facts;
          return stat("/etc/passwd", &facts) == 0;
        }},
       {"access a file", [] { return access("/etc/passwd", F_OK) == 0; }},
       {"read a link",
        [] {
          char text[256];
          return readlink("/proc/self/exe", text, sizeof text) > 0;
        }},
       {"open by openat2",
        [] {
          const uint64_t how[3] = {};
          return Opened(static_cast<int>(syscall(SYS_openat2, AT_FDCWD, "/dev/null", how, sizeof how)));
        },
        true},
       {"open for write", [] { return Opened(open("/dev/null", O_WRONLY)); }},
       {"create a file",
        [file] {
          const bool made = Opened(open(file.c_str(), O_WRONLY | O_CREAT, 0600));
          if (made) unlink(file.c_str());
          return made;
        },
        true},
       {"create by creat",
        [file] {
          const bool made = Opened(static_cast<int>(syscall(SYS_creat, file.c_str(), 0600)));
          if (made) unlink(file.c_str());
          return made;
        },
        true},
       {"unlink", with_file([file] { return unlink(file.c_str()) == 0; })},
       {"rename", with_file([file] { return rename(file.c_str(), file.c_str()) == 0; }), true},
       {"chmod", with_file([file] { return chmod(file.c_str(), 0600) == 0; }), true},
       {"fchmodat2", with_file([file] { return syscall(kFchmodat2, AT_FDCWD, file.c_str(), 0600, 0) == 0; }),
        true},
       {"truncate", with_file([file] { return truncate(file.c_str(), 0) == 0; }), true},
       {"mkdir", [other] { return mkdir(other.c_str(), 0700) == 0 && rmdir(other.c_str()) == 0; }, true},
       {"symlink", [other] { return symlink("/", other.c_str()) == 0 && unlink(other.c_str()) == 0; }, true},
       {"watch files", [] { return Opened(inotify_init1(0)); }},
       {"mount", [directory] { return Mounts(directory); }, true},
       {"chroot", [] { return chroot("/") == 0; }, true}});
}

void AddProcesses(const ProbeTargets& targets, std::vector<Probe>* probes) {
  const pid_t daemon = targets.daemon;
  const int socket = targets.socket;
  const std::string memory = "/proc/" + std::to_string(daemon) + "/mem";
  probes->insert(
      probes->end(),
      {{"execve", [] { return execve("/bin/sh", kExitWords, nullptr) == 0; }, true},
       {"execveat", [] { return syscall(SYS_execveat, AT_FDCWD, "/bin/sh", kExitWords, nullptr, 0) == 0; },
        true},
       {"fork", [] { return Waited(syscall(SYS_fork)); }, true},
       {"fork by clone",
        [] { return Waited(syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr)); }, true},
       {"fork by clone3",
        [] {
          uint64_t how[8] = {};
          how[4] = SIGCHLD;
          return Waited(syscall(SYS_clone3, how, sizeof how));
        },
        true},
       {"start a thread", StartsAThread},
       {"kill", [daemon] { return kill(daemon, 0) == 0; }, true},
       {"tgkill", [daemon] { return syscall(SYS_tgkill, daemon, daemon, 0) == 0; }, true},
       {"pidfd_open", [daemon] { return Opened(static_cast<int>(syscall(SYS_pidfd_open, daemon, 0))); },
        true},
       {"order a signal by F_SETOWN", [=] { return fcntl(socket, F_SETOWN, daemon) == 0; }, true},
       {"choose a signal by F_SETSIG", [=] { return fcntl(socket, F_SETSIG, SIGKILL) == 0; }, true},
       {"order a signal by FIOSETOWN", [=] { return ioctl(socket, 0x8901, &daemon) == 0; }, true},
       {"read memory by /proc", [memory] { return Opened(open(memory.c_str(), O_RDONLY)); }},
       {"read memory by process_vm_readv", [daemon] { return ReadsMemoryOf(daemon); }, true},
       {"ptrace", [daemon] { return Traces(daemon); }, true},
       {"prlimit64",
        [daemon] {
          rlimit limit;
          return syscall(SYS_prlimit64, daemon, RLIMIT_NOFILE, nullptr, &limit) == 0;
        },
        true},
       {"setpriority", [daemon] { return setpriority(PRIO_PROCESS, static_cast<id_t>(daemon), 19) == 0; },
        true},
       {"sched_setscheduler", [] { return Schedules(SCHED_BATCH) && Schedules(SCHED_OTHER); }, true},
       {"sched_setaffinity",
        [daemon] {
          cpu_set_t cores;
          return sched_getaffinity(daemon, sizeof cores, &cores) == 0 &&
                 sched_setaffinity(daemon, sizeof cores, &cores) == 0;
        }},
       {"setuid", [] { return setuid(getuid()) == 0; }, true},
       {"become dumpable", [] { return prctl(PR_SET_DUMPABLE, 1) == 0; }},
       {"personality", [] { return personality(0xffffffff) >= 0; }},
       {"unshare", [] { return unshare(CLONE_NEWUSER) == 0; }, true}});
}

void AddDoors(const ProbeTargets& targets, std::vector<Probe>* probes) {
  const int connected = targets.socket;
  probes->insert(
      probes->end(),
      {{"TCP socket", [] { return Opened(socket(AF_INET, SOCK_STREAM, 0)); }, true},
       {"listen on TCP", ListensOnTcp, true},
       {"send by UDP", SendsByUdp, true},
       {"unix socket", [] { return Opened(socket(AF_UNIX, SOCK_STREAM, 0)); }},
       {"send to a name", SendsToAName, true},
       {"connect", Connects, true},
       {"socketpair",
        [] {
          int pair[2];
          return socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && Opened(pair[0]) && Opened(pair[1]);
        }},
       {"send a message", [connected] { return SendsAMessage(connected); }},
       {"ioctl",
        [connected] {
          int bytes;
          return ioctl(connected, FIONREAD, &bytes) == 0;
        }},
       {"memory of 1.5 GiB in a memfd", HidesMemoryInAFile},
       {"memory of 64 GiB", [] { return kBoundAddressSpace && TakesMemoryOf(size_t{64} << 30); }},
       {"shared memory", SharesMemory, true},
       {"memory with code", MakesCode},
       {"memory turned into code", TurnsMemoryIntoCode},
       {"io_uring", AsksRing, true},
       {"bpf", MakesBpfMap, true},
       {"userfaultfd",
        [] { return Opened(static_cast<int>(syscall(SYS_userfaultfd, 1 /* of its own pages */))); }, true},
       {"perf_event_open", CountsEvents, true},
       {"add_key",
        [] { return syscall(SYS_add_key, "user", "kiln-probe", "x", 1, -2 /* the process' ring */) >= 0; },
        true}});
}

}  // namespace

std::vector<Probe> Probes(const ProbeTargets& targets) {
  std::vector<Probe> probes;
  AddFiles(targets, &probes);
  AddProcesses(targets, &probes);
  AddDoors(targets, &probes);
  return probes;
}

std::vector<std::string> OpenDoors(bool gpu, const ProbeTargets& targets) {
  std::vector<std::string> open_doors;
  for (const Probe& probe : Probes(targets)) {
    if ((!gpu || probe.of_driver) && probe.gets_through()) open_doors.push_back(probe.name);
  }
  if (!gpu) return open_doors;
  if (!Opened(open("/dev/null", O_RDWR))) open_doors.push_back("opening a device is denied");
  if (!Opened(open("/proc/self/maps", O_RDONLY))) open_doors.push_back("reading its own maps is denied");
  if (!Opened(socket(AF_UNIX, SOCK_STREAM, 0))) open_doors.push_back("a socket is denied");
  if (!StartsAThread()) open_doors.push_back("a thread is denied");
  return open_doors;
}

}  // namespace kiln
