#include "client/tuner/convolution_bench.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "client/client_limits.h"
#include "compiler/support/proto_util.h"
#include "compiler/support/status_macros.h"

namespace kiln::tuner {
namespace {

using runtime::Convolution;
using runtime::Convolutions;

constexpr size_t kWorkspaceBytes = size_t{64} << 20;  // of a candidate, where the default needs no more
constexpr int64_t kSamplesMax = 64, kSamplesMin = 8;
constexpr int64_t kSampledTerms = 500'000;

struct Range {
  int64_t from, to;
};

bool Take(const google::protobuf::RepeatedField<int64_t>& from, absl::Span<int64_t> to) {
  if (static_cast<size_t>(from.size()) != to.size()) return false;
  std::copy(from.begin(), from.end(), to.begin());
  return true;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Bench>> ConvolutionBench::Create(const v1::Convolution& convolution, Gpu& gpu,
                                                                Convolutions& convolutions) {
  std::unique_ptr<ConvolutionBench> bench(new ConvolutionBench(gpu, convolutions));
  KILN_RETURN_IF_ERROR(bench->Describe(convolution));
  return bench;
}

absl::Status ConvolutionBench::Describe(const v1::Convolution& description) {
  if (!IsMeasuredType(description.dtype()))
    return absl::InvalidArgumentError("a convolution of no measured type");
  const bool sized = Take(description.input(), absl::MakeSpan(input_.sizes)) &&
                     Take(description.weight(), absl::MakeSpan(weight_.sizes)) &&
                     Take(description.output(), absl::MakeSpan(output_.sizes)) &&
                     Take(description.stride(), absl::MakeSpan(convolution_.stride)) &&
                     Take(description.padding(), absl::MakeSpan(convolution_.padding)) &&
                     Take(description.dilation(), absl::MakeSpan(convolution_.dilation));
  if (!sized) return absl::InvalidArgumentError("a convolution of other than images");
  switch (description.direction()) {
    case v1::Convolution::FORWARD: convolution_.direction = Convolution::Direction::kForward; break;
    case v1::Convolution::INPUT_GRADIENT:
      convolution_.direction = Convolution::Direction::kInputGradient;
      break;
    case v1::Convolution::WEIGHT_GRADIENT:
      convolution_.direction = Convolution::Direction::kWeightGradient;
      break;
    default: return absl::InvalidArgumentError("a convolution in no direction");
  }
  convolution_.tf32 = description.tf32();
  convolution_.deterministic = description.deterministic();
  for (auto [images, memory] : {std::pair{&input_, &convolution_.input},
                                {&weight_, &convolution_.weight},
                                {&output_, &convolution_.output}}) {
    images->strides = runtime::StridesOf(images->sizes, description.channels_last());
    *memory = {nullptr, description.dtype(), images->sizes, images->strides};
  }
  if (!Convolutions::IsSensible(convolution_))
    return absl::InvalidArgumentError("a convolution of no sensible size");
  KILN_RETURN_IF_ERROR(Fill(input_, &convolution_.input));
  KILN_RETURN_IF_ERROR(Fill(weight_, &convolution_.weight));
  KILN_RETURN_IF_ERROR(Fill(output_, &convolution_.output));
  const Images& written = Written();
  result_ = {.dtype = description.dtype(),
             .tf32 = convolution_.tf32,
             .depth = Depth(),
             .samples = std::clamp(kSampledTerms / Depth(), kSamplesMin, kSamplesMax),
             .sizes = written.sizes,
             .strides = written.strides,
             .operand = written.operand};
  return absl::OkStatus();
}

absl::Status ConvolutionBench::Fill(Images& images, runtime::TensorMemory* memory) {
  size_t elements = 1;
  for (const int64_t size : images.sizes) elements *= static_cast<size_t>(size);
  KILN_ASSIGN_OR_RETURN(images.operand, NewOperand(memory->dtype, elements));
  memory->data = images.operand->data();
  return absl::OkStatus();
}

const ConvolutionBench::Images& ConvolutionBench::Written() const {
  switch (convolution_.direction) {
    case Convolution::Direction::kForward: return output_;
    case Convolution::Direction::kInputGradient: return input_;
    case Convolution::Direction::kWeightGradient: return weight_;
  }
  return output_;
}

absl::Status ConvolutionBench::Run(bool candidate) {
  const Convolutions::Offer& offer = candidate ? offers_[chosen_] : offers_.front();
  const bool done =
      convolutions_.RunAs(convolution_, offer, call_, [this](size_t bytes) { return Workspace(bytes); });
  return done ? absl::OkStatus() : absl::FailedPreconditionError("cuDNN refused the plan");
}

int64_t ConvolutionBench::Depth() const {
  const Dims &w = weight_.sizes, &y = output_.sizes;
  const int64_t window = w[2] * w[3];
  switch (convolution_.direction) {
    case Convolution::Direction::kForward: return w[1] * window;
    case Convolution::Direction::kInputGradient: return w[0] * w[1] / input_.sizes[1] * window;
    case Convolution::Direction::kWeightGradient: return y[0] * y[2] * y[3];
  }
  return 0;
}

double ConvolutionBench::Sum(const Dims& at, double* magnitude) const {
  const bool to_input = convolution_.direction == Convolution::Direction::kInputGradient;
  const bool to_weight = convolution_.direction == Convolution::Direction::kWeightGradient;
  const Dims &x = input_.sizes, &w = weight_.sizes, &y = output_.sizes;
  const int64_t group_outputs = w[0] / (x[1] / w[1]);
  const int64_t group = (to_input ? at[1] / w[1] : (to_weight ? at[0] : at[1]) / group_outputs);
  const auto one = [](int64_t value) { return Range{value, value + 1}; };
  const Range images = to_weight ? Range{0, y[0]} : one(at[0]);
  const Range outputs = to_input    ? Range{group * group_outputs, (group + 1) * group_outputs}
                        : to_weight ? one(at[0])
                                    : one(at[1]);
  const Range inputs = to_input ? one(at[1] % w[1]) : to_weight ? one(at[1]) : Range{0, w[1]};
  // Along rows and columns: where the result and the window lie over which point of the image.
  const auto places = [&](size_t d, auto visit) {
    const int64_t stride = convolution_.stride[d - 2], padding = convolution_.padding[d - 2],
                  dilation = convolution_.dilation[d - 2];
    const Range window = to_weight ? one(at[d]) : Range{0, w[d]};
    for (int64_t r = window.from; r < window.to; ++r) {
      Range results = to_weight ? Range{0, y[d]} : one(at[d]);
      if (to_input) {
        const int64_t from = at[d] + padding - r * dilation;
        if (from < 0 || from % stride != 0 || from / stride >= y[d]) continue;
        results = one(from / stride);
      }
      for (int64_t p = results.from; p < results.to; ++p) {
        const int64_t row = p * stride - padding + r * dilation;
        if (row >= 0 && row < x[d]) visit(r, p, row);
      }
    }
  };
  const auto place = [](const Images& of, int64_t a, int64_t b, int64_t c, int64_t d) {
    return static_cast<size_t>(a * of.strides[0] + b * of.strides[1] + c * of.strides[2] + d * of.strides[3]);
  };
  double sum = 0, squares = 0;
  places(2, [&](int64_t r, int64_t p, int64_t row) {
    places(3, [&](int64_t s, int64_t q, int64_t column) {
      for (int64_t n = images.from; n < images.to; ++n) {
        for (int64_t k = outputs.from; k < outputs.to; ++k) {
          for (int64_t c = inputs.from; c < inputs.to; ++c) {
            double term = 1;
            if (!to_input) term *= input_.operand->ValueAt(place(input_, n, group * w[1] + c, row, column));
            if (!to_weight) term *= weight_.operand->ValueAt(place(weight_, k, c, r, s));
            if (to_input || to_weight) term *= output_.operand->ValueAt(place(output_, n, k, p, q));
            sum += term;
            squares += term * term;
          }
        }
      }
    });
  });
  *magnitude = std::sqrt(squares);
  return sum;
}

absl::StatusOr<v1::Candidates> ConvolutionBench::Find() {
  offers_ = convolutions_.Offers(convolution_, call_, kConvolutionOffersMax, kWorkspaceBytes);
  if (offers_.empty()) return absl::UnimplementedError("unsupported: cuDNN does not do this convolution");
  size_t most = 0;
  for (const Convolutions::Offer& offer : offers_) most = std::max(most, offer.workspace);
  KILN_RETURN_IF_ERROR(NewWorkspace(std::max<size_t>(most, 1)));
  v1::Candidates list;
  for (const Convolutions::Offer& offer : offers_) *list.add_candidates()->mutable_plan() = offer.plan;
  return list;
}

absl::Status ConvolutionBench::Choose(const v1::Candidate& candidate) {
  KILN_RETURN_IF_ERROR(CheckListed());
  const std::string wanted = SerializeDeterministic(candidate.plan());
  for (chosen_ = 0; chosen_ < offers_.size(); ++chosen_) {
    if (SerializeDeterministic(offers_[chosen_].plan) == wanted) return absl::OkStatus();
  }
  chosen_ = 0;
  return absl::InvalidArgumentError("a candidate that was not listed");
}

}  // namespace kiln::tuner
