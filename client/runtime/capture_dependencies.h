// The order of steps that are recorded into a CUDA graph.
//
// A captured stream is a chain: each node depends on the one before. Here a step declares the memory that it
// reads and writes, and its nodes depend only on the steps that wrote what it reads or accessed what it
// writes: independent gemms run concurrently, and weights are transposed beside other work. It pays at batch
// 1, where no kernel fills the device.
//
//   order.Begin(ranges);   // before the step's nodes; ranges that are learnt later: Touch
//   …                      // the step's work goes to the stream
//   order.End();
//
// A step whose memory is not known calls Fence: it waits for all before it, and all after waits for it. A
// step that touches kAloneBytes and more fills the device and is fenced too. The destructor fences, so that
// what follows on the stream waits for everything.
//
// Ownership: the capture is borrowed. Threads: one, the one that records. Errors: INTERNAL where the driver
// refuses the dependencies; where it does not report a step's nodes, the remaining steps form a chain.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/types/span.h"

namespace kiln::runtime {

// The capturing stream's dependency set: the nodes that its next node depends on. Functions return false on
// failure.
class Capture {
 public:
  using Node = void*;

  virtual ~Capture() = default;
  virtual bool Get(std::vector<Node>& nodes) = 0;
  virtual bool Set(absl::Span<const Node> nodes) = 0;
  virtual bool Add(absl::Span<const Node> nodes) = 0;  // to those that are there; none of them twice
};

struct MemoryRange {
  const void* data = nullptr;
  int64_t bytes = 0;
  bool written = false;
};

class CaptureDependencies {
 public:
  static constexpr int64_t kAloneBytes = int64_t{32} << 20;

  explicit CaptureDependencies(Capture& capture);
  ~CaptureDependencies();
  CaptureDependencies(const CaptureDependencies&) = delete;
  CaptureDependencies& operator=(const CaptureDependencies&) = delete;

  absl::Status Begin(absl::Span<const MemoryRange> ranges);
  // More memory of the step that has begun, which may have recorded nodes already.
  absl::Status Touch(const MemoryRange& range);
  absl::Status Fence();
  absl::Status End();

 private:
  using Node = Capture::Node;
  using Steps = absl::InlinedVector<uint32_t, 4>;

  // Since the last fence.
  struct Step {
    std::vector<Node> last;        // that what depends on the step waits for
    std::vector<uint64_t> before;  // steps that are over when it begins, as bits
    bool awaited = false;          // by a later step
  };
  // Bytes from the key of the map on.
  struct Bytes {
    uintptr_t end = 0;
    int64_t writer = -1;  // step
    Steps readers;        // since it wrote
  };

  void Collect(const MemoryRange& range, std::set<uint32_t>& steps);
  std::map<uintptr_t, Bytes>::iterator SplitAt(uintptr_t address);
  // Of `steps` those that no other of them waits for, noted as what the current step waits for.
  std::vector<Node> WaitFor(const std::set<uint32_t>& steps);
  std::vector<Node> Leaves() const;
  absl::Status Add(std::vector<Node> nodes);

  Capture& capture_;
  bool serial_ = false;     // the driver does not tell the nodes: the stream's own order holds
  bool open_ = false;       // a step has begun
  bool fenced_ = false;     // since the step has begun
  std::vector<Node> root_;  // that steps without others to wait for wait for
  std::vector<Step> steps_;
  std::map<uintptr_t, Bytes> memory_;
};

}  // namespace kiln::runtime
