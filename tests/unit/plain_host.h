// A host for tests of the runtime without torch: heap tensors, real threads, counted references.
#pragma once

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "client/runtime/host.h"
#include "compiler/graph/dtypes.h"

namespace kiln::runtime {

class PlainHost : public Host {
 public:
  struct PlainTensor {
    std::shared_ptr<char> storage;
    v1::DType dtype;
    std::vector<int64_t> sizes, strides;
    int64_t offset = 0;
    char* over = nullptr;  // memory that is not `storage`
    bool on_cpu = false;   // beside a GPU, which all else is on
  };

  absl::StatusOr<CallContext> Begin() override {
    CallContext call;
    call.recorded = recorded_;
    return call;
  }
  absl::StatusOr<Tensor> Empty(v1::DType dtype, absl::Span<const int64_t> sizes,
                               absl::Span<const int64_t> strides) override {
    int64_t last = 0;
    bool empty = false;
    for (size_t d = 0; d < sizes.size(); ++d) {
      last += (sizes[d] - 1) * strides[d];
      empty = empty || sizes[d] == 0;
    }
    const size_t bytes = empty ? 0 : (last + 1) * ByteSize(dtype);
    ++live_;
    ++allocations_;
    return new PlainTensor{
        Allocate(bytes), dtype, {sizes.begin(), sizes.end()}, {strides.begin(), strides.end()}};
  }
  absl::StatusOr<Tensor> View(Tensor base, absl::Span<const int64_t> sizes, absl::Span<const int64_t> strides,
                              int64_t offset) override {
    auto* copy = new PlainTensor(*Get(base));
    copy->sizes.assign(sizes.begin(), sizes.end());
    copy->strides.assign(strides.begin(), strides.end());
    copy->offset += offset;
    ++live_;
    ++views_;
    return copy;
  }
  absl::StatusOr<Tensor> Share(Tensor tensor) override {
    ++live_;
    return new PlainTensor(*Get(tensor));
  }
  absl::StatusOr<Tensor> Over(void* data, v1::DType dtype, absl::Span<const int64_t> sizes,
                              absl::Span<const int64_t> strides) override {
    ++live_;
    ++views_;
    ++overs_;
    return new PlainTensor{nullptr,
                           dtype,
                           {sizes.begin(), sizes.end()},
                           {strides.begin(), strides.end()},
                           0,
                           static_cast<char*>(data)};
  }
  void Release(Tensor tensor) override {
    --live_;
    delete Get(tensor);
  }
  absl::StatusOr<void*> Data(Tensor tensor) override { return Memory(tensor); }
  static void* Memory(Tensor tensor) {
    char* storage = Get(tensor)->over != nullptr ? Get(tensor)->over : Get(tensor)->storage.get();
    return storage + Get(tensor)->offset * ByteSize(Get(tensor)->dtype);
  }
  absl::StatusOr<absl::Span<const int64_t>> Sizes(Tensor tensor) override {
    return absl::MakeConstSpan(Get(tensor)->sizes);
  }
  absl::StatusOr<absl::Span<const int64_t>> Strides(Tensor tensor) override {
    return absl::MakeConstSpan(Get(tensor)->strides);
  }
  absl::StatusOr<v1::DType> Type(Tensor tensor) override { return Get(tensor)->dtype; }
  absl::Status Copy(Tensor to, Tensor from) override {
    CopyDim(0, Get(to), static_cast<char*>(Memory(to)), Get(from), static_cast<char*>(Memory(from)));
    return absl::OkStatus();
  }
  absl::StatusOr<Tensor> Seeds(uint32_t count) override {
    const int64_t size = count, stride = 1;
    auto seeds = Empty(v1::I64, {&size, 1}, {&stride, 1});
    for (uint32_t i = 0; i < count; ++i) static_cast<int64_t*>(Memory(*seeds))[i] = 1000 + i;
    return seeds;
  }
  uint32_t ThreadCount() override { return threads_; }
  absl::Status ParallelFor(int64_t units, int64_t grain,
                           absl::FunctionRef<void(int64_t, int64_t, uint32_t)> body) override {
    std::vector<std::thread> threads;
    const int64_t step = std::max<int64_t>(grain, (units + threads_ - 1) / threads_);
    for (uint32_t t = 0; t * step < units; ++t) {
      threads.emplace_back([&, t] { body(t * step, std::min<int64_t>(units, (t + 1) * step), t); });
    }
    for (std::thread& thread : threads) thread.join();
    return absl::OkStatus();
  }
  absl::StatusOr<Place> PlaceOf(Tensor tensor) override {
    return Get(tensor)->on_cpu ? Place::kOnCpu : Place::kHere;
  }
  bool StaysOnCpu(const OperatorName& target, size_t result) const override {
    return target == "test.seed.default";
  }
  // "test.copy.default": a dense copy of `self`; "test.transposed.default": the same values in column-major
  // layout; "test.alias.default": `self` itself; "test.on_cpu.default" and "test.seed.default": a copy on the
  // CPU.
  absl::Status Call(const OperatorName& target, const CallArguments& arguments, absl::Span<Tensor> results,
                    bool into) override {
    const CallValue* self = arguments.Find("self");
    if (self == nullptr) return absl::InvalidArgumentError("no self");
    PlainTensor* from = Get(self->tensor);
    if (into) return Copy(results[0], from);
    if (target == "test.alias.default") {
      results[0] = *Share(from);
      return absl::OkStatus();
    }
    std::vector<int64_t> strides(from->sizes.size());
    int64_t stride = 1;
    for (size_t i = 0; i < strides.size(); ++i) {
      const size_t d = target == "test.transposed.default" ? i : strides.size() - 1 - i;
      strides[d] = stride;
      stride *= from->sizes[d];
    }
    auto result = Empty(from->dtype, from->sizes, strides);
    if (!result.ok()) return result.status();
    results[0] = *result;
    Get(*result)->on_cpu = target == "test.on_cpu.default" || target == "test.seed.default";
    return Copy(*result, from);
  }

  bool MakesNewMemory(const OperatorName& target) const override { return target != "test.alias.default"; }

  // "test.copy.default" of dense F32 tensors, while `in_memory` allows it.
  std::unique_ptr<MemoryCall> NewMemoryCall(const OperatorName& target, bool) override {
    return target == "test.copy.default" ? std::make_unique<Copying>(*this) : nullptr;
  }

  void set_in_memory(bool in_memory) { in_memory_ = in_memory; }
  void set_recorded(bool recorded) { recorded_ = recorded; }
  void set_threads(uint32_t threads) { threads_ = threads; }
  int64_t live() const { return live_; }
  int64_t allocations() const { return allocations_; }
  int64_t views() const { return views_; }
  int64_t overs() const { return overs_; }  // those of the views that own no memory

 protected:
  virtual std::shared_ptr<char> Allocate(size_t bytes) {
    return {new char[bytes](), std::default_delete<char[]>()};
  }
  virtual bool CopyInMemory(const CallArguments& arguments, const MemoryResults& results, CallContext&) {
    const CallValue* self = arguments.Find("self");
    if (!in_memory_ || self == nullptr) return false;
    const TensorMemory& from = self->memory;
    void* to = nullptr;
    if (results.into) {
      to = results.declared[0].data;
    } else {
      auto result = Empty(from.dtype, from.sizes, from.strides);
      if (!result.ok()) return false;
      results.made[0] = *result;
      to = Memory(*result);
    }
    int64_t bytes = ByteSize(from.dtype);
    for (int64_t size : from.sizes) bytes *= size;
    std::memcpy(to, from.data, bytes);
    return true;
  }

 private:
  struct Copying : MemoryCall {
    explicit Copying(PlainHost& of) : host(of) {}
    bool Run(const CallArguments& arguments, const MemoryResults& results, CallContext& context) override {
      return host.CopyInMemory(arguments, results, context);
    }
    PlainHost& host;
  };

  static PlainTensor* Get(Tensor tensor) { return static_cast<PlainTensor*>(tensor); }
  static void CopyDim(size_t d, PlainTensor* to, char* out, PlainTensor* from, const char* in) {
    const int64_t element = ByteSize(to->dtype);
    if (d == to->sizes.size()) {
      std::memcpy(out, in, element);
      return;
    }
    for (int64_t i = 0; i < to->sizes[d]; ++i) {
      CopyDim(d + 1, to, out + i * to->strides[d] * element, from, in + i * from->strides[d] * element);
    }
  }

  std::atomic<int64_t> live_{0};
  std::atomic<int64_t> allocations_{0};
  std::atomic<int64_t> views_{0};
  std::atomic<int64_t> overs_{0};
  uint32_t threads_ = 2;
  bool in_memory_ = false;
  bool recorded_ = false;
};

}  // namespace kiln::runtime
