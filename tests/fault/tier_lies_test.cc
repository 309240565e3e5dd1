// Lies in the shared tier, of every kind of value that it holds: none is believed, by a SharedTier or by a
// kilnd, and each compile ends with the right bytes. tests/fault/tier_daemons_test.cc has those about
// crashes.
#include <algorithm>
#include <array>
#include <iterator>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cache/shared/shared_tier.h"
#include "cache/shared/tier_value.h"
#include "compiler/graph/key.h"
#include "compiler/support/compiler_limits.h"
#include "compiler/support/digest.h"
#include "compiler/support/proto_util.h"
#include "gtest/gtest.h"
#include "kiln/v1/record.pb.h"
#include "tests/fault/process_facts.h"
#include "tests/fault/tier_artifacts.h"
#include "tests/fault/tier_daemons.h"
#include "tests/fault/tier_liar.h"

namespace kiln {
namespace {

// ---- Through a SharedTier --------------------------------------------------------------------

enum class Kind { kManifest, kRefusal, kRecord, kObject, kTuning, kBarred, kVerdict };
constexpr std::array kKinds = {Kind::kManifest, Kind::kRefusal, Kind::kRecord, Kind::kObject,
                               Kind::kTuning,   Kind::kBarred,  Kind::kVerdict};
constexpr char kOther[] = "other";  // a namespace
const std::string kGang(16, 'g');

std::string NameOf(Kind kind) {
  switch (kind) {
    case Kind::kManifest: return "manifest";
    case Kind::kRefusal: return "refusal";
    case Kind::kRecord: return "request record";
    case Kind::kObject: return "object";
    case Kind::kTuning: return "tuning record";
    case Kind::kBarred: return "barred winners";
    case Kind::kVerdict: return "verdict of a gang";
  }
  return "";
}

// What is there of one key, by whoever signs it.
struct Truth {
  Truth(int of, const std::string& in, const Signatures& by)
      : number(of), ns(in), signatures(by), artifact(ArtifactOf(of, 1000, in)) {
    for (v1::ObjectRef& ref : DistinctObjects(*ManifestIn(*artifact.back().value))) refs.push_back(ref);
  }
  std::string tuning_key() const { return Sha256(absl::StrCat("tunable ", number)); }

  // Its place, in the namespace that is asked.
  std::string Name(Kind kind) const {
    switch (kind) {
      case Kind::kManifest: return TierName(kTierTestNamespace, KeyOf(number), "m");
      case Kind::kRefusal: return TierName(kTierTestNamespace, KeyOf(number), "f");
      case Kind::kRecord: return TierName(kTierTestNamespace, KeyOf(number), "r");
      case Kind::kObject:
        return TierChunkName(kTierTestNamespace, refs[0].digest(), refs[0].packed_size(), 0);
      case Kind::kTuning: return TierName(kTierTestNamespace, tuning_key(), "t");
      case Kind::kBarred: return TierName(kTierTestNamespace, tuning_key(), "b");
      case Kind::kVerdict: return TierName(kTierTestNamespace, KeyOf(number), "g", ToHex(kGang));
    }
    return "";
  }
  std::string Value(Kind kind) const {
    const auto sealed = [&](EntryKind entry, const std::string& key, const std::string& bytes) {
      return SealTierValue(signatures, {entry, key}, ns, bytes);
    };
    const auto entry = [&](EntryKind of, const std::string& key, const std::string& bytes) {
      return *signatures.SignEntry({of, key}, ns, bytes).value;
    };
    switch (kind) {
      case Kind::kManifest:
        return entry(EntryKind::kManifest, ManifestEntryKey(KeyOf(number), VariantOf(number)),
                     *OpenFor(ns, *artifact.back().value));
      case Kind::kRefusal: return entry(EntryKind::kFailure, KeyOf(number), absl::StrCat("refused ", number));
      case Kind::kRecord: return sealed(EntryKind::kMeta, KeyOf(number) + "request", "of a caller");
      case Kind::kObject:
        return sealed(EntryKind::kObject, TierChunkKey(refs[0].digest(), refs[0].packed_size(), 0),
                      *artifact[0].value);
      case Kind::kTuning: return entry(EntryKind::kTuning, tuning_key(), absl::StrCat("winner ", number));
      case Kind::kBarred:
        return sealed(EntryKind::kMeta, tuning_key() + "barred", Sha256(Value(Kind::kTuning)));
      case Kind::kVerdict: {
        v1::GangVerdict verdict;
        verdict.add_variants()->set_variant_id(VariantOf(number));
        return sealed(EntryKind::kMeta, absl::StrCat(KeyOf(number), "gang", kGang),
                      SerializeDeterministic(verdict));
      }
    }
    return "";
  }

  int number;
  std::string ns;
  const Signatures& signatures;
  std::vector<Entry> artifact;
  std::vector<v1::ObjectRef> refs;
};

class TierLies : public testing::Test {
 protected:
  void SetUp() override {
    if (!RedisServer::IsThere())
      GTEST_SKIP() << "no redis-server on this host (apt-get install redis-server)";
    redis_ = std::make_unique<RedisServer>();
  }
  std::unique_ptr<SharedTier> Connect(bool believes) {
    SharedTier::Options options;
    options.addresses = {redis_->address()};
    options.lookup_limit = absl::Seconds(20);  // a loaded machine's
    options.dangerously_believe = believes;
    absl::StatusOr<std::unique_ptr<SharedTier>> tier =
        SharedTier::Create(std::move(options), &TestSignatures());
    EXPECT_TRUE(tier.ok()) << tier.status();
    google::protobuf::SetLogHandler(nullptr);  // text that is not UTF-8 is what lies are made of
    return *std::move(tier);
  }
  void Put(Kind kind, int number, const std::string& value) {
    const Truth truth(number, kTierTestNamespace, TestSignatures());
    if (kind == Kind::kManifest) {
      redis_->Ask({"HSET", truth.Name(kind), ToHex(VariantOf(number)), value});
    } else {
      redis_->Ask({"SET", truth.Name(kind), value});
    }
  }
  void PutTruth(Kind kind, int number) {
    Put(kind, number, Truth(number, kTierTestNamespace, TestSignatures()).Value(kind));
  }

  // A lie under that name: `how` is drawn as well, and told.
  std::string LieOf(Kind kind, int number, std::string* how) {
    std::string value = Truth(number, kTierTestNamespace, TestSignatures()).Value(kind);
    switch (Draw(8)) {
      case 0: *how = "cut"; return value.substr(0, Draw(value.size() - 1) + 1);
      case 1: *how = "longer"; return value + Noise(Draw(100) + 1, number);
      case 2: *how = "noise"; return Noise(Draw(400) + 1, number);
      case 3:
        *how = "another key's";
        return Truth(number + 1, kTierTestNamespace, TestSignatures()).Value(kind);
      case 4: *how = "another namespace's"; return Truth(number, kOther, TestSignatures()).Value(kind);
      case 5: *how = "a stranger's"; return Truth(number, kTierTestNamespace, stranger_).Value(kind);
      case 6: {
        const Kind other = kKinds[(static_cast<size_t>(kind) + 1 + Draw(kKinds.size() - 1)) % kKinds.size()];
        *how = absl::StrCat("a ", NameOf(other));
        return Truth(number, kTierTestNamespace, TestSignatures()).Value(other);
      }
      default:
        *how = "a bit that is another";
        value[Draw(value.size())] ^= static_cast<char>(1 << Draw(8));
        return value;
    }
  }
  size_t Draw(size_t below) { return random_() % below; }

  // Whether what is there under the name counts for who looks.
  static bool IsBelieved(SharedTier& tier, Kind kind, int number) {
    const MonotonicTime deadline = MonotonicAfter(absl::Seconds(20));
    const Truth truth(number, kTierTestNamespace, TestSignatures());
    const auto has = [&](EntryKind entry) {
      const absl::StatusOr<SharedTier::Found> found =
          tier.LookUp(kTierTestNamespace, KeyOf(number), deadline);
      return found.ok() && std::any_of(found->entries.begin(), found->entries.end(),
                                       [&](const Entry& one) { return one.id.kind == entry; });
    };
    const auto winner = [&] {
      const auto stands = tier.AgreeOnTuning(kTierTestNamespace, {{truth.tuning_key(), nullptr}});
      EXPECT_TRUE(stands.ok()) << stands.status();
      return stands.ok() && (*stands)[0].value != nullptr;
    };
    switch (kind) {
      case Kind::kManifest: return has(EntryKind::kManifest);
      case Kind::kRefusal: return has(EntryKind::kFailure);
      case Kind::kRecord: return has(EntryKind::kMeta);
      case Kind::kObject: return tier.Fetch(kTierTestNamespace, {truth.refs[0]}).ok();
      case Kind::kTuning: return winner();
      case Kind::kBarred: return !winner();
      case Kind::kVerdict: {
        const auto read = tier.verdicts()->Read({kTierTestNamespace, kGang, KeyOf(number)});
        EXPECT_TRUE(read.ok()) << read.status();
        return read.ok() && read->verdict.variants_size() > 0;
      }
    }
    return true;
  }
  // What has to be there besides, for the kind to be looked at.
  void PutBeside(Kind kind, int number) {
    if (kind == Kind::kRecord) PutTruth(Kind::kManifest, number);
    if (kind == Kind::kBarred) PutTruth(Kind::kTuning, number);
  }
  size_t Left(const char* pattern) { return redis_->Keys(pattern).size(); }

  // How many of each kind were believed.
  using Counts = std::array<size_t, kKinds.size()>;
  Counts TellLies(SharedTier& tier, int lies) {
    Counts believed = {};
    for (int number = 0; number < lies; ++number) {
      const Kind kind = kKinds[Draw(kKinds.size())];
      ++told_[static_cast<size_t>(kind)];
      std::string how;
      PutBeside(kind, number);
      Put(kind, number, LieOf(kind, number, &how));
      if (!IsBelieved(tier, kind, number)) continue;
      ++believed[static_cast<size_t>(kind)];
      last_ = absl::StrCat(NameOf(kind), " ", number, ": ", how);
    }
    return believed;
  }

  std::unique_ptr<RedisServer> redis_;
  const Signatures stranger_ = Signatures::OfThisProcess();
  std::minstd_rand random_{7};
  Counts told_ = {};
  std::string last_;  // lie that was believed
};

TEST_F(TierLies, OfNoKindIsAnyBelieved) {
  const std::unique_ptr<SharedTier> tier = Connect(/*believes=*/false);
  // What is true is believed, of each kind: else nothing is shown here.
  for (const Kind kind : kKinds) {
    PutBeside(kind, -1);
    EXPECT_FALSE(IsBelieved(*tier, kind, -1)) << NameOf(kind) << ": not there yet";
    PutTruth(kind, -1);
    EXPECT_TRUE(IsBelieved(*tier, kind, -1)) << NameOf(kind);
    redis_->Ask({"FLUSHALL"});
  }
  EXPECT_EQ(tier->status().refused(), 0);
  const Counts believed = TellLies(*tier, Count(1000, 10'000));
  for (const Kind kind : kKinds) EXPECT_EQ(believed[static_cast<size_t>(kind)], 0) << NameOf(kind) << last_;
  // And they go, and what was beside them stays; but for verdicts, which give way to the next.
  for (const char* lies : {"*:f", "*:r", "*:o:*", "*:b"})
    EXPECT_TRUE(Eventually([&] { return Left(lies) == 0; })) << lies << " " << Left(lies);
  EXPECT_TRUE(Eventually([&] { return Left("*:m") == told_[static_cast<size_t>(Kind::kRecord)]; }));
  EXPECT_TRUE(Eventually([&] { return Left("*:t") == told_[static_cast<size_t>(Kind::kBarred)]; }));
}

// The control. Verdicts are verified in any case.
TEST_F(TierLies, WithoutTheVerifierSomeOfEachKindAreBelieved) {
  const std::unique_ptr<SharedTier> believer = Connect(/*believes=*/true);
  const Counts believed = TellLies(*believer, 1000);
  for (const Kind kind : kKinds)
    EXPECT_EQ(believed[static_cast<size_t>(kind)] > 0, kind != Kind::kVerdict) << NameOf(kind);
}

// By those who write: whoever adds a kind adds it here.
TEST_F(TierLies, WhatIsWrittenIsOfTheKindsThatAreLiedAbout) {
  const std::string ns = kTierTestNamespace;
  const std::unique_ptr<SharedTier> tier = Connect(/*believes=*/false);
  tier->WriteArtifact(ns, ArtifactOf(1), [](const EntryId&) { return absl::NotFoundError("not here"); });
  tier->WriteRefusal(ns, {TestSignatures().SignEntry({EntryKind::kFailure, KeyOf(2)}, ns, "refused")});
  // Of these each has the time of a look-up, which a busy machine may take.
  EXPECT_TRUE(Eventually([&] { return tier->CountCrash(ns, KeyOf(3)).ok(); }));
  const auto winner = [&](const std::string& key) {
    return TierTuning::Record{key, TestSignatures().SignEntry({EntryKind::kTuning, key}, ns, "winner").value};
  };
  EXPECT_TRUE(Eventually([&] { return tier->AgreeOnTuning(ns, {winner(KeyOf(4)), winner(KeyOf(5))}).ok(); }));
  EXPECT_TRUE(Eventually([&] { return tier->BarTuning(ns, winner(KeyOf(5))).ok(); }));
  EXPECT_TRUE(tier->verdicts()->Replace({ns, kGang, KeyOf(6)}, "", v1::GangVerdict(), absl::Hours(1)).ok());
  EXPECT_TRUE(tier->members()->Announce(v1::DaemonRecord(), {ns}).ok());
  EXPECT_TRUE(tier->work()->Ask({ns, "sm_90"}, KeyOf(7), "item").ok());
  EXPECT_TRUE(tier->work()->TellDevice({ns, "sm_90"}, "device").ok());
  tier->Claim(1, ns, KeyOf(8), MonotonicAfter(absl::Seconds(20)), [](TierClaims::Answer) {});
  std::set<std::string> kinds;
  EXPECT_TRUE(Eventually([&] {
    for (const std::string& name : redis_->Keys()) kinds.insert(name.substr(name.find("}:") + 2, 1));
    return kinds.size() == std::size(kTierKinds);
  }));
  EXPECT_EQ(kinds, std::set<std::string>(std::begin(kTierKinds), std::end(kTierKinds)));
  // Of each there is a lie, and it is one.
  for (const char kind : TierKindsLiedAbout()) {
    const auto all = [&] {
      std::string dumps;
      for (const std::string& name : redis_->Keys(absl::StrCat("*}:", std::string(1, kind), "*")))
        absl::StrAppend(&dumps, redis_->Ask({"DUMP", name}));
      return dumps;
    };
    const std::string before = all();
    const std::string told = TellLie(*redis_, 1, std::string(1, kind));
    EXPECT_NE(told.find(absl::StrCat("}:", std::string(1, kind))), std::string::npos) << kind << ": " << told;
    EXPECT_NE(all(), before) << told;
  }
}

// ---- Through a kilnd -------------------------------------------------------------------------

class TierLiesToDaemons : public TierDaemons {
 protected:
  static std::string KeyOfScript(const std::string& script) {
    return CompileKey("test", RequestKey(SectionsOf(script)), kProgramFormatVersion, "scripted-1");
  }
  static std::string Objects(TestDaemon& daemon, const CompileResult& result) {
    std::vector<std::string> digests;
    for (const v1::ManifestKernel& kernel : result.manifest.kernels())
      digests.push_back(kernel.object().digest());
    grpc::Status fetched;
    std::string bytes = daemon.Fetch(result.manifest, digests, &fetched);
    EXPECT_TRUE(fetched.ok()) << fetched.error_message();
    return bytes;
  }
};

// Among all that the tier holds of some programs and a refusal, however many lies there are by then.
TEST_F(TierLiesToDaemons, EachCompileEndsWithTheRightBytes) {
  TestDaemon first(Config("first", {"second"}));
  TestDaemon second(Config("second", {"first"}));
  TestDaemon alone(Config("alone", {}, /*tier=*/false));
  const std::string refused = "refuse 12 no such operator";
  EXPECT_EQ(first.Compile(refused).failed_code, 12);
  AwaitWrites(first, 1);
  std::vector<std::string> told;
  for (int i = 0; i < Count(40, 400); ++i) {
    const std::string script = absl::StrCat("name lied about ", i, "\nkernels 2");
    const uint64_t written = StatusOf(first).writes();
    const CompileResult made = first.Compile(script);
    Eventually([&] { return StatusOf(first).writes() > written; }, absl::Seconds(1));
    for (int lie = 0; lie < 3; ++lie) told.push_back(TellLie(*redis_, 3 * i + lie));
    const CompileResult taken = second.Compile(script);
    const CompileResult right = alone.Compile(script);
    ASSERT_TRUE(taken.done) << script << taken.failed_reason << taken.status.error_message() << told.back();
    EXPECT_EQ(made.manifest_bytes, right.manifest_bytes);
    EXPECT_EQ(taken.manifest_bytes, right.manifest_bytes) << script << told.back();
    EXPECT_EQ(Objects(second, taken), Objects(alone, right)) << script << told.back();
  }
  EXPECT_GT(StatusOf(second).refused(), 0) << "no lie was met";
  EXPECT_EQ(second.Compile(refused).failed_code, 12);
}

// A count is signed by nobody: one crash may be made to count for two, or for none, and no more.
TEST_F(TierLiesToDaemons, LiesAboutCrashesRefuseWhatCrashesAlone) {
  TestDaemon daemon(Config("daemon", {}));
  for (int i = 0; i < Count(10, 200); ++i) {
    const std::string healthy = absl::StrCat("name healthy ", i);
    const std::string crashes = absl::StrCat("name killer ", i, "\ncrash");
    redis_->Ask({"FLUSHALL"});
    redis_->Ask({"SET", TierName("test", KeyOfScript(healthy), "x"), absl::StrCat(i)});
    redis_->Ask({"SET", TierName("test", KeyOfScript(crashes), "x"), "1"});
    std::string told;
    for (int lie = 0; lie < 4; ++lie) absl::StrAppend(&told, TellLie(*redis_, 4 * i + lie, "x"), "; ");
    const CompileResult whole = daemon.Compile(healthy);
    EXPECT_TRUE(whole.done) << told << whole.failed_reason << whole.status.error_message();
    const uint64_t before = daemon.Stats().worker_crashes();
    EXPECT_EQ(daemon.Compile(crashes).failed_code, grpc::FAILED_PRECONDITION) << told;
    const uint64_t crashed = daemon.Stats().worker_crashes() - before;
    EXPECT_TRUE(crashed == 1 || crashed == 2) << crashed << ": " << told;
  }
}

// Whole, signed by who is trusted, and another key's; or signed by a stranger.
TEST_F(TierLiesToDaemons, AForgedRefusalRefusesNothing) {
  TestDaemon first(Config("first", {"second"}));
  TestDaemon second(Config("second", {"first"}));
  const std::string refused = "refuse 12 no such operator", healthy = "name healthy";
  EXPECT_EQ(first.Compile(refused).failed_code, 12);
  AwaitWrites(first, 1);
  const std::string name = TierName("test", KeyOfScript(healthy), "f");
  EXPECT_EQ(redis_->Ask({"COPY", TierName("test", KeyOfScript(refused), "f"), name}), "1");
  EXPECT_TRUE(second.Compile(healthy).done);
  EXPECT_GE(StatusOf(second).refused(), 1);
  EXPECT_TRUE(Eventually([&] { return redis_->Ask({"EXISTS", name}) == "0"; }));

  const std::string other = "name another";
  v1::FailureRecord forged;
  forged.set_code(12);
  forged.set_reason("no such operator");
  redis_->Ask(
      {"SET", TierName("test", KeyOfScript(other), "f"),
       *TestSignatures()
            .SignEntry({EntryKind::kFailure, KeyOfScript(other)}, "test", SerializeDeterministic(forged))
            .value});
  EXPECT_TRUE(second.Compile(other).done);
  // The control: what `first` has refused is refused.
  EXPECT_EQ(second.Compile(refused).failed_code, 12);
  EXPECT_EQ(second.Stats().compiles(), 2);
}

}  // namespace
}  // namespace kiln
