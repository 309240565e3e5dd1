// The dependency set of a stream that is captured into a CUDA graph, by the driver.
//
// Ownership: the stream is borrowed. Threads: one, the one that captures. Errors: as Capture says.
#pragma once

#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "client/runtime/capture_dependencies.h"
#include "client/runtime/cuda_driver.h"

namespace kiln::runtime {

class CudaCapture : public Capture {
 public:
  // nullptr where the driver is too old for it.
  static std::unique_ptr<Capture> Of(const CudaDriver& driver, void* stream);

  bool Get(std::vector<Node>& nodes) override;
  bool Set(absl::Span<const Node> nodes) override;
  bool Add(absl::Span<const Node> nodes) override;

 private:
  CudaCapture(const CudaDriver& driver, void* stream) : driver_(driver), stream_(stream) {}
  bool Update(absl::Span<const Node> nodes, unsigned flags);

  const CudaDriver driver_;
  void* const stream_;
};

}  // namespace kiln::runtime
