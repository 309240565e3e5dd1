// Mutated requests through the whole plan: nothing may crash or hang, and what is wrong is the
// caller's fault, never ours. Half of the requests are canonical graphs that were changed in their
// structure, the others are changed in their bytes.
//
// KILN_CASES says how many (default 2,000; 20,000 with KILN_FULL=1), KILN_SEED where to start. A crash
// prints its seed; `KILN_SEED=that KILN_CASES=1` repeats it alone.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <set>

#include <unistd.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "compiler/artifact/plan.h"
#include "compiler/frontend/import.h"
#include "compiler/graph/canonical.h"
#include "compiler/passes/pipeline.h"
#include "google/protobuf/stubs/logging.h"
#include "gtest/gtest.h"
#include "kiln/v1/compile.pb.h"
#include "tests/fuzz/graph_mutator.h"
#include "tests/property/random_graph.h"

namespace kiln {
namespace {

uint64_t FromEnv(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  uint64_t value = 0;
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

volatile uint64_t running_seed = 0;

// Only what is allowed in a signal handler.
void ReportCrash(int signal) {
  char text[64] = "\ncrashed: KILN_SEED=";
  size_t at = 20;
  char digits[24];
  size_t count = 0;
  for (uint64_t n = running_seed; n > 0 || count == 0; n /= 10) digits[count++] = static_cast<char>('0' + n % 10);
  while (count > 0) text[at++] = digits[--count];
  text[at++] = '\n';
  if (write(STDERR_FILENO, text, at) < 0) _exit(1);
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

struct Request {
  v1::PlanRequest plan;
  bool well_formed = false;  // canonical bytes of a message
};

Request MakeRequest(uint64_t seed) {
  testing::GraphMutator mutator(seed);
  testing::RandomGraphOptions options;
  options.nodes = 1 + static_cast<int>(mutator.Pick(8));
  options.symbolic = mutator.Pick(2) == 0;
  options.mutation = mutator.Pick(4) == 0;
  testing::RandomGraph random = testing::MakeRandomGraph(seed, options);
  Request request;
  *request.plan.mutable_hints() = random.hints;
  request.plan.mutable_sections()->set_facts(random.facts.SerializeAsString());

  bool bytes = seed % 10 >= 6;
  if (bytes) {
    absl::StatusOr<CanonicalGraph> canonical = Canonicalize(random.graph);
    request.plan.set_graph(mutator.MutateBytes(canonical.ok() ? canonical->bytes : ""));
  } else {
    // A change that the canonical form itself refuses is thrown away: these are to get further.
    for (uint64_t change = 0, changes = mutator.Pick(4); change < changes; ++change) {
      v1::Graph changed = random.graph;
      mutator.Mutate(&changed);
      if (Canonicalize(changed).ok()) random.graph = std::move(changed);
    }
    if (absl::StatusOr<CanonicalGraph> canonical = Canonicalize(random.graph); canonical.ok()) {
      request.plan.set_graph(canonical->bytes);
      // Facts fit the inputs and outputs, whatever they are now.
      v1::GraphFacts facts;
      for (int i = 0; i < random.graph.inputs_size(); ++i) {
        *facts.add_inputs() = i < random.facts.inputs_size() ? random.facts.inputs(i) : v1::InputFact();
      }
      for (int i = 0; i < random.graph.outputs_size(); ++i) facts.add_outputs()->set_user_visible(mutator.Pick(2) == 0);
      if (mutator.Pick(20) != 0) request.plan.mutable_sections()->set_facts(facts.SerializeAsString());
    }
  }
  switch (mutator.Pick(20)) {
    case 0: request.plan.mutable_sections()->set_facts(mutator.MutateBytes(request.plan.sections().facts())); break;
    case 1: request.plan.mutable_sections()->set_options("\xff\xff"); break;
    case 2: request.plan.mutable_hints()->add_values(-1); break;
    case 3: request.plan.clear_hints(); break;
    default: break;
  }
  request.well_formed = CheckCanonical(request.plan.graph()).ok();
  return request;
}

bool ReachesLowering(const v1::PlanRequest& request) {
  v1::GraphFacts facts;
  if (!facts.ParseFromString(request.sections().facts())) return false;
  absl::StatusOr<Graph> graph = ImportGraph(request.graph(), facts);
  return graph.ok() && RunPasses(*graph, PassOptions()).ok();
}

TEST(RequestMutation, NothingCrashesAndTheCallerIsToBlame) {
  uint64_t cases = FromEnv("KILN_CASES", FromEnv("KILN_FULL", 0) != 0 ? 20'000 : 2'000);
  uint64_t first = FromEnv("KILN_SEED", 1'000'000);
  google::protobuf::SetLogHandler(nullptr);  // text that is not UTF-8 is what this test sends
  for (int signal : {SIGSEGV, SIGABRT, SIGFPE, SIGBUS, SIGILL}) std::signal(signal, ReportCrash);
  std::map<std::string, uint64_t> codes;
  std::map<std::string, uint64_t> faults;  // our own, message → first seed
  uint64_t well_formed = 0, lowered = 0;
  absl::Duration slowest;
  uint64_t slowest_seed = 0;
  for (uint64_t i = 0; i < cases; ++i) {
    uint64_t seed = first + i;
    running_seed = seed;
    Request request = MakeRequest(seed);
    well_formed += request.well_formed;
    if (request.well_formed && ReachesLowering(request.plan)) ++lowered;
    absl::Time start = absl::Now();
    absl::Status status = PlanGraph(request.plan).status();
    if (absl::Duration took = absl::Now() - start; took > slowest) {
      slowest = took;
      slowest_seed = seed;
    }
    ++codes[absl::StatusCodeToString(status.code())];
    bool callers = status.ok() || status.code() == absl::StatusCode::kInvalidArgument ||
                   status.code() == absl::StatusCode::kUnimplemented;
    if (!callers) faults.emplace(absl::StrCat(absl::StatusCodeToString(status.code()), ": ", status.message()), seed);
  }
  for (int signal : {SIGSEGV, SIGABRT, SIGFPE, SIGBUS, SIGILL}) std::signal(signal, SIG_DFL);

  std::cout << cases << " requests from seed " << first << ": well-formed " << 100 * well_formed / cases
            << " %, reached lowering " << 100 * lowered / cases << " %, slowest "
            << absl::FormatDuration(slowest) << " (seed " << slowest_seed << ")\n";
  for (const auto& [code, count] : codes) std::cout << "  " << code << ": " << count << "\n";
  int shown = 0;
  for (const auto& [message, seed] : faults) {
    if (++shown <= 30) ADD_FAILURE() << "KILN_SEED=" << seed << " " << message;
  }
  EXPECT_LT(slowest, absl::Seconds(20));
  if (cases >= 1'000) {
    EXPECT_GE(well_formed * 2, cases);
    EXPECT_GE(lowered * 10, cases);
  }
}

}  // namespace
}  // namespace kiln
