// The process that tests kill or starve: writes artifacts (tests/conformance/store_testing.h) to a store, one
// after the other, and tells of each by its number on standard output, eight bytes.
//   store_writer DIRECTORY FIRST COUNT BYTES early|late [EXTRA]
// `late` tells what has been acknowledged, `early` what is about to be written. An artifact has two objects
// of about BYTES. EXTRA: once the store is open, the address space may grow by so many bytes and no more.
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "cache/chain/store_config.h"
#include "tests/conformance/store_testing.h"

namespace kiln {
namespace {

uint64_t AddressSpaceInUse() {
  std::ifstream statm("/proc/self/statm");
  uint64_t pages = 0;
  statm >> pages;
  return pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

int Main(int argc, char** argv) {
  if (argc < 6) return 2;
  const auto number = [argv](int i) { return strtoull(argv[i], nullptr, 10); };
  const bool early = std::string(argv[5]) == "early";
  v1::StoreConfig config;
  config.set_directory(argv[1]);
  config.set_budget_bytes(256u << 20);
  auto store = NewStore(config);
  if (!store.ok()) return 3;
  if (argc > 6) {
    const rlim_t most = AddressSpaceInUse() + number(6);
    const rlimit limit = {most, most};
    if (setrlimit(RLIMIT_AS, &limit) != 0) return 4;
  }
  for (uint64_t at = number(2); at < number(2) + number(3); ++at) {
    const auto tell = [at] { return write(STDOUT_FILENO, &at, sizeof(at)) == sizeof(at); };
    if (early && !tell()) return 5;
    const std::vector<Entry> batch = ArtifactBatch(at, 2, number(4));
    if ((*store)->artifacts().Put(batch).ok() && !early && !tell()) return 5;
    // Served as well, and not from the latest alone.
    (*store)->artifacts().Get(ArtifactBatch(at / 2, 2, number(4))[0].id).status().IgnoreError();
  }
  return 0;
}

}  // namespace
}  // namespace kiln

int main(int argc, char** argv) { return kiln::Main(argc, argv); }
