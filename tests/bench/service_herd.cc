// Many clients that ask for the same at once:
//   service_herd --socket PATH --header FILE --graph FILE [--callers N] [--connections N] [--namespace NAME]
// The files are a CompileHeader and a canonical graph. Prints one line of JSON: seconds to the first answer
// and to the last, callers who got a manifest, and how many different ones.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <set>
#include <sstream>

#include "tests/bench/service_calls.h"

namespace kiln {
namespace {

constexpr std::chrono::minutes kDeadline(15);

std::string ReadFile(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

int Main(int argc, char** argv) {
  std::string socket, header_file, graph_file, ns = "herd";
  int callers = 1000, connections = 50;
  CLI::App app("Many clients that ask a kilnd for the same at once.");
  app.add_option("--socket", socket, "kilnd's")->required();
  app.add_option("--header", header_file, "CompileHeader")->required()->check(CLI::ExistingFile);
  app.add_option("--graph", graph_file, "Canonical graph")->required()->check(CLI::ExistingFile);
  app.add_option("--namespace", ns);
  app.add_option("--callers", callers)->check(CLI::Range(1, 100'000));
  app.add_option("--connections", connections)->check(CLI::Range(1, 1000));
  CLI11_PARSE(app, argc, argv);
  v1::CompileHeader header;
  if (!header.ParseFromString(ReadFile(header_file))) {
    fprintf(stderr, "service_herd: %s is no CompileHeader\n", header_file.c_str());
    return 1;
  }
  header.set_namespace_(ns);
  const PackedRequest request = Pack(std::move(header), ReadFile(graph_file));
  const auto stubs = OpenConnections(socket, connections);

  absl::Mutex mutex;
  int running = callers;
  std::vector<std::unique_ptr<BenchCall>> calls;
  const BenchClock::time_point began = BenchClock::now();
  for (int i = 0; i < callers; ++i) {
    calls.push_back(std::make_unique<BenchCall>(*stubs[static_cast<size_t>(i % connections)], request,
                                                began + kDeadline, [&](BenchCall*) {
                                                  absl::MutexLock lock(&mutex);
                                                  --running;
                                                }));
  }
  const auto since = [began](BenchClock::time_point at) {
    return std::chrono::duration<double>(at - began).count();
  };
  const double begun = since(BenchClock::now());
  {
    absl::MutexLock lock(&mutex);
    mutex.Await(absl::Condition(+[](int* left) { return *left == 0; }, &running));
  }
  std::set<std::string> manifests;
  double first = 1e9, last = 0;
  int served = 0;
  std::string failure;
  for (const auto& call : calls) {
    const BenchCall::Outcome& outcome = call->outcome();
    if (outcome.manifest.empty()) {
      failure = outcome.failure.empty() ? outcome.status.error_message() : outcome.failure;
      continue;
    }
    ++served;
    manifests.insert(outcome.manifest);
    first = std::min(first, since(outcome.at));
    last = std::max(last, since(outcome.at));
  }
  if (!failure.empty()) fprintf(stderr, "service_herd: %s\n", failure.c_str());
  printf(
      "{\"callers\": %d, \"served\": %d, \"manifests\": %zu, \"begun\": %.3f, \"first\": %.3f, \"last\": "
      "%.3f}\n",
      callers, served, manifests.size(), begun, first, last);
  return served == 0 ? 1 : 0;
}

}  // namespace
}  // namespace kiln

int main(int argc, char** argv) { return kiln::Main(argc, argv); }
