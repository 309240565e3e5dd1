// A worker serves one tenant in its life, and what was compiled for one is handed to no other. Without
// configured tenants each namespace is one.
#include <sys/types.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/fault/test_daemon.h"

namespace kiln {
namespace {

CompileResult CompileFor(TestDaemon& daemon, const std::string& tenant, const std::string& script) {
  CompileResult result = daemon.Compile(script, {}, absl::Seconds(60), tenant);
  EXPECT_TRUE(result.durable) << result.failed_reason << result.status.error_message();
  return result;
}

std::set<pid_t> WorkersOf(TestDaemon& daemon, size_t count) {
  std::vector<pid_t> workers;
  EXPECT_TRUE(Eventually([&] {
    workers = daemon.Workers();
    return workers.size() == count;
  }));
  return {workers.begin(), workers.end()};
}

// What the worker that plans was told before.
std::set<std::string> Remembered(TestDaemon& daemon, const std::string& tenant, int call) {
  std::set<std::string> words;
  const CompileResult result = CompileFor(daemon, tenant, absl::StrCat("recall\nname ", call));
  for (const v1::Step& step : result.manifest.program().steps()) {
    if (step.has_call()) words.insert(step.call().target());
  }
  return words;
}

TEST(WorkerTenants, AWorkerWaitsForItsTenantWhileAnotherHasItsPlace) {
  constexpr size_t kShelf = 8;
  TestDaemon daemon("", {}, "", 1);
  int call = 0;
  const auto compile_for = [&](const std::string& tenant) {
    CompileFor(daemon, tenant, absl::StrCat("name ", ++call));
  };
  compile_for("red");
  const pid_t red = *WorkersOf(daemon, 1).begin();
  for (const char* tenant : {"blue", "green"}) compile_for(tenant);
  const std::set<pid_t> of_three = WorkersOf(daemon, 3);
  EXPECT_TRUE(of_three.contains(red));
  for (int turn = 0; turn < 4; ++turn) {
    for (const char* tenant : {"red", "red", "blue", "green"}) compile_for(tenant);
  }
  EXPECT_EQ(WorkersOf(daemon, 3), of_three);
  // Those who wait are so many at most.
  for (size_t other = 0; other < kShelf + 2; ++other) compile_for(absl::StrCat("other ", other));
  EXPECT_FALSE(WorkersOf(daemon, 1 + kShelf).contains(red));
  EXPECT_EQ(daemon.Stats().worker_crashes(), 0);
}

TEST(WorkerTenants, AnotherTenantTakesAWorkerThatHasServedNobody) {
  TestDaemon daemon("", {}, "", 2);
  const std::set<pid_t> fresh = WorkersOf(daemon, 2);
  for (int turn = 0; turn < 4; ++turn) {
    CompileFor(daemon, "red", absl::StrCat("name red ", turn));
    CompileFor(daemon, "blue", absl::StrCat("name blue ", turn));
  }
  EXPECT_EQ(WorkersOf(daemon, 2), fresh) << "each has its own";
  CompileFor(daemon, "green", "name green");
  const std::set<pid_t> of_three = WorkersOf(daemon, 3);
  EXPECT_TRUE(std::includes(of_three.begin(), of_three.end(), fresh.begin(), fresh.end()));
}

TEST(WorkerTenants, NothingThatAWorkerKeepsReachesAnother) {
  TestDaemon daemon("", {}, "", 2);
  CompileFor(daemon, "red", "remember red's");
  int call = 0;
  EXPECT_TRUE(Remembered(daemon, "red", ++call).contains("red's")) << "the control: its own worker knows";
  for (int turn = 0; turn < 8; ++turn) {
    EXPECT_EQ(Remembered(daemon, "blue", ++call), std::set<std::string>());
    CompileFor(daemon, "red", absl::StrCat("remember red's\nname ", ++call));
    CompileFor(daemon, "green", absl::StrCat("remember green's\nname ", ++call));
  }
}

TEST(WorkerTenants, EachCompilesItsOwnKernels) {
  TestDaemon daemon;
  CompileFor(daemon, "red", "kernels 3\nname same");
  EXPECT_EQ(daemon.Stats().kernels_emitted(), 3u);
  CompileFor(daemon, "red", "kernels 3\nname same\ncalls nothing");  // another graph of the same kernels
  EXPECT_EQ(daemon.Stats().kernels_emitted(), 3u) << "the control: a tenant's own are found";
  EXPECT_EQ(daemon.Stats().kernels_reused(), 3u);
  const CompileResult blue = CompileFor(daemon, "blue", "kernels 3\nname same");
  EXPECT_EQ(daemon.Stats().kernels_emitted(), 6u);
  EXPECT_EQ(daemon.Stats().kernels_reused(), 3u);
  const CompileResult red = CompileFor(daemon, "red", "kernels 3\nname same");
  for (int k = 0; k < 3; ++k) {
    EXPECT_NE(blue.manifest.kernels(k).kernel_key(), red.manifest.kernels(k).kernel_key());
    EXPECT_EQ(blue.manifest.kernels(k).object().digest(), red.manifest.kernels(k).object().digest());
  }
}

}  // namespace
}  // namespace kiln
