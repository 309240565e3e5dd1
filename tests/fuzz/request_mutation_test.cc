// Mutated requests through the whole plan: nothing may crash or hang, and what is wrong is the
// caller's fault, never ours. Half of the requests are canonical graphs that were changed in their
// structure, the others are changed in their bytes. What was planned is loaded and, if it is small,
// run on the interpreter: a graph whose declared sizes do not fit its operators must not become a
// kernel that leaves its buffers.
//
// KILN_CASES says how many (default 2,000; 20,000 with KILN_FULL=1), KILN_SEED where to start. A crash
// prints its seed; `KILN_SEED=that KILN_CASES=1 KILN_SHOW=1` repeats it alone and prints
// the graph and its kernels.
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "client/runtime/program.h"
#include "compiler/artifact/plan.h"
#include "compiler/frontend/import.h"
#include "compiler/graph/canonical.h"
#include "compiler/graph/guards.h"
#include "compiler/ir/print.h"
#include "compiler/passes/pipeline.h"
#include "compiler/support/digest.h"
#include "compiler/support/status_macros.h"
#include "google/protobuf/stubs/logging.h"
#include "gtest/gtest.h"
#include "kiln/v1/compile.pb.h"
#include "tests/fault/leaks.h"
#include "tests/fuzz/graph_mutator.h"
#include "tests/property/campaign.h"
#include "tests/property/random_graph.h"
#include "tests/unit/plain_host.h"

namespace kiln {
namespace {

volatile uint64_t running_seed = 0;

// Only what is allowed in a signal handler.
void ReportCrash(int signal) {
  char text[64] = "\ncrashed: KILN_SEED=";
  size_t at = 20;
  char digits[24];
  size_t count = 0;
  for (uint64_t n = running_seed; n > 0 || count == 0; n /= 10)
    digits[count++] = static_cast<char>('0' + n % 10);
  while (count > 0) text[at++] = digits[--count];
  text[at++] = '\n';
  if (write(STDERR_FILENO, text, at) < 0) _exit(1);
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

// Refuses what a mutated size makes large; library calls fill nothing in.
class SmallHost : public runtime::PlainHost {
 public:
  absl::StatusOr<runtime::Tensor> Empty(v1::DType dtype, absl::Span<const int64_t> sizes,
                                        absl::Span<const int64_t> strides) override {
    double reach = 1;
    for (size_t d = 0; d < sizes.size(); ++d) {
      if (sizes[d] < 0 || strides[d] < 0) return absl::ResourceExhaustedError("negative size");
      reach += static_cast<double>(sizes[d]) * static_cast<double>(strides[d]);
    }
    if (reach > kElementsMax) return absl::ResourceExhaustedError("too large for this test");
    return PlainHost::Empty(dtype, sizes, strides);
  }
  absl::Status Call(const OperatorName& target, const runtime::CallArguments& arguments,
                    absl::Span<runtime::Tensor> results, bool into) override {
    if (target == Op::kNonzero && !into && results.size() == 1) {
      const int64_t sizes[] = {3, 1}, strides[] = {1, 3};
      KILN_ASSIGN_OR_RETURN(results[0], Empty(v1::I64, sizes, strides));
      return absl::OkStatus();
    }
    return into ? absl::OkStatus() : absl::UnimplementedError("no libraries in this test");
  }

  static constexpr double kElementsMax = 1 << 16;
};

// Sizes of all values with the hints, where all of them are small.
std::optional<std::vector<std::vector<int64_t>>> SmallSizes(const Graph& graph, const v1::Hints& hints) {
  auto value = [&](const ExprNode& leaf) {
    return leaf.value < hints.values_size() ? hints.values(static_cast<int>(leaf.value)) : int64_t{2};
  };
  std::vector<std::vector<int64_t>> all;
  for (const TensorType& type : graph.values) {
    double elements = 1;
    all.emplace_back();
    for (const std::vector<ExprId>* list : {&type.sizes, &type.strides}) {
      for (ExprId id : *list) {
        absl::StatusOr<int64_t> size = graph.exprs.Evaluate(id, value);
        if (!size.ok() || *size < 0) return std::nullopt;
        if (list == &type.sizes) elements *= static_cast<double>(*size);
        all.back().push_back(*size);
      }
    }
    if (elements > SmallHost::kElementsMax) return std::nullopt;
  }
  return all;
}

// Loads and runs a plan with inputs of zeros. OK also when the run ends with an error of the caller's.
absl::Status RunPlan(const v1::PlanRequest& request, const v1::PlanReply& reply, uint64_t* runs) {
  v1::Manifest manifest;
  runtime::ObjectMap objects;
  *manifest.mutable_program() = reply.program();
  for (const v1::PlannedKernel& planned : reply.kernels()) {
    std::string digest = Sha256(planned.kernel());
    objects[digest] = std::make_shared<const std::string>(planned.kernel());
    v1::ManifestKernel* kernel = manifest.add_kernels();
    kernel->mutable_loop_ir()->set_digest(digest);
    kernel->mutable_loop_ir()->set_kind(v1::LOOP_IR);
  }
  for (const v1::ProgramBuffer& buffer : reply.program().buffers()) {
    if (buffer.device().type() != v1::CPU) return absl::OkStatus();
  }
  SmallHost host;
  KILN_ASSIGN_OR_RETURN(auto program, runtime::Program::Load(manifest, objects, "all", &host));
  KILN_ASSIGN_OR_RETURN(Graph graph, ImportGraph(request.graph(), {}));
  auto small = SmallSizes(graph, request.hints());
  if (!small || !GuardsHold(reply.guards(), request.hints())) return absl::OkStatus();
  std::vector<runtime::Value> inputs, outputs;
  for (const GraphInput& input : graph.inputs) {
    runtime::Value value;
    if (input.sym_int) {
      value.is_number = true;
      value.number = graph.exprs.AsConst(*input.sym_int).value_or(2);
    } else {
      const std::vector<int64_t>& both = (*small)[input.value];
      absl::Span<const int64_t> sizes = absl::MakeConstSpan(both).first(both.size() / 2);
      absl::StatusOr<runtime::Tensor> tensor =
          host.Empty(graph.type(input.value).dtype, sizes, absl::MakeConstSpan(both).last(both.size() / 2));
      if (!tensor.ok()) {
        for (runtime::Value& made : inputs) {
          if (!made.is_number) host.Release(made.tensor);
        }
        return absl::OkStatus();
      }
      value.tensor = *tensor;
    }
    inputs.push_back(value);
  }
  absl::Status status = program->Run(inputs, outputs);
  for (runtime::Value& output : outputs) {
    if (!output.is_number && output.tensor != nullptr) host.Release(output.tensor);
  }
  *runs += status.ok();
  if (host.live() != 0) return absl::InternalError("the runtime leaks tensors");
  // A library call may contradict what a mutated graph declares.
  const bool contradicted = status.GetPayload(runtime::kContradictionPayload).has_value();
  return absl::IsInternal(status) && !contradicted ? status : absl::OkStatus();
}

// Adds sizes that only a call knows: an element of a tensor, and what a library call finds.
void AddUnbacked(int64_t element, testing::RandomGraph* random) {
  v1::Graph* graph = &random->graph;
  uint32_t values = graph->inputs_size();
  for (const v1::Node& node : graph->nodes()) values += node.results_size();
  const auto symbol = [&](v1::SymbolBinding::Source source, uint32_t value) {
    v1::Symbol* added = graph->add_symbols();
    added->set_kind(v1::SYMBOL_UNBACKED);
    added->set_max(element + 2);
    added->mutable_binding()->set_source(source);
    added->mutable_binding()->set_value(value);
    v1::ExprNode* expr = graph->add_exprs();
    expr->set_op(v1::EXPR_SYMBOL);
    expr->set_value(graph->symbols_size() - 1);
    random->hints.add_values(2);
    return static_cast<uint32_t>(graph->exprs_size() - 1);
  };
  const auto node = [&](const char* target, std::vector<uint32_t> sizes) {
    v1::Node* added = graph->add_nodes();
    added->set_target(target);
    v1::TensorMeta* result = added->add_results();
    result->set_dtype(v1::I64);
    result->mutable_device()->set_type(v1::CPU);
    for (uint32_t size : sizes) {
      result->add_sizes()->set_expr(size);
      result->add_strides()->set_value(1);
    }
    ++values;
    return added;
  };
  const auto argument = [&](v1::Node* to, const char* name) {
    v1::NamedArgument* added = to->add_args();
    added->set_name(name);
    return added->mutable_value();
  };
  v1::Node* full = node("aten.full.default", {});
  argument(full, "size")->mutable_as_ints();
  argument(full, "fill_value")->set_as_int(element);
  argument(full, "dtype")->set_as_scalar_type(v1::I64);
  const uint32_t count = symbol(v1::SymbolBinding::VALUE_ITEM, values - 1);
  v1::Node* arange = node("aten.arange.default", {count});
  argument(arange, "end")->mutable_as_sym_int()->set_expr(count);
  const uint32_t numbers = values - 1;
  v1::Node* assertion = graph->add_nodes();
  assertion->set_target("aten._assert_scalar.default");
  argument(assertion, "self")->mutable_as_sym_int()->set_expr(count);
  argument(assertion, "assert_msg")->set_as_string("some");
  const uint32_t found = symbol(v1::SymbolBinding::VALUE_SIZE, values);
  v1::Node* nonzero = node("aten.nonzero.default", {found});
  nonzero->mutable_results(0)->add_sizes()->set_value(1);
  nonzero->mutable_results(0)->add_strides()->set_expr(found);
  argument(nonzero, "self")->set_as_tensor(numbers);
  v1::Node* slice = node("aten.slice.Tensor", {symbol(v1::SymbolBinding::VALUE_SIZE, values)});
  argument(slice, "self")->set_as_tensor(numbers);
  argument(slice, "end")->mutable_as_sym_int()->set_expr(found);
  v1::Node* sum = node("aten.add.Tensor", {});
  sum->mutable_results(0)->MergeFrom(slice->results(0));
  for (const char* name : {"self", "other"}) argument(sum, name)->set_as_tensor(values - 2);
  for (const uint32_t output : {values - 1, values - 3}) {
    graph->add_outputs()->set_value(output);
    random->facts.add_outputs();
  }
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
  if (mutator.Pick(4) == 0) AddUnbacked(static_cast<int64_t>(mutator.Pick(5)), &random);
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
      for (int i = 0; i < random.graph.outputs_size(); ++i)
        facts.add_outputs()->set_user_visible(mutator.Pick(2) == 0);
      if (mutator.Pick(20) != 0) request.plan.mutable_sections()->set_facts(facts.SerializeAsString());
    }
  }
  switch (mutator.Pick(20)) {
    case 0:
      request.plan.mutable_sections()->set_facts(mutator.MutateBytes(request.plan.sections().facts()));
      break;
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
  const auto [first, cases] = testing::CampaignFromEnv(1'000'000, 2'000, 20'000);
  google::protobuf::SetLogHandler(nullptr);  // text that is not UTF-8 is what this test sends
  for (int signal : {SIGSEGV, SIGABRT, SIGFPE, SIGBUS, SIGILL}) std::signal(signal, ReportCrash);
  std::map<std::string, uint64_t> codes;
  std::map<std::string, uint64_t> faults;   // our own, message → first seed
  std::map<std::string, uint64_t> outside;  // kernels that leave a buffer, the same
  uint64_t well_formed = 0, lowered = 0, runs = 0;
  absl::Duration slowest;
  uint64_t slowest_seed = 0;
  for (uint64_t i = 0; i < cases; ++i) {
    uint64_t seed = first + i;
    running_seed = seed;
    Request request = MakeRequest(seed);
    well_formed += request.well_formed;
    if (request.well_formed && ReachesLowering(request.plan)) ++lowered;
    if (std::getenv("KILN_SHOW") != nullptr) {
      absl::StatusOr<Graph> graph = ImportGraph(request.plan.graph(), {});
      std::cout << (graph.ok() ? graph->ToString() : graph.status().ToString()) << "\n";
    }
    absl::Time start = absl::Now();
    absl::StatusOr<v1::PlanReply> reply = PlanGraph(request.plan);
    const absl::Status& status = reply.status();
    if (absl::Duration took = absl::Now() - start; took > slowest) {
      slowest = took;
      slowest_seed = seed;
    }
    ++codes[absl::StatusCodeToString(status.code())];
    for (const std::string& leak : LeaksIn(std::string(status.message()), {{getpid()}, {}}))
      faults.emplace(absl::StrCat("the error tells ", leak, ": ", status.message()), seed);
    if (reply.ok() && std::getenv("KILN_SHOW") != nullptr) {
      for (const v1::PlannedKernel& planned : reply->kernels()) {
        v1::Kernel kernel;
        if (kernel.ParseFromString(planned.kernel())) std::cout << PrintKernel(kernel, planned.notes());
      }
    }
    if (reply.ok()) {
      absl::Status ran = RunPlan(request.plan, *reply, &runs);
      if (absl::StrContains(ran.message(), "reaches element")) {
        outside.emplace(ran.message(), seed);
      } else if (!ran.ok()) {
        faults.emplace(absl::StrCat("running: ", ran.ToString()), seed);
      }
    }
    bool callers = status.ok() || status.code() == absl::StatusCode::kInvalidArgument ||
                   status.code() == absl::StatusCode::kUnimplemented;
    if (!callers)
      faults.emplace(absl::StrCat(absl::StatusCodeToString(status.code()), ": ", status.message()), seed);
  }
  for (int signal : {SIGSEGV, SIGABRT, SIGFPE, SIGBUS, SIGILL}) std::signal(signal, SIG_DFL);

  std::cout << cases << " requests from seed " << first << ": well-formed " << 100 * well_formed / cases
            << " %, reached lowering " << 100 * lowered / cases << " %, ran to the end " << 100 * runs / cases
            << " %, slowest " << absl::FormatDuration(slowest) << " (seed " << slowest_seed << ")\n";
  for (const auto& [code, count] : codes) std::cout << "  " << code << ": " << count << "\n";
  int shown = 0;
  for (const auto& [message, seed] : faults) {
    if (++shown <= 30) ADD_FAILURE() << "KILN_SEED=" << seed << " " << message;
  }
  for (const auto& [message, seed] : outside) {
    std::cout << "  leaves a buffer: KILN_SEED=" << seed << " " << message << "\n";
  }
  EXPECT_EQ(outside.size(), 0);
  EXPECT_LT(slowest, absl::Seconds(20));
  if (cases >= 1'000) {
    EXPECT_GE(well_formed * 2, cases);
    EXPECT_GE(lowered * 10, cases);
  }
}

}  // namespace
}  // namespace kiln
