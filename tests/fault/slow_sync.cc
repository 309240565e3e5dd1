// A library to preload: while the file that KILN_TEST_SLOW_SYNC names exists, a sync of any file takes three
// seconds more.
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

namespace {

constexpr unsigned kSeconds = 3;

int Slowly(const char* name, int fd) {
  const char* path = getenv("KILN_TEST_SLOW_SYNC");
  if (path != nullptr && access(path, F_OK) == 0) sleep(kSeconds);
  return reinterpret_cast<int (*)(int)>(dlsym(RTLD_NEXT, name))(fd);
}

}  // namespace

extern "C" {
int fsync(int fd) { return Slowly("fsync", fd); }
int fdatasync(int fd) { return Slowly("fdatasync", fd); }
}
