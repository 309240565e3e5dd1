#include "client/runtime/tuned_convolutions.h"

#include "compiler/support/proto_util.h"

namespace kiln::runtime {
namespace {

v1::Convolution::Direction DirectionOf(Convolution::Direction direction) {
  switch (direction) {
    case Convolution::Direction::kForward: return v1::Convolution::FORWARD;
    case Convolution::Direction::kInputGradient: return v1::Convolution::INPUT_GRADIENT;
    case Convolution::Direction::kWeightGradient: return v1::Convolution::WEIGHT_GRADIENT;
  }
  return v1::Convolution::FORWARD;
}

template <typename Numbers>
void Write(const Numbers& numbers, google::protobuf::RepeatedField<int64_t>* to) {
  to->Assign(numbers.begin(), numbers.end());
}

}  // namespace

v1::Convolution Describe(const Convolution& convolution) {
  v1::Convolution description;
  description.set_direction(DirectionOf(convolution.direction));
  description.set_dtype(convolution.input.dtype);
  Write(convolution.input.sizes, description.mutable_input());
  Write(convolution.weight.sizes, description.mutable_weight());
  Write(convolution.output.sizes, description.mutable_output());
  Write(convolution.stride, description.mutable_stride());
  Write(convolution.padding, description.mutable_padding());
  Write(convolution.dilation, description.mutable_dilation());
  description.set_channels_last(!IsRowMajor(convolution));
  description.set_tf32(convolution.tf32);
  description.set_deterministic(convolution.deterministic);
  return description;
}

std::shared_ptr<const TunedConvolutions> TunedConvolutions::Create(const v1::Tuning& tuning) {
  if (tuning.measurements().empty()) return nullptr;
  std::shared_ptr<TunedConvolutions> tuned(new TunedConvolutions);
  tuned->library_version_ = tuning.gpu().cudnn_version();
  for (const v1::Measurement& measured : tuning.measurements()) {
    if (!measured.tunable().has_convolution() || !measured.winner().has_plan()) continue;
    tuned->plans_[SerializeDeterministic(measured.tunable().convolution())] = measured.winner().plan();
  }
  return tuned;
}

const v1::ConvolutionPlan* TunedConvolutions::Find(const Convolution& convolution) const {
  if (plans_.empty()) return nullptr;
  const auto found = plans_.find(SerializeDeterministic(Describe(convolution)));
  return found == plans_.end() ? nullptr : &found->second;
}

}  // namespace kiln::runtime
