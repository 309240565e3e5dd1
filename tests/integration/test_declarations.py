"""What torch declares while it traces is what its operators give: dtype, sizes and strides of every node of a graph.

Control: without what declarations.py puts right the same graphs have nodes that are not as declared.
"""
import functools
import os
import random
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeAlias

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._subclasses import FakeTensorMode, fake_impls
from torch._subclasses.fake_tensor import DynamicOutputShapeException

import kiln  # puts declarations right
from daemons import Place
from kiln import declarations

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "campaign"))
pytest.importorskip("expecttest")  # torch's databases import it
import subjects

# Whose declarations torch has wrong, by what of the database shows it.
PUT_RIGHT = {"nn.functional.max_unpool2d": "float32", "nn.functional.embedding_bag": "bfloat16",
             "_batch_norm_with_update": "float16", "native_batch_norm": "bfloat16"}
# Whose workspace its gradient alone reads.
NOT_SEEN = ("aten.mkldnn_rnn_layer.default",)


Database: TypeAlias = dict[str, subjects.Subject]


class _Checked(torch.fx.Interpreter):
    def __init__(self, module: torch.fx.GraphModule, found: list[str]) -> None:
        super().__init__(module)
        self.found = found

    def run_node(self, node: torch.fx.Node) -> Any:
        result = super().run_node(node)
        declared = node.meta.get("val")
        if node.op == "call_function" and str(node.target) not in NOT_SEEN:
            both = zip(result, declared) if isinstance(declared, (list, tuple)) else [(result, declared)]
            self.found += [f"{node.target}: {_facts(mine)}, declared {_facts(said)}" for mine, said in both
                           if isinstance(said, torch.Tensor) and _facts(mine) != _facts(said)]
        return result


def _facts(value: torch.Tensor) -> tuple[Any, ...]:
    if value.layout != torch.strided:
        return value.dtype, tuple(value.shape)
    strides = [stride for size, stride in zip(value.shape, value.stride()) if size > 1] if value.numel() else []
    return value.dtype, tuple(value.shape), strides


def _wrong(function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[str]:
    """What of a call and its gradients is not as declared."""
    found: list[str] = []

    def compiler(module: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        def run(values: list[Any]) -> Any:
            return _Checked(module, found).run(*values)

        boxed: Any = run
        boxed._boxed_call = True
        return run

    torch._dynamo.reset()
    result = torch.compile(function, backend=aot_autograd(fw_compiler=compiler, bw_compiler=compiler), dynamic=False)(
        *args, **kwargs)
    outputs = [value for value in torch.utils._pytree.tree_leaves(result)
               if isinstance(value, torch.Tensor) and value.requires_grad]
    if outputs:
        torch.autograd.backward(outputs, [torch.randn_like(value) for value in outputs])
    return found


def _wrong_of(database: Database, name: str, dtype: str, count: int, seed: int) -> list[str]:
    found = []
    for _, case in database[name].cases(dtype, count, seed):
        case = case.copied()
        try:
            found += _wrong(case.function, *case.args, **case.kwargs)
        except Exception:  # eager or Dynamo refuse it
            continue
    return [f"{name} {dtype}: {one}" for one in found]


@pytest.fixture(scope="module")
def database() -> Database:
    return subjects.subjects()


@pytest.mark.parametrize("name", PUT_RIGHT)
def test_put_right(database: Database, name: str) -> None:
    assert _wrong_of(database, name, PUT_RIGHT[name], 20, 1) == []


def test_operators_are_as_declared(database: Database, request: pytest.FixtureRequest) -> None:
    draw = random.Random(7)
    units = [(name, dtype) for name,
             subject in database.items() for dtype in subject.dtypes() if dtype != subjects.ERRORS]
    whole = request.config.getoption("--full")
    found = []
    for name, dtype in units if whole else draw.sample(units, 25):
        found += _wrong_of(database, name, dtype, 2, draw.randrange(100))
    assert found == []


def _pairs(dtype: torch.dtype, seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """(expanded, permuted) tensors of one shape."""
    generator = torch.Generator().manual_seed(seed)
    for rank in (2, 3, 4):
        sizes = torch.randint(2, 5, (rank,), generator=generator).tolist()
        expanded = torch.randint(2, (rank,), generator=generator).tolist()
        order = torch.randperm(rank, generator=generator).tolist()
        few = torch.randn([1 if one else size for one, size in zip(expanded, sizes)], generator=generator).to(dtype)
        other = torch.randn([sizes[dim] for dim in order], generator=generator).to(dtype)
        yield few.expand(sizes), other.permute([order.index(dim) for dim in range(rank)])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("function", [torch.mul, torch.add, torch.maximum, torch.lt, torch.atan2,
                                      lambda x, y: x * y.float(), lambda x, y: x.float() / y])
def test_expanded_operands(function: Callable[..., torch.Tensor], dtype: torch.dtype) -> None:
    for seed in range(2):
        for x, y in _pairs(dtype, seed):
            assert _wrong(function, x, y) == [] and _wrong(function, y, x) == []
            mine = torch.compile(function, backend="kiln")(x, y)
            assert mine.stride() == function(x, y).stride()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("keepdim", [False, True])
def test_a_sum_over_no_dimension_is_over_all(keepdim: bool, dynamic: bool) -> None:
    def total(x: torch.Tensor) -> torch.Tensor:
        return x.nansum(dim=(), keepdim=keepdim)

    x = torch.randn(3, 4, requires_grad=True)
    assert _wrong(total, x) == []
    mine, expected = torch.compile(total, backend="kiln", dynamic=dynamic)(x), total(x)
    torch.testing.assert_close(mine, expected)
    torch.testing.assert_close(*(torch.autograd.grad(value.sum(), x)[0] for value in (mine, expected)))


def test_parts_put_into_an_expanded_tensor() -> None:
    """Also the gradients of a part of a sum are that: each element's is one number."""
    def scattered(x: torch.Tensor, part: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x.expand(4, -1).slice_scatter(part, 0, 1, 3), x.expand(4, -1).select_scatter(part[0], 0, 1),
                x.expand(8, -1).diagonal_scatter(part[0]), x.slice_scatter(part[:1, 2:4], 1, 2, 4).sum(),
                torch.diagonal_scatter(x.view(2, 4), part[0, :2]).sum())

    x, part = torch.randn(1, 8, requires_grad=True), torch.randn(2, 8, requires_grad=True)
    assert _wrong(scattered, x, part) == []
    results = []
    for run in (scattered, torch.compile(scattered, backend="kiln")):
        outputs = run(x, part)
        gradients = torch.autograd.grad([output.sum() for output in outputs], (x, part))
        results.append([*outputs, *gradients])
    for mine, expected in zip(*reversed(results)):
        assert mine.stride() == expected.stride()
        torch.testing.assert_close(mine, expected)


@pytest.mark.usefixtures("no_fallback")
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_window_put_into_an_expanded_tensor(dynamic: bool) -> None:
    """The copy that it is put into is dense: no element of it shares another's place."""
    draw = random.Random(dynamic)
    bases = [base for seed in range(6) for base, _ in _pairs(torch.float32, seed)]
    for base in (base for base in bases if 0 in base.stride()):
        total = base.numel()
        size = draw.randint(1, total)
        step = draw.randint(1, max(1, total // size))
        offset = draw.randint(0, total - 1 - (size - 1) * step)

        def scattered(x: torch.Tensor, part: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            x = x.expand(base.shape)
            put = torch.as_strided_scatter(x, part, (size,), (step,), offset)
            return put, put.as_strided((size,), (step,), offset) + x.sum()

        few = base[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in base.stride())]
        part = torch.randn(size)
        torch._dynamo.reset()
        run = torch.compile(scattered, backend="kiln", dynamic=dynamic)
        for mine, theirs in zip(run(few, part), scattered(few, part)):
            assert mine.stride() == theirs.stride()
            torch.testing.assert_close(mine, theirs)


@pytest.mark.usefixtures("no_fallback")
@pytest.mark.parametrize("seed", range(8))
def test_results_of_a_size_that_only_the_run_knows(seed: int) -> None:
    draw = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    sizes = [draw.randint(1, 4) for _ in range(draw.randint(1, 3))]
    x, dim = torch.randint(3, sizes, generator=generator).float(), draw.randrange(-len(sizes), len(sizes))
    mask = torch.rand([draw.choice((1, size)) for size in [2, *sizes]], generator=generator) < 0.5
    for function in (lambda x, mask: torch.unique(x, return_inverse=True, return_counts=True, dim=dim),
                     lambda x, mask: torch.unique_consecutive(x, return_counts=True, dim=dim),
                     lambda x, mask: torch.masked_select(x, mask)):
        torch._dynamo.reset()
        with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
            mine, own = torch.compile(function, backend="kiln", fullgraph=True)(x, mask), function(x, mask)
        torch.testing.assert_close(mine, own)
        for one, other in zip(*((value if isinstance(value, tuple) else (value,)) for value in (mine, own))):
            assert _facts(one) == _facts(other)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("loss", [torch.nn.functional.huber_loss, torch.nn.functional.soft_margin_loss,
                                  torch.nn.functional.smooth_l1_loss, torch.nn.functional.mse_loss])
def test_losses_of_two_dtypes(loss: Callable[..., torch.Tensor], reduction: str) -> None:
    draw = random.Random(reduction)
    for dtypes in ((torch.float32, torch.float64), (torch.float64, torch.float32)):
        sizes = draw.randrange(1, 9), draw.randrange(1, 9)
        x, target = (torch.randn(sizes).to(dtype) for dtype in dtypes)
        assert _wrong(loss, x, target, reduction=reduction) == []
        mine = torch.compile(loss, backend="kiln")(x, target, reduction=reduction)
        torch.testing.assert_close(mine, loss(x, target, reduction=reduction), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("loss, sizes, labels", [
    *(("multi_margin_loss", *each) for each in (((5,), ()), ((5,), (1,)), ((), ()), ((1, 5), ()), ((3, 5), (3,)))),
    *(("multilabel_margin_loss", sizes, sizes) for sizes in ((), (5,), (1, 5), (3, 5)))])
def test_margin_losses_of_no_batch(loss: str, sizes: tuple[int, ...], labels: tuple[int, ...], reduction: str) -> None:
    function = functools.partial(getattr(torch.nn.functional, loss), reduction=reduction)
    x, target = torch.randn(sizes, requires_grad=True), torch.zeros(labels, dtype=torch.int64)
    assert _wrong(function, x, target) == []
    torch._dynamo.reset()
    mine, own = (call(x, target) for call in (torch.compile(function, backend="kiln"), function))
    assert mine.shape == own.shape
    torch.testing.assert_close(mine, own)
    torch.testing.assert_close(*(torch.autograd.grad(each.sum(), x)[0] for each in (mine, own)))


@pytest.mark.parametrize("sizes", [(), (4,), (1, 4), (3, 1), (3, 4)])
def test_an_outer_product_added_to_another_dtype(sizes: tuple[int, ...]) -> None:
    column, row = torch.randn(3), torch.randn(4)
    addr: Callable[..., torch.Tensor] = torch.addr
    for dtype in (torch.float64, torch.float16, torch.int64):
        source = (torch.randn(sizes) * 9).to(dtype)
        assert _wrong(addr, source, column, row) == []
        torch.testing.assert_close(torch.compile(addr, backend="kiln")(source, column, row),
                                   addr(source, column, row), rtol=1e-5, atol=1e-5)


def _image(seed: int) -> torch.Tensor:
    """In one of the layouts that images have, or in any order of its dimensions."""
    generator = torch.Generator().manual_seed(seed)
    sizes = [2 * size for size in torch.randint(1, 4, (4,), generator=generator).tolist()]
    image = torch.randn(sizes, generator=generator)
    if seed % 3 == 0:
        return image
    if seed % 3 == 1:
        return image.contiguous(memory_format=torch.channels_last)
    order = torch.randperm(4, generator=generator).tolist()
    return image.permute(order).contiguous().permute([order.index(dim) for dim in range(4)])


@pytest.mark.parametrize("function", [
    lambda x: torch.roll(x, 1, 0), lambda x: torch.roll(x, (1, -1), (1, 3)), lambda x: torch.roll(x, x.shape[2], 2),
    lambda x: torch.roll(x, 3), lambda x: torch.nn.functional.channel_shuffle(x, 2),
    lambda x: torch.as_strided(torch.roll(x, 1, 1), (x.numel() // 2, 2), (2, 1))])
def test_images_in_any_layout(function: Callable[..., torch.Tensor]) -> None:
    for seed in range(6):
        x = _image(seed)
        assert _wrong(function, x) == []
        expected = function(x)
        mine = torch.compile(function, backend="kiln")(x)
        torch.testing.assert_close(mine, expected, check_stride=True)


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_volumes_that_are_padded(mode: str) -> None:
    """Channels-last where the source is, else row-major; gradients too."""
    def padded(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(x, (1, 2, 0, 1, 1, 0), mode=mode)

    volume = torch.randn(2, 3, 4, 5, 6)
    for x in (volume, volume.to(memory_format=torch.channels_last_3d), volume[0], volume.transpose(1, 2),
              volume.to(memory_format=torch.channels_last_3d)[:, :2], volume[0].to(memory_format=torch.channels_last)):
        assert _wrong(padded, x) == []
        results = []
        for run in (padded, torch.compile(padded, backend="kiln")):
            leaf = x.detach().requires_grad_()
            result = run(leaf)
            results.append([result, *torch.autograd.grad(result, leaf, result.detach() * 2)])
        for mine, expected in zip(*reversed(results)):
            torch.testing.assert_close(mine, expected, check_stride=True)


@pytest.mark.usefixtures("no_fallback")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_norms_of_weights(dtype: torch.dtype) -> None:
    x, weights, scale = (torch.randn(sizes).to(dtype).requires_grad_() for sizes in ((2, 4), (3, 4), (3, 1)))

    def layer(x: torch.Tensor, weights: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, torch._weight_norm(weights, scale, 0))

    results = []
    for run in (layer, torch.compile(layer, backend="kiln")):
        result = run(x, weights, scale)
        results.append([result, *torch.autograd.grad(result.sum(), (x, weights, scale))])
    for mine, expected in zip(*reversed(results)):
        torch.testing.assert_close(mine, expected)


@pytest.mark.part(3)
@pytest.mark.parametrize("function", [
    torch.copysign, torch.floor_divide, torch.heaviside, torch.logaddexp, torch.logaddexp2, torch.logical_and,
    torch.logical_or, torch.logical_xor, torch.special.xlog1py, torch.xlogy,
    lambda x, y: torch.div(x, y, rounding_mode="floor"),
    lambda x, y: torch.div(x, y, rounding_mode="trunc")])
def test_operands_in_any_order(function: Callable[..., torch.Tensor]) -> None:
    for seed in range(4):
        x = _image(seed)
        for y in (_image(seed).contiguous() + 2, x[:1] + 2, x[:, :1].contiguous() + 2, x.new_tensor(2.0)):
            for pair in ((x, y), (y, x)):
                assert _wrong(function, *pair) == []
                torch.testing.assert_close(torch.compile(function, backend="kiln")(*pair), function(*pair),
                                           equal_nan=True,
                                           check_stride=True, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("no_fallback")
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("number", [7, -2.5, True])
def test_numbers_before_tensors(number: float, dynamic: bool) -> None:
    for x in (torch.tensor([[2, -3, 5]]), torch.tensor([0.5, -4.0]), torch.tensor([3.0, 2.0], dtype=torch.bfloat16)):
        for function in (lambda x: number // x, lambda x: torch.floor_divide(number, x), lambda x: number % x,
                         lambda x: torch.xlogy(number, x), lambda x: torch.special.xlog1py(number, x)):
            torch._dynamo.reset()
            compiled = torch.compile(function, backend="kiln", dynamic=dynamic, fullgraph=True)
            torch.testing.assert_close(compiled(x), function(x), equal_nan=True)


def test_without_a_correction_that_fails_torch_s_own_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(given: Any, *args: Any, **options: Any) -> NoReturn:
        raise ZeroDivisionError("planted")

    for op in (torch.ops.aten.roll.default, torch.ops.aten.copysign.Tensor):
        monkeypatch.delitem(fake_impls.op_implementations_dict, op)
        declarations._declare(op, fails)
    kiln.reset_stats()
    x = torch.randn(3, 4)
    with pytest.warns(RuntimeWarning, match="planted"):
        result = torch.compile(lambda x: torch.copysign(torch.roll(x, 1, 0), x), backend="kiln")(x)
    assert torch.equal(result, torch.copysign(torch.roll(x, 1, 0), x)) and kiln.stats()["left_out"] > 0
    with FakeTensorMode(), pytest.raises(IndexError):  # what torch itself refuses
        torch.roll(torch.empty(3, 4), 1, 7)


def test_what_torch_does_not_declare_is_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.library._scoped_library("kiln_undeclared", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x + x, "CPU")
        op = torch.ops.kiln_undeclared.twice.default

        def raised() -> type[BaseException]:
            with FakeTensorMode(), pytest.raises(Exception) as failure:
                op(torch.empty(3))
            return type(failure.value)

        torch_s = raised()
        declarations._declare(op, lambda given, x: given(x))
        assert raised() is torch_s
        monkeypatch.delitem(fake_impls.op_implementations_dict, op)


def test_how_many_differ_is_not_known_where_torch_does_not_declare_it() -> None:
    with pytest.raises(DynamicOutputShapeException):
        declarations._unique(declarations._nothing, torch.zeros(3))


@pytest.mark.parametrize("deviation", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_normal_numbers_of_two_dtypes(deviation: torch.dtype) -> None:
    for mean in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        operands = torch.zeros(3).to(mean), torch.ones(3).to(deviation)
        assert _wrong(torch.normal, *operands) == []
        torch._dynamo.reset()
        assert torch.compile(torch.normal, backend="kiln")(*operands).dtype == mean


def test_powers_of_two_times_another_dtype() -> None:
    draw = random.Random(5)
    dtypes = torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int8
    for _ in range(12):
        x, exponent = ((torch.randn(draw.choice([(), (3, 7)])) * 3).to(draw.choice(dtypes)) for _ in range(2))
        if not (x.is_floating_point() or exponent.is_floating_point()):
            continue
        assert _wrong(torch.ldexp, x, exponent) == []
        torch.testing.assert_close(torch.compile(torch.ldexp, backend="kiln")(x, exponent),
                                   torch.ldexp(x, exponent), rtol=1e-6, atol=1e-6)


def test_outer_products_added_to_any_layout() -> None:
    draw = random.Random(6)
    dtypes = torch.float64, torch.float32, torch.bfloat16
    for _ in range(8):
        rows, columns = draw.randint(2, 6), draw.randint(2, 6)
        source = draw.choice([torch.randn(rows, columns), torch.randn(columns, rows).t(), torch.randn(columns),
                              torch.randn(()), torch.randn(2 * rows, columns)[::2]]).to(draw.choice(dtypes))
        vectors = [torch.randn(size).to(draw.choice(dtypes)) for size in (rows, columns)]
        function = functools.partial(torch.addr, beta=draw.choice([0, 1, 0.5]))
        assert _wrong(function, source, *vectors) == []
        narrow = torch.bfloat16 in (source.dtype, *(v.dtype for v in vectors))
        close: dict[str, Any] = {"rtol": 2e-2, "atol": 2e-2} if narrow else {}
        torch.testing.assert_close(torch.compile(function, backend="kiln")(source, *vectors),
                                   function(source, *vectors), check_stride=True, **close)


_F = torch.nn.functional
_aten = torch.ops.aten
_OF_LAYOUTS: dict[str, Callable[..., tuple[torch.Tensor, ...]]] = {
    "row-major losses": lambda x, y, z: (_F.mse_loss(x, y) + _F.smooth_l1_loss(x, y) + _F.huber_loss(x, z),),
    "huber loss": lambda x, y, z: (_F.huber_loss(x, y, reduction="none"),),
    "cross entropy":
        lambda x, y, z: (_F.binary_cross_entropy(x, y, z, reduction="none"), _F.binary_cross_entropy(x, y)),
    "soft margin": lambda x, y, z: (_F.soft_margin_loss(x, y, reduction="none"), _F.soft_margin_loss(x, z)),
    "labels": lambda x, y, z: (_F.nll_loss(torch.stack((x, y), 1), (z > 0.5).long(), reduction="none"),),
    "log softmax": lambda x, y, z: (x.log_softmax(1), _F.logsigmoid(y)),
    "powers": lambda x, y, z: (2.5 ** x, torch.ldexp(y[:, :1], z[:1])),
    "sets": lambda x, y, z: (torch.isin((x * 3).long(), (y[0, 0] * 3).long()), torch.isin((z * 3).long(), 1)),
    "complex": lambda x, y, z: (torch.complex(x, y).abs(), torch.complex(x[:1], y[:, :1]), torch.polar(x, z)),
    "columns": lambda x, y, z: (_F.unfold(x[:, None], 2), _F.fold(y.mT, (2, 4), 2)),
    "gradients": lambda x, y, z: (
        _aten.hardsigmoid_backward(x, y), _aten.hardswish_backward(x, y), _aten.hardtanh_backward(x, y, 0.2, 0.8),
        _aten.softplus_backward(x, y, 1, 20), _aten.logit_backward(x, y, 0.1), _aten.threshold_backward(x, y, 0.5),
        _aten.elu_backward(x, 1.0, 1.0, 1.0, False, y), _aten.leaky_relu_backward(x, y, 0.1, False),
        *_aten._prelu_kernel_backward(x, y, z)),
}


def _laid(draw: random.Random, sizes: tuple[int, ...]) -> torch.Tensor:
    """Numbers in (0, 1), in any order of dimensions, expanded along one, or every other of a row."""
    kind, order = draw.choice(["order", "order", "expanded", "part"]), draw.sample(range(len(sizes)), len(sizes))
    numbers = torch.rand(sizes) * 0.9 + 0.05
    if kind == "expanded":
        return numbers[:, :1].expand(sizes)
    if kind == "part":
        return numbers.repeat_interleave(2, -1)[..., ::2]
    return numbers.permute(order).contiguous().permute([order.index(dim) for dim in range(len(sizes))])


@pytest.mark.parametrize("name", _OF_LAYOUTS)
def test_operands_that_lie_otherwise(name: str) -> None:
    function, draw = _OF_LAYOUTS[name], random.Random(name)
    torch.manual_seed(1)
    for _ in range(8):
        inputs = [_laid(draw, (2, 3, 4)) for _ in range(3)]
        assert _wrong(function, *inputs) == []
        torch._dynamo.reset()
        torch.testing.assert_close(torch.compile(function, backend="kiln")(*inputs), function(*inputs),
                                   check_stride=True, rtol=1e-4, atol=1e-5)
        if name not in ("gradients", "sets"):
            assert _wrong(function, inputs[0].detach().requires_grad_(), *inputs[1:]) == []


def test_windows_of_nothing_have_a_gradient() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).unfold(0, 0, 1) * 2

    for sizes in ((), (1,), (4,)):
        x = torch.rand(sizes, requires_grad=True)
        torch._dynamo.reset()
        torch.compile(f, backend="kiln")(x).sum().backward()
        assert x.grad is not None and torch.equal(x.grad, torch.zeros(sizes))


def _layer_norm(x: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.layer_norm(x, x.shape[-1:], scales[0][: x.shape[-1]], scales[1][: x.shape[-1]])


def _group_norm(x: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.group_norm(x, 1, scales[0][: x.shape[1]], scales[1][: x.shape[1]])


def _scaled_batch_norm(x: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    weight, bias = [scale[: x.shape[1]] for scale in scales]
    return torch.nn.functional.batch_norm(x, torch.zeros_like(weight), torch.ones_like(weight), weight, bias,
                                          training=True)


def _mixed(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """An image in half precision, far from 0, and parameters in F32."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    x = torch.randn(draw.randint(3, 5), draw.randint(2, 6), draw.randint(2, 6), draw.randint(2, 6))
    return (x * 3 + draw.choice([0, 50])).to(draw.choice([torch.bfloat16, torch.float16])), torch.randn(2, 6)


def _gradients(function: Callable[..., torch.Tensor], x: torch.Tensor, scales: torch.Tensor,
               share: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x, scales = x.clone().requires_grad_(), scales.clone().requires_grad_()
    return torch.autograd.grad(function(x, scales), (x, scales), share.to(x.dtype))


@pytest.mark.parametrize("function", [_layer_norm, _group_norm, _scaled_batch_norm])
def test_statistics_of_half_precision_beside_parameters_in_f32(function: Callable[..., torch.Tensor]) -> None:
    for seed in range(6):
        x, scales = _mixed(seed)
        assert _wrong(function, x.clone().requires_grad_(), scales.clone().requires_grad_()) == []
        share = torch.randn(x.shape).bfloat16()
        torch._dynamo.reset()
        mine, own = (_gradients(run, x, scales, share) for run in (torch.compile(function, backend="kiln"), function))
        exact = _gradients(function, x.double(), scales.double(), share)
        for a, b, c in zip(mine, own, exact):
            size = c.abs().max()
            assert (a - c).abs().max() <= 2 * (b - c).abs().max() + 2 * torch.finfo(a.dtype).eps * size, (seed, a.dtype)


def _batch_norm(statistics: bool, training: bool, x: torch.Tensor) -> torch.Tensor:
    mean, variance = (torch.zeros(x.shape[1]), torch.ones(x.shape[1])) if statistics else (None, None)
    return torch.nn.functional.batch_norm(x, mean, variance, training=training)


@pytest.mark.parametrize("function", [
    functools.partial(_batch_norm, True, True), functools.partial(_batch_norm, False, True),
    functools.partial(_batch_norm, True, False), lambda x: torch.nn.functional.glu(x, 1),
    lambda x: torch.nn.functional.pad(x, (1, 1, 0, 1), "reflect"), lambda x: torch.nn.functional.dropout(x, 0.5),
    lambda x: torch.nn.functional.pad(x, (1, 1, 0, 1), "replicate")])
def test_images_and_gradients_in_any_layout(function: Callable[..., torch.Tensor]) -> None:
    for seed in range(6):
        x = _image(seed)
        for given in (x, x[:, :, 0, :], x[:, :, 0, 0]):
            if given.dim() < 4 and getattr(function, "func", None) is not _batch_norm:
                continue
            assert _wrong(function, given) == [] and _wrong(function, given.clone().requires_grad_()) == []
            torch.manual_seed(seed)
            mine, own = torch.compile(function, backend="kiln")(given), function(given)
            assert mine.stride() == own.stride()


@pytest.mark.parametrize("training", [False, True])
def test_gradients_of_a_batch_norm_whose_input_wants_none(training: bool) -> None:
    def function(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        mean, variance = torch.zeros(x.shape[1]), torch.ones(x.shape[1])
        return torch.nn.functional.batch_norm(x, mean, variance, weight, bias, training=training)

    for seed in range(3):
        x = _image(seed)
        scales = [torch.randn(x.shape[1], generator=torch.Generator().manual_seed(seed)) for _ in range(2)]
        gradients = []
        for run in (function, torch.compile(function, backend="kiln")):
            leaves = [scale.clone().requires_grad_() for scale in scales]
            gradients.append(torch.autograd.grad(run(x, *leaves).square().sum(), leaves))
        torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("seed", range(4))
def test_crops_of_changing_sizes(seed: int) -> None:
    draw = random.Random(seed)
    order = draw.sample(range(3), 3)
    compiled = torch.compile(lambda x, crop: torch.nn.functional.pad(x, crop) * 1, backend="kiln", dynamic=True)
    for _ in range(3):
        x = torch.randn([draw.randint(6, 9) for _ in range(3)]).permute(order)
        crop = [-draw.randint(0, 2) for _ in range(4)]
        mine, own = compiled(x, crop), torch.nn.functional.pad(x, crop) * 1
        assert torch.equal(mine, own) and mine.stride() == own.stride()


def test_without_them(place: Place) -> None:
    """The control, in a process where torch's own declarations stay."""
    code = textwrap.dedent(f"""
        import functools, sys, torch, types
        sys.path.insert(0, {os.path.dirname(os.path.abspath(__file__))!r})
        sys.modules["kiln"] = types.ModuleType("kiln")
        sys.modules["kiln"].declarations = None
        import test_declarations as tests, subjects
        database = subjects.subjects()
        for name, dtype in tests.PUT_RIGHT.items():
            assert tests._wrong_of(database, name, dtype, 20, 1), name
        assert any(tests._wrong(torch.roll, tests._image(seed), 1, 0) for seed in range(6))
        for function in (functools.partial(tests._batch_norm, True, False), lambda x: torch.nn.functional.glu(x, 1),
                         lambda x: torch.nn.functional.dropout(x, 0.5),
                         lambda x: torch.nn.functional.pad(x, (1, 1, 0, 1), "reflect"),
                         lambda x: torch.nn.functional.pad(x, (1, 1, 0, 1), "replicate")):
            assert any(tests._wrong(function, tests._image(seed).requires_grad_()) for seed in range(6))
        assert any(tests._wrong(torch.copysign, tests._image(seed), tests._image(seed)[:1]) for seed in range(6))
        assert tests._wrong(torch.addr, torch.randn(()).double(), torch.randn(3), torch.randn(4))
        assert tests._wrong(lambda *given: torch.addr(*given, beta=0), torch.randn(4, 3).t(), torch.randn(3),
                            torch.randn(4))
        for function in (tests._layer_norm, tests._group_norm, tests._scaled_batch_norm):
            assert tests._wrong(function, *tests._mixed(0))
        assert tests._wrong(torch.nn.functional.huber_loss, torch.randn(3), torch.randn(3).double())
        assert any(tests._wrong(torch.mul, x, y) for seed in range(8) for x, y in tests._pairs(torch.bfloat16, seed))
        print("done")
    """)
    output, _ = place.run(code)
    assert output.strip().endswith("done")
