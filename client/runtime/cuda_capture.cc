#include "client/runtime/cuda_capture.h"

#include <cstddef>
#include <cstdint>

namespace kiln::runtime {
namespace {

// cuda.h's CU_STREAM_ADD_CAPTURE_DEPENDENCIES and CU_STREAM_SET_CAPTURE_DEPENDENCIES,
// CU_STREAM_CAPTURE_STATUS_ACTIVE.
constexpr unsigned kAdd = 0, kSet = 1;
constexpr int kActive = 1;

}  // namespace

std::unique_ptr<Capture> CudaCapture::Of(const CudaDriver& driver, void* stream) {
  if (driver.capture_info == nullptr || driver.capture_dependencies == nullptr) return nullptr;
  return std::unique_ptr<Capture>(new CudaCapture(driver, stream));
}

bool CudaCapture::Get(std::vector<Node>& nodes) {
  int status = 0;
  uint64_t id = 0;
  void* graph = nullptr;
  void* const* found = nullptr;
  size_t count = 0;
  if (driver_.capture_info(stream_, &status, &id, &graph, &found, &count) != 0 || status != kActive)
    return false;
  nodes.assign(found, found + count);
  return true;
}

bool CudaCapture::Set(absl::Span<const Node> nodes) { return Update(nodes, kSet); }
bool CudaCapture::Add(absl::Span<const Node> nodes) { return Update(nodes, kAdd); }

bool CudaCapture::Update(absl::Span<const Node> nodes, unsigned flags) {
  std::vector<Node> all(nodes.begin(), nodes.end());
  return driver_.capture_dependencies(stream_, all.data(), all.size(), flags) == 0;
}

}  // namespace kiln::runtime
