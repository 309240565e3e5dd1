// The parent of workers beside a process that does not die.
#include "server/pool/zygote.h"

#include <errno.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace kiln {
namespace {

// Who is traced is not dead to its parent until its tracer has let it go, whatever has killed it: for the
// zygote that is what a process is that waits for a disk that does not answer.
TEST(Zygote, StartsOthersWhileOneDoesNotDie) {
  auto zygote = Zygote::Fork({.binary = SCRIPTED_WORKER});
  ASSERT_TRUE(zygote.ok()) << zygote.status();
  const auto stuck = (*zygote)->Spawn();
  ASSERT_TRUE(stuck.ok()) << stuck.status();
  if (ptrace(PTRACE_SEIZE, stuck->pid, nullptr, nullptr) != 0) GTEST_SKIP() << "this host lets nobody trace";
  absl::StatusOr<int> end;
  std::thread reaper([&] { end = (*zygote)->Reap(stuck->pid); });
  absl::SleepFor(absl::Milliseconds(200));
  const absl::Time begin = absl::Now();
  const auto next = (*zygote)->Spawn();
  ASSERT_TRUE(next.ok()) << next.status();
  const auto ended = (*zygote)->Reap(next->pid);
  ASSERT_TRUE(ended.ok()) << ended.status();
  EXPECT_TRUE(WIFSIGNALED(*ended) && WTERMSIG(*ended) == SIGKILL) << DescribeWaitStatus(*ended);
  EXPECT_LT(absl::Now() - begin, Zygote::kReapLimit / 2);
  reaper.join();
  EXPECT_EQ(end.status().code(), absl::StatusCode::kDeadlineExceeded) << end.status();
  EXPECT_EQ(kill(stuck->pid, 0), 0) << "the control: it was there all the time";
  // Once it is dead, the zygote takes it with the next that it does.
  ASSERT_EQ(waitpid(stuck->pid, nullptr, __WALL), stuck->pid);
  const auto last = (*zygote)->Spawn();
  ASSERT_TRUE(last.ok()) << last.status();
  EXPECT_EQ(kill(stuck->pid, 0), -1);
  EXPECT_EQ(errno, ESRCH);
  for (const int fd : {stuck->fd, next->fd, last->fd}) close(fd);
}

}  // namespace
}  // namespace kiln
