// One GPU for measuring: its facts, memory between red zones, a stream and times on it.
//
// By NVIDIA's driver, found at run time. Threads: one. Errors: UNIMPLEMENTED without a driver or such a GPU,
// RESOURCE_EXHAUSTED for memory, INTERNAL with the driver's words for the rest; after an INTERNAL one nothing
// on the GPU can be trusted, and the process should end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kiln/v1/tuning.pb.h"

namespace kiln::tuner {

class GpuBuffer;

class Gpu {
 public:
  // `driver`: libcuda.so.1's file, or empty: by its name.
  static absl::StatusOr<std::unique_ptr<Gpu>> Open(uint32_t ordinal, const std::string& driver);
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  const v1::GpuFacts& facts() const { return facts_; }  // without the library's version
  int32_t ordinal() const { return ordinal_; }
  void* stream() const { return stream_; }

  // `bytes` that are aligned to 256, with red zones before and behind.
  absl::StatusOr<GpuBuffer> Allocate(size_t bytes);

  // Enqueues work that evicts the L2 cache's contents.
  absl::Status FlushL2();
  // Times on the stream: marks are numbered from 0 and may be set again.
  absl::Status Mark(size_t mark);
  absl::StatusOr<double> MicrosecondsBetween(size_t from, size_t to);
  absl::Status Wait();

 private:
  friend class GpuBuffer;
  struct Functions;

  Gpu();
  absl::Status Initialize(uint32_t ordinal, const std::string& driver);
  absl::Status Check(int result, absl::string_view what) const;

  std::unique_ptr<Functions> functions_;
  v1::GpuFacts facts_;
  int32_t ordinal_ = 0;
  void* stream_ = nullptr;
  std::vector<void*> events_;
  std::unique_ptr<GpuBuffer> flushed_;
};

// Memory of a Gpu, which outlives it.
class GpuBuffer {
 public:
  GpuBuffer(GpuBuffer&& other) noexcept;
  GpuBuffer& operator=(GpuBuffer&&) = delete;
  ~GpuBuffer();

  void* data() const;
  size_t size() const { return size_; }
  // All of these wait for the stream, but CopyFrom.
  absl::Status Write(size_t offset, absl::Span<const char> bytes);
  absl::StatusOr<std::string> Read(size_t offset, size_t bytes) const;
  absl::Status Fill(uint8_t value);
  // The first `period` bytes again and again, up to `bytes` of them.
  absl::Status Repeat(size_t period, size_t bytes);
  // On the stream. INVALID_ARGUMENT for a buffer of another size.
  absl::Status CopyFrom(const GpuBuffer& from);
  // INTERNAL where the red zones are not as they were made.
  absl::Status CheckIntact() const;

 private:
  friend class Gpu;
  GpuBuffer(Gpu& gpu, uint64_t address, size_t size) : gpu_(gpu), address_(address), size_(size) {}

  Gpu& gpu_;
  uint64_t address_;  // of the first zone; 0: moved from
  size_t size_;
};

}  // namespace kiln::tuner
