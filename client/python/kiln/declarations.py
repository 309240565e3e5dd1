"""Puts right what torch declares of its own operators where that is not what they give on the CPU.

A declaration (a meta function, a fake) says dtype, sizes and strides while a graph is traced, and all that follows is
traced by it. The right one is in force from kiln's import on: Dynamo asks before the backend does, and its answers are
kept. test_declarations.py compares declarations with results; what it finds belongs here.
"""
import contextlib
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch._subclasses import fake_impls
from torch._subclasses.fake_tensor import DynamicOutputShapeException
from torch.fx.experimental.symbolic_shapes import guard_or_false
from torch.utils._pytree import tree_map

from . import fallback

aten = torch.ops.aten

# What torch declares: a meta function, a decomposition or a fake. Its arguments are the operator's, its results fakes.
Given: TypeAlias = Callable[..., Any]


def install() -> None:
    for op, declare in _DECLARATIONS.items():
        with fallback.left_out(f"the declaration of {op}"):
            _declare(op, declare)
    with fallback.left_out("the declaration of operators in half precision"):
        _keep_expanded()
    torch._subclasses.FakeTensorMode.cache_clear()


def names() -> tuple[str, ...]:
    return (*map(str, _DECLARATIONS), "expanded")


class _Undeclared(Exception):
    """torch has no declaration in Python that one of kiln's could correct."""


def _nothing(*_: Any, **__: Any) -> Any:
    raise _Undeclared


def _declare(op: torch._ops.OpOverload, declare: Callable[..., Any]) -> None:
    from torch._decomp import decomposition_table, meta_table

    given = meta_table.get(op, decomposition_table.get(op))

    known = fake_impls.op_implementations_dict.get(op)

    def declared(mode: contextlib.AbstractContextManager[Any], _: object, *args: Any, **kwargs: Any) -> Any:
        with mode:
            own = (given or _nothing) if known is None else functools.partial(known, mode, op)
            try:
                return declare(own, *args, **kwargs)
            except _Undeclared:
                return NotImplemented  # which leaves it to torch
            except Exception as failure:
                if own is _nothing:
                    raise
                result = own(*args, **kwargs)  # raises what torch itself refuses
                with fallback.left_out(f"the declaration of {op}"):
                    raise failure
                return result

    if known is None:
        fake_impls.register_op_impl(op)(declared)
    else:
        fake_impls.op_implementations_dict[op] = declared
    if given is not None:
        meta_table.setdefault(op, given)  # a decomposition without a meta function would be asked first


def _max_unpool2d(given: Given, source: torch.Tensor, *others: Any) -> Any:
    if source.device.type != "cpu":
        return given(source, *others)
    return given(source, *others).contiguous(memory_format=torch._prims_common.suggest_memory_format(source))


def _embedding_bag(given: Given, weight: torch.Tensor, *others: Any, **options: Any) -> Any:
    """BF16 goes the same ways as F16."""
    if weight.dtype != torch.bfloat16 or weight.device.type != "cpu":
        return given(weight, *others, **options)
    like = torch.empty_strided(weight.size(), weight.stride(), dtype=torch.float16, device=weight.device)
    result, *more = given(like, *others, **options)
    return result.to(torch.bfloat16), *more


def _statistics(given: Given, source: torch.Tensor, *others: Any, **options: Any) -> Any:
    """Of half precision beside parameters in F32, on the CPU: in F32, too. torch declares them in the input's dtype."""
    result, *statistics = given(source, *others, **options)
    parameters = [value for value in (*others, *options.values()) if isinstance(value, torch.Tensor)]
    if source.device.type == "cpu" and source.dtype in _HALF and any(value.dtype == torch.float32
                                                                     for value in parameters):
        statistics[:2] = [value.to(torch.float32) for value in statistics[:2]]
    return result, *statistics


def _weight_norm(given: Given, *args: Any, **options: Any) -> Any:
    """Norms of half precision are in F32. torch declares those of float16 in float16."""
    result, norm = given(*args, **options)
    return result, norm.to(torch.float32) if norm.dtype in _HALF else norm


def _in_image_layout(given: Given, source: torch.Tensor, *others: Any, **options: Any) -> Any:
    """On the CPU the result is channels-last or row-major, whatever the layout of `source`."""
    result, *statistics = _statistics(given, source, *others, **options)
    if source.device.type == "cpu":
        result = result.contiguous(memory_format=torch._prims_common.suggest_memory_format(source))
    return result, *statistics


def _batch_norm(given: Given, source: torch.Tensor, weight: Any, bias: Any, running_mean: torch.Tensor,
                running_var: torch.Tensor, *others: Any) -> Any:
    """Running statistics keep their dtype."""
    *results, mean, var = _in_image_layout(given, source, weight, bias, running_mean, running_var, *others)
    return *results, mean.to(running_mean.dtype), var.to(running_var.dtype)


def _gradients(given: Given, grad: torch.Tensor, source: torch.Tensor, *others: Any, **options: Any) -> Any:
    """In the layout of the normalized tensor."""
    results = given(grad, source, *others, **options)
    if isinstance(results, torch.Tensor):
        return _in_image_layout(lambda _: (results,), source)[0]
    return _in_image_layout(lambda _: results, source)


def _group_norm_gradients(given: Given, grad: torch.Tensor, source: torch.Tensor, *others: Any) -> Any:
    """Of the input's dtype, whatever its statistics'."""
    result, *scales = given(grad, source, *others)
    return result if result is None else result.to(source.dtype), *scales


def _dropout_gradients(given: Given, grad: torch.Tensor, mask: torch.Tensor, scale: float) -> Any:
    """On the CPU a product of both, whose strides torch declares right."""
    return grad * mask * scale if grad.device.type == "cpu" else given(grad, mask, scale)


def _unique(given: Given, *args: Any, **kwargs: Any) -> Any:
    """Positions and counts are I64; until torch 2.12 they were declared in the values' dtype, and _unique not at all:
    torch ran it on zeros to see how many there are."""
    try:
        values, *numbers = given(*args, **kwargs)
    except _Undeclared:
        raise DynamicOutputShapeException(aten._unique.default) from None
    return values, *(number.to(torch.int64) for number in numbers)


def _unique_consecutive(given: Given, source: torch.Tensor, return_inverse: bool = False, return_counts: bool = False,
                        dim: int | None = None) -> Any:
    if dim is None:
        return _unique(given, source, return_inverse, return_counts)
    dim = _from_start(source, dim)
    return _moved(source, dim, *_unique(given, source, return_inverse, return_counts, dim))


def _unique_dim(given: Given, source: torch.Tensor, dim: int, *others: Any, **options: Any) -> Any:
    dim = _from_start(source, dim)
    return _moved(source, dim, *_unique(given, source, dim, *others, **options))


def _from_start(source: torch.Tensor, dim: int) -> int:
    """torch's own declarations take no dimension from the end."""
    return dim + source.dim() if dim < 0 else dim


def _moved(source: torch.Tensor, dim: int, values: torch.Tensor, *numbers: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """On the CPU the dimension of what is told apart is the outermost in memory."""
    if source.device.type == "cpu":
        sizes = (values.shape[dim], *values.shape[:dim], *values.shape[dim + 1:])
        values = values.new_empty(sizes).movedim(0, dim)
    return values, *numbers


def _masked_select(given: Given, source: torch.Tensor, mask: torch.Tensor) -> Any:
    """As many elements as the two have together, at most."""
    return given(*torch.broadcast_tensors(source, mask))


def _huber_loss(given: Given, source: torch.Tensor, *others: Any, **options: Any) -> Any:
    return _in_layout_of(0)(functools.partial(_loss, given), source, *others, **options)


def _loss(given: Given, source: torch.Tensor, *others: Any, **options: Any) -> Any:
    """Of the input's dtype, whatever the target's."""
    return given(source, *others, **options).to(source.dtype)


def _margin_loss(labels: int) -> Callable[..., Any]:
    """Without reduction a loss is a number where its target has `labels` dimensions or fewer, which is no batch."""

    def declare(given: Given, source: torch.Tensor, target: torch.Tensor, *others: Any, **options: Any) -> Any:
        loss, *more = results if isinstance(results := given(source, target, *others, **options), tuple) else (results,)
        if loss.dim() == 1 and target.dim() <= labels:
            loss = loss.new_empty(())
        return (loss, *more) if more else loss

    return declare


def _addr(given: Given, source: torch.Tensor, column: torch.Tensor, row: torch.Tensor, *others: Any,
          **options: Any) -> Any:
    """The operator expands a number before it asks which dtype is the larger. The two vectors, each expanded, tell
    nothing of the order of dimensions in memory."""
    source = source.expand(column.shape[0], row.shape[0])
    result = given(source, column, row, *others, **options)
    return torch.empty_strided(result.shape, torch.eq(source, column.unsqueeze(1)).stride(), dtype=result.dtype,
                               device=result.device)


def _roll(given: Given, source: torch.Tensor, shifts: int | Sequence[int], dims: int | Sequence[int] = ()) -> Any:
    """Two parts joined along each dimension keep the images' layout; a part of nothing does not."""
    result, layout = given(source, shifts, dims), torch._prims_common.suggest_memory_format(source)
    if source.device.type != "cpu" or layout == torch.contiguous_format:
        return result
    shifts, dims = ((value,) if isinstance(value, int) else value for value in (shifts, dims))
    kept = dims and all(shift % source.shape[dim] != 0 for shift, dim in zip(shifts, dims))
    return result.contiguous(memory_format=layout if kept else torch.contiguous_format)


def _in_format_of_source(given: Given, source: torch.Tensor, *others: Any, **options: Any) -> Any:
    """On the CPU channels-last where the source is, else row-major."""
    result = given(source, *others, **options)
    if source.device.type != "cpu":
        return result
    return result.contiguous(memory_format=torch._prims_common.suggest_memory_format(source))


def _scattered(given: Given, source: torch.Tensor, *others: Any, **options: Any) -> Any:
    """A copy of what overlaps itself, an expanded tensor, is dense; torch declares it in that layout."""
    result = given(source, *others, **options)
    expanded = any(type(stride) is int and stride == 0 and guard_or_false(size != 1)
                   for size, stride in zip(result.shape, result.stride()))
    return result.clone() if expanded else result


def _normal(given: Given, mean: torch.Tensor, *others: Any, **options: Any) -> Any:
    """Of the mean's dtype, whatever the deviation's."""
    return given(mean, *others, **options).to(mean.dtype)


def _nansum(given: Given, source: torch.Tensor, dim: Sequence[int] | None = None, *others: Any, **options: Any) -> Any:
    """Over no dimension is over all, as of the other sums."""
    return given(source, dim or None, *others, **options)


def _iterated(first: int, second: int, *third: int) -> Callable[..., Any]:
    """In the layout of an iteration over the operands at these positions, in this order. torch declares the strides of
    comparisons right, and of addcmul, which is over three; those beside a number, too."""

    def declare(given: Given, *args: Any, **options: Any) -> Any:
        results = given(*args, **options)
        operands = [args[position] for position in (first, second, *third)]
        if not all(isinstance(operand, torch.Tensor) for operand in operands):
            return results
        strides = (torch.addcmul(*operands) if third else torch.eq(*operands)).stride()
        return tree_map(lambda each: torch.empty_strided(each.shape, strides, dtype=each.dtype, device=each.device),
                        results)

    return declare


def _in_layout_of(position: int) -> Callable[..., Any]:
    """In the layout of the operand at this position, where it has its sizes: a mean or a sum has not."""

    def declare(given: Given, *args: Any, **options: Any) -> Any:
        result, like = given(*args, **options), args[position]
        same = len(result.shape) == len(like.shape) and all(map(_same, result.shape, like.shape))
        return torch.empty_like(like, dtype=result.dtype) if same else result

    return declare


def _same(size: int, other: int) -> bool:
    return guard_or_false(size == other)


def _row_major(given: Given, *args: Any, **options: Any) -> Any:
    """On the CPU, whatever the layout of the operands."""
    return tree_map(lambda each: each.contiguous() if each.device.type == "cpu" else each, given(*args, **options))


def _ldexp(given: Given, x: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
    """In the layout of a product with a power. What has no fractions is multiplied by a power in the exponent's dtype,
    not in float32."""
    product = x * torch.pow(2.0, exponent)
    return product.to(given(x, exponent).dtype) if x.is_floating_point() or x.is_complex() else product


def _pad(given: Given, source: torch.Tensor, pad: Sequence[int], *others: Any, **options: Any) -> Any:
    """What is only cropped is a clone of a part, in its layout; that it is cropped becomes a guard."""
    result = given(source, pad, *others, **options)
    if source.is_contiguous() or not any(isinstance(size, torch.SymInt) for size in pad):
        return result  # as torch declares it
    if not all(guard_or_false(size <= 0) for size in pad):
        return result
    part = source
    for dim, (before, after) in enumerate(zip(pad[::2], pad[1::2])):
        dim = source.dim() - 1 - dim
        part = part.narrow(dim, -before, source.shape[dim] + before + after)
    return torch.empty_like(part)


def _bincount(given: Given, source: torch.Tensor, weights: torch.Tensor | None = None, *others: Any,
              **options: Any) -> Any:
    """Counts are I64; until torch 2.12 they were declared in the values' dtype."""
    counts = given(source, weights, *others, **options)
    return counts if weights is not None else counts.to(torch.int64)


def _attention(given: Given, query: torch.Tensor, *others: Any, **options: Any) -> Any:
    """The logarithms of sums are F64 where all else is; until torch 2.12 they were declared F32."""
    result, sums = given(query, *others, **options)
    return result, sums.to(torch.float64) if query.dtype == torch.float64 else sums


def _unfold_gradients(given: Given, grad: torch.Tensor, sizes: Sequence[int], *others: Any) -> Any:
    """Of the sizes that are asked for, of a number by windows of nothing too."""
    return given(grad, sizes, *others) if sizes else grad.new_empty(())


def _efficient_attention_gradients(given: Given, grad: Any, query: Any, key: Any, value: Any, bias: Any, out: Any,
                                   *others: Any, window_size: Any = None, **options: Any) -> Any:
    """Dense, whatever the operands' layouts, which torch declares them to have; parts of one tensor are declared right.
    torch's declaration lacks `out` and `window_size`."""
    results = given(grad, query, key, value, bias, *others, **options)
    if options.get("shared_storage_dqdkdv"):
        return results
    dense = [torch.empty(each.shape, dtype=each.dtype, device=each.device) for each in results[:3]]
    return *dense, *results[3:]


_DECLARATIONS: dict[torch._ops.OpOverload, Callable[..., Any]] = {
    aten._efficient_attention_backward.default: _efficient_attention_gradients,
    aten.unfold_backward.default: _unfold_gradients,
    aten.constant_pad_nd.default: _pad,
    aten.bincount.default: _bincount,
    aten._scaled_dot_product_flash_attention_for_cpu.default: _attention,
    aten.masked_select.default: _masked_select,
    aten.roll.default: _roll,
    **dict.fromkeys((aten.channel_shuffle.default, aten.native_channel_shuffle.default, aten.reflection_pad3d.default,
                     aten.replication_pad3d.default), _in_format_of_source),
    aten._weight_norm_interface.default: _weight_norm,
    **dict.fromkeys((aten.copysign.Tensor, aten.div.Tensor_mode, aten.floor_divide.default, aten.heaviside.default,
                     aten.logaddexp.default, aten.logaddexp2.default, aten.logical_and.default, aten.logical_or.default,
                     aten.logical_xor.default, aten.special_xlog1py.default, aten.xlogy.Tensor, aten.complex.default,
                     aten.polar.default, aten.hardsigmoid_backward.default, aten.hardswish_backward.default,
                     aten.hardtanh_backward.default, aten.softplus_backward.default, aten.logit_backward.default),
                    _iterated(0, 1)),
    aten.elu_backward.default: _iterated(0, 5),
    **dict.fromkeys((aten.threshold_backward.default, aten.leaky_relu_backward.default), _iterated(1, 0)),
    aten._prelu_kernel_backward.default: _iterated(1, 2, 0),
    **dict.fromkeys((aten.binary_cross_entropy.default, aten.log_sigmoid_backward.default), _in_layout_of(0)),
    aten.binary_cross_entropy_backward.default: _in_layout_of(1),
    aten.soft_margin_loss_backward.default: _in_layout_of(2),
    **dict.fromkeys((aten.mse_loss_backward.default, aten.smooth_l1_loss_backward.default,
                     aten.huber_loss_backward.default, aten.glu_backward.default, aten.log_sigmoid_forward.default,
                     aten._log_softmax_backward_data.default, aten.isin.Tensor_Tensor, aten.isin.Tensor_Scalar,
                     aten.nll_loss2d_forward.default, aten.pow.Scalar, aten.im2col.default, aten.col2im.default),
                    _row_major),
    **dict.fromkeys((aten.slice_scatter.default, aten.select_scatter.default, aten.diagonal_scatter.default,
                     aten.as_strided_scatter.default), _scattered),
    aten.nansum.default: _nansum,
    aten.normal.Tensor_Tensor: _normal,
    aten.addr.default: _addr,
    aten.ldexp.Tensor: _ldexp,
    aten.huber_loss.default: _huber_loss,
    aten.soft_margin_loss.default: _loss,
    aten.multi_margin_loss.default: _margin_loss(0),
    aten.multilabel_margin_loss_forward.default: _margin_loss(1),
    aten._unique.default: _unique,
    aten._unique2.default: _unique,
    aten.unique_dim.default: _unique_dim,
    aten.unique_consecutive.default: _unique_consecutive,
    aten.max_unpool2d.default: _max_unpool2d,
    aten._embedding_bag.default: _embedding_bag,
    aten._embedding_bag_forward_only.default: _embedding_bag,
    aten._batch_norm_with_update_functional.default: _batch_norm,
    aten._native_batch_norm_legit_functional.default: _batch_norm,
    aten.native_layer_norm.default: _statistics,
    aten.native_group_norm.default: _statistics,
    aten.native_group_norm_backward.default: _group_norm_gradients,
    **dict.fromkeys((aten.native_batch_norm.default, aten._native_batch_norm_legit.default,
                     aten._native_batch_norm_legit.no_stats, aten._native_batch_norm_legit_no_training.default,
                     aten._batch_norm_with_update.default, aten._batch_norm_no_update.default), _in_image_layout),
    **dict.fromkeys((aten.native_batch_norm_backward.default, aten.batch_norm_backward.default,
                     aten.reflection_pad2d_backward.default, aten.replication_pad2d_backward.default,
                     aten.reflection_pad3d_backward.default, aten.replication_pad3d_backward.default), _gradients),
    aten.native_dropout_backward.default: _dropout_gradients,
}


def _keep_expanded() -> None:
    """torch's references convert half precision to F32 first, which makes a dense tensor of an expanded one; the
    operator itself sees that no element tells the order of its dimensions in memory. What it converts itself, to the
    dtype that its operands have in common, is dense there too."""
    import torch._prims_common as common
    from torch._prims_common import wrappers

    kinds, dtypes = common.ELEMENTWISE_TYPE_PROMOTION_KIND, common.elementwise_dtypes
    convert = wrappers._maybe_convert_to_dtype
    half = threading.local()

    def noted(*args: Any, type_promotion_kind: Any) -> tuple[torch.dtype, torch.dtype]:
        computed, result = dtypes(*args, type_promotion_kind=type_promotion_kind)
        half.dtype = None
        if computed == torch.float32 and result != computed:
            half.dtype = dtypes(*args, type_promotion_kind=kinds.DEFAULT)[1]
        return computed, result

    def converted(value: Any, dtype: torch.dtype) -> Any:
        if not isinstance(value, torch.Tensor) or value.dtype not in _HALF:
            return convert(value, dtype)
        if value.dtype != getattr(half, "dtype", None):
            return convert(value, dtype)
        expanded = [type(stride) is int and stride == 0 for stride in value.stride()]
        if dtype != torch.float32 or not any(expanded):
            return convert(value, dtype)
        sizes = [1 if one else size for one, size in zip(expanded, value.shape)]
        return convert(value.as_strided(sizes, value.stride()), dtype).expand(value.shape)

    common.elementwise_dtypes = noted
    wrappers._maybe_convert_to_dtype = converted  # type: ignore[assignment]  # torch's has overloads


_HALF = (torch.bfloat16, torch.float16)
