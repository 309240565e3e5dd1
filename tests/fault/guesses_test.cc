// Who guesses another tenant's keys, digests or job ids is told NOT_FOUND, as soon as of what never was.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <csignal>
#include <functional>
#include <iostream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "compiler/support/digest.h"
#include "compiler/support/monotonic_time.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/fault/test_daemon.h"

namespace kiln {
namespace {

constexpr int kPairs = 10'000;
constexpr int kGuessers = 24;  // at a time
constexpr int kForeign = 20;
constexpr int kHalvings = 200;

using Micros = std::vector<double>;

double MedianOf(Micros times) {
  const auto middle = times.begin() + static_cast<int64_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

struct Times {
  Micros of_one;
  Micros of_other;
};

// Of pairs that are asked in turn, either first; several guessers at a time.
Times Measure(const std::function<void(int)>& ask_one, const std::function<void(int)>& ask_other) {
  const auto time = [](const std::function<void(int)>& ask, int number) {
    const MonotonicTime begin = MonotonicNow();
    ask(number);
    return std::chrono::duration<double, std::micro>(MonotonicNow() - begin).count();
  };
  std::array<Times, kGuessers> parts;
  std::vector<std::thread> guessers;
  for (int part = 0; part < kGuessers; ++part) {
    guessers.emplace_back([&, part] {
      for (int i = part; i < kPairs; i += kGuessers) {
        const bool swapped = (i / kGuessers) % 2 == 1;
        const double first = time(swapped ? ask_other : ask_one, i);
        const double second = time(swapped ? ask_one : ask_other, i);
        parts[part].of_one.push_back(swapped ? second : first);
        parts[part].of_other.push_back(swapped ? first : second);
      }
    });
  }
  for (std::thread& guesser : guessers) guesser.join();
  Times all;
  for (const Times& part : parts) {
    all.of_one.insert(all.of_one.end(), part.of_one.begin(), part.of_one.end());
    all.of_other.insert(all.of_other.end(), part.of_other.begin(), part.of_other.end());
  }
  return all;
}

// How far the medians of two halves of one kind are from each other, in 99 of 100 halvings.
double DifferenceOfHalves(Micros times) {
  std::minstd_rand random(1);
  Micros differences;
  const auto middle = times.begin() + static_cast<int64_t>(times.size() / 2);
  for (int i = 0; i < kHalvings; ++i) {
    std::shuffle(times.begin(), times.end(), random);
    differences.push_back(std::abs(MedianOf({times.begin(), middle}) - MedianOf({middle, times.end()})));
  }
  std::sort(differences.begin(), differences.end());
  return differences[kHalvings * 99 / 100];
}

// Whether the medians of the two kinds are no further from each other than those of halves of one kind.
bool LookAlike(const char* what, const Times& times) {
  const double difference = std::abs(MedianOf(times.of_one) - MedianOf(times.of_other));
  const double halves = std::max(DifferenceOfHalves(times.of_one), DifferenceOfHalves(times.of_other));
  std::cout << what << ": medians " << MedianOf(times.of_one) << " and " << MedianOf(times.of_other)
            << " us, which differ by " << difference << "; halves of one kind by " << halves << "\n";
  return difference <= halves;
}

class Guesses : public testing::Test {
 protected:
  grpc::StatusCode Fetch(const std::string& ns, const std::string& key, const std::string& variant,
                         const std::string& digest) {
    grpc::ClientContext context;
    v1::FetchObjectsRequest request;
    request.set_namespace_(ns);
    request.set_compile_key(key);
    request.set_variant_id(variant);
    request.add_digests(digest);
    const auto reader = daemon_.compiler().FetchObjects(&context, request);
    v1::ObjectChunk chunk;
    while (reader->Read(&chunk)) {
    }
    return reader->Finish().error_code();
  }
  grpc::StatusCode Attach(const std::string& job) {
    grpc::ClientContext context;
    v1::AttachRequest request;
    request.set_namespace_("guesser");
    request.set_job_id(job);
    const auto reader = daemon_.compiler().Attach(&context, request);
    v1::CompileEvent event;
    while (reader->Read(&event)) {
    }
    return reader->Finish().error_code();
  }
  static std::string Digest(const char* what, int number) { return Sha256(absl::StrCat(what, number)); }

  TestDaemon daemon_;
};

TEST_F(Guesses, AnothersDigestsTakeAsLongAsThoseOfNobody) {
  std::vector<v1::Manifest> foreign;
  for (int i = 0; i < kForeign; ++i) {
    const CompileResult result =
        daemon_.Compile(absl::StrCat("name ", i, "\nkernels 40"), {}, absl::Seconds(60), "owner");
    ASSERT_TRUE(result.done);
    foreign.push_back(result.manifest);
  }
  const auto guess = [&](const v1::Manifest& manifest, const std::string& key, const std::string& variant) {
    EXPECT_EQ(Fetch("guesser", key, variant, manifest.kernels(0).object().digest()), grpc::NOT_FOUND);
  };
  const auto of_another = [&](int i) {
    const v1::Manifest& manifest = foreign[i % kForeign];
    guess(manifest, manifest.compile_key(), manifest.variant_id());
  };
  const auto of_nobody = [&](int i) {
    guess(foreign[i % kForeign], Digest("key", i % kForeign), Digest("variant", i % kForeign));
  };
  EXPECT_TRUE(LookAlike("digests", Measure(of_another, of_nobody)));
  // And the owner's are there.
  for (const v1::Manifest& manifest : foreign)
    EXPECT_EQ(
        Fetch("owner", manifest.compile_key(), manifest.variant_id(), manifest.kernels(0).object().digest()),
        grpc::OK);
}

TEST_F(Guesses, AnothersJobsTakeAsLongAsThoseOfNobody) {
  std::thread owner([&] { daemon_.Compile("name long\nsleep_ms 100000", {}, absl::Seconds(100), "owner"); });
  v1::JobsReply jobs;
  EXPECT_TRUE(Eventually([&] {
    grpc::ClientContext context;
    return daemon_.admin().Jobs(&context, {}, &jobs).ok() && jobs.jobs_size() == 1;
  }));
  const std::string job = jobs.jobs(0).job_id();
  const auto guess = [&](const std::string& id) { EXPECT_EQ(Attach(id), grpc::NOT_FOUND); };
  EXPECT_TRUE(LookAlike("jobs", Measure([&](int) { guess(job); },
                                        [&](int i) { guess(Digest("job", i).substr(0, job.size())); })));
  daemon_.Stop(SIGKILL);
  owner.join();
}

// Keys are formed of the caller's own namespace: there is nothing to guess by a program either.
TEST_F(Guesses, AnothersProgramsTakeAsLongAsThoseOfNobody) {
  for (int i = 0; i < kForeign; ++i)
    ASSERT_TRUE(daemon_.Compile(absl::StrCat("name ", i), {}, absl::Seconds(60), "owner").done);
  const auto guess = [&](const std::string& script) {
    EXPECT_TRUE(daemon_.Lookup(script, {}, "guesser").has_miss());
  };
  EXPECT_TRUE(LookAlike("programs", Measure([&](int i) { guess(absl::StrCat("name ", i % kForeign)); },
                                            [&](int i) { guess(absl::StrCat("none ", i % kForeign)); })));
}

// The control: what one of them tells sooner is seen.
TEST_F(Guesses, ADifferenceShows) {
  const CompileResult own = daemon_.Compile("name own\nkernels 40", {}, absl::Seconds(60), "guesser");
  ASSERT_TRUE(own.done);
  const auto of_own = [&](int i) {
    EXPECT_EQ(Fetch("guesser", own.manifest.compile_key(), own.manifest.variant_id(), Digest("object", i)),
              grpc::INVALID_ARGUMENT);
  };
  const auto of_nobody = [&](int i) {
    EXPECT_EQ(Fetch("guesser", Digest("key", i), Digest("variant", i), Digest("object", i)), grpc::NOT_FOUND);
  };
  EXPECT_FALSE(LookAlike("control", Measure(of_own, of_nobody)));
}

}  // namespace
}  // namespace kiln
