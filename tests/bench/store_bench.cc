// The store as it grows: the chain that kilnd uses, filled with manifests that name nothing.
//   store_bench [--manifests N,…] [--bytes N] [--directory DIRECTORY]
// For each number of manifests: seconds from opening to the first answer; quantiles of a Get over a hot set
// that fits memory, and of a first Get, which goes to the disk; then half of the entries is evicted while the
// hot set is read: its quantiles meanwhile, beside those with a thread that burns as much of a processor, the
// seconds that it takes, and the most that the disk held against the budget. Before all, what signing a
// manifest and verifying it takes. Prints a table, and JSON as the last line.
#include <malloc.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cache/chain/store_config.h"
#include "compiler/support/digest.h"
#include "compiler/support/status_macros.h"
#include "kiln/v1/artifact.pb.h"

namespace kiln {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kHot = 1'000;
constexpr size_t kCold = 2'000;
constexpr size_t kBatch = 2'000;

double Seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

struct Options {
  std::vector<size_t> manifests = {10'000, 1'000'000};
  size_t bytes = 2'048;
  std::string directory;
};

struct Quantiles {
  double p50 = 0, p99 = 0, most = 0;  // microseconds
};

Quantiles QuantilesOf(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  const auto at = [&](double part) {
    return 1e6 * seconds[std::min(seconds.size() - 1,
                                  static_cast<size_t>(part * static_cast<double>(seconds.size())))];
  };
  return {at(0.5), at(0.99), 1e6 * seconds.back()};
}

EntryId IdOf(size_t number) {
  return {EntryKind::kManifest, ManifestEntryKey(Sha256(absl::StrCat("key ", number)), Sha256("variant"))};
}

const Signatures& BenchSignatures() {
  static const Signatures& signatures = *new Signatures(Signatures::OfThisProcess());
  return signatures;
}

Entry ManifestOf(size_t number, size_t bytes) {
  v1::Manifest manifest;
  const EntryId id = IdOf(number);
  manifest.set_compile_key(id.key.substr(0, kDigestBytes));
  manifest.set_variant_id(id.key.substr(kDigestBytes));
  std::minstd_rand random(static_cast<uint32_t>(number + 1));
  std::string filler(bytes - std::min<size_t>(bytes, 100), ' ');
  for (char& letter : filler) letter = static_cast<char>('0' + random() / 8 % 64);
  manifest.set_namespace_(filler);
  return BenchSignatures().SignEntry(id, "bench", manifest.SerializeAsString());
}

absl::Status Fill(Store& store, size_t manifests, size_t bytes) {
  std::vector<Entry> batch;
  for (size_t i = 0; i < manifests; ++i) {
    batch.push_back(ManifestOf(i, bytes));
    if (batch.size() < kBatch && i + 1 < manifests) continue;
    KILN_RETURN_IF_ERROR(store.artifacts().Put(batch));
    batch.clear();
  }
  return absl::OkStatus();
}

// Gets of some entries, one after the other, for as long as asked or once each.
absl::StatusOr<std::vector<double>> TimeGets(Store& store, const std::vector<EntryId>& ids,
                                             const std::function<bool()>& go_on) {
  std::vector<double> seconds;
  for (size_t i = 0; go_on ? go_on() : i < ids.size(); ++i) {
    const Clock::time_point start = Clock::now();
    const absl::StatusOr<EntryValue> value = store.artifacts().Get(ids[i % ids.size()]);
    seconds.push_back(Seconds(Clock::now() - start));
    KILN_RETURN_IF_ERROR(value.status());
  }
  return seconds;
}

struct Row {
  size_t manifests = 0;
  double fill_seconds = 0, open_seconds = 0, evict_seconds = 0, disk_peak = 0;  // the last: of the budget
  Quantiles hot, cold, burning, evicting;
  size_t left = 0;
};

// Hot reads for as long as `work` takes, on another thread.
absl::StatusOr<Quantiles> TimeHotDuring(Store& store, const std::vector<EntryId>& hot,
                                        const std::function<void()>& work) {
  std::atomic<bool> done{false};
  std::thread worker([&] {
    work();
    done = true;
  });
  absl::StatusOr<std::vector<double>> times = TimeGets(store, hot, [&done] { return !done; });
  worker.join();
  KILN_RETURN_IF_ERROR(times.status());
  return QuantilesOf(*std::move(times));
}

absl::Status MeasureEviction(Store& store, const std::vector<EntryId>& hot, uint64_t budget, Row* row) {
  KILN_ASSIGN_OR_RETURN(row->burning, TimeHotDuring(store, hot, [] {
                          const Clock::time_point end = Clock::now() + std::chrono::seconds(5);
                          while (Clock::now() < end) {
                          }
                        }));
  uint64_t live = 0;
  for (uint64_t bytes : store.catalog().Totals().bytes) live += bytes;
  std::atomic<bool> done{false};
  uint64_t peak = 0;
  std::thread watch([&] {
    while (!done) {
      peak = std::max(peak, store.catalog().Totals().bytes_on_disk);
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
    }
  });
  absl::Status evicted;
  const Clock::time_point start = Clock::now();
  const absl::StatusOr<Quantiles> meanwhile =
      TimeHotDuring(store, hot, [&] { evicted = store.EvictTo(live / 2); });
  row->evict_seconds = Seconds(Clock::now() - start);
  done = true;
  watch.join();
  KILN_RETURN_IF_ERROR(evicted);
  KILN_RETURN_IF_ERROR(meanwhile.status());
  row->evicting = *meanwhile;
  row->disk_peak = static_cast<double>(peak) / static_cast<double>(budget);
  row->left = store.statistics().entries;
  return absl::OkStatus();
}

absl::StatusOr<Row> Measure(const Options& options, size_t manifests) {
  const std::string directory = absl::StrCat(options.directory, "/", manifests);
  Row row;
  row.manifests = manifests;
  v1::StoreConfig config;
  config.set_directory(directory);
  // As much as a sweep would leave alone.
  const uint64_t budget = std::max<uint64_t>(64u << 20, manifests * (options.bytes + 400) / 8 * 10);
  config.set_budget_bytes(budget);
  StoreEnvironment environment;
  environment.signatures = &BenchSignatures();
  {
    KILN_ASSIGN_OR_RETURN(const std::unique_ptr<Store> store, NewStore(config, environment));
    const Clock::time_point start = Clock::now();
    KILN_RETURN_IF_ERROR(Fill(*store, manifests, options.bytes));
    row.fill_seconds = Seconds(Clock::now() - start);
  }
  malloc_trim(0);
  std::mt19937_64 random(1);
  std::vector<EntryId> hot, cold;
  for (size_t i = 0; i < kHot; ++i) hot.push_back(IdOf(random() % manifests));
  for (size_t i = 0; i < kCold; ++i) cold.push_back(IdOf(random() % manifests));
  const Clock::time_point start = Clock::now();
  KILN_ASSIGN_OR_RETURN(const std::unique_ptr<Store> store, NewStore(config, environment));
  KILN_RETURN_IF_ERROR(store->artifacts().Get(hot[0]).status());
  row.open_seconds = Seconds(Clock::now() - start);
  KILN_ASSIGN_OR_RETURN(std::vector<double> times, TimeGets(*store, cold, nullptr));
  row.cold = QuantilesOf(std::move(times));
  KILN_RETURN_IF_ERROR(TimeGets(*store, hot, nullptr).status());
  const Clock::time_point end = Clock::now() + std::chrono::seconds(3);
  KILN_ASSIGN_OR_RETURN(times, TimeGets(*store, hot, [end] { return Clock::now() < end; }));
  row.hot = QuantilesOf(std::move(times));
  KILN_RETURN_IF_ERROR(MeasureEviction(*store, hot, budget, &row));
  return row;
}

void PrintSigning(size_t bytes) {
  const Entry entry = ManifestOf(0, bytes);
  const auto median = [](const std::function<void()>& work) {
    std::vector<double> seconds;
    for (int i = 0; i < 1'000; ++i) {
      const Clock::time_point start = Clock::now();
      work();
      seconds.push_back(Seconds(Clock::now() - start));
    }
    return QuantilesOf(std::move(seconds)).p50;
  };
  const std::string value = OpenEnvelope(*entry.value)->value();
  printf("A manifest of %zu bytes: signed in %.1f µs, verified in %.1f µs.\n\n", value.size(),
         median([&] { BenchSignatures().SignEntry(entry.id, "bench", value); }),
         median([&] { BenchSignatures().Verify(entry.id, *entry.value).IgnoreError(); }));
}

void Print(const Row& row) {
  const auto cell = [](const Quantiles& q) {
    char text[96];
    snprintf(text, sizeof(text), "%.1f / %.1f / %.0f µs", q.p50, q.p99, q.most);
    return std::string(text);
  };
  printf("| %zu | %.1f s | %.2f s | %s | %s | %s | %s | %.1f s | %.2f | %zu |\n", row.manifests,
         row.fill_seconds, row.open_seconds, cell(row.hot).c_str(), cell(row.cold).c_str(),
         cell(row.burning).c_str(), cell(row.evicting).c_str(), row.evict_seconds, row.disk_peak, row.left);
  fflush(stdout);
}

std::string Json(const std::vector<Row>& rows) {
  std::string text = "[";
  for (const Row& row : rows) {
    const auto quantiles = [](const char* name, const Quantiles& q) {
      return absl::StrCat("\"", name, "\": {\"p50_us\": ", q.p50, ", \"p99_us\": ", q.p99,
                          ", \"most_us\": ", q.most, "}");
    };
    absl::StrAppend(&text, text.size() > 1 ? ", " : "", "{\"manifests\": ", row.manifests,
                    ", \"fill_seconds\": ", row.fill_seconds, ", \"open_seconds\": ", row.open_seconds, ", ",
                    quantiles("hot", row.hot), ", ", quantiles("first", row.cold), ", ",
                    quantiles("burning", row.burning), ", ", quantiles("evicting", row.evicting),
                    ", \"evict_seconds\": ", row.evict_seconds, ", \"disk_peak\": ", row.disk_peak,
                    ", \"left\": ", row.left, "}");
  }
  return text + "]";
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("The store as it grows.");
  app.add_option("--manifests", options.manifests, "How many, a row each")->delimiter(',');
  app.add_option("--bytes", options.bytes, "Of each")->check(CLI::Range(128, 1 << 20));
  app.add_option("--directory", options.directory, "Made for the run and removed; default: in /var/tmp");
  CLI11_PARSE(app, argc, argv);
  std::string made = (options.directory.empty() ? "/var/tmp" : options.directory) + "/kiln-store-XXXXXX";
  if (mkdtemp(made.data()) == nullptr) {
    fprintf(stderr, "store_bench: cannot make a directory %s\n", made.c_str());
    return 1;
  }
  options.directory = made;
  PrintSigning(options.bytes);
  printf(
      "| manifests | fill | open, first hit | hot, p50/p99/most | first, from disk | hot beside a spinner | "
      "hot beside the eviction | half evicted in | disk/budget at most | left |\n");
  printf("|---|---|---|---|---|---|---|---|---|---|\n");
  std::vector<Row> rows;
  absl::Status status;
  for (size_t manifests : options.manifests) {
    const absl::StatusOr<Row> row = Measure(options, manifests);
    status = row.status();
    if (!status.ok()) break;
    Print(*row);
    rows.push_back(*row);
  }
  std::filesystem::remove_all(made);
  if (!status.ok()) fprintf(stderr, "store_bench: %s\n", status.ToString().c_str());
  printf("%s\n", Json(rows).c_str());
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace kiln

int main(int argc, char** argv) { return kiln::Main(argc, argv); }
