// What the runtime uses of cuDNN's graph interface, found at run time in the library that torch has loaded
// already, or in a file.
//
// Signatures and numbers as in cudnn_graph.h of cuDNN 9. Status 0 is success.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace kiln::runtime {

struct Cudnn {
  using Status = int;
  using Handle = void*;
  using Descriptor = void*;

  enum DescriptorKind : int {
    kConvolution = 1,
    kEngine = 2,
    kConfiguration = 3,
    kHeuristic = 4,
    kPlan = 5,
    kKnob = 7,
    kForward = 10,
    kWeightGradient = 11,
    kInputGradient = 12,
    kGraph = 15,
    kVariantPack = 16,
    kTensor = 17
  };
  enum Attribute : int {
    kComputeType = 100,
    kConvolutionMode = 101,
    kDilations = 102,
    kStrides = 103,
    kPaddingAfter = 104,
    kPaddingBefore = 105,
    kSpatialDims = 106,
    kHeuristicMode = 200,
    kHeuristicGraph = 201,
    kHeuristicResults = 202,
    kConfigurationEngine = 300,
    kConfigurationKnobs = 302,
    kPlanHandle = 400,
    kPlanConfiguration = 401,
    kPlanWorkspace = 402,
    kKnobKind = 600,
    kKnobValue = 601,
    kForwardAlpha = 700,         // then beta, the convolution's descriptor, and weights, input and result
    kInputGradientAlpha = 706,   // …, and weights, the input's gradient and the result's
    kWeightGradientAlpha = 712,  // …, and the weights' gradient, input and the result's gradient
    kGraphHandle = 800,
    kGraphOperations = 801,
    kTensorAlignment = 900,
    kTensorType = 901,
    kTensorSizes = 902,
    kTensorStrides = 903,
    kTensorId = 906,
    kPackIds = 1000,
    kPackPointers = 1001,
    kPackWorkspace = 1003,
    kEngineGraph = 1300,
    kEngineIndex = 1301,
    kEngineNotes = 1303
  };
  enum AttributeType : int {
    kTypeHandle = 0,
    kTypeDataType = 1,
    kTypeInt64 = 3,
    kTypeFloat = 4,
    kTypePointer = 6,
    kTypeConvolutionMode = 7,
    kTypeHeuristicMode = 8,
    kTypeKnob = 9,
    kTypeNote = 11,
    kTypeDescriptor = 15
  };
  enum DataType : int { kF32 = 0, kF16 = 2, kBF16 = 9 };
  enum Mode : int { kInstant = 0, kModeB = 1, kFallback = 2, kModeA = 3 };  // of a heuristic
  enum Note : int { kTensorCores = 0, kRoundsInputs = 1, kNondeterministic = 4, kNotes = 10 };
  static constexpr int kCrossCorrelation = 1;

  size_t (*version)();
  Status (*create)(Handle*);
  Status (*set_stream)(Handle, void* stream);
  Status (*create_descriptor)(int kind, Descriptor*);
  Status (*destroy_descriptor)(Descriptor);
  Status (*finalize)(Descriptor);
  Status (*set)(Descriptor, int attribute, int type, int64_t count, const void* values);
  Status (*get)(Descriptor, int attribute, int type, int64_t wanted, int64_t* count, void* values);
  Status (*execute)(Handle, Descriptor plan, Descriptor variant_pack);
};

// UNIMPLEMENTED when the process has not loaded it, or a function is missing.
absl::StatusOr<Cudnn> FindCudnn();
// Loads it for the process's life: from `path`, or by its name where that is empty.
absl::StatusOr<Cudnn> LoadCudnn(const std::string& path);

}  // namespace kiln::runtime
