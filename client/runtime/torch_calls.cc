#include "client/runtime/torch_calls.h"

#include <array>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

namespace kiln::runtime {

// The calls of one shim.
class TorchCalls::Typed {
 public:
  enum class Outcome { kDone, kNotHere };  // kNotHere: let the callback do it, or find the error
  using Function = Outcome (Typed::*)(const CallArguments&, absl::Span<Tensor>, bool);

  Typed(Host& host, const TorchShim& shim) : host_(host), shim_(shim) {}

  // Each has a function of the shim's with a signature of its own, so that no description of what the
  // operator computes tells how it is called.
  static const absl::flat_hash_map<OperatorName, Function>& Table() {
    static const auto* table = new absl::flat_hash_map<OperatorName, Function>{
        {Op::kMm, &Typed::Mm},
        {Op::kBmm, &Typed::Bmm},
        {Op::kAddmm, &Typed::Addmm},
        {Op::kBaddbmm, &Typed::Baddbmm},
        {Op::kMkldnnLinearPointwise, &Typed::Linear},
        {Op::kConvolution, &Typed::Convolution},
        {Op::kConvolutionBackward, &Typed::ConvolutionBackward},
        {Op::kScaledDotProductFlashAttentionForCpu, &Typed::Attention},
        {Op::kScaledDotProductFlashAttentionForCpuBackward, &Typed::AttentionBackward},
        {Op::kScaledDotProductEfficientAttention, &Typed::EfficientAttention},
        {Op::kScaledDotProductEfficientAttentionBackward, &Typed::EfficientAttentionBackward},
        {Op::kScaledDotProductCudnnAttention, &Typed::CudnnAttention},
        {Op::kScaledDotProductCudnnAttentionBackward, &Typed::CudnnAttentionBackward},
        {Op::kNonzero, &Typed::Nonzero},
        {Op::kMaskedSelect, &Typed::MaskedSelect},
        {Op::kMaskedScatter, &Typed::MaskedScatter},
        {Op::kRepeatInterleaveTensor, &Typed::RepeatInterleave},
        {Op::kIndexTensor, &Typed::IndexTensor},
        {Op::kIndexPut, &Typed::IndexPut},
    };
    return *table;
  }

 private:
  static Outcome Result(TorchError error) { return error == 0 ? Outcome::kDone : Outcome::kNotHere; }

  static double Real(const CallArguments& a, absl::string_view name, double otherwise) {
    const CallValue* value = a.Find(name);
    if (value == nullptr) return otherwise;
    return value->kind == v1::Argument::kAsFloat ? value->real : static_cast<double>(value->number);
  }
  static int64_t Number(const CallArguments& a, absl::string_view name, int64_t otherwise) {
    const CallValue* value = a.Find(name);
    return value == nullptr ? otherwise : value->number;
  }
  static Tensor Get(const CallArguments& a, absl::string_view name) {
    const CallValue* value = a.Find(name);
    return value == nullptr ? nullptr : value->tensor;
  }

  Outcome Gemm(TorchError (*function)(Tensor, Tensor, Tensor), const CallArguments& a, absl::Span<Tensor> r,
               bool into) {
    Tensor self = Get(a, "self"), other = Get(a, "mat2");
    if (!into || function == nullptr || self == nullptr || other == nullptr || r.size() != 1)
      return Outcome::kNotHere;
    return Result(function(r[0], self, other));
  }
  Outcome Mm(const CallArguments& a, absl::Span<Tensor> r, bool into) {
    return Gemm(shim_.gemms.mm_out, a, r, into);
  }
  Outcome Bmm(const CallArguments& a, absl::Span<Tensor> r, bool into) {
    return Gemm(shim_.gemms.bmm_out, a, r, into);
  }

  Outcome Sum(TorchError (*function)(Tensor, Tensor, Tensor, Tensor, double, double), Tensor first,
              Tensor second, const CallArguments& a, absl::Span<Tensor> r, bool into) {
    Tensor self = Get(a, "self");
    if (!into || function == nullptr || self == nullptr || first == nullptr || second == nullptr ||
        r.size() != 1) {
      return Outcome::kNotHere;
    }
    return Result(function(r[0], self, first, second, Real(a, "beta", 1), Real(a, "alpha", 1)));
  }
  Outcome Addmm(const CallArguments& a, absl::Span<Tensor> r, bool into) {
    return Sum(shim_.gemms.addmm_out, Get(a, "mat1"), Get(a, "mat2"), a, r, into);
  }
  Outcome Baddbmm(const CallArguments& a, absl::Span<Tensor> r, bool into) {
    return Sum(shim_.gemms.baddbmm_out, Get(a, "batch1"), Get(a, "batch2"), a, r, into);
  }

  Outcome Linear(const CallArguments& a, absl::Span<Tensor> r, bool into) {
    Tensor rows = Get(a, "X"), weight = Get(a, "W"), bias = Get(a, "B");
    const CallValue* activation = a.Find("attr");
    if (into || shim_.gemms.linear == nullptr || !rows || !weight || activation == nullptr || r.size() != 1)
      return Outcome::kNotHere;
    return Result(shim_.gemms.linear(rows, weight, bias == nullptr ? nullptr : &bias,
                                     activation->text.c_str(), nullptr, 0, nullptr, &r[0]));
  }

  struct Window {
    const CallValue *stride, *padding, *dilation, *output_padding;
    bool Complete() const { return stride && padding && dilation && output_padding; }
  };
  static Window WindowOf(const CallArguments& a) {
    return {a.Find("stride"), a.Find("padding"), a.Find("dilation"), a.Find("output_padding")};
  }

  Outcome Convolution(const CallArguments& a, absl::Span<Tensor> r, bool into) {
    Tensor input = Get(a, "input"), weight = Get(a, "weight"), bias = Get(a, "bias");
    const Window w = WindowOf(a);
    if (shim_.convolution.forward == nullptr || input == nullptr || weight == nullptr || !w.Complete() ||
        r.size() != 1) {
      return Outcome::kNotHere;
    }
    Tensor made = nullptr;
    const Outcome outcome = Result(shim_.convolution.forward(
        input, weight, bias == nullptr ? nullptr : &bias, w.stride->numbers.data(), w.stride->numbers.size(),
        w.padding->numbers.data(), w.padding->numbers.size(), w.dilation->numbers.data(),
        w.dilation->numbers.size(), Number(a, "transposed", 0), w.output_padding->numbers.data(),
        w.output_padding->numbers.size(), Number(a, "groups", 1), &made));
    if (outcome != Outcome::kDone) return outcome;
    if (!into) {
      r[0] = made;
      return outcome;
    }
    const bool copied = host_.Copy(r[0], made).ok();
    host_.Release(made);
    return copied ? Outcome::kDone : Outcome::kNotHere;
  }

  Outcome ConvolutionBackward(const CallArguments& a, absl::Span<Tensor> r, bool into) {
    Tensor grad = Get(a, "grad_output"), input = Get(a, "input"), weight = Get(a, "weight");
    const Window w = WindowOf(a);
    const CallValue* mask = a.Find("output_mask");
    if (into || shim_.convolution.backward == nullptr || grad == nullptr || input == nullptr ||
        weight == nullptr || !w.Complete() || mask == nullptr || mask->numbers.size() != 3 || r.size() != 3) {
      return Outcome::kNotHere;
    }
    const CallValue* bias = a.Find("bias_sizes");
    const int64_t* bias_sizes = bias == nullptr ? nullptr : bias->numbers.data();
    const std::array<int32_t, 3> wanted = {mask->numbers[0] != 0, mask->numbers[1] != 0,
                                           mask->numbers[2] != 0};
    return Result(shim_.convolution.backward(
        grad, input, weight, bias == nullptr ? nullptr : &bias_sizes,
        bias == nullptr ? 0 : bias->numbers.size(), w.stride->numbers.data(), w.stride->numbers.size(),
        w.padding->numbers.data(), w.padding->numbers.size(), w.dilation->numbers.data(),
        w.dilation->numbers.size(), Number(a, "transposed", 0), w.output_padding->numbers.data(),
        w.output_padding->numbers.size(), Number(a, "groups", 1), wanted.data(), 3, &r[0], &r[1], &r[2]));
  }

  Outcome Nonzero(const CallArguments& a, absl::Span<Tensor> r, bool into) {
    const Tensor self = Get(a, "self");
    if (into || shim_.indexing.nonzero == nullptr || self == nullptr || r.size() != 1)
      return Outcome::kNotHere;
    return Result(shim_.indexing.nonzero(self, &r[0]));
  }
  Outcome MaskedSelect(const CallArguments& a, absl::Span<Tensor> r, bool into) {
    const Tensor self = Get(a, "self"), mask = Get(a, "mask");
    if (into || shim_.indexing.masked_select == nullptr || !self || !mask || r.size() != 1)
      return Outcome::kNotHere;
    return Result(shim_.indexing.masked_select(self, mask, &r[0]));
  }
  Outcome MaskedScatter(const CallArguments& a, absl::Span<Tensor> r, bool into) {
    const Tensor self = Get(a, "self"), mask = Get(a, "mask"), source = Get(a, "source");
    if (into || shim_.indexing.masked_scatter == nullptr || !self || !mask || !source || r.size() != 1)
      return Outcome::kNotHere;
    return Result(shim_.indexing.masked_scatter(self, mask, source, &r[0]));
  }
  Outcome RepeatInterleave(const CallArguments& a, absl::Span<Tensor> r, bool into) {
    const Tensor repeats = Get(a, "repeats");
    if (into || shim_.indexing.repeat_interleave == nullptr || repeats == nullptr || r.size() != 1)
      return Outcome::kNotHere;
    const CallValue* size = a.Find("output_size");
    int64_t number = size == nullptr ? 0 : size->number;
    return Result(shim_.indexing.repeat_interleave(repeats, size == nullptr ? nullptr : &number, &r[0]));
  }

  // Of a list in which a nullptr is None.
  static std::vector<const Tensor*> Indices(const CallArguments& a) {
    std::vector<const Tensor*> indices;
    const CallValue* given = a.Find("indices");
    if (given == nullptr) return indices;
    for (const Tensor& index : given->tensors) indices.push_back(index == nullptr ? nullptr : &index);
    return indices;
  }
  Outcome IndexTensor(const CallArguments& a, absl::Span<Tensor> r, bool into) {
    const Tensor self = Get(a, "self");
    std::vector<const Tensor*> indices = Indices(a);
    if (into || shim_.indexing.index == nullptr || self == nullptr || indices.empty() || r.size() != 1)
      return Outcome::kNotHere;
    return Result(shim_.indexing.index(self, indices.data(), static_cast<int64_t>(indices.size()), &r[0]));
  }
  Outcome IndexPut(const CallArguments& a, absl::Span<Tensor> r, bool into) {
    const Tensor self = Get(a, "self"), values = Get(a, "values");
    std::vector<const Tensor*> indices = Indices(a);
    if (into || shim_.indexing.index_put == nullptr || !self || !values || indices.empty() || r.size() != 1)
      return Outcome::kNotHere;
    return Result(shim_.indexing.index_put(self, indices.data(), static_cast<int64_t>(indices.size()), values,
                                           Number(a, "accumulate", 0) != 0, &r[0]));
  }

  Outcome Attention(const CallArguments& a, absl::Span<Tensor> r, bool into) {
    Tensor query = Get(a, "query"), key = Get(a, "key"), value = Get(a, "value"), mask = Get(a, "attn_mask");
    if (into || shim_.attention.flash_cpu == nullptr || !query || !key || !value || r.size() != 2)
      return Outcome::kNotHere;
    double scale = Real(a, "scale", 0);
    return Result(shim_.attention.flash_cpu(query, key, value, Real(a, "dropout_p", 0),
                                            Number(a, "is_causal", 0), mask == nullptr ? nullptr : &mask,
                                            a.Find("scale") == nullptr ? nullptr : &scale, &r[0], &r[1]));
  }

  Outcome AttentionBackward(const CallArguments& a, absl::Span<Tensor> r, bool into) {
    Tensor grad = Get(a, "grad_out"), query = Get(a, "query"), key = Get(a, "key"), value = Get(a, "value"),
           out = Get(a, "out"), sums = Get(a, "logsumexp"), mask = Get(a, "attn_mask");
    if (into || shim_.attention.flash_cpu_backward == nullptr || !grad || !query || !key || !value || !out ||
        !sums || r.size() != 3) {
      return Outcome::kNotHere;
    }
    double scale = Real(a, "scale", 0);
    return Result(shim_.attention.flash_cpu_backward(
        grad, query, key, value, out, sums, Real(a, "dropout_p", 0), Number(a, "is_causal", 0),
        mask == nullptr ? nullptr : &mask, a.Find("scale") == nullptr ? nullptr : &scale, &r[0], &r[1],
        &r[2]));
  }

  Outcome EfficientAttention(const CallArguments& a, absl::Span<Tensor> r, bool into) {
    Tensor query = Get(a, "query"), key = Get(a, "key"), value = Get(a, "value"), bias = Get(a, "attn_bias");
    if (into || shim_.attention.efficient == nullptr || !query || !key || !value || r.size() != 4)
      return Outcome::kNotHere;
    double scale = Real(a, "scale", 0);
    return Result(shim_.attention.efficient(
        query, key, value, bias == nullptr ? nullptr : &bias, Number(a, "compute_log_sumexp", 0),
        Real(a, "dropout_p", 0), Number(a, "is_causal", 0), a.Find("scale") == nullptr ? nullptr : &scale,
        &r[0], &r[1], &r[2], &r[3]));
  }

  Outcome EfficientAttentionBackward(const CallArguments& a, absl::Span<Tensor> r, bool into) {
    Tensor grad = Get(a, "grad_out_"), query = Get(a, "query"), key = Get(a, "key"), value = Get(a, "value"),
           bias = Get(a, "attn_bias"), out = Get(a, "out"), sums = Get(a, "logsumexp"),
           seed = Get(a, "philox_seed"), offset = Get(a, "philox_offset");
    const CallValue* mask = a.Find("grad_input_mask");
    if (into || shim_.attention.efficient_backward == nullptr || !grad || !query || !key || !value || !out ||
        !sums || !seed || !offset || mask == nullptr || mask->numbers.size() != 4 || r.size() != 4) {
      return Outcome::kNotHere;
    }
    Tensor none = nullptr;
    if (bias == nullptr && shim_.handles.new_undefined(&none) != 0) return Outcome::kNotHere;
    const std::array<int32_t, 4> wanted = {mask->numbers[0] != 0, mask->numbers[1] != 0,
                                           mask->numbers[2] != 0, mask->numbers[3] != 0};
    double scale = Real(a, "scale", 0);
    const Outcome outcome = Result(shim_.attention.efficient_backward(
        grad, query, key, value, bias == nullptr ? none : bias, out, sums, seed, offset,
        Real(a, "dropout_p", 0), wanted.data(), 4, Number(a, "is_causal", 0),
        a.Find("scale") == nullptr ? nullptr : &scale, &r[0], &r[1], &r[2], &r[3]));
    if (none != nullptr) host_.Release(none);
    return outcome;
  }

  Outcome CudnnAttention(const CallArguments& a, absl::Span<Tensor> r, bool into) {
    Tensor query = Get(a, "query"), key = Get(a, "key"), value = Get(a, "value"), bias = Get(a, "attn_bias");
    if (into || shim_.attention.cudnn == nullptr || !query || !key || !value || r.size() != 9)
      return Outcome::kNotHere;
    double scale = Real(a, "scale", 0);
    int64_t longest_query = 0, longest_key = 0;  // results 4 and 5, which the graph has as expressions
    return Result(shim_.attention.cudnn(query, key, value, bias == nullptr ? nullptr : &bias,
                                        Number(a, "compute_log_sumexp", 0), Real(a, "dropout_p", 0),
                                        Number(a, "is_causal", 0), Number(a, "return_debug_mask", 0),
                                        a.Find("scale") == nullptr ? nullptr : &scale, &r[0], &r[1], &r[2],
                                        &r[3], &longest_query, &longest_key, &r[6], &r[7], &r[8]));
  }

  Outcome CudnnAttentionBackward(const CallArguments& a, absl::Span<Tensor> r, bool into) {
    constexpr std::array<const char*, 8> kNeeded = {"grad_out", "query",     "key",         "value",
                                                    "out",      "logsumexp", "philox_seed", "philox_offset"};
    constexpr std::array<const char*, 3> kOptional = {"attn_bias", "cum_seq_q", "cum_seq_k"};
    std::array<Tensor, 8> needed;
    for (size_t i = 0; i < needed.size(); ++i) {
      needed[i] = Get(a, kNeeded[i]);
      if (needed[i] == nullptr) return Outcome::kNotHere;
    }
    if (into || shim_.attention.cudnn_backward == nullptr || !a.Find("max_q") || !a.Find("max_k") ||
        r.size() != 3) {
      return Outcome::kNotHere;
    }
    Tensor none = nullptr;
    if (shim_.handles.new_undefined(&none) != 0) return Outcome::kNotHere;
    std::array<Tensor, 3> optional;
    for (size_t i = 0; i < optional.size(); ++i) {
      Tensor given = Get(a, kOptional[i]);
      optional[i] = given == nullptr ? none : given;
    }
    double scale = Real(a, "scale", 0);
    const Outcome outcome = Result(shim_.attention.cudnn_backward(
        needed[0], needed[1], needed[2], needed[3], needed[4], needed[5], needed[6], needed[7], optional[0],
        optional[1], optional[2], Number(a, "max_q", 0), Number(a, "max_k", 0), Real(a, "dropout_p", 0),
        Number(a, "is_causal", 0), a.Find("scale") == nullptr ? nullptr : &scale, &r[0], &r[1], &r[2]));
    host_.Release(none);
    return outcome;
  }

  Host& host_;
  const TorchShim& shim_;
};

bool TorchCalls::Knows(const OperatorName& target) { return Typed::Table().contains(target); }

bool TorchCalls::Call(const OperatorName& target, const CallArguments& arguments, absl::Span<Tensor> results,
                      bool into) {
  const auto found = Typed::Table().find(target);
  if (found == Typed::Table().end()) return false;
  Typed typed(host_, shim_);
  return (typed.*found->second)(arguments, results, into) == Typed::Outcome::kDone;
}

}  // namespace kiln::runtime
