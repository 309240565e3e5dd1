// What a client may say to kilnd: at each limit it is taken, and one above it is refused by the field's name.
#include "server/rpc/request_limits.h"

#include <functional>
#include <string>

#include "compiler/support/compiler_limits.h"
#include "compiler/support/digest.h"
#include "gtest/gtest.h"
#include "server/server_limits.h"

namespace kiln {
namespace {

TEST(RequestLimits, HoldExactly) {
  const struct {
    const char* says;
    uint64_t most;
    std::function<absl::Status(uint64_t)> check;
  } limits[] = {
      {"namespace: longer than 256 bytes", kNamespaceBytesMax,
       [](uint64_t n) { return CheckNamespace(std::string(n, 'n')); }},
      {"hints: more than 65536", kHintsMax,
       [](uint64_t n) {
         v1::Hints hints;
         hints.mutable_values()->Resize(static_cast<int>(n), 1);
         return CheckHints(hints);
       }},
      {"gang.id: has 17 bytes, and has to have 16", kGangIdBytes,
       [](uint64_t n) {
         v1::Gang gang;
         gang.set_id(std::string(n, 'g'));
         return CheckGang(gang);
       }},
      {"use.executed: more than 1099511627776", kExecutedMax,
       [](uint64_t n) {
         v1::UseReport use;
         use.set_executed(n);
         return CheckUse(use);
       }},
      {"digests: more than 65536", kFetchDigestsMax,
       [](uint64_t n) {
         v1::FetchObjectsRequest request;
         request.set_compile_key(std::string(kDigestBytes, 'k'));
         request.set_variant_id(std::string(kDigestBytes, 'v'));
         for (uint64_t i = 0; i < n; ++i) request.add_digests();
         return CheckFetch(request);
       }},
  };
  for (const auto& limit : limits) {
    EXPECT_EQ(limit.check(limit.most), absl::OkStatus()) << limit.says;
    EXPECT_EQ(limit.check(limit.most + 1), absl::InvalidArgumentError(limit.says));
  }
}

TEST(RequestLimits, AGangsIdIsNoShorterEither) {
  v1::Gang gang;
  EXPECT_EQ(CheckGang(gang), absl::OkStatus()) << "in none";
  gang.set_id(std::string(kGangIdBytes - 1, 'g'));
  EXPECT_EQ(CheckGang(gang).code(), absl::StatusCode::kInvalidArgument);
}

TEST(RequestLimits, AJobsNameIsCut) {
  const std::string name(kJobBytesMax, 'j');
  EXPECT_EQ(JobOf(name), name);
  EXPECT_EQ(JobOf(name + "j"), name);
}

}  // namespace
}  // namespace kiln
