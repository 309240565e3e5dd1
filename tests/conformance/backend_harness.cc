#include "tests/conformance/backend_harness.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/runtime/cuda_kernel.h"
#include "compiler/codegen/ptx_assembler.h"
#include "compiler/image/flat_image.h"
#include "compiler/image/gpu_image.h"
#include "compiler/ir/dtype_groups.h"
#include "compiler/ir/interpreter.h"
#include "compiler/ir/scalar_ops.h"
#include "compiler/schedule/thread_schedule.h"
#include "compiler/support/member_table.h"
#include "compiler/support/proto_util.h"
#include "compiler/support/status_macros.h"
#include "compiler/target/machine.h"
#include "tests/conformance/arm_target.h"
#include "tests/conformance/emulated_cpu.h"
#include "tests/conformance/gpu_device.h"
#include "tests/conformance/gpu_simulator.h"
#include "tests/conformance/gpu_target.h"

namespace kiln {
namespace {

double AsDouble(v1::DType dtype, Scalar value) {
  return dtype == v1::F64 ? value.d : static_cast<double>(value.f);
}

Scalar FromDouble(v1::DType dtype, double value) {
  Scalar scalar;
  if (dtype == v1::F64) {
    scalar.d = value;
  } else {
    scalar.f = static_cast<float>(value);
  }
  return scalar;
}

double UlpOf(v1::DType dtype, double value) {
  int bits = dtype == v1::F64 ? 52 : dtype == v1::F32 ? 23 : dtype == v1::F16 ? 10 : 7;
  int lowest = dtype == v1::F64 ? -1022 : dtype == v1::F16 ? -14 : -126;
  const int exponent = value == 0 ? lowest : std::max(lowest, std::ilogb(value));
  return std::ldexp(1.0, exponent - bits);
}

TestBuffer Empty(v1::DType dtype, int64_t elements) {
  return {dtype, std::string(static_cast<size_t>(elements * ir::ByteWidth(dtype)), '\0')};
}

int64_t Count(const TestBuffer& buffer) {
  const int64_t width = ir::ByteWidth(buffer.dtype);
  return width == 0 ? 0 : static_cast<int64_t>(buffer.bytes.size()) / width;
}

}  // namespace

TestBuffer RandomBuffer(v1::DType dtype, int64_t elements, std::mt19937_64& random) {
  TestBuffer buffer = Empty(dtype, elements);
  const double specials[] = {0.0,
                             -0.0,
                             1.0,
                             -1.0,
                             0.5,
                             2.0,
                             1e30,
                             -1e30,
                             1e-40,
                             65504.0,
                             3e9,
                             -3e9,
                             1e19,
                             std::numeric_limits<double>::infinity(),
                             -std::numeric_limits<double>::infinity(),
                             std::numeric_limits<double>::quiet_NaN()};
  for (int64_t k = 0; k < elements; ++k) {
    Scalar value;
    const uint64_t dice = random();
    if (dtype == v1::BOOL) {
      value.i = dice & 1;
    } else if (!IsFloat(dtype)) {
      const int64_t any = static_cast<int64_t>(random());
      value.i = WrapInteger(dtype, dice % 8 == 0 ? any : dice % 8 == 1 ? INT64_MIN : any % 100);
    } else if (dice % 16 == 0) {
      value = FromDouble(dtype, specials[random() % (sizeof(specials) / sizeof(*specials))]);
    } else {
      const double range = dice % 16 == 1 ? 1e4 : 8;
      value = FromDouble(dtype, std::uniform_real_distribution<double>(-range, range)(random));
    }
    StoreScalar(dtype, buffer.bytes.data(), k, value);
  }
  return buffer;
}

TestBuffer FloatBuffer(v1::DType dtype, const std::vector<double>& values) {
  TestBuffer buffer = Empty(dtype, values.size());
  for (size_t k = 0; k < values.size(); ++k)
    StoreScalar(dtype, buffer.bytes.data(), k, FromDouble(dtype, values[k]));
  return buffer;
}

TestBuffer IntBuffer(v1::DType dtype, const std::vector<int64_t>& values) {
  TestBuffer buffer = Empty(dtype, values.size());
  for (size_t k = 0; k < values.size(); ++k) {
    Scalar value;
    value.i = values[k];
    StoreScalar(dtype, buffer.bytes.data(), k, value);
  }
  return buffer;
}

std::string Difference(const std::vector<TestBuffer>& got, const std::vector<TestBuffer>& expected,
                       Tolerance tolerance) {
  for (size_t b = 0; b < got.size(); ++b) {
    const v1::DType dtype = got[b].dtype;
    if (!IsFloat(dtype)) {
      const auto at = std::mismatch(got[b].bytes.begin(), got[b].bytes.end(), expected[b].bytes.begin());
      if (at.first == got[b].bytes.end()) continue;
      const int64_t k = (at.first - got[b].bytes.begin()) / ir::ByteWidth(dtype);
      return absl::StrCat("buffer ", b, "[", k, "] = ", LoadScalar(dtype, got[b].bytes.data(), k).i, ", not ",
                          LoadScalar(dtype, expected[b].bytes.data(), k).i);
    }
    double largest = 0;
    for (int64_t k = 0; k < Count(expected[b]); ++k) {
      const double value = std::fabs(AsDouble(dtype, LoadScalar(dtype, expected[b].bytes.data(), k)));
      if (std::isfinite(value)) largest = std::max(largest, value);
    }
    for (int64_t k = 0; k < Count(got[b]); ++k) {
      const double x = AsDouble(dtype, LoadScalar(dtype, got[b].bytes.data(), k));
      const double y = AsDouble(dtype, LoadScalar(dtype, expected[b].bytes.data(), k));
      if (x == y || (std::isnan(x) && std::isnan(y))) continue;
      const double off = std::fabs(x - y);
      if (std::isfinite(x) && std::isfinite(y) &&
          (off <= tolerance.ulps * UlpOf(dtype, y) || off <= tolerance.relative * largest ||
           off <= tolerance.absolute)) {
        continue;
      }
      return absl::StrCat("buffer ", b, "[", k, "] = ", x, ", not ", y, " (", off / UlpOf(dtype, y), " ulp)");
    }
  }
  return "";
}

namespace {

constexpr size_t kCanary = 256;  // bytes behind each buffer: a store out of bounds is found
constexpr char kCanaryByte = '\x5A';

struct Prepared {
  explicit Prepared(std::vector<TestBuffer>& buffers, const std::vector<int64_t>& symbols) {
    for (TestBuffer& buffer : buffers) pointers.push_back(buffer.bytes.data());
    args = {sizeof(KilnArgs), static_cast<uint32_t>(pointers.size()), pointers.data(), symbols.data(),
            &status};
  }
  std::vector<void*> pointers;
  KilnStatus status = {};
  KilnArgs args;
};

// [0, units) in random pieces and order.
std::vector<std::pair<int64_t, int64_t>> Pieces(int64_t units, bool split, std::mt19937_64& random) {
  if (!split) return {{0, units}};
  std::vector<std::pair<int64_t, int64_t>> pieces;
  for (int64_t at = 0; at < units;) {
    const int64_t end = std::min<int64_t>(units, at + 1 + static_cast<int64_t>(random() % 3));
    pieces.emplace_back(at, end);
    at = end;
  }
  std::shuffle(pieces.begin(), pieces.end(), random);
  return pieces;
}

absl::Status RemoveCanaries(std::vector<TestBuffer>* buffers) {
  for (size_t b = 0; b < buffers->size(); ++b) {
    std::string& bytes = (*buffers)[b].bytes;
    const size_t size = bytes.size() - kCanary;
    if (bytes.substr(size) != std::string(kCanary, kCanaryByte)) {
      return absl::InternalError(absl::StrCat("wrote behind buffer ", b));
    }
    bytes.resize(size);
  }
  return absl::OkStatus();
}

class InterpreterRunner : public KernelRunner {
 public:
  absl::StatusOr<Outcome> Run(const v1::Kernel& kernel, std::vector<TestBuffer> buffers,
                              const std::vector<int64_t>& symbols, bool split,
                              std::mt19937_64& random) override {
    KILN_ASSIGN_OR_RETURN(auto interpreter, KernelInterpreter::Create(kernel));
    KILN_ASSIGN_OR_RETURN(const int64_t units, interpreter->Units(symbols.data()));
    Prepared prepared(buffers, symbols);
    for (auto [begin, end] : Pieces(units, split, random)) {
      KILN_ASSIGN_OR_RETURN(const int32_t code, interpreter->Run(prepared.args, begin, end, 0));
      if (code != 0) break;
    }
    return Outcome{prepared.status, std::move(buffers)};
  }
};

class BackendRunner : public KernelRunner {
 public:
  explicit BackendRunner(std::unique_ptr<CodegenBackend> backend) : backend_(std::move(backend)) {}

  absl::StatusOr<Outcome> Run(const v1::Kernel& kernel, std::vector<TestBuffer> buffers,
                              const std::vector<int64_t>& symbols, bool split,
                              std::mt19937_64& random) override {
    KILN_ASSIGN_OR_RETURN(auto interpreter, KernelInterpreter::Create(kernel));
    KILN_ASSIGN_OR_RETURN(const int64_t units, interpreter->Units(symbols.data()));
    KILN_RETURN_IF_ERROR(Load(kernel));
    for (TestBuffer& buffer : buffers) buffer.bytes.append(kCanary, kCanaryByte);
    Prepared prepared(buffers, symbols);
    for (auto [begin, end] : Pieces(units, split, random)) {
      const int32_t code = images_->entry(0)(&prepared.args, begin, end, 0);
      if (code != prepared.status.code) return absl::InternalError("returned code differs from the status");
      if (code != 0) break;
    }
    KILN_RETURN_IF_ERROR(RemoveCanaries(&buffers));
    // NOLINTNEXTLINE(clang-analyzer-core.StackAddressEscape): a status holds no address
    return Outcome{prepared.status, std::move(buffers)};
  }

 private:
  // Runs of one kernel in a row emit it once.
  absl::Status Load(const v1::Kernel& kernel) {
    std::string key = kernel.SerializeAsString();
    if (images_ != nullptr && key == loaded_) return absl::OkStatus();
    KILN_ASSIGN_OR_RETURN(const EmittedObject object, backend_->Emit(kernel, {}, false));
    const absl::string_view bytes = object.bytes;
    KILN_ASSIGN_OR_RETURN(images_, LoadImages({bytes}));
    loaded_ = std::move(key);
    return absl::OkStatus();
  }

  std::unique_ptr<CodegenBackend> backend_;
  std::string loaded_;
  std::unique_ptr<LoadedImages> images_;
};

class EmulatedRunner : public KernelRunner {
 public:
  EmulatedRunner(std::unique_ptr<testing::EmulatedCpu> cpu, std::unique_ptr<CodegenBackend> backend)
      : cpu_(std::move(cpu)), backend_(std::move(backend)) {}

  absl::StatusOr<Outcome> Run(const v1::Kernel& kernel, std::vector<TestBuffer> buffers,
                              const std::vector<int64_t>& symbols, bool split,
                              std::mt19937_64& random) override {
    KILN_ASSIGN_OR_RETURN(auto interpreter, KernelInterpreter::Create(kernel));
    KILN_ASSIGN_OR_RETURN(const int64_t units, interpreter->Units(symbols.data()));
    KILN_RETURN_IF_ERROR(Load(kernel, random));
    std::vector<testing::EmulatedCpu::Buffer> passed;
    for (TestBuffer& buffer : buffers) {
      buffer.bytes.append(kCanary, kCanaryByte);
      passed.push_back({&buffer.bytes, random() % 2 * ir::ByteWidth(buffer.dtype)});  // begins at any element
    }
    std::vector<testing::EmulatedPiece> pieces;
    for (auto [begin, end] : Pieces(units, split, random)) pieces.push_back({begin, end});
    KILN_ASSIGN_OR_RETURN(const testing::EmulatedReply reply, cpu_->Run(passed, symbols, pieces));
    if (reply.code != reply.status.code) return absl::InternalError("returned code differs from the status");
    KILN_RETURN_IF_ERROR(RemoveCanaries(&buffers));
    return Outcome{reply.status, std::move(buffers)};
  }

 private:
  // Runs of one kernel in a row emit it once. An image may lie at any multiple of its alignment.
  absl::Status Load(const v1::Kernel& kernel, std::mt19937_64& random) {
    std::string key = kernel.SerializeAsString();
    if (key == loaded_) return absl::OkStatus();
    KILN_ASSIGN_OR_RETURN(const EmittedObject object, backend_->Emit(kernel, {}, false));
    KILN_RETURN_IF_ERROR(cpu_->Load(object.bytes, random() % 64 * kFlatImageAlignment));
    loaded_ = std::move(key);
    return absl::OkStatus();
  }

  const std::unique_ptr<testing::EmulatedCpu> cpu_;
  const std::unique_ptr<CodegenBackend> backend_;
  std::string loaded_;
};

// So many members, where a launch's table has room for that many.
constexpr uint32_t kMembersOfTests = 3;

v1::Kernel ForMembers(const v1::Kernel& kernel, bool members) {
  v1::Kernel result = kernel;
  const uint32_t fit =
      MemberTable::MembersThatFit(static_cast<uint32_t>(kernel.buffers_size()) + kernel.symbol_count());
  if (members && fit >= kMembersOfTests && !kernel.schedule().threads().has_gemm())
    result.mutable_schedule()->set_members(fit);
  return result;
}

class GpuRunner : public KernelRunner {
 public:
  GpuRunner(testing::GpuDevice* device, std::unique_ptr<CodegenBackend> backend, bool members)
      : device_(device), backend_(std::move(backend)), members_(members) {}

  bool is_gpu() const override { return true; }
  absl::StatusOr<Outcome> Run(const v1::Kernel& one, std::vector<TestBuffer> buffers,
                              const std::vector<int64_t>& symbols, bool, std::mt19937_64& random) override {
    const v1::Kernel kernel = ForMembers(one, members_);
    KILN_ASSIGN_OR_RETURN(auto interpreter, KernelInterpreter::Create(kernel));
    KILN_ASSIGN_OR_RETURN(const int64_t units, interpreter->Units(symbols.data()));
    KILN_RETURN_IF_ERROR(Load(kernel));
    for (TestBuffer& buffer : buffers) buffer.bytes.append(kCanary, kCanaryByte);
    Prepared prepared(buffers, symbols);
    // The last one has no units.
    const uint32_t copies = kernel.schedule().members() > 0 ? kMembersOfTests - 1 : 1;
    std::vector<std::vector<std::shared_ptr<char>>> memory(copies);
    std::vector<std::vector<void*>> pointers(copies);
    std::vector<runtime::LaunchMember> launch(copies, {prepared.args, units});
    for (uint32_t copy = 0; copy < copies; ++copy) {
      for (const TestBuffer& buffer : buffers) {
        KILN_ASSIGN_OR_RETURN(memory[copy].emplace_back(), device_->Allocate(buffer.bytes.size()));
        std::memcpy(memory[copy].back().get(), buffer.bytes.data(), buffer.bytes.size());
        pointers[copy].push_back(memory[copy].back().get());
      }
      launch[copy].args.buffers = pointers[copy].data();
    }
    launch.push_back({launch.back().args, 0});
    KILN_RETURN_IF_ERROR(loaded_->RunMembers(launch, device_->context()).status());
    KILN_RETURN_IF_ERROR(device_->Wait());
    const size_t shown = random() % copies;
    for (size_t b = 0; b < buffers.size(); ++b) {
      std::memcpy(buffers[b].bytes.data(), memory[shown][b].get(), buffers[b].bytes.size());
    }
    KILN_RETURN_IF_ERROR(RemoveCanaries(&buffers));
    // NOLINTNEXTLINE(clang-analyzer-core.StackAddressEscape): a status holds no address
    return Outcome{prepared.status, std::move(buffers)};
  }

 private:
  // Runs of one kernel in a row emit it once.
  absl::Status Load(const v1::Kernel& kernel) {
    std::string key = kernel.SerializeAsString();
    if (loaded_ != nullptr && key == key_) return absl::OkStatus();
    KILN_ASSIGN_OR_RETURN(const EmittedObject object, backend_->Emit(kernel, {}, false));
    KILN_ASSIGN_OR_RETURN(loaded_, runtime::NewCudaKernel(object.bytes));
    key_ = std::move(key);
    return absl::OkStatus();
  }

  testing::GpuDevice* const device_;
  std::unique_ptr<CodegenBackend> backend_;
  const bool members_;
  std::string key_;
  std::shared_ptr<const runtime::KernelRunner> loaded_;
};

// Runs nothing: the results are the interpreter's.
class AssemblingRunner : public KernelRunner {
 public:
  explicit AssemblingRunner(std::vector<std::unique_ptr<CodegenBackend>> backends)
      : backends_(std::move(backends)), interpreter_(NewInterpreterRunner()) {}
  absl::StatusOr<Outcome> Run(const v1::Kernel& kernel, std::vector<TestBuffer> buffers,
                              const std::vector<int64_t>& symbols, bool split,
                              std::mt19937_64& random) override {
    if (std::string key = kernel.SerializeAsString(); key != key_) {
      if (getenv("KILN_FULL") != nullptr) {
        for (const auto& backend : backends_) KILN_RETURN_IF_ERROR(Assemble(*backend, kernel));
      } else {
        KILN_RETURN_IF_ERROR(Assemble(*backends_[kernels_++ % backends_.size()], kernel));
      }
      key_ = std::move(key);
    }
    return interpreter_->Run(kernel, std::move(buffers), symbols, split, random);
  }

 private:
  static absl::Status Assemble(CodegenBackend& backend, const v1::Kernel& kernel) {
    KILN_ASSIGN_OR_RETURN(const EmittedObject object, backend.Emit(kernel, {}, false));
    KILN_ASSIGN_OR_RETURN(const GpuImage image, ParseGpuImage(object.bytes));
    if (!absl::StartsWith(image.cubin, "\177ELF")) return absl::InternalError("no machine code");
    return absl::OkStatus();
  }

  const std::vector<std::unique_ptr<CodegenBackend>> backends_;
  const std::unique_ptr<KernelRunner> interpreter_;
  std::string key_;
  size_t kernels_ = 0;
};

class SimulatedGpuRunner : public KernelRunner {
 public:
  SimulatedGpuRunner(bool barriers, bool members) : barriers_(barriers), members_(members) {}
  bool is_gpu() const override { return true; }
  // `split`: on so few blocks that each takes several turns.
  absl::StatusOr<Outcome> Run(const v1::Kernel& one, std::vector<TestBuffer> buffers,
                              const std::vector<int64_t>& symbols, bool split,
                              std::mt19937_64& random) override {
    const v1::Kernel kernel = ForMembers(one, members_);
    KILN_ASSIGN_OR_RETURN(auto interpreter, KernelInterpreter::Create(kernel));
    KILN_ASSIGN_OR_RETURN(const int64_t units, interpreter->Units(symbols.data()));
    std::string key = kernel.SerializeAsString();
    if (loaded_ == nullptr || key != key_) {
      KILN_ASSIGN_OR_RETURN(loaded_, testing::SimulatedKernel::Create(kernel, barriers_));
      key_ = std::move(key);
    }
    for (TestBuffer& buffer : buffers) buffer.bytes.append(kCanary, kCanaryByte);
    std::vector<std::vector<std::max_align_t>> memory;
    std::vector<size_t> offsets;  // a tensor begins at any element
    for (const TestBuffer& buffer : buffers) offsets.push_back(random() % 2 * ir::ByteWidth(buffer.dtype));
    const auto copied = [&] {
      std::vector<void*> pointers;
      for (size_t b = 0; b < buffers.size(); ++b) {
        memory.emplace_back(buffers[b].bytes.size() / sizeof(std::max_align_t) + 2);
        pointers.push_back(reinterpret_cast<char*>(memory.back().data()) + offsets[b]);
        std::memcpy(pointers.back(), buffers[b].bytes.data(), buffers[b].bytes.size());
      }
      return pointers;
    };
    std::vector<void*> pointers = copied();
    const int64_t blocks_max = split ? 2 : INT64_MAX;
    if (kernel.schedule().members() > 0) {
      const std::vector<void*> others = copied();
      KILN_RETURN_IF_ERROR(loaded_->RunMembers({{others, units}, {others, 0}, {pointers, units}}, symbols,
                                               blocks_max, random));
      if (random() % 2 == 0) pointers = others;
    } else {
      KILN_RETURN_IF_ERROR(loaded_->Run(pointers, symbols, units, blocks_max, random));
    }
    for (size_t b = 0; b < buffers.size(); ++b) {
      std::memcpy(buffers[b].bytes.data(), pointers[b], buffers[b].bytes.size());
    }
    KILN_RETURN_IF_ERROR(RemoveCanaries(&buffers));
    return Outcome{{}, std::move(buffers)};
  }

 private:
  const bool barriers_;
  const bool members_;
  std::string key_;
  std::unique_ptr<testing::SimulatedKernel> loaded_;
};

// That no rule chooses and a kernel may allow; what is the same as `chosen` is left out.
std::vector<v1::ThreadSchedule> WithOtherNumbers(const v1::ThreadSchedule& chosen) {
  std::vector<v1::ThreadSchedule> others;
  const auto add = [&](absl::FunctionRef<void(v1::ThreadSchedule&)> change) {
    v1::ThreadSchedule other = chosen;
    change(other);
    if (SerializeDeterministic(other) != SerializeDeterministic(chosen)) others.push_back(std::move(other));
  };
  add([](auto& other) { other.set_aligned(v1::ALIGNED_NONE); });
  add([](auto& other) { other.set_wide_points(!other.wide_points()); });
  add([](auto& other) { other.set_loads_first(false); });
  add([](auto& other) {
    for (uint32_t& unroll : *other.mutable_unroll()) unroll = 1;
  });
  add([](auto& other) {
    if (other.lanes() == 1) return;
    other.set_lanes(other.lanes() / 2);
    if (other.lanes() == 1) other.set_aligned(v1::ALIGNED_NONE);
  });
  add([](auto& other) {
    if (!other.has_rows()) return;
    other.mutable_rows()->clear_flattened();
    if (other.lanes() > 1) other.set_aligned(v1::ALIGNED_STAGE);
  });
  return others;
}

}  // namespace

std::vector<v1::Kernel> WithEverySchedule(const v1::Kernel& kernel) {
  const v1::Target target = GpuTarget("sm_90");
  const auto backend = NewCodegenBackend(target);
  if (!backend.ok()) return {};
  std::vector<v1::Kernel> kernels;
  for (const v1::KernelSchedule& schedule : (*backend)->Schedules(kernel)) {
    kernels.push_back(kernel);
    *kernels.back().mutable_schedule() = schedule;
  }
  if (kernels.empty()) return kernels;
  const KernelFacts facts(kernel);
  for (const v1::ThreadSchedule& threads : WithOtherNumbers(kernels.front().schedule().threads())) {
    if (!CheckThreadSchedule(facts, MachineOf(target), threads).ok()) continue;
    kernels.push_back(kernels.front());
    *kernels.back().mutable_schedule()->mutable_threads() = threads;
  }
  return kernels;
}

absl::StatusOr<std::unique_ptr<KernelRunner>> NewSimulatedGpuRunner(bool barriers, bool members) {
#ifdef __SANITIZE_ADDRESS__
  return absl::UnavailableError("the simulator jumps between stacks, which AddressSanitizer does not follow");
#else
  return std::make_unique<SimulatedGpuRunner>(barriers, members);
#endif
}

absl::StatusOr<std::unique_ptr<KernelRunner>> NewAssemblingRunner() {
  if (!HasPtxAssembler()) return absl::UnavailableError("kiln was built without nvPTXCompiler");
  std::vector<std::unique_ptr<CodegenBackend>> backends;
  for (const char* architecture : {"sm_80", "sm_90a", "sm_100"}) {
    KILN_ASSIGN_OR_RETURN(backends.emplace_back(), NewCodegenBackend(GpuTarget(architecture)));
  }
  return std::make_unique<AssemblingRunner>(std::move(backends));
}

std::unique_ptr<KernelRunner> NewInterpreterRunner() { return std::make_unique<InterpreterRunner>(); }

absl::StatusOr<std::unique_ptr<KernelRunner>> NewBackendRunner(const v1::Target& target) {
  KILN_ASSIGN_OR_RETURN(auto backend, NewCodegenBackend(target));
  return std::unique_ptr<KernelRunner>(new BackendRunner(std::move(backend)));
}

absl::StatusOr<std::unique_ptr<KernelRunner>> NewEmulatedRunner() {
  KILN_ASSIGN_OR_RETURN(auto cpu, testing::EmulatedCpu::Start());
  KILN_ASSIGN_OR_RETURN(auto backend, NewCodegenBackend(NeonTarget()));
  return std::unique_ptr<KernelRunner>(new EmulatedRunner(std::move(cpu), std::move(backend)));
}

std::vector<v1::Kernel> WithEveryNeonSchedule(const v1::Kernel& kernel) {
  const auto backend = NewCodegenBackend(NeonTarget());
  if (!backend.ok()) return {};
  std::vector<v1::Kernel> kernels;
  for (const v1::KernelSchedule& schedule : (*backend)->Schedules(kernel)) {
    kernels.push_back(kernel);
    *kernels.back().mutable_schedule() = schedule;
  }
  return kernels;
}

absl::StatusOr<std::unique_ptr<KernelRunner>> NewGpuRunner(bool members) {
  KILN_ASSIGN_OR_RETURN(testing::GpuDevice * device, testing::GpuDevice::Find());
  KILN_ASSIGN_OR_RETURN(auto backend, NewCodegenBackend(device->target()));
  return std::unique_ptr<KernelRunner>(new GpuRunner(device, std::move(backend), members));
}

}  // namespace kiln
