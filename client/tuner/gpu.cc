#include "client/tuner/gpu.h"

#include <dlfcn.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/client_limits.h"
#include "client/runtime/cuda_driver.h"
#include "client/runtime/library_functions.h"
#include "compiler/support/status_macros.h"

namespace kiln::tuner {
namespace {

constexpr size_t kRedZone = size_t{64} << 10;
constexpr uint8_t kRedByte = 0xA5;
constexpr size_t kFlushBytesMin = size_t{64} << 20;
constexpr int kOutOfMemory = 2;  // CUDA_ERROR_OUT_OF_MEMORY

enum Attribute : int { kMultiprocessors = 16, kL2Bytes = 38, kMajor = 75, kMinor = 76 };

}  // namespace

// cuda.h's, in the versions that its names stand for.
struct Gpu::Functions {
  struct Devices {
    int (*count)(int*);
    int (*get)(int*, int);
    int (*name)(char*, int, int);
    int (*attribute)(int*, int, int);
    int (*total_memory)(size_t*, int);
  };
  struct Memory {
    int (*allocate)(uint64_t*, size_t);
    int (*free)(uint64_t);
    int (*to_gpu)(uint64_t, const void*, size_t);
    int (*from_gpu)(void*, uint64_t, size_t);
    int (*copy)(uint64_t to, uint64_t from, size_t, void* stream);
    int (*fill)(uint64_t, unsigned char, size_t, void* stream);
  };
  struct Streams {
    int (*make)(void**, unsigned);
    int (*wait)(void*);
  };
  struct Events {
    int (*make)(void**, unsigned);
    int (*record)(void* event, void* stream);
    int (*elapsed)(float* milliseconds, void* from, void* to);
  };

  int (*init)(unsigned);
  int (*driver_version)(int*);
  int (*error)(int, const char**);
  Devices devices;
  Memory memory;
  Streams streams;
  Events events;
};

Gpu::Gpu() = default;

Gpu::~Gpu() { flushed_ = nullptr; }  // the rest goes with the process

absl::StatusOr<std::unique_ptr<Gpu>> Gpu::Open(uint32_t ordinal, const std::string& driver) {
  std::unique_ptr<Gpu> gpu(new Gpu);
  KILN_RETURN_IF_ERROR(gpu->Initialize(ordinal, driver));
  return gpu;
}

absl::Status Gpu::Initialize(uint32_t ordinal, const std::string& driver) {
  void* const library = dlopen(driver.empty() ? "libcuda.so.1" : driver.c_str(), RTLD_NOW);
  if (library == nullptr) return absl::UnimplementedError("unsupported: no NVIDIA driver (libcuda.so.1)");
  functions_ = std::make_unique<Functions>();
  runtime::LibraryFunctions functions(library);
  functions.Need(functions_->init, "cuInit");
  functions.Need(functions_->driver_version, "cuDriverGetVersion");
  functions.Need(functions_->devices.count, "cuDeviceGetCount");
  functions.Need(functions_->devices.get, "cuDeviceGet");
  functions.Need(functions_->devices.name, "cuDeviceGetName");
  functions.Need(functions_->devices.attribute, "cuDeviceGetAttribute");
  functions.Need(functions_->devices.total_memory, "cuDeviceTotalMem_v2");
  functions.Need(functions_->memory.allocate, "cuMemAlloc_v2");
  functions.Need(functions_->memory.free, "cuMemFree_v2");
  functions.Need(functions_->memory.to_gpu, "cuMemcpyHtoD_v2");
  functions.Need(functions_->memory.from_gpu, "cuMemcpyDtoH_v2");
  functions.Need(functions_->memory.copy, "cuMemcpyDtoDAsync_v2");
  functions.Need(functions_->memory.fill, "cuMemsetD8Async");
  functions.Need(functions_->streams.make, "cuStreamCreate");
  functions.Need(functions_->streams.wait, "cuStreamSynchronize");
  functions.Need(functions_->events.make, "cuEventCreate");
  functions.Need(functions_->events.record, "cuEventRecord");
  functions.Need(functions_->events.elapsed, "cuEventElapsedTime");
  functions.Need(functions_->error, "cuGetErrorString");
  if (functions.missing() != nullptr)
    return absl::UnimplementedError(absl::StrCat("unsupported: no function ", functions.missing()));

  KILN_RETURN_IF_ERROR(Check(functions_->init(0), "start"));
  int count = 0, device = 0, version = 0;
  KILN_RETURN_IF_ERROR(Check(functions_->devices.count(&count), "count GPUs"));
  if (static_cast<int64_t>(ordinal) >= count)
    return absl::UnimplementedError(absl::StrCat("unsupported: the driver shows ", count, " GPUs"));
  ordinal_ = static_cast<int32_t>(ordinal);
  KILN_RETURN_IF_ERROR(Check(functions_->devices.get(&device, ordinal_), "find GPU"));
  char name[256] = {};
  KILN_RETURN_IF_ERROR(Check(functions_->devices.name(name, sizeof name - 1, device), "name"));
  size_t memory = 0;
  KILN_RETURN_IF_ERROR(Check(functions_->devices.total_memory(&memory, device), "memory"));
  KILN_RETURN_IF_ERROR(Check(functions_->driver_version(&version), "version"));
  int values[4] = {};
  const Attribute wanted[4] = {kMultiprocessors, kL2Bytes, kMajor, kMinor};
  for (int i = 0; i < 4; ++i) {
    KILN_RETURN_IF_ERROR(Check(functions_->devices.attribute(&values[i], wanted[i], device), "attribute"));
  }
  facts_.set_name(name);
  facts_.set_multiprocessors(values[0]);
  facts_.set_l2_bytes(values[1]);
  facts_.set_architecture(10 * values[2] + values[3]);
  facts_.set_memory_bytes(memory);
  facts_.set_driver_version(version);

  KILN_RETURN_IF_ERROR(runtime::TheCudaDriver().status());
  KILN_RETURN_IF_ERROR(runtime::UseCudaContext(*runtime::TheCudaDriver(), ordinal_));
  constexpr unsigned kNonBlocking = 1;
  KILN_RETURN_IF_ERROR(Check(functions_->streams.make(&stream_, kNonBlocking), "make a stream"));
  KILN_ASSIGN_OR_RETURN(GpuBuffer flushed, Allocate(std::max<size_t>(kFlushBytesMin, 2 * facts_.l2_bytes())));
  flushed_ = std::make_unique<GpuBuffer>(std::move(flushed));
  return absl::OkStatus();
}

absl::Status Gpu::Check(int result, absl::string_view what) const {
  if (result == 0) return absl::OkStatus();
  const char* text = nullptr;
  functions_->error(result, &text);
  const std::string message =
      absl::StrCat("CUDA driver, ", what, ": ", text == nullptr ? "unknown error" : text);
  return result == kOutOfMemory ? absl::ResourceExhaustedError(message) : absl::InternalError(message);
}

absl::StatusOr<GpuBuffer> Gpu::Allocate(size_t bytes) {
  const size_t size = (bytes + 255) / 256 * 256;
  uint64_t address = 0;
  KILN_RETURN_IF_ERROR(Check(functions_->memory.allocate(&address, size + 2 * kRedZone), "allocate"));
  GpuBuffer buffer(*this, address, size);
  // The zone behind begins where the buffer was asked to end, up to alignment.
  KILN_RETURN_IF_ERROR(
      Check(functions_->memory.fill(address, kRedByte, size + 2 * kRedZone, stream_), "fill"));
  KILN_RETURN_IF_ERROR(Wait());
  return buffer;
}

absl::Status Gpu::FlushL2() {
  const uint64_t data = flushed_->address_ + kRedZone;
  return Check(functions_->memory.fill(data, 0, flushed_->size(), stream_), "flush");
}

absl::Status Gpu::Mark(size_t mark) {
  if (mark >= kBenchMarksMax) return absl::InternalError("too many marks");
  while (events_.size() <= mark) {
    void* event = nullptr;
    KILN_RETURN_IF_ERROR(Check(functions_->events.make(&event, 0), "make an event"));
    events_.push_back(event);
  }
  return Check(functions_->events.record(events_[mark], stream_), "record an event");
}

absl::StatusOr<double> Gpu::MicrosecondsBetween(size_t from, size_t to) {
  if (from >= events_.size() || to >= events_.size()) return absl::InternalError("a mark that was not set");
  float milliseconds = 0;
  KILN_RETURN_IF_ERROR(
      Check(functions_->events.elapsed(&milliseconds, events_[from], events_[to]), "time between events"));
  return 1e3 * milliseconds;
}

absl::Status Gpu::Wait() { return Check(functions_->streams.wait(stream_), "wait"); }

GpuBuffer::GpuBuffer(GpuBuffer&& other) noexcept
    : gpu_(other.gpu_), address_(std::exchange(other.address_, 0)), size_(other.size_) {}

GpuBuffer::~GpuBuffer() {
  if (address_ != 0) gpu_.functions_->memory.free(address_);
}

void* GpuBuffer::data() const { return reinterpret_cast<void*>(address_ + kRedZone); }

absl::Status GpuBuffer::Write(size_t offset, absl::Span<const char> bytes) {
  if (offset > size_ || bytes.size() > size_ - offset) return absl::InternalError("a write beyond a buffer");
  KILN_RETURN_IF_ERROR(gpu_.Wait());
  KILN_RETURN_IF_ERROR(
      gpu_.Check(gpu_.functions_->memory.to_gpu(address_ + kRedZone + offset, bytes.data(), bytes.size()),
                 "copy to the GPU"));
  // The call returns when the bytes are staged; our stream does not wait for the default one, which brings
  // them.
  return gpu_.Check(gpu_.functions_->streams.wait(nullptr), "wait for the copy");
}

absl::StatusOr<std::string> GpuBuffer::Read(size_t offset, size_t bytes) const {
  if (offset > size_ || bytes > size_ - offset) return absl::InternalError("a read beyond a buffer");
  KILN_RETURN_IF_ERROR(gpu_.Wait());
  std::string read(bytes, '\0');
  KILN_RETURN_IF_ERROR(gpu_.Check(
      gpu_.functions_->memory.from_gpu(read.data(), address_ + kRedZone + offset, bytes), "copy back"));
  return read;
}

absl::Status GpuBuffer::Fill(uint8_t value) {
  KILN_RETURN_IF_ERROR(
      gpu_.Check(gpu_.functions_->memory.fill(address_ + kRedZone, value, size_, gpu_.stream()), "fill"));
  return gpu_.Wait();
}

absl::Status GpuBuffer::Repeat(size_t period, size_t bytes) {
  if (period == 0 || bytes > size_) return absl::InternalError("a repetition beyond a buffer");
  const uint64_t data = address_ + kRedZone;
  for (size_t done = period; done < bytes;) {
    const size_t size = std::min(done, bytes - done);
    KILN_RETURN_IF_ERROR(
        gpu_.Check(gpu_.functions_->memory.copy(data + done, data, size, gpu_.stream()), "copy on the GPU"));
    done += size;
  }
  return gpu_.Wait();
}

absl::Status GpuBuffer::CopyFrom(const GpuBuffer& from) {
  if (from.size_ != size_) return absl::InvalidArgumentError("a copy between buffers of two sizes");
  return gpu_.Check(
      gpu_.functions_->memory.copy(address_ + kRedZone, from.address_ + kRedZone, size_, gpu_.stream()),
      "copy on the GPU");
}

absl::Status GpuBuffer::CheckIntact() const {
  KILN_RETURN_IF_ERROR(gpu_.Wait());
  for (const uint64_t zone : {address_, address_ + kRedZone + size_}) {
    std::string bytes(kRedZone, '\0');
    KILN_RETURN_IF_ERROR(
        gpu_.Check(gpu_.functions_->memory.from_gpu(bytes.data(), zone, bytes.size()), "copy back"));
    if (bytes.find_first_not_of(static_cast<char>(kRedByte)) != std::string::npos)
      return absl::InternalError("the candidate writes beyond its buffers");
  }
  return absl::OkStatus();
}

}  // namespace kiln::tuner
