// What the runtime asks of the process it lives in: tensors, memory, threads and library calls.
//
// A `Tensor` is an opaque handle to a tensor of the host. A function that returns one returns an owned
// reference, which the caller ends with `Release`; arguments are borrowed. Threads: every function may be
// called from many threads at once, without Python's lock. Errors: the host's own; a pending Python exception
// is marked by the payload kPythonErrorPayload. After an error nothing more is launched. Release reports no
// error: the next Begin does.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/runtime/capture_dependencies.h"
#include "compiler/graph/operator_name.h"
#include "kiln/v1/graph.pb.h"

namespace kiln::runtime {

using Tensor = void*;

inline constexpr char kPythonErrorPayload[] = "kiln/python-error";
// Marks the status of a library call whose result contradicts the type that the graph declares.
inline constexpr char kContradictionPayload[] = "kiln/contradiction";

// A tensor by its memory alone. Borrowed.
struct TensorMemory {
  void* data = nullptr;  // of the first element
  v1::DType dtype = v1::DTYPE_UNSPECIFIED;
  absl::Span<const int64_t> sizes, strides;
};

// An argument of a library call, with all symbolic integers evaluated.
struct CallValue {
  v1::Argument::KindCase kind = v1::Argument::KIND_NOT_SET;
  Tensor tensor = nullptr;       // as_tensor
  TensorMemory memory;           // as_tensor, in a MemoryCall
  std::vector<Tensor> tensors;   // as_tensors, as_optional_tensors (nullptr is None)
  int64_t number = 0;            // ints, bools, enumerations
  std::vector<int64_t> numbers;  // as_ints, as_bools, as_sym_ints
  double real = 0;
  std::vector<double> reals;
  std::string text;
  std::vector<std::string> texts;
};

struct CallArguments {
  absl::Span<const std::string> names;
  absl::Span<const CallValue> values;

  const CallValue* Find(absl::string_view name) const {  // nullptr when omitted or None
    for (size_t i = 0; i < names.size(); ++i) {
      if (names[i] == name) return values[i].kind == v1::Argument::kAsNone ? nullptr : &values[i];
    }
    return nullptr;
  }
};

// The results of a call in memory.
struct MemoryResults {
  bool into = false;                        // `declared` is memory to fill; otherwise results are made
  absl::Span<const TensorMemory> declared;  // no data where made; DTYPE_UNSPECIFIED where not wanted
  absl::Span<Tensor> made;                  // as many; nullptr at first, set where wanted and not `into`
};

class TunedConvolutions;
class TunedGemms;

// Where the kernels of one call run: the device and the stream that were current when it began. The device's
// CUDA context stays current on the call's thread, so a launch need not set it.
struct CallContext {
  int32_t device = -1;  // of a GPU; -1 is the CPU
  void* stream = nullptr;
  bool recorded = false;              // into a CUDA graph: what the launches cost now is paid once
  const TunedGemms* tuned = nullptr;  // measured algorithms, where the program brings some; borrowed
  const TunedConvolutions* tuned_convolutions = nullptr;  // likewise
  // Workspaces that library calls reuse (scratch.h); the call's end releases them. Calls that are recorded
  // rotate over all of them, so that some may run at once.
  struct Kept {
    Tensor tensor = nullptr;
    size_t bytes = 0;
  };
  std::array<Kept, 4> scratch;
  size_t scratch_turn = 0;
  // Whether gemms and convolutions may round F32, by torch's settings when a call first asked.
  std::array<std::optional<std::optional<bool>>, 2> tf32;
  CaptureDependencies* order =
      nullptr;  // of the steps that are recorded, where they are put in one; borrowed

  bool on_gpu() const { return device >= 0; }
};

// A library call of one step of a program by addresses alone, since tensor handles are expensive to make. It
// caches what it derived from its last run's arguments, so only one thread at a time may run it.
class MemoryCall {
 public:
  virtual ~MemoryCall() = default;
  // Tensor arguments have `memory` and no `tensor`. False: nothing was launched and no result made; make the
  // call with handles.
  virtual bool Run(const CallArguments& arguments, const MemoryResults& results, CallContext& context) = 0;
};

class Host {
 public:
  virtual ~Host() = default;

  // Once per call of a program, on the thread that makes it.
  virtual absl::StatusOr<CallContext> Begin() = 0;

  // Blocks until all work that the call has launched is done.
  virtual absl::Status Wait(const CallContext&) { return absl::OkStatus(); }

  // The CUDA graph that the call is captured into; nullptr where its steps have to run one after the other.
  virtual std::unique_ptr<Capture> NewCapture(const CallContext&) { return nullptr; }

  virtual absl::StatusOr<Tensor> Empty(v1::DType dtype, absl::Span<const int64_t> sizes,
                                       absl::Span<const int64_t> strides) = 0;
  // An alias of `base`'s storage, `offset` elements after its first element.
  virtual absl::StatusOr<Tensor> View(Tensor base, absl::Span<const int64_t> sizes,
                                      absl::Span<const int64_t> strides, int64_t offset) = 0;
  virtual absl::StatusOr<Tensor> Share(Tensor tensor) = 0;
  // A tensor over the caller's memory, which has to outlive it.
  virtual absl::StatusOr<Tensor> Over(void* data, v1::DType dtype, absl::Span<const int64_t> sizes,
                                      absl::Span<const int64_t> strides) = 0;
  virtual void Release(Tensor tensor) = 0;

  // Of the first element; nullptr for a tensor without elements only.
  virtual absl::StatusOr<void*> Data(Tensor tensor) = 0;
  // Borrowed, valid while the tensor lives.
  virtual absl::StatusOr<absl::Span<const int64_t>> Sizes(Tensor tensor) = 0;
  virtual absl::StatusOr<absl::Span<const int64_t>> Strides(Tensor tensor) = 0;
  virtual absl::StatusOr<v1::DType> Type(Tensor tensor) = 0;
  // The device of its memory: that of the programs, the CPU where programs run on a GPU, or any other.
  enum class Place { kHere, kOnCpu, kElsewhere };
  virtual absl::StatusOr<Place> PlaceOf(Tensor tensor) { return Place::kHere; }
  // Whether this result of a GPU operator may stay a CPU tensor, since its consumers read it there: seed and
  // offset of attention's dropout.
  virtual bool StaysOnCpu(const OperatorName& target, size_t result) const { return false; }
  // Whether memory holds the tensor's values: false for torch's lazy conjugates and negatives, and for its
  // zero tensors, which have no memory.
  virtual bool IsPlain(Tensor tensor) { return true; }
  // Copies values; either tensor may be one that is not plain.
  virtual absl::Status Copy(Tensor to, Tensor from) = 0;
  // The element of a one-element integer or boolean tensor; synchronises with the device, so not during
  // capture.
  virtual absl::StatusOr<int64_t> Item(Tensor tensor) {
    return absl::UnimplementedError("an item of a tensor");
  }
  // A fresh int64 tensor of `count` seeds from the host's random generator.
  virtual absl::StatusOr<Tensor> Seeds(uint32_t count) = 0;

  virtual uint32_t ThreadCount() = 0;
  // Runs [0, units) in ranges of at least `grain`, on at most ThreadCount() threads. After an error some
  // ranges have not run.
  virtual absl::Status ParallelFor(
      int64_t units, int64_t grain,
      absl::FunctionRef<void(int64_t begin, int64_t end, uint32_t thread)> body) = 0;

  // With `into`, the call writes into the tensors in `results`; otherwise it stores owned references there,
  // nullptr for an undefined result.
  virtual absl::Status Call(const OperatorName& target, const CallArguments& arguments,
                            absl::Span<Tensor> results, bool into) = 0;

  // Whether the operator's results are known to alias no argument.
  virtual bool MakesNewMemory(const OperatorName& target) const { return false; }

  // nullptr where calls of the target need handles. `fixed`: arguments and declared results differ from run
  // to run in addresses alone. The host outlives it.
  virtual std::unique_ptr<MemoryCall> NewMemoryCall(const OperatorName& target, bool fixed) {
    return nullptr;
  }
};

}  // namespace kiln::runtime
