#include "compiler/artifact/tunables.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "compiler/artifact/convolution_tunables.h"
#include "compiler/artifact/gemm_tunable.h"
#include "compiler/artifact/program_calls.h"
#include "compiler/library/convolution.h"
#include "compiler/support/proto_util.h"

namespace kiln {
namespace {

// Multiplications, of which every one comes with an addition.
double WorkOf(const v1::Tunable& tunable) {
  if (tunable.has_gemm()) {
    const v1::Gemm& gemm = tunable.gemm();
    return static_cast<double>(gemm.batch()) * static_cast<double>(gemm.d().rows()) *
           static_cast<double>(gemm.d().columns()) * static_cast<double>(gemm.a().columns());
  }
  const v1::Convolution& convolution = tunable.convolution();
  double work = 1;
  for (const int64_t size : convolution.output()) work *= static_cast<double>(size);
  for (int d = 1; d < convolution.weight_size(); ++d) work *= static_cast<double>(convolution.weight(d));
  return work;
}

// Of one call; none for one that nothing describes.
std::vector<v1::Tunable> TunablesOfCall(const Graph& calls, const GraphNode& call,
                                        const v1::Numerics& numerics) {
  std::vector<v1::Tunable> tunables;
  if (auto gemm = GemmTunableOf(calls, call, numerics)) {
    *tunables.emplace_back().mutable_gemm() = *std::move(gemm);
  }
  for (v1::Convolution& convolution : ConvolutionsOf(calls, call, numerics)) {
    *tunables.emplace_back().mutable_convolution() = std::move(convolution);
  }
  return tunables;
}

// Equal tunables as one.
class Census {
 public:
  void Add(v1::Tunable tunable) {
    const auto [at, first] = known_.emplace(SerializeDeterministic(tunable), found_.size());
    const double work = WorkOf(tunable);
    if (first) found_.push_back({std::move(tunable)});
    found_[at->second].work += work;
    ++found_[at->second].calls;
  }

  struct Found {
    v1::Tunable tunable;
    double work = 0;  // of all its calls
    uint32_t calls = 0;
  };
  std::vector<Found> ByWork() && {
    std::stable_sort(found_.begin(), found_.end(),
                     [](const Found& a, const Found& b) { return a.work > b.work; });
    return std::move(found_);
  }

 private:
  std::vector<Found> found_;
  std::map<std::string, size_t> known_;
};

}  // namespace

std::vector<v1::Tunable> TunablesOf(const v1::Program& program, const v1::Numerics& numerics) {
  Census census;
  const Graph calls = CallsOf(program);
  for (const GraphNode& call : calls.nodes) {
    for (v1::Tunable& tunable : TunablesOfCall(calls, call, numerics)) census.Add(std::move(tunable));
  }
  std::vector<v1::Tunable> tunables;
  for (Census::Found& found : std::move(census).ByWork()) tunables.push_back(std::move(found.tunable));
  return tunables;
}

v1::ImageConvolutions ImageConvolutionsOf(const v1::Program& program, const v1::Numerics& numerics) {
  Census census;
  v1::ImageConvolutions convolutions;
  const Graph calls = CallsOf(program);
  for (const GraphNode& call : calls.nodes) {
    if (!IsConvolution(call.target)) continue;
    std::vector<v1::Tunable> tunables = TunablesOfCall(calls, call, numerics);
    if (tunables.empty()) convolutions.set_others(convolutions.others() + 1);
    for (v1::Tunable& tunable : tunables) census.Add(std::move(tunable));
  }
  for (Census::Found& found : std::move(census).ByWork()) {
    v1::ImageConvolutions::Use* use = convolutions.add_measured();
    *use->mutable_tunable() = std::move(found.tunable);
    use->set_calls(found.calls);
  }
  return convolutions;
}

}  // namespace kiln
