// What the runtime asks of the process it lives in: tensors, memory, threads and library calls.
//
// A `Tensor` is an opaque handle to a tensor of the host. A function that returns one gives the
// caller a reference of its own, to be given back with `Release`; arguments are borrowed.
// Threads: every function may be called from many threads at once, without Python's lock.
// Errors: every function but those of the number of threads tells when the host refuses. The status is the
// host's own error: when that is a pending Python exception it has the payload kPythonErrorPayload. Nothing
// is launched after it. What Release can't free is told by the next Begin.
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
// Of a status that says that a library call gave something else than the graph declares.
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

// Where the kernels of one call run: the device and the stream that were current when it began. While it
// runs, the device's context is current on its thread: what launches there need not see to that.
struct CallContext {
  int32_t device = -1;  // of a GPU; -1 is the CPU
  void* stream = nullptr;
  bool recorded = false;              // into a CUDA graph: what the launches cost now is paid once
  const TunedGemms* tuned = nullptr;  // measured algorithms, where the program brings some; borrowed
  const TunedConvolutions* tuned_convolutions = nullptr;  // likewise
  // Memory that each library call may overwrite, kept from one to the next; the caller releases it. Calls
  // that are recorded take turns, so that some can run at a time.
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

// A library call of one step of a program that needs no handles, which are expensive to make. It remembers
// what it found out when it last ran, so only one thread at a time runs it.
class MemoryCall {
 public:
  virtual ~MemoryCall() = default;
  // Whether the call is done, of tensor arguments that have `memory` and no `tensor`. What is not done has
  // made no result, and has to be called with handles.
  virtual bool Run(const CallArguments& arguments, const MemoryResults& results, CallContext& context) = 0;
};

class Host {
 public:
  virtual ~Host() = default;

  // Once per call of a program, on the thread that makes it.
  virtual absl::StatusOr<CallContext> Begin() = 0;

  // Until all that the call has launched is done.
  virtual absl::Status Wait(const CallContext&) { return absl::OkStatus(); }

  // The graph that the call is recorded into; nullptr where its steps have to stay in a row.
  virtual std::unique_ptr<Capture> NewCapture(const CallContext&) { return nullptr; }

  virtual absl::StatusOr<Tensor> Empty(v1::DType dtype, absl::Span<const int64_t> sizes,
                                       absl::Span<const int64_t> strides) = 0;
  // The same storage; the first element lies `offset` elements after `base`'s first.
  virtual absl::StatusOr<Tensor> View(Tensor base, absl::Span<const int64_t> sizes,
                                      absl::Span<const int64_t> strides, int64_t offset) = 0;
  virtual absl::StatusOr<Tensor> Share(Tensor tensor) = 0;
  // A tensor over memory of the caller's, which outlives it.
  virtual absl::StatusOr<Tensor> Over(void* data, v1::DType dtype, absl::Span<const int64_t> sizes,
                                      absl::Span<const int64_t> strides) = 0;
  virtual void Release(Tensor tensor) = 0;

  // Of the first element; nullptr for a tensor without elements only.
  virtual absl::StatusOr<void*> Data(Tensor tensor) = 0;
  // Borrowed, valid while the tensor lives.
  virtual absl::StatusOr<absl::Span<const int64_t>> Sizes(Tensor tensor) = 0;
  virtual absl::StatusOr<absl::Span<const int64_t>> Strides(Tensor tensor) = 0;
  virtual absl::StatusOr<v1::DType> Type(Tensor tensor) = 0;
  // Where its memory is: of the kind of device that programs run on, the CPU's beside a GPU, or of another
  // kind.
  enum class Place { kHere, kOnCpu, kElsewhere };
  virtual absl::StatusOr<Place> PlaceOf(Tensor tensor) { return Place::kHere; }
  // Whether a result of `target` that is on the CPU beside a GPU is of use there alone: operators that take
  // it read it on the CPU.
  virtual bool StaysOnCpu(const OperatorName& target, size_t result) const { return false; }
  // Whether memory holds the elements themselves: torch has tensors whose elements are the conjugates or the
  // negatives of what memory holds, and tensors of zeros that have none.
  virtual bool IsPlain(Tensor tensor) { return true; }
  // Of elements, whether plain or not.
  virtual absl::Status Copy(Tensor to, Tensor from) = 0;
  // The one element of a tensor of integers or truth values, waiting for what computes it; not while a call
  // is recorded.
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

  // With `into`, `results` are filled buffers; otherwise the call stores references of the caller's own
  // there, nullptr where the result is undefined.
  virtual absl::Status Call(const OperatorName& target, const CallArguments& arguments,
                            absl::Span<Tensor> results, bool into) = 0;

  // Whether the call is known to keep hold of no memory of its arguments (its results have memory of their
  // own).
  virtual bool MakesNewMemory(const OperatorName& target) const { return false; }

  // nullptr where calls of the target need handles. `fixed`: all runs have the same arguments and declared
  // results but for the addresses of their memory. The host outlives it.
  virtual std::unique_ptr<MemoryCall> NewMemoryCall(const OperatorName& target, bool fixed) {
    return nullptr;
  }
};

}  // namespace kiln::runtime
