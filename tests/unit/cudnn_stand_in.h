// A stand-in for cuDNN that convolves on the CPU as its descriptors say, F32 only, by engines that a test
// names.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <vector>

#include "client/runtime/cudnn.h"

namespace kiln::runtime {

struct FakeDescriptor {
  int kind = 0;
  bool final = false;
  std::map<int, std::vector<char>> values;
  std::vector<int> notes;  // of an engine and its configuration
  bool runs = true;
  int engine = -1;
  const FakeDescriptor* operation = nullptr;  // of a configuration

  template <typename T>
  std::vector<T> All(int attribute) const {
    const std::vector<char>& bytes = values.at(attribute);
    std::vector<T> all(bytes.size() / sizeof(T));
    std::memcpy(static_cast<void*>(all.data()), bytes.data(), bytes.size());
    return all;
  }
  template <typename T>
  T One(int attribute) const {
    return All<T>(attribute).at(0);
  }
  const inline FakeDescriptor& Of(int attribute) const {
    return *static_cast<const FakeDescriptor*>(One<void*>(attribute));
  }
};

struct FakeEngine {
  std::vector<int> notes;
  bool runs = true;
};
constexpr int kFakeKnob = 3;
constexpr uint64_t kFakeCudnn = 9;  // its version
// A knob's value, other for each engine.
inline int64_t KnobOf(int engine) { return 70 + engine; }

struct FakeLibrary {
  std::vector<FakeEngine> engines = {{}};
  int asked = 0, executed = 0, live = 0, last_engine = -1;
  int64_t workspace = 0;
  float* last_result = nullptr;
};
inline FakeLibrary fake;

inline FakeDescriptor& Of(Cudnn::Descriptor d) { return *static_cast<FakeDescriptor*>(d); }

inline size_t WidthOf(int type) {
  if (type == Cudnn::kTypeDataType || type == Cudnn::kTypeConvolutionMode ||
      type == Cudnn::kTypeHeuristicMode || type == Cudnn::kTypeFloat || type == Cudnn::kTypeKnob) {
    return 4;
  }
  return 8;
}

inline int Set(Cudnn::Descriptor d, int attribute, int type, int64_t count, const void* values) {
  if (Of(d).final) return 1;
  const auto* bytes = static_cast<const char*>(values);
  Of(d).values[attribute].assign(bytes, bytes + count * WidthOf(type));
  return 0;
}

inline int GetAttribute(Cudnn::Descriptor d, int attribute, int, int64_t wanted, int64_t* count,
                        void* values) {
  if (attribute == Cudnn::kHeuristicResults) {
    if (values == nullptr) ++fake.asked;
    const int mode = Of(d).One<int>(Cudnn::kHeuristicMode);
    const bool known = mode == Cudnn::kInstant || mode == Cudnn::kModeA;
    *count = known ? static_cast<int64_t>(fake.engines.size()) : 0;
    for (int64_t i = 0; i < wanted; ++i) {
      FakeDescriptor& configuration = Of(static_cast<void**>(values)[i]);
      configuration.operation = &Of(d).Of(Cudnn::kHeuristicGraph).Of(Cudnn::kGraphOperations);
      configuration.notes = fake.engines[i].notes;
      configuration.runs = fake.engines[i].runs;
      configuration.engine = static_cast<int>(i);
    }
  } else if (attribute == Cudnn::kConfigurationEngine) {
    FakeDescriptor& engine = Of(*static_cast<void**>(values));
    engine.notes = Of(d).notes;
    engine.engine = Of(d).engine;
  } else if (attribute == Cudnn::kEngineIndex) {
    *static_cast<int64_t*>(values) = Of(d).engine;
  } else if (attribute == Cudnn::kConfigurationKnobs) {
    *count = 1;
    FakeDescriptor& knob = Of(*static_cast<void**>(values));
    const int64_t value = KnobOf(Of(d).engine);
    Set(&knob, Cudnn::kKnobKind, Cudnn::kTypeKnob, 1, &kFakeKnob);
    Set(&knob, Cudnn::kKnobValue, Cudnn::kTypeInt64, 1, &value);
  } else if (attribute == Cudnn::kKnobKind) {
    *static_cast<int*>(values) = Of(d).One<int>(attribute);
  } else if (attribute == Cudnn::kKnobValue) {
    *static_cast<int64_t*>(values) = Of(d).One<int64_t>(attribute);
  } else if (attribute == Cudnn::kEngineNotes) {
    *count = static_cast<int64_t>(Of(d).notes.size());
    std::copy(Of(d).notes.begin(), Of(d).notes.end(), static_cast<int*>(values));
  } else if (attribute == Cudnn::kPlanWorkspace) {
    *static_cast<int64_t*>(values) = fake.workspace;
  } else {
    return 1;
  }
  return 0;
}

// What was said of an engine, or of a configuration by its engine, and not found by a heuristic.
inline bool Settle(FakeDescriptor& d) {
  if (d.kind == Cudnn::kEngine) {
    const int64_t index = d.One<int64_t>(Cudnn::kEngineIndex);
    if (index < 0 || index >= static_cast<int64_t>(fake.engines.size())) return false;
    d.engine = static_cast<int>(index);
    d.notes = fake.engines[index].notes;
    d.runs = fake.engines[index].runs;
    d.operation = &d.Of(Cudnn::kEngineGraph).Of(Cudnn::kGraphOperations);
  } else if (d.kind == Cudnn::kConfiguration) {
    const FakeDescriptor &engine = d.Of(Cudnn::kConfigurationEngine),
                         &knob = d.Of(Cudnn::kConfigurationKnobs);
    d.engine = engine.engine;
    d.notes = engine.notes;
    d.runs = engine.runs;
    d.operation = engine.operation;
    return knob.final && knob.One<int>(Cudnn::kKnobKind) == kFakeKnob &&
           knob.One<int64_t>(Cudnn::kKnobValue) == KnobOf(d.engine);
  }
  return true;
}

struct FakeTensor {
  float* data;
  std::vector<int64_t> sizes, strides;
  float& At(int64_t a, int64_t b, int64_t c, int64_t d) const {
    return data[a * strides[0] + b * strides[1] + c * strides[2] + d * strides[3]];
  }
};

inline void Convolve(int kind, const FakeTensor& w, const FakeTensor& x, const FakeTensor& y,
                     const FakeDescriptor& window) {
  const auto stride = window.All<int64_t>(Cudnn::kStrides),
             before = window.All<int64_t>(Cudnn::kPaddingBefore),
             dilation = window.All<int64_t>(Cudnn::kDilations);
  const FakeTensor& result = kind == Cudnn::kForward ? y : kind == Cudnn::kInputGradient ? x : w;
  for (int64_t a = 0; a < result.sizes[0]; ++a)
    for (int64_t b = 0; b < result.sizes[1]; ++b)
      for (int64_t c = 0; c < result.sizes[2]; ++c)
        for (int64_t d = 0; d < result.sizes[3]; ++d) result.At(a, b, c, d) = 0;
  const int64_t group_outputs = w.sizes[0] / (x.sizes[1] / w.sizes[1]);
  for (int64_t n = 0; n < y.sizes[0]; ++n)
    for (int64_t k = 0; k < y.sizes[1]; ++k)
      for (int64_t p = 0; p < y.sizes[2]; ++p)
        for (int64_t q = 0; q < y.sizes[3]; ++q)
          for (int64_t c = 0; c < w.sizes[1]; ++c)
            for (int64_t r = 0; r < w.sizes[2]; ++r)
              for (int64_t s = 0; s < w.sizes[3]; ++s) {
                const int64_t row = p * stride[0] - before[0] + r * dilation[0];
                const int64_t column = q * stride[1] - before[1] + s * dilation[1];
                if (row < 0 || column < 0 || row >= x.sizes[2] || column >= x.sizes[3]) continue;
                float& in = x.At(n, k / group_outputs * w.sizes[1] + c, row, column);
                float &weight = w.At(k, c, r, s), &out = y.At(n, k, p, q);
                if (kind == Cudnn::kForward) out += in * weight;
                if (kind == Cudnn::kInputGradient) in += out * weight;
                if (kind == Cudnn::kWeightGradient) weight += in * out;
              }
}

inline int Execute(Cudnn::Handle, Cudnn::Descriptor plan, Cudnn::Descriptor pack) {
  const FakeDescriptor& configuration = Of(plan).Of(Cudnn::kPlanConfiguration);
  if (!Of(pack).final || !configuration.runs) return 1;
  ++fake.executed;
  fake.last_engine = configuration.engine;
  if ((Of(pack).One<void*>(Cudnn::kPackWorkspace) != nullptr) != (fake.workspace > 0)) return 1;
  const FakeDescriptor& operation = *configuration.operation;
  const int first = operation.kind == Cudnn::kForward         ? Cudnn::kForwardAlpha
                    : operation.kind == Cudnn::kInputGradient ? Cudnn::kInputGradientAlpha
                                                              : Cudnn::kWeightGradientAlpha;
  if (operation.One<float>(first) != 1 || operation.One<float>(first + 1) != 0) return 1;
  const auto ids = Of(pack).All<int64_t>(Cudnn::kPackIds);
  const auto pointers = Of(pack).All<float*>(Cudnn::kPackPointers);
  const auto tensor = [&](int place) {
    const FakeDescriptor& found = operation.Of(first + 3 + place);
    size_t at = 0;
    while (ids[at] != found.One<int64_t>(Cudnn::kTensorId)) ++at;
    return FakeTensor{pointers[at], found.All<int64_t>(Cudnn::kTensorSizes),
                      found.All<int64_t>(Cudnn::kTensorStrides)};
  };
  const FakeTensor w = tensor(0), x = tensor(1), y = tensor(2);
  fake.last_result = (operation.kind == Cudnn::kForward         ? y
                      : operation.kind == Cudnn::kInputGradient ? x
                                                                : w)
                         .data;
  Convolve(operation.kind, w, x, y, operation.Of(first + 2));
  return 0;
}

inline Cudnn Library() {
  Cudnn library = {};
  library.version = []() -> size_t { return kFakeCudnn; };
  library.create = [](Cudnn::Handle* handle) {
    *handle = &fake;
    return 0;
  };
  library.set_stream = [](Cudnn::Handle, void*) { return 0; };
  library.create_descriptor = [](int kind, Cudnn::Descriptor* made) {
    ++fake.live;
    *made = new FakeDescriptor{.kind = kind};
    return 0;
  };
  library.destroy_descriptor = [](Cudnn::Descriptor d) {
    --fake.live;
    delete &Of(d);
    return 0;
  };
  library.finalize = [](Cudnn::Descriptor d) {
    Of(d).final = Settle(Of(d));
    return Of(d).final ? 0 : 1;
  };
  library.set = Set;
  library.get = GetAttribute;
  library.execute = Execute;
  return library;
}

}  // namespace kiln::runtime
