#include "client/runtime/cudnn_convolutions.h"

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "client/client_limits.h"
#include "client/runtime/tuned_convolutions.h"
#include "compiler/library/fixed_convolution.h"
#include "compiler/support/monotonic_time.h"
#include "compiler/support/proto_util.h"

namespace kiln::runtime {
namespace {

using Dims = std::array<int64_t, 4>;

constexpr int64_t kAlignmentMax = 16;
constexpr int64_t kElementsMax = int64_t{1} << 31;
constexpr std::chrono::milliseconds kOfferTime(500);
constexpr std::array<int64_t, 3> kIds = {'w', 'x', 'y'};  // in the order of an operation's attributes

int64_t Alignment(const void* pointer) {
  const auto address = static_cast<int64_t>(reinterpret_cast<uintptr_t>(pointer));
  return std::min(address & -address, kAlignmentMax);
}

bool DataTypeOf(v1::DType dtype, int* type) {
  switch (dtype) {
    case v1::F32: *type = Cudnn::kF32; return true;
    case v1::F16: *type = Cudnn::kF16; return true;
    case v1::BF16: *type = Cudnn::kBF16; return true;
    default: return false;
  }
}

std::atomic<uint64_t> tuned_plans{0};

std::array<const TensorMemory*, 3> TensorsOf(const Convolution& convolution) {
  return {&convolution.weight, &convolution.input, &convolution.output};
}

bool IsImages(const TensorMemory& tensor, v1::DType dtype) {
  if (tensor.dtype != dtype || tensor.sizes.size() != 4 || tensor.strides.size() != 4) return false;
  int64_t elements = 1;
  for (const int64_t size : tensor.sizes) {
    if (size <= 0 || size >= kElementsMax) return false;
    elements *= size;
    if (elements >= kElementsMax) return false;
  }
  return true;
}

// What the window leaves of an image's rows or columns.
int64_t Left(int64_t size, int64_t window, int64_t stride, int64_t padding, int64_t dilation) {
  return (size + 2 * padding - dilation * (window - 1) - 1) / stride + 1;
}

class Descriptor {
 public:
  Descriptor() = default;
  Descriptor(const Cudnn& library, Cudnn::DescriptorKind kind) : library_(&library) {
    if (library.create_descriptor(kind, &handle_) != 0) handle_ = nullptr;
    good_ = handle_ != nullptr;
  }
  ~Descriptor() {
    if (handle_ != nullptr) library_->destroy_descriptor(handle_);
  }
  Descriptor(Descriptor&& from) noexcept { *this = std::move(from); }
  Descriptor& operator=(Descriptor&& from) noexcept {
    std::swap(library_, from.library_);
    std::swap(handle_, from.handle_);
    std::swap(good_, from.good_);
    return *this;
  }

  template <typename T>
  void SetAll(int attribute, Cudnn::AttributeType type, absl::Span<const T> values) {
    good_ = good_ && library_->set(handle_, attribute, type, static_cast<int64_t>(values.size()),
                                   static_cast<const void*>(values.data())) == 0;
  }
  template <typename T>
  void Set(int attribute, Cudnn::AttributeType type, const T& value) {
    SetAll(attribute, type, absl::Span<const T>(&value, 1));
  }
  void Set(int attribute, const Descriptor& value) { Set(attribute, Cudnn::kTypeDescriptor, value.handle_); }
  bool Finalize() {
    good_ = good_ && library_->finalize(handle_) == 0;
    return good_;
  }

  Cudnn::Descriptor get() const { return handle_; }

 private:
  const Cudnn* library_ = nullptr;
  Cudnn::Descriptor handle_ = nullptr;
  bool good_ = false;
};

bool AreContiguous(const Convolution& convolution, bool channels_last) {
  const auto tensors = TensorsOf(convolution);
  return std::all_of(tensors.begin(), tensors.end(), [&](const TensorMemory* tensor) {
    return IsContiguous({tensor->sizes, tensor->strides}, channels_last);
  });
}

}  // namespace

std::array<int64_t, 4> StridesOf(absl::Span<const int64_t> sizes, bool channels_last) {
  if (channels_last) return {sizes[1] * sizes[2] * sizes[3], 1, sizes[1] * sizes[3], sizes[1]};
  return {sizes[1] * sizes[2] * sizes[3], sizes[2] * sizes[3], sizes[3], 1};
}

bool IsRowMajor(const Convolution& convolution) { return AreContiguous(convolution, false); }

struct Convolutions::Device {
  absl::Mutex mutex;  // of the handle's stream, up to the launch that goes there
  Cudnn::Handle handle = nullptr;
};

// The convolution in cuDNN's words.
struct Convolutions::Posed {
  std::shared_ptr<Device> device;
  std::array<Descriptor, 3> tensors;
  Descriptor window, operation, graph;
};

struct Convolutions::Plan {
  // What the plan refers to lives as long.
  std::shared_ptr<const Posed> posed;
  std::shared_ptr<const Descriptor> heuristic;  // where the configuration is of one
  std::vector<Descriptor> parts;                // of a configuration that was rebuilt
  Descriptor configuration, plan;
  int64_t workspace = 0;
};

class Convolutions::Builder {
 public:
  Builder(const Cudnn& library, const Convolution& convolution, std::shared_ptr<Device> device)
      : library_(library), convolution_(convolution) {
    auto posed = std::make_shared<Posed>();
    posed->device = std::move(device);
    if (Pose(*posed)) posed_ = std::move(posed);
  }

  // nullptr where the library can't do it.
  std::shared_ptr<Plan> Build() const {
    if (posed_ == nullptr) return nullptr;
    if (std::shared_ptr<Plan> tuned = BuildTuned(); tuned != nullptr) return tuned;
    return BuildFirst();
  }

  // The first configuration that torch would take and cuDNN can plan.
  std::shared_ptr<Plan> BuildFirst() const {
    for (const Cudnn::Mode mode : {Cudnn::kInstant, Cudnn::kFallback}) {
      Found found = Find(mode);
      for (Descriptor& configuration : found.configurations) {
        std::shared_ptr<Plan> plan = Make(std::move(configuration));
        if (plan == nullptr) continue;
        plan->heuristic = found.heuristic;
        return plan;
      }
    }
    return nullptr;
  }

  std::vector<Offer> Offers(size_t wanted, size_t workspace_max) const {
    std::vector<Offer> offers;
    const std::shared_ptr<Plan> first = posed_ == nullptr ? nullptr : BuildFirst();
    if (first == nullptr) return offers;
    workspace_max = std::max(workspace_max, static_cast<size_t>(first->workspace));
    const MonotonicTime start = MonotonicNow();
    const auto add = [&](std::shared_ptr<Plan> plan, const v1::ConvolutionPlan& description) {
      const auto workspace = static_cast<size_t>(plan->workspace);
      if (workspace <= workspace_max) offers.push_back({description, workspace, std::move(plan)});
    };
    const auto is_known = [&](const v1::ConvolutionPlan& description) {
      return std::any_of(offers.begin(), offers.end(), [&](const Offer& offer) {
        return SerializeDeterministic(offer.plan) == SerializeDeterministic(description);
      });
    };
    v1::ConvolutionPlan description;
    if (!Describe(first->configuration, &description)) return offers;
    add(first, description);
    for (const Cudnn::Mode mode : {Cudnn::kModeA, Cudnn::kModeB, Cudnn::kFallback}) {
      Found found = Find(mode);
      for (Descriptor& configuration : found.configurations) {
        if (offers.size() >= wanted || MonotonicNow() - start > kOfferTime) return offers;
        if (!Describe(configuration, &description) || is_known(description)) continue;
        std::shared_ptr<Plan> plan = Make(std::move(configuration));
        if (plan == nullptr) continue;
        plan->heuristic = found.heuristic;
        add(std::move(plan), description);
      }
    }
    return offers;
  }

 private:
  bool Pose(Posed& posed) const {
    int type = 0;
    if (!DataTypeOf(convolution_.input.dtype, &type)) return false;
    const auto tensors = TensorsOf(convolution_);
    const bool channels_last = !IsRowMajor(convolution_);
    for (size_t i = 0; i < tensors.size(); ++i) {
      const Dims strides = StridesOf(tensors[i]->sizes, channels_last);
      Descriptor tensor(library_, Cudnn::kTensor);
      tensor.Set(Cudnn::kTensorType, Cudnn::kTypeDataType, type);
      tensor.SetAll(Cudnn::kTensorSizes, Cudnn::kTypeInt64, tensors[i]->sizes);
      tensor.SetAll<int64_t>(Cudnn::kTensorStrides, Cudnn::kTypeInt64, strides);
      tensor.Set(Cudnn::kTensorId, Cudnn::kTypeInt64, kIds[i]);
      tensor.Set(Cudnn::kTensorAlignment, Cudnn::kTypeInt64, Alignment(tensors[i]->data));
      if (!tensor.Finalize()) return false;
      posed.tensors[i] = std::move(tensor);
    }
    return PoseWindow(posed) && PoseOperation(posed);
  }

  bool PoseWindow(Posed& posed) const {
    Descriptor window(library_, Cudnn::kConvolution);
    window.Set(Cudnn::kComputeType, Cudnn::kTypeDataType, int{Cudnn::kF32});
    window.Set(Cudnn::kConvolutionMode, Cudnn::kTypeConvolutionMode, Cudnn::kCrossCorrelation);
    window.Set(Cudnn::kSpatialDims, Cudnn::kTypeInt64, int64_t{2});
    window.SetAll<int64_t>(Cudnn::kStrides, Cudnn::kTypeInt64, convolution_.stride);
    window.SetAll<int64_t>(Cudnn::kPaddingBefore, Cudnn::kTypeInt64, convolution_.padding);
    window.SetAll<int64_t>(Cudnn::kPaddingAfter, Cudnn::kTypeInt64, convolution_.padding);
    window.SetAll<int64_t>(Cudnn::kDilations, Cudnn::kTypeInt64, convolution_.dilation);
    if (!window.Finalize()) return false;
    posed.window = std::move(window);
    return true;
  }

  bool PoseOperation(Posed& posed) const {
    using Direction = Convolution::Direction;
    const bool forward = convolution_.direction == Direction::kForward;
    const bool to_input = convolution_.direction == Direction::kInputGradient;
    const int first = forward    ? Cudnn::kForwardAlpha
                      : to_input ? Cudnn::kInputGradientAlpha
                                 : Cudnn::kWeightGradientAlpha;
    Descriptor operation(library_, forward    ? Cudnn::kForward
                                   : to_input ? Cudnn::kInputGradient
                                              : Cudnn::kWeightGradient);
    operation.Set(first, Cudnn::kTypeFloat, 1.0f);
    operation.Set(first + 1, Cudnn::kTypeFloat, 0.0f);
    operation.Set(first + 2, posed.window);
    for (int i = 0; i < 3; ++i) operation.Set(first + 3 + i, posed.tensors[i]);
    if (!operation.Finalize()) return false;
    posed.operation = std::move(operation);
    Descriptor graph(library_, Cudnn::kGraph);
    graph.Set(Cudnn::kGraphOperations, posed.operation);
    graph.Set(Cudnn::kGraphHandle, Cudnn::kTypeHandle, posed.device->handle);
    if (!graph.Finalize()) return false;
    posed.graph = std::move(graph);
    return true;
  }

  struct Found {
    std::shared_ptr<const Descriptor> heuristic;
    std::vector<Descriptor> configurations;
  };

  Found Find(Cudnn::Mode mode) const {
    Descriptor heuristic(library_, Cudnn::kHeuristic);
    heuristic.Set(Cudnn::kHeuristicGraph, posed_->graph);
    heuristic.Set(Cudnn::kHeuristicMode, Cudnn::kTypeHeuristicMode, int{mode});
    int64_t count = 0;
    if (!heuristic.Finalize() || library_.get(heuristic.get(), Cudnn::kHeuristicResults,
                                              Cudnn::kTypeDescriptor, 0, &count, nullptr) != 0) {
      return {};
    }
    std::vector<Descriptor> found = Empty(Cudnn::kConfiguration, static_cast<size_t>(count));
    std::vector<Cudnn::Descriptor> handles = HandlesOf(found);
    if (library_.get(heuristic.get(), Cudnn::kHeuristicResults, Cudnn::kTypeDescriptor, count, &count,
                     static_cast<void*>(handles.data())) != 0) {
      return {};
    }
    found.resize(std::min(found.size(), static_cast<size_t>(count)));
    return {std::make_shared<const Descriptor>(std::move(heuristic)), std::move(found)};
  }

  std::vector<Descriptor> Empty(Cudnn::DescriptorKind kind, size_t count) const {
    std::vector<Descriptor> made;
    for (size_t i = 0; i < count; ++i) made.emplace_back(library_, kind);
    return made;
  }

  static std::vector<Cudnn::Descriptor> HandlesOf(const std::vector<Descriptor>& descriptors) {
    std::vector<Cudnn::Descriptor> handles;
    for (const Descriptor& descriptor : descriptors) handles.push_back(descriptor.get());
    return handles;
  }

  // nullptr where torch would not take the configuration, or cuDNN can't plan it.
  std::shared_ptr<Plan> Make(Descriptor configuration) const {
    if (!Allowed(configuration)) return nullptr;
    auto plan = std::make_shared<Plan>();
    Descriptor made(library_, Cudnn::kPlan);
    made.Set(Cudnn::kPlanHandle, Cudnn::kTypeHandle, posed_->device->handle);
    made.Set(Cudnn::kPlanConfiguration, configuration);
    int64_t got = 0;
    if (!made.Finalize() ||
        library_.get(made.get(), Cudnn::kPlanWorkspace, Cudnn::kTypeInt64, 1, &got, &plan->workspace) != 0) {
      return nullptr;
    }
    plan->posed = posed_;
    plan->configuration = std::move(configuration);
    plan->plan = std::move(made);
    return plan;
  }

  // By the plan that was measured, if this very library was, and does it still.
  std::shared_ptr<Plan> BuildTuned() const {
    const TunedConvolutions* const tuned = convolution_.tuned;
    if (tuned == nullptr || tuned->library_version() != library_.version()) return nullptr;
    const v1::ConvolutionPlan* const found = tuned->Find(convolution_);
    if (found == nullptr) return nullptr;
    for (const TensorMemory* tensor : TensorsOf(convolution_)) {
      if (Alignment(tensor->data) < kAlignmentMax) return nullptr;
    }
    std::vector<Descriptor> parts = Empty(Cudnn::kKnob, static_cast<size_t>(found->knobs_size()));
    const std::vector<Cudnn::Descriptor> knobs = HandlesOf(parts);
    for (int i = 0; i < found->knobs_size(); ++i) {
      parts[i].Set(Cudnn::kKnobKind, Cudnn::kTypeKnob, int{found->knobs(i).kind()});
      parts[i].Set(Cudnn::kKnobValue, Cudnn::kTypeInt64, int64_t{found->knobs(i).value()});
      if (!parts[i].Finalize()) return nullptr;
    }
    Descriptor engine(library_, Cudnn::kEngine), configuration(library_, Cudnn::kConfiguration);
    engine.Set(Cudnn::kEngineGraph, posed_->graph);
    engine.Set(Cudnn::kEngineIndex, Cudnn::kTypeInt64, int64_t{found->engine()});
    if (!engine.Finalize()) return nullptr;
    configuration.Set(Cudnn::kConfigurationEngine, engine);
    if (!knobs.empty())
      configuration.SetAll<Cudnn::Descriptor>(Cudnn::kConfigurationKnobs, Cudnn::kTypeDescriptor, knobs);
    if (!configuration.Finalize()) return nullptr;
    parts.push_back(std::move(engine));
    std::shared_ptr<Plan> plan = Make(std::move(configuration));
    if (plan == nullptr) return nullptr;
    plan->parts = std::move(parts);
    tuned_plans.fetch_add(1, std::memory_order_relaxed);
    return plan;
  }

  // How BuildTuned makes the configuration again.
  bool Describe(const Descriptor& configuration, v1::ConvolutionPlan* description) const {
    description->Clear();
    const Descriptor engine(library_, Cudnn::kEngine);
    Cudnn::Descriptor handle = engine.get();
    int64_t count = 0, index = 0;
    if (handle == nullptr ||
        library_.get(configuration.get(), Cudnn::kConfigurationEngine, Cudnn::kTypeDescriptor, 1, &count,
                     static_cast<void*>(&handle)) != 0 ||
        library_.get(handle, Cudnn::kEngineIndex, Cudnn::kTypeInt64, 1, &count, &index) != 0) {
      return false;
    }
    description->set_engine(index);
    const std::vector<Descriptor> knobs = Empty(Cudnn::kKnob, kCudnnKnobsMax);
    std::vector<Cudnn::Descriptor> handles = HandlesOf(knobs);
    if (library_.get(configuration.get(), Cudnn::kConfigurationKnobs, Cudnn::kTypeDescriptor, kCudnnKnobsMax,
                     &count, static_cast<void*>(handles.data())) != 0 ||
        count > static_cast<int64_t>(kCudnnKnobsMax)) {
      return false;
    }
    for (int64_t i = 0; i < count; ++i) {
      int kind = 0;
      int64_t value = 0, got = 0;
      if (library_.get(handles[i], Cudnn::kKnobKind, Cudnn::kTypeKnob, 1, &got, &kind) != 0 ||
          library_.get(handles[i], Cudnn::kKnobValue, Cudnn::kTypeInt64, 1, &got, &value) != 0) {
        return false;
      }
      v1::ConvolutionPlan::Knob* knob = description->add_knobs();
      knob->set_kind(kind);
      knob->set_value(value);
    }
    return true;
  }

  bool Allowed(const Descriptor& configuration) const {
    Descriptor engine(library_, Cudnn::kEngine);
    Cudnn::Descriptor handle = engine.get();
    std::array<int, Cudnn::kNotes> notes = {};
    int64_t count = 0;
    if (handle == nullptr ||
        library_.get(configuration.get(), Cudnn::kConfigurationEngine, Cudnn::kTypeDescriptor, 1, &count,
                     static_cast<void*>(&handle)) != 0 ||
        library_.get(handle, Cudnn::kEngineNotes, Cudnn::kTypeNote, Cudnn::kNotes, &count, notes.data()) !=
            0) {
      return false;
    }
    const auto noted = [&](Cudnn::Note note) {
      return std::find(notes.begin(), notes.begin() + std::min<int64_t>(count, notes.size()), note) !=
             notes.begin() + std::min<int64_t>(count, notes.size());
    };
    if (convolution_.deterministic && noted(Cudnn::kNondeterministic)) return false;
    if (noted(Cudnn::kRoundsInputs)) return false;
    return convolution_.input.dtype != v1::F32 || convolution_.tf32 || !noted(Cudnn::kTensorCores);
  }

  const Cudnn& library_;
  const Convolution& convolution_;
  std::shared_ptr<const Posed> posed_;  // nullptr: not to be said in cuDNN's words
};

bool Convolutions::IsSensible(const Convolution& convolution) {
  const TensorMemory &input = convolution.input, &weight = convolution.weight, &output = convolution.output;
  for (const TensorMemory* tensor : TensorsOf(convolution)) {
    if (!IsImages(*tensor, input.dtype)) return false;
  }
  if (output.sizes[0] != input.sizes[0] || output.sizes[1] != weight.sizes[0]) return false;
  if (input.sizes[1] % weight.sizes[1] != 0) return false;
  if (weight.sizes[0] % (input.sizes[1] / weight.sizes[1]) != 0) return false;
  for (size_t d = 0; d < 2; ++d) {
    if (convolution.stride[d] < 1 || convolution.dilation[d] < 1 || convolution.padding[d] < 0) return false;
    if (output.sizes[2 + d] != Left(input.sizes[2 + d], weight.sizes[2 + d], convolution.stride[d],
                                    convolution.padding[d], convolution.dilation[d])) {
      return false;
    }
  }
  return AreContiguous(convolution, false) || AreContiguous(convolution, true);
}

bool Convolutions::Pose(const Convolution& convolution, int32_t device, Key* key) {
  const auto tensors = TensorsOf(convolution);
  for (const TensorMemory* tensor : tensors) {
    if (tensor->data == nullptr) return false;
  }
  if (!IsSensible(convolution)) return false;

  size_t at = 0;
  (*key)[at++] = device;
  (*key)[at++] = convolution.input.dtype;
  (*key)[at++] = static_cast<int64_t>(convolution.direction) * 16 + (convolution.tuned != nullptr ? 8 : 0) +
                 (IsRowMajor(convolution) ? 4 : 0) + (convolution.tf32 ? 2 : 0) +
                 (convolution.deterministic ? 1 : 0);
  for (const TensorMemory* tensor : tensors) {
    for (const int64_t size : tensor->sizes) (*key)[at++] = size;
    (*key)[at++] = Alignment(tensor->data);
  }
  for (const auto* pair : {&convolution.stride, &convolution.padding, &convolution.dilation}) {
    for (const int64_t number : *pair) (*key)[at++] = number;
  }
  return true;
}

std::shared_ptr<Convolutions::Device> Convolutions::DeviceOf(int32_t device) {
  std::shared_ptr<Device>& known = devices_[device];
  if (known == nullptr) {
    known = std::make_shared<Device>();
    if (library_.create(&known->handle) != 0) known->handle = nullptr;
  }
  return known;
}

std::shared_ptr<Convolutions::Plan> Convolutions::PlanOf(const Key& key, const Convolution& convolution,
                                                         int32_t device) {
  {
    absl::ReaderMutexLock lock(&mutex_);
    if (const auto found = plans_.find(key); found != plans_.end()) return found->second;
  }
  absl::MutexLock lock(&mutex_);
  if (const auto found = plans_.find(key); found != plans_.end()) return found->second;
  if (plans_.size() >= kLibraryPlansMax) plans_.clear();
  std::shared_ptr<Device> owner = DeviceOf(device);
  if (owner->handle == nullptr) return nullptr;
  std::shared_ptr<Plan> plan = Builder(library_, convolution, std::move(owner)).Build();
  plans_[key] = plan;
  return plan;
}

void Convolutions::Forget(const Key& key) {
  absl::MutexLock lock(&mutex_);
  plans_[key] = nullptr;
}

bool Convolutions::Launch(const Plan& plan, const Convolution& convolution, const CallContext& call,
                          void* scratch) const {
  const std::array<void*, 3> data = {convolution.weight.data, convolution.input.data,
                                     convolution.output.data};
  Descriptor pack(library_, Cudnn::kVariantPack);
  pack.SetAll<int64_t>(Cudnn::kPackIds, Cudnn::kTypeInt64, kIds);
  pack.SetAll<void*>(Cudnn::kPackPointers, Cudnn::kTypePointer, data);
  pack.Set(Cudnn::kPackWorkspace, Cudnn::kTypePointer, scratch);
  if (!pack.Finalize()) return false;
  Device& device = *plan.posed->device;
  absl::MutexLock lock(&device.mutex);
  return library_.set_stream(device.handle, call.stream) == 0 &&
         library_.execute(device.handle, plan.plan.get(), pack.get()) == 0;
}

std::vector<Convolutions::Offer> Convolutions::Offers(const Convolution& convolution, const CallContext& call,
                                                      size_t wanted, size_t workspace_max) {
  Key key;
  if (!Pose(convolution, call.device, &key)) return {};
  std::shared_ptr<Device> owner;
  {
    absl::MutexLock lock(&mutex_);
    owner = DeviceOf(call.device);
  }
  if (owner->handle == nullptr) return {};
  return Builder(library_, convolution, std::move(owner)).Offers(wanted, workspace_max);
}

bool Convolutions::RunAs(const Convolution& convolution, const Offer& offer, const CallContext& call,
                         Workspace workspace) {
  void* const scratch = offer.workspace == 0 ? nullptr : workspace(offer.workspace);
  return (offer.workspace == 0 || scratch != nullptr) && Launch(*offer.made, convolution, call, scratch);
}

bool Convolutions::Run(const Convolution& convolution, const CallContext& call, Workspace workspace) {
  Key key;
  if (!Pose(convolution, call.device, &key)) return false;
  const std::shared_ptr<Plan> plan = PlanOf(key, convolution, call.device);
  if (plan == nullptr) return false;
  void* scratch = nullptr;
  if (plan->workspace > 0) {
    scratch = workspace(static_cast<size_t>(plan->workspace));
    if (scratch == nullptr) return false;
  }
  const bool done = Launch(*plan, convolution, call, scratch);
  if (!done) Forget(key);  // planned, but not to be run on this device: not asked for again
  return done;
}

uint64_t Convolutions::TunedPlans() { return tuned_plans.load(std::memory_order_relaxed); }

size_t Convolutions::plan_count() const {
  absl::ReaderMutexLock lock(&mutex_);
  return plans_.size();
}

}  // namespace kiln::runtime
