// `kilnd --embedded`: one for a directory, whoever starts it, and none in a directory it cannot trust.
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "kiln/v1/admin.grpc.pb.h"
#include "tests/fault/test_daemon.h"

namespace kiln {
namespace {

class Embedded : public testing::Test {
 protected:
  Embedded() {
    char path[] = "/tmp/kiln-test-XXXXXX";
    directory_ = mkdtemp(path);
  }
  ~Embedded() override {
    if (const int64_t pid = Pid(); pid > 0) kill(pid, SIGKILL);
    std::filesystem::remove_all(directory_);
  }

  std::string RuntimeDir() const { return directory_ + place_; }

  // Exit code of the process that was started; the daemon itself lives on.
  int Start(const std::string& idle = "30") {
    const std::string command = absl::StrCat(
        KILND, " --embedded --runtime-dir ", RuntimeDir(), " --store ", directory_, "/store --workers 1 ",
        "--worker-binary ", SCRIPTED_WORKER, " --idle-exit-seconds ", idle, " 2>", directory_, "/err");
    return WEXITSTATUS(system(command.c_str()));
  }

  int64_t Pid() const {
    auto channel =
        grpc::CreateChannel("unix:" + RuntimeDir() + "/kilnd.sock", grpc::InsecureChannelCredentials());
    auto stub = v1::Admin::NewStub(channel);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(2));
    v1::StatusReply reply;
    return stub->Status(&context, {}, &reply).ok() ? reply.pid() : -1;
  }

  std::string directory_;
  std::string place_ = "/run";
};

TEST_F(Embedded, OneADirectoryAndLosersExitZero) {
  ASSERT_EQ(Start(), 0);
  ASSERT_TRUE(Eventually([&] { return Pid() > 0; }));
  const int64_t pid = Pid();
  EXPECT_EQ(getsid(pid), pid) << "a session of its own";
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Start(), 0);
  EXPECT_EQ(Pid(), pid);
  EXPECT_TRUE(std::filesystem::exists(RuntimeDir() + "/kilnd.log"));
  EXPECT_EQ(std::filesystem::read_symlink(absl::StrCat("/proc/", pid, "/cwd")), "/");
  EXPECT_EQ(std::filesystem::read_symlink(absl::StrCat("/proc/", pid, "/fd/1")), RuntimeDir() + "/kilnd.log");
}

TEST_F(Embedded, TwoPlacesMayShareAStore) {
  ASSERT_EQ(Start(), 0);
  ASSERT_TRUE(Eventually([&] { return Pid() > 0; }));
  const int64_t first = Pid();
  place_ = "/other";
  ASSERT_EQ(Start(), 0);
  ASSERT_TRUE(Eventually([&] { return Pid() > 0; }));
  EXPECT_NE(Pid(), first);
  kill(static_cast<pid_t>(first), SIGKILL);
}

TEST_F(Embedded, ASocketLeftByADeadDaemonIsReplaced) {
  ASSERT_EQ(Start(), 0);
  ASSERT_TRUE(Eventually([&] { return Pid() > 0; }));
  const int64_t first = Pid();
  kill(first, SIGKILL);
  ASSERT_TRUE(Eventually([&] { return kill(first, 0) != 0 || Pid() < 0; }));
  EXPECT_TRUE(std::filesystem::exists(RuntimeDir() + "/kilnd.sock"));
  // As clients do: who starts one while the last threads of the dead one still end finds the lock taken.
  EXPECT_TRUE(Eventually([&] { return Start() == 0 && Pid() > 0 && Pid() != first; }));
}

TEST_F(Embedded, WithoutAProcessThatStartsWorkersItMakesRoomForAnother) {
  ASSERT_EQ(Start(), 0);
  ASSERT_TRUE(Eventually([&] { return Pid() > 0; }));
  const int64_t first = Pid();
  std::ifstream children(absl::StrCat("/proc/", first, "/task/", first, "/children"));
  pid_t zygote = -1;
  ASSERT_TRUE(children >> zygote);
  kill(zygote, SIGKILL);
  ASSERT_TRUE(Eventually([&] { return !std::filesystem::exists(RuntimeDir() + "/kilnd.sock"); }));
  ASSERT_TRUE(Eventually([&] { return Start() == 0 && Pid() > 0 && Pid() != first; }));
}

TEST_F(Embedded, IdleEndsItAndTakesTheSocketAlong) {
  ASSERT_EQ(Start("1"), 0);
  ASSERT_TRUE(Eventually([&] { return std::filesystem::exists(RuntimeDir() + "/kilnd.sock"); }));
  EXPECT_TRUE(Eventually([&] { return !std::filesystem::exists(RuntimeDir() + "/kilnd.sock"); }));
}

TEST_F(Embedded, ADirectoryThatOthersMayWriteIsRefused) {
  ASSERT_EQ(mkdir(RuntimeDir().c_str(), 0700), 0);
  ASSERT_EQ(chmod(RuntimeDir().c_str(), 0777), 0);
  EXPECT_EQ(Start(), 1);
  EXPECT_FALSE(std::filesystem::exists(RuntimeDir() + "/kilnd.sock"));
  std::ifstream error(directory_ + "/err");
  std::string line;
  std::getline(error, line);
  EXPECT_NE(line.find("can be written by others"), std::string::npos) << line;
}

TEST_F(Embedded, ALinkIsNoDirectory) {
  std::filesystem::create_directory(directory_ + "/real");
  std::filesystem::create_directory_symlink(directory_ + "/real", RuntimeDir());
  EXPECT_EQ(Start(), 1);
}

}  // namespace
}  // namespace kiln
