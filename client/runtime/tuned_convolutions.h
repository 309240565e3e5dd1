// The plans that were measured to be faster than cuDNN's first, of one program's convolutions.
//
// Ownership: values. Threads: immutable. Errors: none. The library is asked again before a plan is used, so a
// wrong one is refused there.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "client/runtime/cudnn_convolutions.h"
#include "kiln/v1/tuning.pb.h"

namespace kiln::runtime {

// A convolution as it is measured and looked up, without memory. All three tensors are row-major, or all
// channels-last.
v1::Convolution Describe(const Convolution& convolution);

class TunedConvolutions {
 public:
  // nullptr where the program has no measurements.
  static std::shared_ptr<const TunedConvolutions> Create(const v1::Tuning& tuning);

  // nullptr where the library's first plan stands.
  const v1::ConvolutionPlan* Find(const Convolution& convolution) const;
  // Of the cuDNN that was measured; plans mean nothing to another.
  uint64_t library_version() const { return library_version_; }

 private:
  TunedConvolutions() = default;

  uint64_t library_version_ = 0;
  absl::flat_hash_map<std::string, v1::ConvolutionPlan> plans_;  // by serialized description
};

}  // namespace kiln::runtime
