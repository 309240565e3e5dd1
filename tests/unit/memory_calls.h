// For tests of library calls by addresses: torch's settings as a test wants them, tensors and arguments.
#pragma once

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "client/runtime/torch_precision.h"
#include "kiln/v1/artifact.pb.h"
#include "kiln/v1/compile.pb.h"
#include "tests/unit/plain_host.h"

namespace kiln::runtime {

struct TorchSettings {
  bool matmul_tf32 = false, convolution_tf32 = true, contradict = false;
  bool cudnn = true, benchmark = false, cudnn_deterministic = false, deterministic = false;
  uint8_t sums = 0;
};
inline TorchSettings settings;

inline TorchPrecision Precision() {
  TorchPrecision precision;
  precision.context = []() -> const void* { return &settings; };
  precision.matmul_tf32 = [](const void*) {
    if (settings.contradict) throw std::runtime_error("mixed settings");
    return settings.matmul_tf32;
  };
  precision.convolution_tf32 = [](const void*, uint64_t operation) {
    EXPECT_EQ(operation, 0x100000001u);
    return settings.convolution_tf32;
  };
  precision.bfloat_sums = [](const void*) { return settings.sums; };
  precision.cudnn_enabled = [](const void*) { return settings.cudnn; };
  precision.cudnn_benchmarked = [](const void*) { return settings.benchmark; };
  precision.cudnn_deterministic = [](const void*) { return settings.cudnn_deterministic; };
  precision.deterministic = [](const void*) { return settings.deterministic; };
  return precision;
}

class MemoryCallsTest : public ::testing::Test {
 protected:
  using Tensors = std::vector<std::pair<std::string, Tensor>>;
  using Rest = std::vector<std::pair<std::string, CallValue>>;

  MemoryCallsTest() { settings = {}; }

  Tensor New(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides) {
    const Tensor tensor = *host_.Empty(v1::F32, sizes, strides);
    kept_.push_back(tensor);
    return tensor;
  }
  // With values of its own at every place, those between the elements too.
  Tensor Filled(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides) {
    const Tensor tensor = New(sizes, strides);
    int64_t last = 0;
    for (size_t d = 0; d < sizes.size(); ++d) last += (sizes[d] - 1) * strides[d];
    for (int64_t i = 0; i <= last; ++i) {
      seed_ = seed_ * 1664525u + 1013904223u;
      static_cast<float*>(*host_.Data(tensor))[i] = static_cast<float>(seed_ >> 28) - 8;
    }
    return tensor;
  }
  float At(Tensor tensor, const std::vector<int64_t>& index) {
    int64_t place = 0;
    for (size_t d = 0; d < index.size(); ++d) place += index[d] * (*host_.Strides(tensor))[d];
    return static_cast<const float*>(*host_.Data(tensor))[place];
  }
  void TearDown() override {
    for (Tensor tensor : kept_) host_.Release(tensor);
    for (const CallContext::Kept& kept : context_.scratch) {
      if (kept.tensor != nullptr) host_.Release(kept.tensor);
    }
    EXPECT_EQ(host_.live(), 0);
  }

  TensorMemory Memory(Tensor tensor) {
    return {*host_.Data(tensor), *host_.Type(tensor), *host_.Sizes(tensor), *host_.Strides(tensor)};
  }
  struct Arguments {
    std::vector<std::string> names;
    std::vector<CallValue> values;
  };
  Arguments Bind(const Tensors& tensors, Rest rest) {
    Arguments bound;
    for (const auto& [name, tensor] : tensors) {
      bound.names.push_back(name);
      bound.values.emplace_back();
      bound.values.back().kind = v1::Argument::kAsTensor;
      bound.values.back().memory = Memory(tensor);
    }
    for (auto& [name, value] : rest) {
      bound.names.push_back(name);
      bound.values.push_back(std::move(value));
    }
    return bound;
  }
  static CallValue Number(double real) {
    CallValue value;
    value.kind = v1::Argument::kAsFloat;
    value.real = real;
    return value;
  }
  static CallValue Count(int64_t number) {
    CallValue value;
    value.kind = v1::Argument::kAsInt;
    value.number = number;
    return value;
  }
  static CallValue Pair(int64_t a, int64_t b) {
    CallValue value;
    value.kind = v1::Argument::kAsInts;
    value.numbers = {a, b};
    return value;
  }
  // The same call in `program_`. A result that is nullptr is not wanted.
  void AddCall(const std::string& target, const Tensors& tensors, const std::vector<Tensor>& results,
               const Rest& rest = {}) {
    v1::Call call;
    call.set_target(target);
    const auto argument = [&](const std::string& name) {
      call.add_args()->set_name(name);
      return call.mutable_args(call.args_size() - 1)->mutable_value();
    };
    for (const auto& [name, tensor] : tensors) argument(name)->set_as_tensor(AddBuffer(tensor));
    for (const auto& [name, value] : rest) {
      if (name == "transposed") {
        argument(name)->set_as_bool(value.number != 0);
      } else if (value.kind == v1::Argument::kAsInts) {
        v1::Argument::Ints* numbers = argument(name)->mutable_as_ints();
        for (const int64_t number : value.numbers) numbers->add_values(number);
      } else {
        argument(name)->set_as_int(value.number);
      }
    }
    for (Tensor result : results) call.add_results(result == nullptr ? -1 : int64_t{AddBuffer(result)});
    *program_.add_steps()->mutable_call() = std::move(call);
  }
  Rest Window(int64_t stride, int64_t padding, int64_t groups) {
    return {{"stride", Pair(stride, stride)}, {"padding", Pair(padding, padding)}, {"dilation", Pair(1, 1)},
            {"transposed", Count(0)},         {"output_padding", Pair(0, 0)},      {"groups", Count(groups)}};
  }

  uint32_t AddBuffer(Tensor tensor) {
    v1::ProgramBuffer* buffer = program_.add_buffers();
    buffer->set_dtype(v1::F32);
    const auto sizes = host_.Sizes(tensor), strides = host_.Strides(tensor);
    for (const int64_t size : *sizes) buffer->add_sizes()->set_value(size);
    for (const int64_t stride : *strides) buffer->add_strides()->set_value(stride);
    return static_cast<uint32_t>(program_.buffers_size() - 1);
  }

  v1::Program program_;
  v1::Numerics numerics_;
  PlainHost host_;
  CallContext context_;
  std::vector<Tensor> kept_;
  uint32_t seed_ = 1;
};

}  // namespace kiln::runtime
