// The memory of a host, and what ran out of it, as its files say.
#include "compiler/support/host_memory.h"

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "gtest/gtest.h"

namespace kiln {
namespace {

// A host as its files say.
class HostFiles {
 public:
  HostFiles() {
    std::string path = testing::TempDir() + "/hostXXXXXX";
    root_ = mkdtemp(path.data());
  }
  ~HostFiles() { std::filesystem::remove_all(root_); }
  void Say(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  const std::string& root() const { return root_; }

 private:
  std::string root_;
};

TEST(HostMemory, IsTheLeastOfTheMachinesAndItsGroups) {
  HostFiles host;
  EXPECT_EQ(HostMemoryBytes(host.root()), UINT64_MAX) << "it does not say";
  host.Say("/proc/meminfo", "MemTotal:       16777216 kB\nMemFree: 1 kB\n");
  EXPECT_EQ(HostMemoryBytes(host.root()), uint64_t{16} << 30);
  host.Say("/proc/self/cgroup", "4:memory:/elsewhere\n0::/kiln/daemon\n");
  host.Say("/sys/fs/cgroup/kiln/daemon/memory.max", "max\n");
  EXPECT_EQ(HostMemoryBytes(host.root()), uint64_t{16} << 30);
  host.Say("/sys/fs/cgroup/kiln/memory.max", "8589934592\n");
  EXPECT_EQ(HostMemoryBytes(host.root()), uint64_t{8} << 30) << "its parent's";
  host.Say("/sys/fs/cgroup/memory.max", "4294967296\n");
  EXPECT_EQ(HostMemoryBytes(host.root()), uint64_t{4} << 30) << "of a container, the root's";
}

TEST(HostMemory, CountsKillsOfItsGroup) {
  HostFiles host;
  EXPECT_EQ(OomKills(host.root()), std::nullopt);
  host.Say("/proc/self/cgroup", "0::/\n");
  EXPECT_EQ(OomKills(host.root()), std::nullopt);
  host.Say("/sys/fs/cgroup/memory.events", "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n");
  EXPECT_EQ(OomKills(host.root()), 2u);
}

}  // namespace
}  // namespace kiln
