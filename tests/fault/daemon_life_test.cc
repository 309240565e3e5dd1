// How kilnd begins and ends, and what is left of it.
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <future>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/fault/test_daemon.h"

namespace kiln {
namespace {

TEST(Server, EntriesOutliveTheDaemon) {
  TestDaemon daemon;
  ASSERT_TRUE(daemon.Compile("name lasting").durable);
  daemon.Stop(SIGKILL);
  daemon.Start();
  EXPECT_TRUE(daemon.Lookup("name lasting").has_hit());
}

TEST(Server, TermDrainsAndExitsZero) {
  TestDaemon daemon;
  auto compile = std::async(std::launch::async, [&] { return daemon.Compile("sleep_ms 1000"); });
  ASSERT_TRUE(Eventually([&] { return daemon.Lookup("sleep_ms 1000").has_in_flight(); }));
  kill(daemon.pid(), SIGTERM);
  const CompileResult result = compile.get();
  EXPECT_TRUE(result.durable) << result.status.error_message();
  const int status = daemon.Wait(absl::Seconds(10));
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(Server, WorkersGoWithTheDaemon) {
  TestDaemon daemon;
  ASSERT_TRUE(Eventually([&] { return daemon.Workers().size() == 2; }));
  const std::vector<pid_t> workers = daemon.Workers();
  daemon.Stop(SIGKILL);
  for (pid_t pid : workers) {
    EXPECT_TRUE(Eventually([&] {
      // Gone, or a zombie that nobody here can reap.
      std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
      std::string number, name, state;
      return !(file >> number >> name >> state) || state == "Z";
    })) << pid;
  }
}

TEST(Server, IdleExits) {
  TestDaemon daemon("", {"--idle-exit-seconds", "1"});
  const int status = daemon.Wait(absl::Seconds(10));
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_NE(access(daemon.socket().c_str(), F_OK), 0);
}

TEST(Server, TheSocketIsPrivate) {
  TestDaemon daemon;
  struct stat facts;
  ASSERT_EQ(stat(daemon.socket().c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0600);
  ASSERT_EQ(stat((daemon.directory() + "/run").c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0700);
}

}  // namespace
}  // namespace kiln
