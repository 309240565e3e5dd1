// Ten times what the workers can do, for long. Promises: the queue keeps its bound, who does not get in is
// refused at once and told when to come again, nobody who was let in fails, tenants have equal shares however
// many callers they have, and when the load goes everything is as before.
#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/fault/process_facts.h"
#include "tests/fault/test_daemon.h"

namespace kiln {
namespace {

constexpr int kQueue = 12;
constexpr int kWorkMs = 25;

struct Answer {
  grpc::Status status;
  bool durable = false;
  int64_t come_again_ms = -1;  // -1: was not told
};

Answer Ask(TestDaemon& daemon, const std::string& ns, const std::string& script) {
  Answer answer;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  auto stream = daemon.compiler().Compile(&context);
  Send(ns, script, stream.get());
  v1::CompileEvent event;
  while (stream->Read(&event)) answer.durable = answer.durable || event.done().durable();
  answer.status = stream->Finish();
  const auto& trailers = context.GetServerTrailingMetadata();
  if (const auto told = trailers.find("grpc-retry-pushback-ms"); told != trailers.end()) {
    EXPECT_TRUE(
        absl::SimpleAtoi(absl::string_view(told->second.data(), told->second.size()), &answer.come_again_ms));
  }
  return answer;
}

// Callers of a tenant, who are counted together.
struct Group {
  std::string name, tenant;
  int callers = 0;
};

struct Totals {
  std::map<std::string, int> done;  // by group
  int refused = 0;
  uint32_t longest_queue = 0;
};

v1::StatusReply StatusOf(TestDaemon& daemon) {
  grpc::ClientContext context;
  v1::StatusReply reply;
  EXPECT_TRUE(daemon.admin().Status(&context, {}, &reply).ok());
  return reply;
}

// Callers who come again as they are told, until `compiles` are done.
Totals Overload(TestDaemon& daemon, const std::vector<Group>& groups, int compiles) {
  Totals totals;
  absl::Mutex mutex;
  std::atomic<int> left{compiles}, number{0};
  std::vector<std::thread> threads;
  for (const Group& group : groups) {
    for (int caller = 0; caller < group.callers; ++caller) {
      threads.emplace_back([&] {
        while (left > 0) {
          const std::string script = absl::StrCat("sleep_ms ", kWorkMs, "\nname ", number++);
          const Answer answer = Ask(daemon, group.tenant, script);
          if (!answer.durable) {
            EXPECT_EQ(answer.status.error_code(), grpc::RESOURCE_EXHAUSTED) << answer.status.error_message();
            EXPECT_GT(answer.come_again_ms, 0);
            absl::SleepFor(absl::Milliseconds(std::max<int64_t>(0, answer.come_again_ms)));
          }
          absl::MutexLock lock(&mutex);
          totals.refused += !answer.durable;
          if (answer.durable && left-- > 0) ++totals.done[group.name];
        }
      });
    }
  }
  while (left > 0) {
    totals.longest_queue = std::max(totals.longest_queue, StatusOf(daemon).queued());
    absl::SleepFor(absl::Milliseconds(20));
  }
  for (std::thread& thread : threads) thread.join();
  return totals;
}

void Print(const Totals& totals) {
  std::printf("%d refusals, queue of %u at most; compiles:", totals.refused, totals.longest_queue);
  for (const auto& [name, done] : totals.done) std::printf(" %s %d", name.c_str(), done);
  std::printf("\n");
}

TEST(Overload, KeepsItsBoundsAndItsShares) {
  TestDaemon daemon(absl::StrCat("admission { queue_max: ", kQueue, " }"));
  ASSERT_TRUE(daemon.Compile("name first").durable);
  const int compiles = Count(300, 9'000);
  const Totals totals = Overload(daemon, {{"many", "a", 28}, {"some", "b", 8}, {"few", "c", 8}}, compiles);
  Print(totals);
  EXPECT_GT(totals.refused, 0);
  EXPECT_LE(totals.longest_queue, kQueue);
  // A third each; of few compiles, some are more.
  for (const auto& [name, done] : totals.done) {
    EXPECT_NEAR(done, compiles / 3, compiles / Count(10, 30)) << name;
  }
  EXPECT_TRUE(Eventually(
      [&] {
        const v1::StatusReply status = StatusOf(daemon);
        return status.queued() == 0 && status.workers_busy() == 0;
      },
      absl::Seconds(5)));
  EXPECT_TRUE(Ask(daemon, "c", "name after").durable) << "at the first try";
  EXPECT_EQ(daemon.Stats().worker_crashes() + daemon.Stats().worker_timeouts(), 0);
}

// The control: of one tenant, who has most callers has most.
TEST(Overload, WithinATenantWhoAsksMoreHasMore) {
  TestDaemon daemon(absl::StrCat("admission { queue_max: ", kQueue, " }"));
  // Or nobody knows what a compile takes, and who is refused first comes again when all is over.
  ASSERT_TRUE(Ask(daemon, "a", absl::StrCat("sleep_ms ", kWorkMs, "\nname first")).durable);
  const int compiles = 200;
  // Who is in comes again at once, and who was sent away waits: of two callers no more than two are ever in.
  const Totals totals = Overload(daemon, {{"many", "a", 40}, {"some", "a", 2}, {"few", "a", 2}}, compiles);
  Print(totals);
  EXPECT_LE(totals.longest_queue, kQueue);
  EXPECT_GT(totals.done.at("many"), compiles / 2);
}

}  // namespace
}  // namespace kiln
