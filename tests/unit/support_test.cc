#include "compiler/support/digest.h"
#include "compiler/support/proto_util.h"
#include "compiler/support/status_macros.h"
#include "compiler/support/zstd.h"
#include "gtest/gtest.h"

namespace kiln {
namespace {

TEST(Digest, KnownValue) {
  EXPECT_EQ(ToHex(Sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Digest, FieldsDoNotRunTogether) {
  EXPECT_NE(Sha256Builder().AddField("ab").AddField("c").Finish(),
            Sha256Builder().AddField("a").AddField("bc").Finish());
}

TEST(Digest, HexBothWays) {
  std::string digest = Sha256("kiln");
  EXPECT_EQ(FromHex(ToHex(digest)).value(), digest);
  EXPECT_EQ(FromHex("abc").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(FromHex("zz").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Zstd, RoundTrip) {
  for (size_t size : {0, 1, 1000, 1 << 20}) {
    std::string raw(size, 'x');
    EXPECT_EQ(ZstdDecompress(ZstdCompress(raw), size).value(), raw);
  }
}

TEST(Zstd, RefusesAnotherSizeAndDamage) {
  std::string packed = ZstdCompress(std::string(1000, 'x'));
  EXPECT_EQ(ZstdDecompress(packed, 999).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ZstdDecompress(packed, 1001).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ZstdDecompress(packed + "x", 1000).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ZstdDecompress(packed.substr(0, packed.size() - 1), 1000).status().code(),
            absl::StatusCode::kDataLoss);
  EXPECT_EQ(ZstdDecompress("", 0).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ZstdDecompress("garbage", 7).status().code(), absl::StatusCode::kDataLoss);
}

TEST(StatusMacros, WrapKeepsTheCode) {
  absl::Status status = StatusWrap(absl::NotFoundError("x"), "read entry");
  EXPECT_EQ(status, absl::NotFoundError("read entry: x"));
  EXPECT_TRUE(StatusWrap(absl::OkStatus(), "read entry").ok());
}

}  // namespace
}  // namespace kiln
