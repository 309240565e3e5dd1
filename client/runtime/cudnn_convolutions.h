// Convolutions of images by cuDNN, and their gradients, each kind planned once.
//
// A plan (cuDNN's descriptors and the engine: the one that was measured to be best, or the first of its
// heuristic that torch would take) is kept by what decides it: device, direction, dtype, layout, sizes,
// alignment, window, precision, determinism. On the caller's stream; works while a CUDA graph is captured.
//
// Ownership: operands and workspace are borrowed for the call; work on the stream may still use them after it
// returns. Threads: any number at once, each with the call's context current (CallContext); calls on one
// device take turns while they enqueue. Errors: none of its own; what cuDNN or this class can't do is not
// done.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "client/runtime/cudnn.h"
#include "client/runtime/host.h"
#include "kiln/v1/graph.pb.h"
#include "kiln/v1/tuning.pb.h"

namespace kiln::runtime {

struct Convolution {
  enum class Direction { kForward, kInputGradient, kWeightGradient };

  Direction direction = Direction::kForward;
  // Of images × channels × rows × columns each, of one dtype. What is not read or written by the direction's
  // own rule still says its sizes: the result of kInputGradient is `input`, of kWeightGradient `weight`.
  TensorMemory input, weight, output;
  std::array<int64_t, 2> stride = {1, 1}, padding = {0, 0}, dilation = {1, 1};
  bool tf32 = false;                         // F32 may be rounded to TF32 before it is multiplied
  bool deterministic = false;                // only engines whose result repeats bit by bit
  const TunedConvolutions* tuned = nullptr;  // borrowed for the call
};

// Of contiguous images, channels-last or row-major.
std::array<int64_t, 4> StridesOf(absl::Span<const int64_t> sizes, bool channels_last);
// Whether all three tensors are.
bool IsRowMajor(const Convolution& convolution);

class Convolutions {
 public:
  // `bytes` of the device's memory that later work on the call's stream may overwrite, nullptr when there is
  // none.
  using Workspace = absl::FunctionRef<void*(size_t bytes)>;

  explicit Convolutions(const Cudnn& library) : library_(library) {}

  // Whether the convolution is launched; where not, the result's elements are undefined. The channels give
  // the number of groups. All three tensors are contiguous, all row-major or all channels-last; else false.
  bool Run(const Convolution& convolution, const CallContext& call, Workspace workspace);

  // A plan that the library made and how to make it again; for operands aligned to 16 bytes.
  struct Plan;
  struct Offer {
    v1::ConvolutionPlan plan;
    size_t workspace = 0;
    std::shared_ptr<Plan> made;
  };
  // What the library offers for the convolution, at most `wanted`, the one that Run takes first and others
  // that need no more workspace than it or `workspace_max`; empty where it can't be done. RunAs is Run by one
  // of them. Making plans takes time: after half a second no more are made.
  std::vector<Offer> Offers(const Convolution& convolution, const CallContext& call, size_t wanted,
                            size_t workspace_max);
  bool RunAs(const Convolution& convolution, const Offer& offer, const CallContext& call,
             Workspace workspace);

  // Whether sizes, window and layout fit each other; its memory may be missing.
  static bool IsSensible(const Convolution& convolution);
  uint64_t version() const { return library_.version(); }
  size_t plan_count() const;
  // Plans of this process that follow a measurement.
  static uint64_t TunedPlans();

 private:
  class Builder;
  struct Device;
  struct Posed;
  using Key = std::array<int64_t, 24>;

  static bool Pose(const Convolution& convolution, int32_t device, Key* key);
  std::shared_ptr<Plan> PlanOf(const Key& key, const Convolution& convolution, int32_t device);
  std::shared_ptr<Device> DeviceOf(int32_t device) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Forget(const Key& key);
  bool Launch(const Plan& plan, const Convolution& convolution, const CallContext& call, void* scratch) const;

  const Cudnn library_;
  mutable absl::Mutex mutex_;
  absl::flat_hash_map<Key, std::shared_ptr<Plan>> plans_ ABSL_GUARDED_BY(mutex_);  // nullptr: can't be done
  absl::flat_hash_map<int32_t, std::shared_ptr<Device>> devices_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kiln::runtime
