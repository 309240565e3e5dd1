// A loaded program: what runs when a compiled graph is called.
//
// `Load` checks the whole program once (every id, every step, no use of a freed buffer); `Run` then
// only evaluates sizes, allocates, launches and calls. A Program is immutable: each call has a frame
// of its own, so any number of threads may run one program at once.
//
// Ownership: `Run` takes the references in `inputs` and releases each at its last use; the caller
// owns what it gets in `outputs`. A Program keeps its kernels mapped. The host outlives it.
// Errors of Load: INVALID_ARGUMENT, or UNIMPLEMENTED for a step or version this build does not know.
// Errors of Run: OUT_OF_RANGE (index), FAILED_PRECONDITION (division by zero, assert, wrong input),
// or the host's own.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/runtime/arena_plan.h"
#include "client/runtime/expr_program.h"
#include "client/runtime/host.h"
#include "client/runtime/kernels.h"
#include "client/runtime/step_times.h"
#include "client/runtime/tuned_convolutions.h"
#include "client/runtime/tuned_gemms.h"
#include "kiln/v1/artifact.pb.h"

namespace kiln::runtime {

// A tensor (a reference), an integer, or neither (None).
struct Value {
  Tensor tensor = nullptr;
  int64_t number = 0;
  bool is_number = false;
};

// Counts over all calls of one program.
struct RunCounts {
  std::atomic<uint64_t> calls{0};
  std::atomic<uint64_t> launches{0};
  std::atomic<uint64_t> library_calls{0};
  std::atomic<uint64_t> stride_copies{0};  // of inputs and results not in the declared layout or not plain
};

class CallFrame;

class Program {
 public:
  Program() = default;
  ~Program() { delete spare_.load(); }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // `interpret` as in ParseInterpretList.
  static absl::StatusOr<std::shared_ptr<const Program>> Load(const v1::Manifest& manifest,
                                                             const ObjectMap& objects,
                                                             const std::string& interpret, Host* host);

  absl::Status Run(absl::Span<const Value> inputs, std::vector<Value>& outputs) const;

  size_t input_count() const { return inputs_.size(); }
  bool InputIsTensor(size_t i) const { return inputs_[i].is_tensor; }
  const RunCounts& counts() const { return *counts_; }
  // By the number of the step in the manifest's program.
  const StepTimes& times() const { return *times_; }

 private:
  friend class CallFrame;
  friend class CallSizes;
  friend class ProgramLoader;

  struct Shape {
    std::vector<Dim> sizes;
    std::vector<Dim> strides;
    std::vector<int64_t> fixed_sizes;  // when no dimension is symbolic
    std::vector<int64_t> fixed_strides;
    bool fixed = true;
    int64_t fixed_span = 0;  // elements from the first to the last, when fixed
  };
  struct Input {
    bool is_tensor = false;
    bool written = false;          // by a step
    uint32_t buffer = UINT32_MAX;  // bound by this input, if any
    v1::DType dtype = v1::DTYPE_UNSPECIFIED;
    Shape shape;
    int64_t literal = 0;
  };
  struct Buffer {
    v1::ProgramBuffer::Kind kind;
    v1::DType dtype;
    int64_t element = 0;
    Shape shape;
    Dim offset;
    uint32_t base = 0;
    uint32_t input = 0;
    bool in_kernels = false;  // an operand of a launch has its storage
  };
  // Where a buffer's memory is, apart from what else is known of it: every step asks for some.
  struct Place {
    uint32_t root = 0;   // the buffer whose storage it is
    bool fixed = false;  // `bytes` hold for every call
    int64_t bytes = 0;   // from the root's first element to its own
    int32_t arena = -1;  // in the call's arena, by ArenaPlan; -1: in a tensor of its own
  };
  // Of an unbacked symbol; of others nothing is checked.
  struct Range {
    int64_t min = INT64_MIN;
    int64_t max = INT64_MAX;
  };
  struct Binding {
    v1::SymbolBinding::Source source;
    uint32_t input;
    uint32_t dim;
    uint32_t symbol;
  };
  struct LaunchStep {
    uint32_t kernel;
    absl::InlinedVector<uint32_t, 8> buffers;
    std::vector<Dim> symbols;
    Dim units;
    int64_t fixed_bytes = -1;  // spanned by the operands, when all their shapes are fixed
  };
  struct GroupStep {
    uint32_t first = 0;  // of its members in Steps::launches, which are of one kernel
    uint32_t count = 0;
    int64_t fixed_bytes = -1;  // of all members
  };
  struct CallArgument {
    std::vector<int64_t> buffers;  // of tensors; -1 is None
    std::vector<Dim> dims;         // of symbolic integers
  };
  // An argument that is a tensor.
  struct Operand {
    uint32_t argument = 0;
    uint32_t buffer = 0;
  };
  struct CallStep {
    absl::InlinedVector<Operand, 4> operands;  // of a call without handles
    bool fixed = false;                        // such a call differs from the last in addresses alone
    OperatorName target;
    std::vector<std::string> names;
    std::vector<CallArgument> arguments;
    std::vector<CallValue> values;  // one per argument, with the literals and room for the rest
    std::vector<int64_t> results;
    std::vector<v1::Call::Bind> binds;
    bool into = false;
    bool in_memory = false;  // worth trying without handles
  };
  struct AllocStep {
    uint32_t buffer = 0;
    int64_t reuse = -1;  // whose storage it takes over, if any's
    bool moves = false;  // that buffer has the same layout: tensor and all
  };
  struct FreeStep {
    uint32_t buffer = 0;
  };
  struct ViewStep {};  // views are made where they are used
  struct SeedsStep {
    uint32_t buffer = 0;
    int64_t count = 0;
  };
  struct LetStep {
    uint32_t symbol = 0;
    std::optional<Dim> number;  // none: it is the element of `item`
    uint32_t item = 0;          // buffer
  };
  struct CheckStep {
    Dim condition;
    std::string message;
  };
  struct LaunchAt {
    uint32_t index = 0;  // in Steps::launches
  };
  struct CallAt {
    uint32_t index = 0;  // in Steps::calls
  };
  using Step =
      std::variant<AllocStep, FreeStep, ViewStep, SeedsStep, LetStep, CheckStep, LaunchAt, GroupStep, CallAt>;
  struct Output {
    enum Kind { kBuffer, kNumber, kNone } kind = kNone;
    uint32_t buffer = 0;
    bool last = false;  // that has the storage of its buffer
    Dim number;
  };

  // What sizes are computed from.
  struct Symbols {
    ExprProgram exprs;
    std::vector<Binding> bindings;
    std::vector<Range> ranges;  // by symbol
  };
  struct Steps {
    std::vector<Step> order;
    std::vector<LaunchStep> launches;
    std::vector<CallStep> calls;

    absl::Span<const LaunchStep> Members(const GroupStep& group) const {
      return absl::MakeConstSpan(launches).subspan(group.first, group.count);
    }
  };
  // What was measured; shared with no one, nullptr where it is nothing.
  struct Tuned {
    std::shared_ptr<const TunedGemms> gemms;
    std::shared_ptr<const TunedConvolutions> convolutions;
  };

  // What a call writes of its CallSteps' values, and what these remember; kept for the next call, so that it
  // copies no literals and looks for no plans.
  struct CallState {
    std::vector<CallValue> values;
    std::vector<TensorMemory> declared;     // results of a call without handles
    std::unique_ptr<MemoryCall> in_memory;  // nullptr: with handles
  };
  using Scratch = std::vector<CallState>;  // by CallStep
  CallState StateOf(const CallStep& call) const;
  std::unique_ptr<Scratch> TakeScratch() const;
  void GiveScratch(std::unique_ptr<Scratch> scratch) const;

  Host* host_ = nullptr;
  Symbols symbols_;
  std::vector<Input> inputs_;
  std::vector<Buffer> buffers_;
  std::vector<Place> where_;  // by buffer
  Steps steps_;
  std::vector<Output> outputs_;
  std::vector<std::shared_ptr<const KernelRunner>> kernels_;
  ArenaPlan arena_plan_;
  Tuned tuned_;
  mutable std::atomic<Scratch*> spare_{nullptr};
  std::unique_ptr<RunCounts> counts_ = std::make_unique<RunCounts>();
  std::unique_ptr<StepTimes> times_;
};

}  // namespace kiln::runtime
