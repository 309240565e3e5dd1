#include "client/runtime/cublas_lt_gemms.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <utility>

#include "client/client_limits.h"
#include "client/runtime/native_gemm.h"
#include "client/runtime/tuned_gemms.h"

namespace kiln::runtime {
namespace {

constexpr int64_t kAlignmentMax = 256;
constexpr int64_t kTunedAlignment = 16;  // what measured algorithms may count on

std::atomic<uint64_t> tuned_plans{0};

int64_t Alignment(const void* pointer) {
  const auto address = static_cast<int64_t>(reinterpret_cast<uintptr_t>(pointer));
  return address == 0 ? kAlignmentMax : std::min(address & -address, kAlignmentMax);
}

bool TypesOf(v1::DType dtype, bool tf32, int* data, int* compute, int* scale) {
  *compute = CublasLt::kCompute32F;
  *scale = CublasLt::kF32;
  switch (dtype) {
    case v1::F32:
      *data = CublasLt::kF32;
      if (tf32) *compute = CublasLt::kComputeTf32;
      return true;
    case v1::F16: *data = CublasLt::kF16; return true;
    case v1::BF16: *data = CublasLt::kBF16; return true;
    case v1::F64:
      *data = *scale = CublasLt::kF64;
      *compute = CublasLt::kCompute64F;
      return true;
    default: return false;
  }
}

uint32_t EpilogueOf(const Gemm& gemm) {
  uint32_t bits = gemm.bias == nullptr ? 0 : uint32_t{CublasLt::kBias};
  switch (gemm.activation) {
    case v1::ACTIVATION_RELU: bits |= CublasLt::kRelu; break;
    case v1::ACTIVATION_GELU_TANH: bits |= CublasLt::kGelu; break;
    default: break;
  }
  return bits == 0 ? CublasLt::kPlain : bits;
}

// A matrix as cuBLASLt stores one: columns of `height` elements, `leading` apart.
struct Stored {
  bool transposed = false;
  int64_t height = 0, width = 0, leading = 0;
  int64_t batch_stride = 0;
  int64_t alignment = 0;
};

// Of the matrix whose element (i, j) is at i * down + j * across; false when neither stride is 1.
bool Store(const Matrix& matrix, int64_t rows, int64_t columns, int64_t down, int64_t across,
           Stored* stored) {
  const auto fits = [](int64_t size, int64_t step, int64_t other, int64_t leading) {
    return (step == 1 || size == 1) && (other == 1 || leading >= size);
  };
  stored->batch_stride = matrix.batch_stride;
  stored->alignment = Alignment(matrix.data);
  stored->transposed = !fits(rows, down, columns, across);
  if (stored->transposed && !fits(columns, across, rows, down)) return false;
  stored->height = stored->transposed ? columns : rows;
  stored->width = stored->transposed ? rows : columns;
  stored->leading = stored->width == 1 ? stored->height : stored->transposed ? down : across;
  return true;
}

class Descriptor {
 public:
  Descriptor() = default;
  ~Descriptor() {
    if (handle_ != nullptr) destroy_(handle_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  CublasLt::Descriptor* Fill(CublasLt::Status (*destroy)(CublasLt::Descriptor)) {
    destroy_ = destroy;
    return &handle_;
  }
  CublasLt::Descriptor get() const { return handle_; }

 private:
  CublasLt::Descriptor handle_ = nullptr;
  CublasLt::Status (*destroy_)(CublasLt::Descriptor) = nullptr;
};

}  // namespace

// The gemm as cuBLASLt has it, whose matrices are stored by columns: d' = first * second, where d' is d or
// its transpose, whichever has its columns beside each other.
struct Gemms::Problem {
  Stored first, second, c, d;
  bool flipped = false;  // d' is its transpose, and the factors are exchanged
  Key key = {};
};

struct Gemms::Plan {
  CublasLt::Handle handle = nullptr;
  bool flipped = false;
  Descriptor first, second, c, d;
  CublasLt::Heuristic chosen = {};
  std::shared_ptr<const NativeGemm> native;  // instead, where it does the gemm
  absl::Mutex mutex;     // of the bias' address in the operation, up to the launch that reads it
  Descriptor operation;  // guarded by mutex when there is a bias
};

Gemms::~Gemms() {
  plans_.clear();
  for (const auto& [device, handle] : handles_) library_.destroy(handle);
}

int64_t Gemms::SettingOf(const Gemm& gemm, int32_t device) {
  int64_t setting = (gemm.tf32 ? 1 : 0) | (gemm.reduced_sums ? 2 : 0) | (gemm.one_launch ? 4 : 0) |
                    (gemm.tuned != nullptr ? 8 : 0);
  for (const void* data : {static_cast<const void*>(gemm.bias), static_cast<const void*>(gemm.a.data),
                           static_cast<const void*>(gemm.b.data), static_cast<const void*>(gemm.c.data),
                           static_cast<const void*>(gemm.d.data)}) {
    const auto address = reinterpret_cast<uintptr_t>(data);
    setting = setting << 4 | std::countr_zero(address | uintptr_t{kAlignmentMax});
  }
  return setting << 32 | static_cast<uint32_t>(device);
}

bool Gemms::Pose(const Gemm& gemm, int32_t device, Problem* problem) {
  const Matrix &a = gemm.a, &b = gemm.b, &c = gemm.c, &d = gemm.d;
  if (gemm.batch <= 0 || d.rows <= 0 || d.columns <= 0 || a.columns <= 0) return false;
  if (a.rows != d.rows || b.columns != d.columns || a.columns != b.rows) return false;
  const bool has_c = c.data != nullptr, has_bias = gemm.bias != nullptr;
  if (has_c && (c.rows != d.rows || c.columns != d.columns)) return false;
  // Only a vector along the columns of d' can be a bias, so a bias rules out d itself.
  const bool flipped = problem->flipped = has_bias || d.column_stride == 1 || d.columns == 1;
  const auto pose = [&](const Matrix& matrix, Stored* stored) {
    return flipped
               ? Store(matrix, matrix.columns, matrix.rows, matrix.column_stride, matrix.row_stride, stored)
               : Store(matrix, matrix.rows, matrix.columns, matrix.row_stride, matrix.column_stride, stored);
  };
  if (!pose(flipped ? b : a, &problem->first) || !pose(flipped ? a : b, &problem->second)) return false;
  if (!pose(d, &problem->d) || problem->d.transposed) return false;
  problem->c = problem->d;
  if (has_c && (!pose(c, &problem->c) || problem->c.transposed)) return false;

  size_t at = 0;
  Key& key = problem->key;
  const int64_t flags = (has_c ? 1 : 0) | (has_bias ? 2 : 0) | (problem->first.transposed ? 4 : 0) |
                        (problem->second.transposed ? 8 : 0) | (int64_t{flipped} << 4) |
                        (int64_t{gemm.activation} << 8);
  key[at++] = SettingOf(gemm, device);
  key[at++] = gemm.dtype;
  key[at++] = flags;
  key[at++] = gemm.batch;
  for (const Stored* stored : {&problem->first, &problem->second, &problem->c, &problem->d}) {
    key[at++] = stored->height;
    key[at++] = stored->leading;
    key[at++] = gemm.batch > 1 ? stored->batch_stride : 0;
  }
  key[at++] = problem->first.width;
  key[at++] = problem->second.width;
  return true;
}

CublasLt::Handle Gemms::HandleOf(int32_t device) {
  CublasLt::Handle& handle = handles_[device];
  if (handle == nullptr && library_.create(&handle) != 0) handle = nullptr;
  return handle;
}

std::shared_ptr<Gemms::Plan> Gemms::PlanOf(const Problem& problem, const Gemm& gemm, int32_t device) {
  {
    absl::ReaderMutexLock lock(&mutex_);
    if (const auto found = plans_.find(problem.key); found != plans_.end()) return found->second;
  }
  absl::MutexLock lock(&mutex_);
  if (const auto found = plans_.find(problem.key); found != plans_.end()) return found->second;
  if (plans_.size() >= kLibraryPlansMax) plans_.clear();
  const CublasLt::Handle handle = HandleOf(device);
  if (handle == nullptr) return nullptr;
  std::shared_ptr<Plan> plan = Prepare(problem, gemm, handle);
  plans_[problem.key] = plan;
  return plan;
}

// Whether the memo has the gemm's plan now; otherwise it stays as it was.
bool Gemms::Renew(Memo& memo, int64_t setting, const Gemm& gemm, int32_t device) {
  Problem problem;
  if (!Pose(gemm, device, &problem)) return false;
  if (memo.plan_ == nullptr || memo.key_ != problem.key) {
    std::shared_ptr<Plan> plan = PlanOf(problem, gemm, device);
    if (plan == nullptr) return false;
    memo.plan_ = std::move(plan);
    memo.key_ = problem.key;
  }
  memo.setting_ = setting;
  return true;
}

std::shared_ptr<Gemms::Plan> Gemms::Prepare(const Problem& problem, const Gemm& gemm,
                                            CublasLt::Handle handle) const {
  int data = 0, compute = 0, scale = 0;
  if (!TypesOf(gemm.dtype, gemm.tf32, &data, &compute, &scale)) return nullptr;
  auto plan = std::make_shared<Plan>();
  plan->handle = handle;
  plan->flipped = problem.flipped;
  bool good =
      library_.operation.create(plan->operation.Fill(library_.operation.destroy), compute, scale) == 0;
  const auto set = [&](CublasLt::OperationAttribute attribute, bool transposed) {
    const int32_t value = transposed ? 1 : 0;
    good = good && library_.operation.set(plan->operation.get(), attribute, &value, sizeof value) == 0;
  };
  set(CublasLt::kTransA, problem.first.transposed);
  set(CublasLt::kTransB, problem.second.transposed);
  const auto describe = [&](const Stored& stored, Descriptor& to) {
    good = good && library_.matrix.create(to.Fill(library_.matrix.destroy), data, stored.height, stored.width,
                                          stored.leading) == 0;
    if (!good || gemm.batch == 1) return;
    const auto count = static_cast<int32_t>(gemm.batch);
    const int64_t offset = stored.batch_stride;
    good = library_.matrix.set(to.get(), CublasLt::kBatchCount, &count, sizeof count) == 0 &&
           library_.matrix.set(to.get(), CublasLt::kBatchOffset, &offset, sizeof offset) == 0;
  };
  describe(problem.first, plan->first);
  describe(problem.second, plan->second);
  describe(problem.c, plan->c);
  describe(problem.d, plan->d);
  if (!good || !Choose(*plan, problem, gemm)) return nullptr;
  ChooseTuned(*plan, problem, gemm);
  return plan;
}

// What the heuristic is asked for.
struct Gemms::Preference {
  size_t workspace = kGemmWorkspaceBytesMax;
  uint32_t reductions = CublasLt::kReduceAnyhow;
  int64_t alignment_max = kAlignmentMax;  // of the operands, that algorithms may count on
  int wanted = 1;
};

bool Gemms::Ask(const Plan& plan, const Problem& problem, const Gemm& gemm, const Preference& wanted,
                std::vector<CublasLt::Heuristic>* found) const {
  Descriptor preference;
  if (library_.preference.create(preference.Fill(library_.preference.destroy)) != 0) return false;
  bool good = true;
  const auto prefer = [&](CublasLt::PreferenceAttribute attribute, auto value) {
    good = good && library_.preference.set(preference.get(), attribute, &value, sizeof value) == 0;
  };
  const auto align = [&](const Stored& stored) {
    return static_cast<uint32_t>(std::min(stored.alignment, wanted.alignment_max));
  };
  prefer(CublasLt::kWorkspaceMax, uint64_t{wanted.workspace});
  prefer(CublasLt::kReductions, wanted.reductions);
  prefer(CublasLt::kAlignA, align(problem.first));
  prefer(CublasLt::kAlignB, align(problem.second));
  prefer(CublasLt::kAlignC, align(problem.c));
  prefer(CublasLt::kAlignD, align(problem.d));
  found->resize(wanted.wanted);
  int count = 0;
  good = good && library_.heuristic(plan.handle, plan.operation.get(), plan.first.get(), plan.second.get(),
                                    plan.c.get(), plan.d.get(), preference.get(), wanted.wanted,
                                    found->data(), &count) == 0;
  found->resize(good ? std::clamp(count, 0, wanted.wanted) : 0);
  std::erase_if(*found, [](const CublasLt::Heuristic& algorithm) { return algorithm.state != 0; });
  return !found->empty();
}

int32_t Gemms::SplitsOf(const CublasLt::Heuristic& algorithm) const {
  int32_t count = 1;
  size_t written = 0;
  const bool told =
      library_.configuration(&algorithm.algorithm, CublasLt::kSplits, &count, sizeof count, &written) == 0;
  return told ? count : 1;
}

bool Gemms::SetEpilogue(const Plan& plan, const Gemm& gemm) const {
  const uint32_t epilogue = EpilogueOf(gemm);
  return library_.operation.set(plan.operation.get(), CublasLt::kEpilogue, &epilogue, sizeof epilogue) == 0 &&
         (gemm.bias == nullptr ||
          library_.operation.set(plan.operation.get(), CublasLt::kBiasPointer,
                                 static_cast<const void*>(&gemm.bias), sizeof gemm.bias) == 0);
}

bool Gemms::Check(const Plan& plan, CublasLt::Heuristic* algorithm) const {
  CublasLt::Heuristic checked = {};
  if (library_.check(plan.handle, plan.operation.get(), plan.first.get(), plan.second.get(), plan.c.get(),
                     plan.d.get(), &algorithm->algorithm, &checked) != 0 ||
      checked.workspace > kGemmWorkspaceBytesMax) {
    return false;
  }
  algorithm->workspace = checked.workspace;
  return true;
}

bool Gemms::Choose(Plan& plan, const Problem& problem, const Gemm& gemm) const {
  Preference preference;
  preference.reductions = gemm.reduced_sums ? CublasLt::kReduceAnyhow : CublasLt::kReduceInCompute;
  std::vector<CublasLt::Heuristic> found;
  const auto ask = [&] {
    if (!Ask(plan, problem, gemm, preference, &found)) return false;
    plan.chosen = found.front();
    return true;
  };
  const auto choose = [&] {
    if (!ask()) return false;
    if (!gemm.one_launch || SplitsOf(plan.chosen) == 1) return true;
    const CublasLt::Heuristic fastest = plan.chosen;
    preference.workspace = 0;
    preference.reductions = CublasLt::kReduceNever;
    if (!ask() || SplitsOf(plan.chosen) != 1) plan.chosen = fastest;
    return true;
  };
  if (EpilogueOf(gemm) == CublasLt::kPlain) return choose();
  // With a bias the heuristic splits long sums less often than without, and is slower for it where a gemm
  // has few rows. So an algorithm of the plain gemm that splits is taken if it does the epilogue too.
  const bool split = !gemm.one_launch && ask() && SplitsOf(plan.chosen) > 1;
  if (!SetEpilogue(plan, gemm)) return false;
  return (split && Check(plan, &plan.chosen)) || choose();
}

void Gemms::ChooseTuned(Plan& plan, const Problem& problem, const Gemm& gemm) const {
  const TunedGemms::Choice* const found = gemm.tuned == nullptr ? nullptr : gemm.tuned->Find(gemm);
  if (found == nullptr) return;
  for (const Stored* stored : {&problem.first, &problem.second, &problem.c, &problem.d}) {
    if (stored->alignment < kTunedAlignment) return;
  }
  if (found->native != nullptr) {
    plan.native = found->native;
    tuned_plans.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  if (gemm.tuned->library_version() != version()) return;
  CublasLt::Heuristic tuned = found->algorithm;
  if ((gemm.one_launch && SplitsOf(tuned) > 1) || !Check(plan, &tuned)) return;
  plan.chosen = tuned;
  tuned_plans.fetch_add(1, std::memory_order_relaxed);
}

std::vector<CublasLt::Heuristic> Gemms::Algorithms(const Gemm& gemm, const CallContext& call, int wanted) {
  Problem problem;
  if (!Pose(gemm, call.device, &problem)) return {};
  CublasLt::Handle handle = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    handle = HandleOf(call.device);
  }
  // A plan of its own, in which no other thread sets a bias.
  const std::shared_ptr<Plan> plan = handle == nullptr ? nullptr : Prepare(problem, gemm, handle);
  if (plan == nullptr) return {};
  Preference preference;
  preference.reductions = gemm.reduced_sums ? CublasLt::kReduceAnyhow : CublasLt::kReduceInCompute;
  preference.alignment_max = kTunedAlignment;
  preference.wanted = wanted;
  std::vector<CublasLt::Heuristic> all = {plan->chosen}, found;
  const auto add = [&](bool check) {
    for (CublasLt::Heuristic& algorithm : found) {
      const bool known = std::any_of(all.begin(), all.end(), [&](const CublasLt::Heuristic& other) {
        return std::memcmp(&other.algorithm, &algorithm.algorithm, sizeof algorithm.algorithm) == 0;
      });
      if (!known && (!check || Check(*plan, &algorithm))) all.push_back(algorithm);
    }
  };
  if (Ask(*plan, problem, gemm, preference, &found)) add(/*check=*/false);
  if (EpilogueOf(gemm) != CublasLt::kPlain) {
    // Those of the plain gemm too, see Choose.
    const uint32_t plain = CublasLt::kPlain;
    const bool asked =
        library_.operation.set(plan->operation.get(), CublasLt::kEpilogue, &plain, sizeof plain) == 0 &&
        Ask(*plan, problem, gemm, preference, &found);
    if (asked && SetEpilogue(*plan, gemm)) add(/*check=*/true);
  }
  if (all.size() > static_cast<size_t>(wanted)) all.resize(wanted);
  return all;
}

bool Gemms::Launch(Plan& plan, const Gemm& gemm, const CublasLt::Heuristic& algorithm,
                   const CallContext& call, Workspace workspace) const {
  void* scratch = nullptr;
  if (algorithm.workspace > 0) {
    scratch = workspace(algorithm.workspace);
    if (scratch == nullptr) return false;
  }
  const auto alpha = static_cast<float>(gemm.alpha), beta = static_cast<float>(gemm.beta);
  const bool wide = gemm.dtype == v1::F64;
  const void* const scale_ab = wide ? static_cast<const void*>(&gemm.alpha) : &alpha;
  const void* const scale_c = wide ? static_cast<const void*>(&gemm.beta) : &beta;
  const Matrix &first = plan.flipped ? gemm.b : gemm.a, &second = plan.flipped ? gemm.a : gemm.b,
               &c = gemm.c.data == nullptr ? gemm.d : gemm.c;
  const auto launch = [&] {
    return library_.matmul(plan.handle, plan.operation.get(), scale_ab, first.data, plan.first.get(),
                           second.data, plan.second.get(), scale_c, c.data, plan.c.get(), gemm.d.data,
                           plan.d.get(), &algorithm.algorithm, scratch, algorithm.workspace,
                           call.stream) == 0;
  };
  if (gemm.bias == nullptr) return launch();
  absl::MutexLock lock(&plan.mutex);
  return library_.operation.set(plan.operation.get(), CublasLt::kBiasPointer,
                                static_cast<const void*>(&gemm.bias), sizeof gemm.bias) == 0 &&
         launch();
}

bool Gemms::Run(const Gemm& gemm, const CallContext& call, Workspace workspace, Memo* memo) {
  if (memo == nullptr) {
    Memo unkept(false);
    return Run(gemm, call, workspace, &unkept);
  }
  const int64_t setting = SettingOf(gemm, call.device);
  const bool known = memo->fixed_ && memo->plan_ != nullptr && memo->setting_ == setting;
  if (!known && !Renew(*memo, setting, gemm, call.device)) return false;
  Plan& plan = *memo->plan_;
  if (plan.native != nullptr && NativeGemm::Does(gemm)) return plan.native->Run(gemm, call).ok();
  return Launch(plan, gemm, plan.chosen, call, workspace);
}

bool Gemms::RunAs(const Gemm& gemm, const CublasLt::Heuristic& algorithm, const CallContext& call,
                  Workspace workspace) {
  Problem problem;
  if (!Pose(gemm, call.device, &problem)) return false;
  const std::shared_ptr<Plan> plan = PlanOf(problem, gemm, call.device);
  return plan != nullptr && Launch(*plan, gemm, algorithm, call, workspace);
}

uint64_t Gemms::TunedPlans() { return tuned_plans.load(std::memory_order_relaxed); }

size_t Gemms::plan_count() const {
  absl::ReaderMutexLock lock(&mutex_);
  return plans_.size();
}

}  // namespace kiln::runtime
