// More compiles than kilnd has workers for, by clients of three tenants who each give up after a while:
//   service_overload --socket PATH [--seconds S] [--factor N] [--deadline S] [--seed N]
// First the capacity: compiles a second of a tenant that always has some waiting. Then clients arrive for so
// many seconds at `factor` times that rate: one tenant is greedy and sends four fifths of them, the others a
// tenth each. A client asks for a graph of its own (tests/property/random_graph.h), comes again as often as
// the service says when, and gives up at its deadline: it runs its graph without, and is counted. kiln's own
// client asks again half a minute later; these do not, so that the load is over when the arrivals are. Last,
// from the end of the arrivals on, a fourth tenant compiles one after the other: when one takes no longer
// than thrice what it took before the load, the service has recovered.
//
// Prints one line of JSON.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <deque>
#include <map>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "compiler/graph/canonical.h"
#include "compiler/graph/key.h"
#include "compiler/support/digest.h"
#include "kiln/v1/admin.grpc.pb.h"
#include "tests/bench/service_calls.h"
#include "tests/conformance/host_target.h"
#include "tests/property/random_graph.h"

namespace kiln {
namespace {

constexpr int kConnections = 20;
constexpr int kCapacityOutstanding = 24;
constexpr int kAloneCompiles = 9;
constexpr double kCapacitySeconds = 5;
constexpr double kRecoverySecondsMax = 60;
constexpr double kRecovered = 3;  // times what a compile takes alone
constexpr int kNodes = 16;        // of a graph
constexpr std::array<const char*, 3> kTenants = {"red", "blue", "greedy"};

struct Options {
  std::string socket;
  double seconds = 15;
  double factor = 10;
  double deadline = 10;
  uint64_t seed = 1;
};

double SecondsOf(BenchClock::duration duration) { return std::chrono::duration<double>(duration).count(); }
BenchClock::duration DurationOf(double seconds) {
  return std::chrono::duration_cast<BenchClock::duration>(std::chrono::duration<double>(seconds));
}

// Graphs of one size, none twice. Those that kiln would not take are left out.
class Graphs {
 public:
  explicit Graphs(uint64_t seed) : seed_(seed << 32) {}

  PackedRequest Next(const std::string& tenant) {
    testing::RandomGraphOptions options;
    options.nodes = kNodes;
    while (true) {
      const testing::RandomGraph random = testing::MakeRandomGraph(++seed_, options);
      auto canonical = Canonicalize(random.graph);
      if (!canonical.ok()) continue;
      v1::CompileHeader header;
      header.set_namespace_(tenant);
      header.mutable_sections()->set_facts(random.facts.SerializeAsString());
      header.mutable_sections()->set_target(X86Target(HostHasAvx512()).SerializeAsString());
      header.mutable_sections()->set_graph_digest(Sha256(canonical->bytes));
      return Pack(std::move(header), canonical->bytes);
    }
  }

 private:
  uint64_t seed_;
};

// A client: its request, and its way to an answer.
struct Client {
  size_t tenant = 0;
  PackedRequest request;
  BenchClock::time_point arrival, deadline;
  std::vector<std::unique_ptr<BenchCall>> attempts;
  int admitted = 0;  // attempts that the service took
  int late = 0;      // of those, without an answer at the deadline
  int given_up = 0;  // of those, told to come again since their turn would come too late
  int refused = 0;
  int failed = 0;  // ended otherwise, with the client's time not over
  std::string failure;
  std::string manifest;
  BenchClock::time_point answered;
  bool over = false;  // it comes no more
};

// Starts what is due and takes in what has ended, on one thread.
class Flood {
 public:
  explicit Flood(const std::string& socket) : stubs_(OpenConnections(socket, kConnections)) {}

  void Add(Client* client) { due_.emplace(client->arrival, client); }
  // Until all clients have ended, or `goes_on` says no.
  void Run(const std::function<bool()>& goes_on = [] { return true; }) {
    while ((!due_.empty() || running_ > 0) && goes_on()) {
      while (!due_.empty() && due_.begin()->first <= BenchClock::now()) {
        Client* const client = due_.begin()->second;
        due_.erase(due_.begin());
        Start(client);
      }
      for (Client* client : Ended()) Take(client);
    }
  }

 private:
  void Start(Client* client) {
    ++running_;
    v1::Compiler::Stub& stub = *stubs_[next_++ % stubs_.size()];
    client->attempts.push_back(
        std::make_unique<BenchCall>(stub, client->request, client->deadline, [this, client](BenchCall*) {
          absl::MutexLock lock(&mutex_);
          ended_.push_back(client);
        }));
  }
  std::vector<Client*> Ended() {
    const auto wait = due_.empty() ? std::chrono::milliseconds(50) : due_.begin()->first - BenchClock::now();
    absl::MutexLock lock(&mutex_);
    const auto any = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !ended_.empty(); };
    mutex_.AwaitWithTimeout(absl::Condition(&any), absl::FromChrono(std::max(wait, BenchClock::duration(0))));
    std::vector<Client*> ended(ended_.begin(), ended_.end());
    ended_.clear();
    return ended;
  }
  void Take(Client* client) {
    --running_;
    const BenchCall::Outcome& outcome = client->attempts.back()->outcome();
    const auto now = BenchClock::now();
    client->admitted += outcome.queued;
    client->over = true;
    if (!outcome.manifest.empty()) {
      client->manifest = outcome.manifest;
      client->answered = now;
      return;
    }
    if (outcome.status.error_code() == grpc::RESOURCE_EXHAUSTED && outcome.pushback_seconds >= 0) {
      ++client->refused;
      client->given_up += outcome.queued;
      const double part = std::uniform_real_distribution<double>(1, 1.5)(random_);
      const auto again = now + DurationOf(outcome.pushback_seconds * part);
      client->over = again >= client->deadline;
      if (!client->over) due_.emplace(again, client);
      return;
    }
    if (outcome.status.error_code() == grpc::DEADLINE_EXCEEDED) {
      client->late += outcome.queued;
      return;
    }
    ++client->failed;
    client->failure = absl::StrCat(outcome.failure, outcome.status.error_message());
  }

  std::vector<std::unique_ptr<v1::Compiler::Stub>> stubs_;
  std::multimap<BenchClock::time_point, Client*> due_;
  size_t running_ = 0;
  size_t next_ = 0;
  std::minstd_rand random_{7};

  absl::Mutex mutex_;
  std::deque<Client*> ended_ ABSL_GUARDED_BY(mutex_);
};

std::unique_ptr<Client> NewClient(Graphs* graphs, const std::string& tenant, double deadline) {
  auto client = std::make_unique<Client>();
  client->request = graphs->Next(tenant);
  client->arrival = BenchClock::now();
  client->deadline = client->arrival + DurationOf(deadline);
  return client;
}

// Seconds of one compile with nothing else of that tenant's.
double CompileAlone(Flood* flood, Graphs* graphs, const std::string& tenant) {
  const auto client = NewClient(graphs, tenant, kRecoverySecondsMax);
  flood->Add(client.get());
  flood->Run([&client] { return !client->over; });
  return client->manifest.empty() ? kRecoverySecondsMax : SecondsOf(client->answered - client->arrival);
}

// Compiles a second with some always waiting; the time to make their graphs does not count.
double Capacity(Flood* flood, Graphs* graphs) {
  double took = 0;
  int done = 0;
  while (took < kCapacitySeconds) {
    std::vector<std::unique_ptr<Client>> clients;
    for (int i = 0; i < kCapacityOutstanding; ++i) {
      clients.push_back(NewClient(graphs, "capacity", kRecoverySecondsMax));
      flood->Add(clients.back().get());
    }
    const auto begin = BenchClock::now();
    flood->Run();
    took += SecondsOf(BenchClock::now() - begin);
    done += kCapacityOutstanding;
  }
  return done / took;
}

std::vector<std::unique_ptr<Client>> MakeClients(const Options& options, double rate, Graphs* graphs) {
  std::vector<std::unique_ptr<Client>> clients;
  std::minstd_rand random(11);
  for (double at = 0; at < options.seconds; at += 1 / rate) {
    const unsigned kind = random() / 8 % 10;
    const size_t tenant = std::min<size_t>(kind, 2);
    clients.push_back(NewClient(graphs, kTenants[tenant], options.deadline));
    clients.back()->tenant = tenant;
    clients.back()->arrival = BenchClock::time_point(DurationOf(at));  // from the beginning, which comes
  }
  return clients;
}

// What workers took to make a manifest.
double WorkSeconds(v1::Admin::Stub& admin, const std::string& manifest) {
  v1::Manifest parsed;
  if (!parsed.ParseFromString(manifest)) return 0;
  v1::ShowRequest request;
  request.set_key_prefix(ToHex(parsed.compile_key()));
  v1::ShowReply reply;
  grpc::ClientContext context;
  if (!admin.Show(&context, request, &reply).ok() || reply.entries().empty()) return 0;
  const v1::CompileStatistics& times = reply.entries(0).manifest().statistics();
  return times.plan_seconds() + times.emit_seconds();
}

// Whether the service has for the client's key what it gave to it.
bool IsRight(v1::Compiler::Stub& compiler, const Client& client) {
  v1::Manifest parsed;
  const std::string key = RequestKey(client.request.header.sections());
  if (!parsed.ParseFromString(client.manifest) || parsed.request_key() != key) return false;
  v1::LookupRequest request;
  request.set_namespace_(client.request.header.namespace_());
  request.set_request_key(key);
  v1::LookupReply reply;
  grpc::ClientContext context;
  return compiler.Lookup(&context, request, &reply).ok() &&
         reply.hit().manifest().manifest() == client.manifest;
}

void Print(const Options& options, double rate, double alone, double recovery,
           const std::vector<std::unique_ptr<Client>>& clients, BenchClock::time_point begin) {
  const auto stubs = OpenConnections(options.socket, 1);
  const auto admin = v1::Admin::NewStub(
      grpc::CreateChannel(absl::StrCat("unix:", options.socket), grpc::InsecureChannelCredentials()));
  std::array<double, 3> work = {};
  std::array<int, 3> arrived = {}, served = {};
  int admitted = 0, late = 0, given_up = 0, refused = 0, failed = 0, wrong = 0, without = 0;
  std::string failure;
  for (const auto& client : clients) {
    ++arrived[client->tenant];
    admitted += client->admitted;
    late += client->late;
    given_up += client->given_up;
    refused += client->refused;
    failed += client->failed;
    if (client->failed != 0) failure = client->failure;
    without += client->manifest.empty();
    if (client->manifest.empty()) continue;
    ++served[client->tenant];
    wrong += !IsRight(*stubs[0], *client);
    // Shares are of the time in which all tenants have more than they get.
    if (client->answered <= begin + DurationOf(options.seconds)) {
      work[client->tenant] += WorkSeconds(*admin, client->manifest);
    }
  }
  if (!failure.empty()) fprintf(stderr, "service_overload: %d failed: %s\n", failed, failure.c_str());
  printf(
      "{\"capacity\": %.2f, \"alone\": %.4f, \"recovery\": %.2f, \"admitted\": %d, \"late\": %d, "
      "\"given_up\": %d, \"refused\": %d, "
      "\"failed\": %d, \"wrong\": %d, \"without\": %d, \"tenants\": {",
      rate, alone, recovery, admitted, late, given_up, refused, failed, wrong, without);
  for (size_t t = 0; t < kTenants.size(); ++t) {
    printf("%s\"%s\": {\"arrived\": %d, \"served\": %d, \"work\": %.3f}", t == 0 ? "" : ", ", kTenants[t],
           arrived[t], served[t], work[t]);
  }
  printf("}}\n");
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("More compiles than a kilnd has workers for.");
  app.add_option("--socket", options.socket, "kilnd's")->required();
  app.add_option("--seconds", options.seconds, "Of arrivals")->check(CLI::NonNegativeNumber);
  app.add_option("--factor", options.factor, "Times the capacity")->check(CLI::PositiveNumber);
  app.add_option("--deadline", options.deadline, "Of a client, in seconds")->check(CLI::PositiveNumber);
  app.add_option("--seed", options.seed, "Of the graphs");
  CLI11_PARSE(app, argc, argv);
  Flood flood(options.socket);
  Graphs graphs(options.seed);
  std::vector<double> alone;
  for (int i = 0; i < kAloneCompiles; ++i) alone.push_back(CompileAlone(&flood, &graphs, "alone"));
  std::sort(alone.begin(), alone.end());
  const double usual = alone[alone.size() / 2];
  const double rate = Capacity(&flood, &graphs);
  const auto clients = MakeClients(options, rate * options.factor, &graphs);

  const auto begin = BenchClock::now();
  for (const auto& client : clients) {
    client->arrival = begin + client->arrival.time_since_epoch();
    client->deadline = client->arrival + DurationOf(options.deadline);
    flood.Add(client.get());
  }
  const auto end = begin + DurationOf(options.seconds);
  flood.Run([end] { return BenchClock::now() < end; });
  while (!clients.empty() && CompileAlone(&flood, &graphs, "probe") > kRecovered * usual &&
         SecondsOf(BenchClock::now() - end) < kRecoverySecondsMax) {
  }
  const double recovery = SecondsOf(BenchClock::now() - end);
  flood.Run();
  Print(options, rate, usual, recovery, clients, begin);
  return 0;
}

}  // namespace
}  // namespace kiln

int main(int argc, char** argv) { return kiln::Main(argc, argv); }
