#include "client/runtime/convolutions.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "client/runtime/cuda_driver.h"

namespace kiln::runtime {
namespace {

using Dims = std::array<int64_t, 4>;

constexpr size_t kPlansMax = 4096;  // sizes that change with every call would add plans without end
constexpr int64_t kAlignmentMax = 16;
constexpr int64_t kElementsMax = int64_t{1} << 31;
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

Dims StridesOf(absl::Span<const int64_t> sizes, bool by_points) {
  if (by_points) return {sizes[1] * sizes[2] * sizes[3], 1, sizes[1] * sizes[3], sizes[1]};
  return {sizes[1] * sizes[2] * sizes[3], sizes[2] * sizes[3], sizes[3], 1};
}

bool LiesSo(const TensorMemory& tensor, bool by_points) {
  const Dims strides = StridesOf(tensor.sizes, by_points);
  for (size_t d = 0; d < strides.size(); ++d) {
    if (tensor.sizes[d] > 1 && tensor.strides[d] != strides[d]) return false;
  }
  return true;
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

}  // namespace

struct Convolutions::Device {
  absl::Mutex mutex;  // of the handle's stream, up to the launch that goes there
  Cudnn::Handle handle = nullptr;
};

struct Convolutions::Plan {
  std::shared_ptr<Device> device;
  // What the plan refers to lives as long.
  std::array<Descriptor, 3> tensors;
  Descriptor convolution, operation, graph, heuristic, configuration, plan;
  int64_t workspace = 0;
};

class Convolutions::Builder {
 public:
  Builder(const Cudnn& library, const Convolution& convolution) : library_(library), posed_(convolution) {}

  std::shared_ptr<Plan> Build(std::shared_ptr<Device> device) {
    auto plan = std::make_shared<Plan>();
    plan->device = std::move(device);
    if (!Describe(*plan)) return nullptr;
    for (const Cudnn::Mode mode : {Cudnn::kInstant, Cudnn::kFallback}) {
      if (Choose(*plan, mode)) return plan;
    }
    return nullptr;
  }

 private:
  bool Describe(Plan& plan) {
    int type = 0;
    if (!DataTypeOf(posed_.input.dtype, &type)) return false;
    const std::array<const TensorMemory*, 3> tensors = {&posed_.weight, &posed_.input, &posed_.output};
    const bool by_points = !std::all_of(tensors.begin(), tensors.end(),
                                        [](const TensorMemory* tensor) { return LiesSo(*tensor, false); });
    for (size_t i = 0; i < tensors.size(); ++i) {
      const Dims strides = StridesOf(tensors[i]->sizes, by_points);
      Descriptor tensor(library_, Cudnn::kTensor);
      tensor.Set(Cudnn::kTensorType, Cudnn::kTypeDataType, type);
      tensor.SetAll(Cudnn::kTensorSizes, Cudnn::kTypeInt64, tensors[i]->sizes);
      tensor.SetAll<int64_t>(Cudnn::kTensorStrides, Cudnn::kTypeInt64, strides);
      tensor.Set(Cudnn::kTensorId, Cudnn::kTypeInt64, kIds[i]);
      tensor.Set(Cudnn::kTensorAlignment, Cudnn::kTypeInt64, Alignment(tensors[i]->data));
      if (!tensor.Finalize()) return false;
      plan.tensors[i] = std::move(tensor);
    }
    return DescribeWindow(plan) && DescribeOperation(plan);
  }

  bool DescribeWindow(Plan& plan) {
    Descriptor window(library_, Cudnn::kConvolution);
    window.Set(Cudnn::kComputeType, Cudnn::kTypeDataType, int{Cudnn::kF32});
    window.Set(Cudnn::kConvolutionMode, Cudnn::kTypeConvolutionMode, Cudnn::kCrossCorrelation);
    window.Set(Cudnn::kSpatialDims, Cudnn::kTypeInt64, int64_t{2});
    window.SetAll<int64_t>(Cudnn::kStrides, Cudnn::kTypeInt64, posed_.stride);
    window.SetAll<int64_t>(Cudnn::kPaddingBefore, Cudnn::kTypeInt64, posed_.padding);
    window.SetAll<int64_t>(Cudnn::kPaddingAfter, Cudnn::kTypeInt64, posed_.padding);
    window.SetAll<int64_t>(Cudnn::kDilations, Cudnn::kTypeInt64, posed_.dilation);
    if (!window.Finalize()) return false;
    plan.convolution = std::move(window);
    return true;
  }

  bool DescribeOperation(Plan& plan) {
    using Direction = Convolution::Direction;
    const bool forward = posed_.direction == Direction::kForward;
    const bool to_input = posed_.direction == Direction::kInputGradient;
    const int first = forward    ? Cudnn::kForwardAlpha
                      : to_input ? Cudnn::kInputGradientAlpha
                                 : Cudnn::kWeightGradientAlpha;
    Descriptor operation(library_, forward    ? Cudnn::kForward
                                   : to_input ? Cudnn::kInputGradient
                                              : Cudnn::kWeightGradient);
    operation.Set(first, Cudnn::kTypeFloat, 1.0f);
    operation.Set(first + 1, Cudnn::kTypeFloat, 0.0f);
    operation.Set(first + 2, plan.convolution);
    for (int i = 0; i < 3; ++i) operation.Set(first + 3 + i, plan.tensors[i]);
    if (!operation.Finalize()) return false;
    plan.operation = std::move(operation);
    Descriptor graph(library_, Cudnn::kGraph);
    graph.Set(Cudnn::kGraphOperations, plan.operation);
    graph.Set(Cudnn::kGraphHandle, Cudnn::kTypeHandle, plan.device->handle);
    if (!graph.Finalize()) return false;
    plan.graph = std::move(graph);
    return true;
  }

  // Takes the first configuration that torch would take and cuDNN can plan.
  bool Choose(Plan& plan, Cudnn::Mode mode) {
    Descriptor heuristic(library_, Cudnn::kHeuristic);
    heuristic.Set(Cudnn::kHeuristicGraph, plan.graph);
    heuristic.Set(Cudnn::kHeuristicMode, Cudnn::kTypeHeuristicMode, int{mode});
    int64_t count = 0;
    if (!heuristic.Finalize() || library_.get(heuristic.get(), Cudnn::kHeuristicResults,
                                              Cudnn::kTypeDescriptor, 0, &count, nullptr) != 0) {
      return false;
    }
    std::vector<Descriptor> found;
    std::vector<Cudnn::Descriptor> handles;
    for (int64_t i = 0; i < count; ++i) {
      found.emplace_back(library_, Cudnn::kConfiguration);
      handles.push_back(found.back().get());
    }
    if (library_.get(heuristic.get(), Cudnn::kHeuristicResults, Cudnn::kTypeDescriptor, count, &count,
                     static_cast<void*>(handles.data())) != 0) {
      return false;
    }
    for (int64_t i = 0; i < std::min<int64_t>(count, found.size()); ++i) {
      if (!Allowed(found[i])) continue;
      Descriptor chosen(library_, Cudnn::kPlan);
      chosen.Set(Cudnn::kPlanHandle, Cudnn::kTypeHandle, plan.device->handle);
      chosen.Set(Cudnn::kPlanConfiguration, found[i]);
      int64_t got = 0;
      if (!chosen.Finalize() || library_.get(chosen.get(), Cudnn::kPlanWorkspace, Cudnn::kTypeInt64, 1, &got,
                                             &plan.workspace) != 0) {
        continue;
      }
      plan.heuristic = std::move(heuristic);
      plan.configuration = std::move(found[i]);
      plan.plan = std::move(chosen);
      return true;
    }
    return false;
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
    if (posed_.deterministic && noted(Cudnn::kNondeterministic)) return false;
    if (noted(Cudnn::kRoundsInputs)) return false;
    return posed_.input.dtype != v1::F32 || posed_.tf32 || !noted(Cudnn::kTensorCores);
  }

  const Cudnn& library_;
  const Convolution& posed_;
};

bool Convolutions::Pose(const Convolution& convolution, int32_t device, Key* key) {
  const TensorMemory &input = convolution.input, &weight = convolution.weight, &output = convolution.output;
  const std::array<const TensorMemory*, 3> tensors = {&weight, &input, &output};
  for (const TensorMemory* tensor : tensors) {
    if (tensor->data == nullptr || !IsImages(*tensor, input.dtype)) return false;
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
  const auto all = [&](bool by_points) {
    return std::all_of(tensors.begin(), tensors.end(),
                       [&](const TensorMemory* tensor) { return LiesSo(*tensor, by_points); });
  };
  const bool by_rows = all(false);
  if (!by_rows && !all(true)) return false;

  size_t at = 0;
  (*key)[at++] = device;
  (*key)[at++] = input.dtype;
  (*key)[at++] = static_cast<int64_t>(convolution.direction) * 8 + (by_rows ? 4 : 0) +
                 (convolution.tf32 ? 2 : 0) + (convolution.deterministic ? 1 : 0);
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
  if (plans_.size() >= kPlansMax) plans_.clear();
  std::shared_ptr<Device> owner = DeviceOf(device);
  if (owner->handle == nullptr) return nullptr;
  std::shared_ptr<Plan> plan = Builder(library_, convolution).Build(std::move(owner));
  plans_[key] = plan;
  return plan;
}

void Convolutions::Forget(const Key& key) {
  absl::MutexLock lock(&mutex_);
  plans_[key] = nullptr;
}

bool Convolutions::Run(const Convolution& convolution, const CallContext& call, Workspace workspace) {
  if (call.on_gpu() && !UseGpu(call.device)) return false;
  Key key;
  if (!Pose(convolution, call.device, &key)) return false;
  const std::shared_ptr<Plan> plan = PlanOf(key, convolution, call.device);
  if (plan == nullptr) return false;
  void* scratch = nullptr;
  if (plan->workspace > 0) {
    scratch = workspace(static_cast<size_t>(plan->workspace));
    if (scratch == nullptr) return false;
  }
  const std::array<void*, 3> data = {convolution.weight.data, convolution.input.data,
                                     convolution.output.data};
  Descriptor pack(library_, Cudnn::kVariantPack);
  pack.SetAll<int64_t>(Cudnn::kPackIds, Cudnn::kTypeInt64, kIds);
  pack.SetAll<void*>(Cudnn::kPackPointers, Cudnn::kTypePointer, data);
  pack.Set(Cudnn::kPackWorkspace, Cudnn::kTypePointer, scratch);
  if (!pack.Finalize()) return false;
  Device& device = *plan->device;
  bool done = false;
  {
    absl::MutexLock lock(&device.mutex);
    done = library_.set_stream(device.handle, call.stream) == 0 &&
           library_.execute(device.handle, plan->plan.get(), pack.get()) == 0;
  }
  if (!done) Forget(key);  // planned, but not to be run on this device: not asked for again
  return done;
}

size_t Convolutions::plan_count() const {
  absl::ReaderMutexLock lock(&mutex_);
  return plans_.size();
}

}  // namespace kiln::runtime
