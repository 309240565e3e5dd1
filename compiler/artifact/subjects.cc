#include "compiler/artifact/subjects.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>

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

}  // namespace

std::vector<v1::Subject> SubjectsOf(const v1::Program& program, const v1::Numerics& numerics) {
  std::vector<std::pair<double, v1::Subject>> found;  // with the work of all of its kind
  std::map<std::string, size_t> known;
  const auto add = [&](v1::Subject subject) {
    const auto [at, first] = known.emplace(SerializeDeterministic(subject), found.size());
    const double work = WorkOf(subject);
    if (first) found.emplace_back(0, std::move(subject));
    found[at->second].first += work;
  };
  for (const v1::Step& step : program.steps()) {
    if (!step.has_call()) continue;
    v1::Subject subject;
    if (auto product = MatrixProductOf(program, step.call(), numerics)) {
      *subject.mutable_product() = *std::move(product);
      add(subject);
    }
    for (v1::Convolution& convolution : ConvolutionsOf(program, step.call(), numerics)) {
      *subject.mutable_convolution() = std::move(convolution);
      add(subject);
    }
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<v1::Subject> subjects;
  for (auto& [work, subject] : found) subjects.push_back(std::move(subject));
  return subjects;
}

}  // namespace kiln
