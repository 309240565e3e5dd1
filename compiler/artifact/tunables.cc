#include "compiler/artifact/subjects.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "compiler/artifact/convolutions.h"
#include "compiler/artifact/matrix_products.h"
#include "compiler/support/proto_util.h"

namespace kiln {
namespace {

// Multiplications, of which every one comes with an addition.
double WorkOf(const v1::Subject& subject) {
  if (subject.has_product()) {
    const v1::MatrixProduct& product = subject.product();
    return static_cast<double>(product.batch()) * static_cast<double>(product.d().rows()) *
           static_cast<double>(product.d().columns()) * static_cast<double>(product.a().columns());
  }
  const v1::Convolution& convolution = subject.convolution();
  double work = 1;
  for (const int64_t size : convolution.output()) work *= static_cast<double>(size);
  for (int d = 1; d < convolution.weight_size(); ++d) work *= static_cast<double>(convolution.weight(d));
  return work;
}

// Of one call; none for one that nothing describes.
std::vector<v1::Subject> SubjectsOfCall(const v1::Program& program, const v1::Call& call,
                                        const v1::Numerics& numerics) {
  std::vector<v1::Subject> subjects;
  if (auto product = MatrixProductOf(program, call, numerics)) {
    *subjects.emplace_back().mutable_product() = *std::move(product);
  }
  for (v1::Convolution& convolution : ConvolutionsOf(program, call, numerics)) {
    *subjects.emplace_back().mutable_convolution() = std::move(convolution);
  }
  return subjects;
}

// Equal subjects as one.
class Census {
 public:
  void Add(v1::Subject subject) {
    const auto [at, first] = known_.emplace(SerializeDeterministic(subject), found_.size());
    const double work = WorkOf(subject);
    if (first) found_.push_back({std::move(subject)});
    found_[at->second].work += work;
    ++found_[at->second].calls;
  }

  struct Found {
    v1::Subject subject;
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

std::vector<v1::Subject> SubjectsOf(const v1::Program& program, const v1::Numerics& numerics) {
  Census census;
  for (const v1::Step& step : program.steps()) {
    if (!step.has_call()) continue;
    for (v1::Subject& subject : SubjectsOfCall(program, step.call(), numerics))
      census.Add(std::move(subject));
  }
  std::vector<v1::Subject> subjects;
  for (Census::Found& found : std::move(census).ByWork()) subjects.push_back(std::move(found.subject));
  return subjects;
}

v1::ImageConvolutions ImageConvolutionsOf(const v1::Program& program, const v1::Numerics& numerics) {
  Census census;
  v1::ImageConvolutions convolutions;
  for (const v1::Step& step : program.steps()) {
    if (!step.has_call() || !absl::StartsWith(step.call().target(), "aten.convolution")) continue;
    std::vector<v1::Subject> subjects = SubjectsOfCall(program, step.call(), numerics);
    if (subjects.empty()) convolutions.set_others(convolutions.others() + 1);
    for (v1::Subject& subject : subjects) census.Add(std::move(subject));
  }
  for (Census::Found& found : std::move(census).ByWork()) {
    v1::ImageConvolutions::Use* use = convolutions.add_measured();
    *use->mutable_subject() = std::move(found.subject);
    use->set_calls(found.calls);
  }
  return convolutions;
}

}  // namespace kiln
