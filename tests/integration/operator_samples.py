"""Functions of one operator or a few, with inputs: what PyTorch's users write, not ATen's overloads."""
import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import torch._inductor.inductor_prims  # prims.fma, which torch's own decompositions write
import torch.nn.functional as F


@dataclasses.dataclass
class Sample:
    name: str
    function: Callable[..., Any]
    inputs: tuple[Any, ...]
    differentiable: bool = True
    half: bool = True  # also with bfloat16 inputs
    dynamic: bool = True


SAMPLES: list[Sample] = []


def sample(name: str, function: Callable[..., Any], *inputs: Any, **options: Any) -> None:
    SAMPLES.append(Sample(name, function, inputs, **options))


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def t(*sizes: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*sizes, generator=_generator(seed + len(sizes)))


def positive(*sizes: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*sizes, generator=_generator(seed)) + 0.1


def unit(*sizes: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*sizes, generator=_generator(seed)) * 0.9 + 0.05


def ints(high: int, *sizes: int, low: int = 0, seed: int = 0) -> torch.Tensor:
    return torch.randint(low, high, sizes, generator=_generator(seed))


def bools(*sizes: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*sizes, generator=_generator(seed)) > 0.4


def _activations() -> None:
    x = t(5, 33)
    for name in ("relu", "relu6", "gelu", "silu", "mish", "hardswish", "hardsigmoid", "hardtanh", "leaky_relu", "elu",
                 "celu", "selu", "softplus", "logsigmoid", "softsign", "tanhshrink", "hardshrink", "softshrink"):
        sample(name, getattr(F, name), x)
    sample("gelu_tanh", lambda x: F.gelu(x, approximate="tanh"), x)
    sample("threshold", lambda x: F.threshold(x, 0.1, 20.0), x)
    sample("glu", lambda x: F.glu(x, 0), t(6, 33))
    sample("prelu", F.prelu, t(2, 3, 7), positive(3))
    sample("sigmoid", torch.sigmoid, x)
    sample("tanh", torch.tanh, x)
    sample("softplus_beta", lambda x: F.softplus(x, beta=2.0, threshold=3.0), x)
    sample("elu_alpha", lambda x: F.elu(x, alpha=0.7), x)
    sample("logit", lambda x: torch.logit(x, eps=1e-3), unit(4, 9))


def _pointwise() -> None:
    x, y = t(4, 17), t(4, 17, seed=9)
    for name in ("abs", "neg", "exp", "exp2", "expm1", "sin", "cos", "tan", "tanh", "atan", "sinh", "cosh", "asinh",
                 "erf",
                 "erfc", "floor", "ceil", "trunc", "round", "sign", "frac", "square", "sinc", "deg2rad"):
        sample(name, getattr(torch, name), x)
    for name in ("log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "lgamma"):
        sample(name, getattr(torch, name), positive(4, 17))
    for name in ("asin", "acos", "atanh"):
        sample(name, getattr(torch, name), unit(4, 17))
    for name in ("add", "sub", "mul", "div", "maximum", "minimum", "atan2", "fmax", "fmin", "hypot", "logaddexp",
                 "copysign"):
        sample(f"{name}_tensors", getattr(torch, name), x, y)
    sample("add_alpha", lambda x, y: torch.add(x, y, alpha=0.3), x, y)
    sample("sub_alpha", lambda x, y: torch.sub(x, y, alpha=2), x, y)
    sample("rsub", lambda x: 3.5 - x, x)
    sample("rdiv", lambda x: 2.0 / x, positive(4, 17))
    sample("broadcast", lambda x, y: x * y + 1, t(4, 1, 5), t(3, 1))
    sample("zero_dim", lambda x, y: x * y, t(4, 5), torch.tensor(2.5))
    for exponent in (0.5, 2, 3, -1, -0.5, -2, 1.7, 0, 1):
        sample(f"pow_{exponent}", lambda x, e=exponent: x**e, positive(3, 7),
               dynamic=isinstance(exponent, float))
    sample("pow_scalar_base", lambda x: 2.5**x, x)
    sample("pow_tensors", lambda x, y: x**y, positive(3, 7), t(3, 7))
    sample("pow_int", lambda i: i**3, ints(9, 3, 7), differentiable=False, half=False)
    sample("floor_divide", lambda x, y: torch.div(x, y, rounding_mode="floor"), x * 10, positive(4, 17), half=False)
    sample("trunc_divide", lambda x, y: torch.div(x, y, rounding_mode="trunc"), x * 10, positive(4, 17), half=False)
    sample("floor_divide_int", lambda i: i // 3, ints(50, 3, 7, low=-50), differentiable=False, half=False)
    sample("true_divide_int", lambda i, j: i / j, ints(50, 3, 7), ints(9, 3, 7, low=1), differentiable=False,
           half=False)
    sample("remainder", lambda x: torch.remainder(x, 1.5), x * 5, half=False)
    sample("fmod", lambda x: torch.fmod(x, 1.5), x * 5, half=False)
    sample("remainder_int", lambda i: i % 7, ints(50, 3, 7, low=-50), differentiable=False, half=False)
    sample("clamp", lambda x: x.clamp(-0.5, 0.7), x)
    sample("clamp_min", lambda x: x.clamp(min=0.1), x)
    sample("clamp_tensors", lambda x, y: torch.clamp(x, min=y, max=y + 1), x, y)
    sample("clamp_int", lambda i: i.clamp(2, 5), ints(9, 3, 7), differentiable=False, half=False)
    sample("where", lambda c, x, y: torch.where(c, x, y), bools(4, 17), x, y)
    sample("where_scalar", lambda c, x: torch.where(c, x, 0.5), bools(4, 17), x)
    sample("masked_fill", lambda x, m: x.masked_fill(m, -1e9), x, bools(4, 17))
    sample("addcmul", lambda x, y, z: torch.addcmul(x, y, z, value=0.3), x, y, t(4, 17, seed=3))
    sample("fma", torch.ops.prims.fma, x, y, t(4, 17, seed=3), differentiable=False, half=False)
    sample("addcdiv", lambda x, y, z: torch.addcdiv(x, y, z, value=0.3), x, y, positive(4, 17))
    sample("lerp", lambda x, y: torch.lerp(x, y, 0.3), x, y)
    sample("lerp_tensor", torch.lerp, x, y, unit(4, 17))
    sample("nan_to_num", torch.nan_to_num, torch.tensor([1.0, float("nan"), float("inf"), -float("inf")]), half=False)
    sample("xlogy", torch.xlogy, x, positive(4, 17))
    sample("compare", lambda x, y: (x < y, x <= y, x > 0, x >= y, x == x, x != y), x, y, differentiable=False)
    sample("logic", lambda a, b: (a & b, a | b, a ^ b, ~a, torch.logical_and(a, b)), bools(9), bools(9, seed=4),
           differentiable=False, half=False)
    sample("bits", lambda i, j: (i & j, i | 3, i ^ j, ~i, i << 2, i >> 1), ints(99, 9), ints(99, 9, seed=4),
           differentiable=False, half=False)
    sample("classify", lambda x: (torch.isnan(x), torch.isinf(x), torch.isfinite(x)),
           torch.tensor([1.0, float("nan"), float("inf")]), differentiable=False)
    sample("signbit", lambda x: torch.signbit(x), torch.tensor([1.0, -0.0, 0.0, -float("nan")]), differentiable=False)
    sample("signbit_of_integers", lambda i, b: (torch.signbit(i), torch.signbit(b)), ints(9, 9) - 4, bools(9),
           differentiable=False, half=False)
    sample("isclose", lambda x, y: torch.isclose(x, y, atol=0.5), x, y, differentiable=False, half=False)
    sample("cast",
           lambda x: (x.to(torch.int32), x.to(torch.float64), x.to(torch.bool), (x * 4).to(torch.uint8).float()),
           positive(4, 9), differentiable=False, half=False)
    sample("int_float_mix", lambda i, x: i * x + i, ints(9, 4, 17), x, half=False)
    sample("bool_arithmetic", lambda b, x: b * x + b, bools(4, 17), x, half=False)
    sample("exp_of_int", lambda i: (i.exp(), i.sqrt(), i.sigmoid(), i.floor()), ints(5, 7), differentiable=False,
           half=False)
    sample("heaviside", torch.heaviside, x, torch.tensor(0.5), differentiable=False, half=False)


def _reductions() -> None:
    x = t(4, 5, 6)
    for name in ("sum", "mean", "amax", "amin", "prod", "var", "std"):
        sample(f"{name}_all", getattr(torch, name), t(3, 7), dynamic=name != "prod")
    for name in ("sum", "mean", "amax", "amin", "prod", "var", "std", "logsumexp", "argmax", "argmin"):
        sample(f"{name}_dim", lambda x, n=name: getattr(torch, n)(x, 1), x, differentiable=not name.startswith("arg"))
        sample(f"{name}_keepdim", lambda x, n=name: getattr(torch, n)(x, -1, keepdim=True), x,
               differentiable=not name.startswith("arg"))
    sample("sum_dims", lambda x: x.sum((0, 2)), x)
    sample("mean_dims", lambda x: x.mean((-1, -2)), x)
    sample("sum_int", lambda i: i.sum(0), ints(9, 5, 6), differentiable=False, half=False)
    sample("sum_bool", lambda b: (b.sum(), b.sum(1)), bools(5, 6), differentiable=False, half=False)
    sample("sum_dtype", lambda x: x.sum(1, dtype=torch.float64), x)
    sample("var_mean", lambda x: torch.var_mean(x, 1, correction=0), x)
    sample("std_mean", lambda x: torch.std_mean(x, (1, 2)), x)
    sample("max_dim", lambda x: torch.max(x, 1), x)
    sample("min_dim", lambda x: torch.min(x, 0, keepdim=True), x)
    sample("max_all", torch.max, x)
    sample("argmax_all", torch.argmax, x, differentiable=False)
    sample("aminmax", lambda x: torch.aminmax(x, dim=1), x)
    sample("any_all", lambda b: (b.any(), b.all(), b.any(1), b.all(0)), bools(5, 6), differentiable=False, half=False)
    sample("any_float", lambda x: (x > 1).any(-1), x, differentiable=False)
    sample("norm_2", lambda x: x.norm(), x)
    sample("norm_1", lambda x: torch.linalg.vector_norm(x, 1, dim=-1), x)
    sample("norm_inf", lambda x: torch.linalg.vector_norm(x, float("inf"), dim=(0, 1)), x)
    sample("norm_3", lambda x: torch.linalg.vector_norm(x, 3, dim=-1, keepdim=True), x)
    sample("normalize", lambda x: F.normalize(x, dim=-1), x)
    sample("cosine_similarity", lambda x, y: F.cosine_similarity(x, y), t(4, 5), t(4, 5, seed=6))
    sample("count_nonzero", lambda i: torch.count_nonzero(i, 1), ints(2, 5, 6), differentiable=False, half=False)
    sample("nansum", lambda x: torch.nansum(x, 0), x)
    sample("trace", torch.trace, t(4, 4))
    sample("cumsum", lambda x: x.cumsum(1), x)
    sample("cumsum_int", lambda i: i.cumsum(-1), ints(9, 5, 6), differentiable=False, half=False)
    sample("cumprod", lambda x: x.cumprod(-1), positive(3, 5))
    sample("dist", lambda x, y: torch.dist(x, y), x, t(4, 5, 6, seed=4))
    sample("zero_dim_sum", lambda x: x.sum() + x.mean() + x.max(), torch.tensor(3.0))
    sample("softmax", lambda x: F.softmax(x, -1), x)
    sample("softmax_middle", lambda x: F.softmax(x, 1), x)
    sample("log_softmax", lambda x: F.log_softmax(x, -1), x)
    sample("softmin", lambda x: F.softmin(x, 0), x)
    sample("softmax_masked", lambda x, m: F.softmax(x.masked_fill(m, -float("inf")), -1), t(4, 6),
           torch.tensor([False, True, False, False, True, False]))
    sample("gumbel_like", lambda x: F.softmax((x - torch.log(-torch.log(torch.full_like(x, 0.3)))) / 0.7, -1), x)


def _normalization() -> None:
    sample("layer_norm", lambda x, w, b: F.layer_norm(x, (12,), w, b), t(3, 5, 12), t(12), t(12, seed=3))
    sample("layer_norm_plain", lambda x: F.layer_norm(x, (5, 12)), t(3, 5, 12))
    sample("layer_norm_no_bias", lambda x, w: F.layer_norm(x, (12,), w), t(5, 12), t(12))
    sample("rms_norm", lambda x, w: F.rms_norm(x, (12,), w), t(3, 5, 12), t(12))
    sample("rms_norm_plain", lambda x: F.rms_norm(x, (12,), eps=1e-5), t(3, 5, 12))
    sample("group_norm", lambda x, w, b: F.group_norm(x, 3, w, b), t(2, 6, 4, 4), t(6), t(6, seed=3))
    sample("group_norm_plain", lambda x: F.group_norm(x, 2), t(2, 6, 5))
    sample("instance_norm", lambda x: F.instance_norm(x), t(2, 3, 4, 4))
    sample("batch_norm_train",
           lambda x, m, v, w, b: F.batch_norm(x, m.detach().clone(), v.detach().clone(), w, b, training=True),
           t(4, 3, 5, 5), torch.zeros(3), torch.ones(3), t(3), t(3, seed=5), half=False)
    sample("batch_norm_eval", lambda x, m, v, w, b: F.batch_norm(x, m.detach(), v.detach(), w, b), t(4, 3, 5, 5), t(3),
           positive(3), t(3),
           t(3, seed=5), half=False)
    sample("batch_norm_1d", lambda x: F.batch_norm(x, None, None, training=True), t(6, 3), half=False)
    sample("local_response_norm", lambda x: F.local_response_norm(x, 2), t(2, 6, 4, 4), half=False)


def _losses() -> None:
    x, y = t(6, 9), t(6, 9, seed=7)
    target = ints(9, 6)
    padded = torch.tensor([1, -100, 3, 8, -100, 0])
    for reduction in ("none", "mean", "sum"):
        sample(f"mse_{reduction}", lambda x, y, r=reduction: F.mse_loss(x, y, reduction=r), x, y)
        sample(f"l1_{reduction}", lambda x, y, r=reduction: F.l1_loss(x, y, reduction=r), x, y)
        sample(f"smooth_l1_{reduction}", lambda x, y, r=reduction: F.smooth_l1_loss(x, y, reduction=r, beta=0.7), x, y)
        sample(f"huber_{reduction}", lambda x, y, r=reduction: F.huber_loss(x, y, reduction=r, delta=0.8), x, y)
        sample(f"bce_{reduction}", lambda x, y, r=reduction: F.binary_cross_entropy(x, y, reduction=r), unit(6, 9),
               unit(6, 9, seed=3), half=False)
        sample(f"bce_logits_{reduction}",
               lambda x, y, r=reduction: F.binary_cross_entropy_with_logits(x, y, reduction=r), x, unit(6, 9))
        sample(f"cross_entropy_{reduction}", lambda x, t, r=reduction: F.cross_entropy(x, t, reduction=r), x, target)
        sample(f"cross_entropy_ignore_{reduction}", lambda x, t, r=reduction: F.cross_entropy(x, t, reduction=r), x,
               padded)
        sample(f"cross_entropy_weight_{reduction}",
               lambda x, t, w, r=reduction: F.cross_entropy(x, t, w.detach(), reduction=r), x, padded, positive(9),
               half=False)
        sample(f"kl_div_{reduction}",
               lambda x, y, r=reduction: F.kl_div(F.log_softmax(x, -1), F.softmax(y, -1), reduction=r), x, y)
        sample(f"soft_margin_{reduction}",
               lambda x, y, r=reduction: F.soft_margin_loss(x, y.sign().detach(), reduction=r), x, y)
    sample("cross_entropy_2d", lambda x, t: F.cross_entropy(x, t), t(2, 5, 4, 4), ints(5, 2, 4, 4))
    sample("cross_entropy_smooth", lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1), x, target)
    sample("cross_entropy_probabilities", lambda x, p: F.cross_entropy(x, F.softmax(p, -1)), x, y)
    sample("nll_one", lambda x, t: F.nll_loss(x, t), t(9), torch.tensor(3))
    sample("margin_ranking", lambda x, y: F.margin_ranking_loss(x, y, torch.ones_like(x), margin=0.3), x, y)
    sample("hinge_embedding", lambda x, y: F.hinge_embedding_loss(x, y.sign()), x, y)
    sample("cosine_embedding", lambda x, y: F.cosine_embedding_loss(x, y, torch.ones(6)), x, y, half=False)
    sample("triplet", lambda x, y: F.triplet_margin_loss(x, y, x * y), x, y, half=False)
    sample("poisson_nll", lambda x, y: F.poisson_nll_loss(x, y), x, unit(6, 9))


def _shapes() -> None:
    x = t(4, 6, 5)
    sample("view", lambda x: x.view(4, -1) + 1, x)
    sample("reshape_transposed", lambda x: x.transpose(0, 2).reshape(5, -1) * 2, x)
    sample("permute", lambda x: x.permute(2, 0, 1) + 1, x)
    sample("t", lambda x: x.t() * 2, t(3, 4))
    sample("movedim", lambda x: x.movedim(0, -1) + 1, x)
    sample("squeeze", lambda x: x.unsqueeze(1).squeeze() * x.unsqueeze(-1).squeeze(-1), x)
    sample("expand", lambda x: x.expand(3, 4, 6, 5) * 2, x)
    sample("slice", lambda x: x[1:3, ::2, -3:] * 2, x)
    sample("select", lambda x: x[:, -1] + x[:, 0], x)
    sample("narrow", lambda x: x.narrow(1, 2, 3) * 2, x)
    sample("split", lambda x: torch.cat([p * i for i, p in enumerate(x.split(2, 1))], 0), x)
    sample("split_sizes", lambda x: [p * 2 for p in x.split([1, 3, 2], 1)], x)
    sample("chunk", lambda x: [p * 2 for p in x.chunk(3, 1)], x)
    sample("unbind", lambda x: sum(x.unbind(0)), x)
    sample("stack", lambda x: torch.stack([x, x * 2], 1), x)
    sample("cat", lambda x, y: torch.cat([x, y], -1), x, t(4, 6, 2))
    sample("cat_mixed", lambda x, i: torch.cat([x, i], 0), t(2, 3), ints(5, 2, 3), half=False)
    sample("repeat", lambda x: x.repeat(2, 1, 3), x)
    sample("tile", lambda x: x.tile(2, 2), x)
    sample("repeat_interleave", lambda x: x.repeat_interleave(3, 1), x)
    sample("roll", lambda x: x.roll((1, -2), (0, 1)), x)
    sample("roll_flat", lambda x: x.roll(3), x)
    sample("flip", lambda x: x.flip(0, 2), x)
    sample("rot90", lambda x: torch.rot90(x, 1, (0, 1)), x)
    sample("pixel_shuffle", lambda x: F.pixel_shuffle(x, 2), t(2, 8, 3, 3))
    sample("pixel_unshuffle", lambda x: F.pixel_unshuffle(x, 2), t(2, 2, 4, 4))
    sample("pad", lambda x: F.pad(x, (1, 2, 0, 3), value=1.5), x)
    sample("pad_negative", lambda x: F.pad(x, (-1, 2)), x)
    sample("pad_reflect", lambda x: F.pad(x, (1, 2), mode="reflect"), x)
    sample("pad_replicate", lambda x: F.pad(x, (1, 2), mode="replicate"), x)
    sample("pad_circular", lambda x: F.pad(x, (1, 2), mode="circular"), x)
    sample("tril", lambda x: x.tril(), x)
    sample("triu", lambda x: x.triu(1), x)
    sample("diagonal", lambda x: x.diagonal(0, 1, 2) * 2, x)
    sample("diag_embed", torch.diag_embed, t(3, 4))
    sample("unfold", lambda x: x.unfold(1, 3, 2) * 2, x)
    sample("contiguous", lambda x: x.transpose(0, 1).contiguous() + 1, x)
    sample("channels_last", lambda x: x.to(memory_format=torch.channels_last) * 2, t(2, 3, 4, 5))
    sample("strided_input", lambda x: x * 2 + 1, t(4, 6).t())
    sample("empty", lambda x: (x * 2, x.sum(0)), torch.empty(0, 3), dynamic=False)
    sample("zero_dim_ops", lambda x: (x * 2).exp().view(1).expand(3), torch.tensor(0.3))
    sample("slice_write", lambda x: _written(x), x)
    sample("select_write", lambda x: _written_row(x), x)
    sample("meshgrid", lambda x, y: torch.meshgrid(x, y, indexing="ij"), t(3), t(4))


def _written(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[:, 1:3] = x[:, :2] * 2
    return y


def _written_row(x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros_like(x)
    y[0] = x[1] * 3
    y[:, -1].fill_(2.0)
    return y


def _creation() -> None:
    sample("like", lambda x: torch.zeros_like(x) + torch.ones_like(x) + torch.full_like(x, 2.5) + x, t(3, 4))
    sample("new", lambda x: x.new_zeros(3, 4) + x.new_ones(4) + x.new_full((3, 1), 2.0) + x, t(3, 4))
    sample("arange", lambda x: x * torch.arange(4) + torch.arange(1, 9, 2), t(3, 4))
    sample("arange_float", lambda x: x * torch.arange(0, 1, 0.25), t(3, 4))
    sample("linspace", lambda x: x * torch.linspace(0, 1, 4), t(3, 4))
    sample("eye", lambda x: x * torch.eye(3, 4), t(3, 4))
    sample("one_hot", lambda i: F.one_hot(i, 5) * 2, ints(5, 6), differentiable=False, half=False)
    sample("scalar_tensor", lambda x: x + torch.tensor(2.0), t(3, 4))
    sample("causal_mask", lambda x: x.masked_fill(torch.ones(4, 4, dtype=torch.bool).triu(1), -1e9), t(3, 4, 4))


def _indexing() -> None:
    x = t(5, 6)
    i = ints(5, 7)
    sample("embedding", lambda w, i: F.embedding(i, w), x, ints(5, 2, 3))
    sample("embedding_padding", lambda w, i: F.embedding(i, w, padding_idx=2), x, ints(5, 4, 3))
    sample("index_one", lambda x, i: x[i], x, i)
    sample("index_two", lambda x, i, j: x[i, j], x, i, ints(6, 7, seed=3))
    sample("index_second", lambda x, i: x[:, i], x, i)
    sample("index_apart", lambda x, i: x[i, :, i], t(5, 3, 6), i)
    sample("index_negative", lambda x: x[torch.tensor([-1, 0, -2])], x)
    sample("index_select", lambda x, i: x.index_select(1, i), x, i)
    sample("gather", lambda x, i: x.gather(1, i), x, ints(6, 5, 3))
    sample("take_along_dim", lambda x, i: torch.take_along_dim(x, i, 0), x, ints(5, 2, 6))
    sample("take", torch.take, x, ints(30, 4))
    sample("scatter", lambda x, i, s: x.scatter(1, i, s), x, torch.tensor([[0, 3], [1, 2], [4, 5], [2, 0], [3, 1]]),
           t(5, 2))
    sample("scatter_value", lambda x: x.scatter(1, torch.tensor([[0], [3], [2], [1], [5]]), 2.0), x)
    sample("scatter_add", lambda x, i, s: x.scatter_add(0, i, s), x, ints(5, 4, 6), t(4, 6), half=False)
    sample("scatter_reduce", lambda x, i, s: x.scatter_reduce(0, i, s, "amax"), x, ints(5, 4, 6), t(4, 6),
           differentiable=False, half=False)
    sample("index_put", lambda x, i, v: x.index_put((i,), v), x, torch.tensor([0, 3]), t(2, 6))
    sample("index_put_add", lambda x, i, v: x.index_put((i,), v, accumulate=True), x, i, t(7, 6), half=False)
    sample("index_add", lambda x, i, v: x.index_add(0, i, v, alpha=0.5), x, i, t(7, 6), half=False)
    # Summed up first, and then added: one by one, ones beside 2^25 are lost.
    sample("counts_beside_large", lambda x, i, v: x + torch.zeros_like(x).index_add(0, i, v),
           torch.full((2, 6), 2.0 ** 25), i.new_zeros(3000), torch.ones(3000, 6), differentiable=False, half=False)
    sample("index_copy", lambda x, v: x.index_copy(1, torch.tensor([4, 1]), v), x, t(5, 2))
    sample("index_fill", lambda x: x.index_fill(0, torch.tensor([1, 3]), -1.0), x)
    sample("mask_write", _masked_write, x, bools(5, 6))
    sample("bucketize", lambda x: torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0])), x, differentiable=False)


def _masked_write(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y[mask] = 0.5
    return y


def _images() -> None:
    x = t(2, 3, 8, 8)
    sample("max_pool", lambda x: F.max_pool2d(x, 2), x)
    sample("max_pool_padded", lambda x: F.max_pool2d(x, 3, 2, 1), x)
    sample("max_pool_ceil", lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True), x)
    sample("max_pool_indices", lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), x)
    sample("max_pool_dilated", lambda x: F.max_pool2d(x, 2, 1, dilation=2), x)
    sample("max_pool_dilated_lowest", lambda x: F.max_pool2d(x, (3, 2), (2, 1), (1, 1), 2, return_indices=True),
           torch.full((1, 1, 8, 8), -torch.inf), differentiable=False, half=False)
    sample("avg_pool", lambda x: F.avg_pool2d(x, 2), x)
    sample("avg_pool_padded", lambda x: F.avg_pool2d(x, 3, 2, 1), x)
    sample("avg_pool_exclude", lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), x)
    sample("avg_pool_ceil", lambda x: F.avg_pool2d(x, 3, 2, ceil_mode=True), x)
    sample("adaptive_pool_one", lambda x: F.adaptive_avg_pool2d(x, 1), x)
    sample("adaptive_pool_even", lambda x: F.adaptive_avg_pool2d(x, 4), x, dynamic=False)
    sample("adaptive_pool_odd", lambda x: F.adaptive_avg_pool2d(x, 3), x, dynamic=False)
    sample("nearest", lambda x: F.interpolate(x, scale_factor=2), x)
    sample("nearest_size", lambda x: F.interpolate(x, size=(5, 11)), x)
    sample("nearest_exact", lambda x: F.interpolate(x, size=(5, 11), mode="nearest-exact"), x)
    sample("bilinear", lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), x)
    last = t(2, 5, 4, 6).to(memory_format=torch.channels_last)
    sample("bilinear_channels_last", lambda x: F.interpolate(x, size=(7, 9), mode="bilinear") * 2, last)
    sample("bilinear_smaller", lambda x: F.interpolate(x, scale_factor=(0.6, 0.4), mode="bilinear"), x,
           dynamic=False)
    sample("bilinear_aligned", lambda x: F.interpolate(x, size=(5, 11), mode="bilinear", align_corners=True), x)
    sample("conv_relu", lambda x, w, b: F.relu(F.conv2d(x, w, b, padding=1)), x, t(4, 3, 3, 3), t(4))
    sample("conv_norm", lambda x, w: F.batch_norm(F.conv2d(x, w), None, None, training=True).relu(), x, t(4, 3, 3, 3),
           half=False)


def _products() -> None:
    sample("linear", F.linear, t(2, 3, 5), t(7, 5), t(7))
    sample("linear_transposed", lambda x, w, b: F.linear(x.mT, w, b), t(2, 5, 3), t(7, 5), t(7))
    sample("matmul", torch.matmul, t(2, 3, 4, 5), t(5, 6))
    sample("mv", torch.mv, t(4, 5), t(5))
    sample("dot", torch.dot, t(5), t(5, seed=3))
    sample("addmv", torch.addmv, t(4), t(4, 5), t(5))
    sample("outer", torch.outer, t(4), t(5))
    sample("baddbmm", torch.baddbmm, t(2, 3, 5), t(2, 3, 4), t(2, 4, 5))
    sample("addmm", lambda x, y, z: torch.addmm(x, y, z, beta=0.5, alpha=2.0), t(3, 5), t(3, 4), t(4, 5))
    sample("einsum", lambda x, y: torch.einsum("bij,bkj->bik", x, y), t(2, 3, 4), t(2, 5, 4))
    sample("attention", lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), t(1, 2, 8, 16),
           t(1, 2, 8, 16, seed=1), t(1, 2, 8, 16, seed=2))
    sample("attention_written", lambda q, k, v: F.softmax(q @ k.transpose(-1, -2) / 4.0, -1) @ v, t(1, 2, 8, 16),
           t(1, 2, 8, 16, seed=1), t(1, 2, 8, 16, seed=2))
    sample("mlp", lambda x, w, b, v: F.gelu(F.linear(x, w, b)) @ v, t(4, 5), t(7, 5), t(7), t(7, 3))


for _table in (_activations, _pointwise, _reductions, _normalization, _losses, _shapes, _creation, _indexing, _images,
               _products):
    _table()
