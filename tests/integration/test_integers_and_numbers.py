"""Integers wrap as eager's do, wherever they are computed; Python numbers convert, or are refused, as eager has it."""
import os
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import kiln  # noqa: F401 - registers the back-end

A = torch.ops.aten
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
CAMPAIGN = 10 if os.environ.get("KILN_FULL") else 1


def _compiled(function: Callable[..., Any], **keywords: Any) -> Callable[..., Any]:
    return torch.compile(function, backend="kiln", **keywords)


def _same(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True, check_stride=True)


# ---- programs of integers

def _constant(chosen: random.Random, dtype: torch.dtype) -> int:
    bits = 7 if dtype in (torch.uint8, torch.int8) else torch.iinfo(dtype).bits - 1
    value: int = chosen.choice((chosen.randint(-5, 9), chosen.getrandbits(bits), 2**bits - 1, 3 << max(bits - 2, 0),
                                6364136223846793005))
    value &= 2**bits - 1
    return value if dtype == torch.uint8 or chosen.random() < 0.6 else -value


# By kind, the forms it may take: of two values, a number of the first one's dtype, a small number, how many
# elements there are, and the device.
FORMS: dict[str, list[Callable[..., torch.Tensor]]] = {
    "add": [lambda x, y, n, k, rows, device: x + y],
    "sub": [lambda x, y, n, k, rows, device: x - y],
    "mul": [lambda x, y, n, k, rows, device: x * y],
    "number": [lambda x, y, n, k, rows, device: x + n, lambda x, y, n, k, rows, device: x - n,
               lambda x, y, n, k, rows, device: n - x, lambda x, y, n, k, rows, device: x * n,
               lambda x, y, n, k, rows, device: x * n, lambda x, y, n, k, rows, device: torch.add(x, y, alpha=n)],
    "shift": [lambda x, y, n, k, rows, device: x << k, lambda x, y, n, k, rows, device: x >> k],
    "divide": [lambda x, y, n, k, rows, device: x // (n if n not in (0, -1) else 3),
               lambda x, y, n, k, rows, device: x % (n if n not in (0, -1) else 5),
               lambda x, y, n, k, rows, device: x % (k + 2)],
    "where": [lambda x, y, n, k, rows, device: torch.where(x > y, x, y),
              lambda x, y, n, k, rows, device: torch.where(x < n, x, y),
              lambda x, y, n, k, rows, device: (x >= n).to(torch.int32) * k,
              lambda x, y, n, k, rows, device: (x == y) * y],
    "one": [lambda x, y, n, k, rows, device: -x, lambda x, y, n, k, rows, device: ~x,
            lambda x, y, n, k, rows, device: x.abs(),
            lambda x, y, n, k, rows, device: x.to(INTEGERS[k % 5]), lambda x, y, n, k, rows, device: x**(k % 6)],
    "positions": [lambda x, y, n, k, rows, device: torch.arange(rows, device=device),
                  lambda x, y, n, k, rows, device: torch.arange(rows - 1, -1, -1, device=device),
                  lambda x, y, n, k, rows, device: torch.arange(rows, device=device) * n + k,
                  lambda x, y, n, k, rows, device: torch.arange(rows, device=device) * 6364136223846793005 - n],
    "moved": [lambda x, y, n, k, rows, device: x[(y % rows).long()],
              lambda x, y, n, k, rows, device: F.pad(x, (2, -2), value=1),
              lambda x, y, n, k, rows, device: x.flip(0), lambda x, y, n, k, rows, device: torch.cat([y[2:], x[:2]]),
              lambda x, y, n, k, rows, device: x.cumsum(0), lambda x, y, n, k, rows, device: x + y.sum()],
}


def integer_program(seed: int) -> Callable[..., list[torch.Tensor]]:
    """A function of tensors of integers; what it computes is drawn once."""
    chosen = random.Random(seed)
    kinds = ("add", "sub", "mul", "number", "number", "number", "shift", "divide", "where", "one", "positions",
             "positions", "moved")
    steps = [(chosen.choice(FORMS[chosen.choice(kinds)]), chosen.randrange(60), chosen.randrange(60),
              {dtype: _constant(chosen, dtype) for dtype in INTEGERS}, chosen.randint(0, 9))
              for _ in range(chosen.randint(3, 9))]

    def program(*inputs: torch.Tensor) -> list[torch.Tensor]:
        values = list(inputs)
        for form, first, second, numbers, small in steps:
            x, y = values[first % len(values)], values[second % len(values)]
            values.append(form(x, y, numbers[x.dtype], small, inputs[0].shape[0], inputs[0].device))
        return values[len(inputs):]

    return program


def integer_inputs(seed: int, rows: int) -> list[torch.Tensor]:
    chosen = random.Random(seed)
    inputs = []
    for dtype in chosen.choices(INTEGERS, k=2):
        info = torch.iinfo(dtype)
        generator = torch.Generator().manual_seed(seed)
        values = torch.randint(max(info.min, -2**62), min(info.max, 2**62), (rows,), generator=generator)
        inputs.append(values.to(dtype))
    return inputs


@pytest.mark.usefixtures("no_fallback")
class TestPrograms:
    @pytest.mark.parametrize("seed", range(12 * CAMPAIGN))
    def test_static(self, seed: int) -> None:
        program, inputs = integer_program(seed), integer_inputs(seed, 5 + seed % 30)
        _same(_compiled(program, dynamic=False)(*inputs), program(*inputs))

    @pytest.mark.parametrize("seed", range(100, 100 + 4 * CAMPAIGN))
    def test_dynamic(self, seed: int) -> None:
        program = integer_program(seed)
        compiled = _compiled(program, dynamic=True)
        for rows in (5, 9, 70):
            inputs = integer_inputs(seed, rows)
            _same(compiled(*inputs), program(*inputs))

    def test_multiples_of_positions(self) -> None:
        for factor in (6364136223846793005, 2**62, -2**63, 2**61 + 1):
            for function in (lambda x: torch.arange(3) * factor + x, lambda x: torch.arange(3) * factor < x,
                             lambda x: F.pad(torch.arange(3) * factor, (2, 2)) > 0,
                             lambda x: (torch.arange(8) * factor + factor)[2:5] // 3 + x,
                             lambda x: torch.arange(12).view(3, 4) * factor - factor // 2):
                _same(_compiled(function)(torch.tensor(0)), function(torch.tensor(0)))

    def test_numbers_that_change(self) -> None:
        compiled = _compiled(lambda x, k: torch.arange(4) * k + x, dynamic=True)
        for k in (3, 7, 2**62 + 1, -2**63 + 5):
            _same(compiled(torch.tensor(1), k), torch.arange(4) * k + 1)

    def test_positions_that_index(self) -> None:
        x = torch.randn(10)
        functions: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
            lambda x: x[torch.arange(4) * 2 + 1], lambda x: x[torch.arange(9, -1, -1)],
            lambda x: x[(torch.arange(10) * 6364136223846793005) % 10], lambda x: x[torch.arange(3) * -2 + 9])
        for function in functions:
            _same(_compiled(function)(x), function(x))
            _same(_compiled(function, dynamic=True)(x), function(x))


class TestPowers:
    def test_of_tensors(self) -> None:
        for dtype in INTEGERS:
            x = torch.tensor([-3, -2, -1, 0, 1, 2, 3, 5]).to(dtype)
            for exponent in (torch.tensor([0, 1, 2, 3, 9, 60, 63, 64]), torch.tensor([-1, -2, -3, -1, -7, -63, 0, 1])):
                exponent = exponent.to(dtype)
                _same(_compiled(torch.pow)(x, exponent), torch.pow(x, exponent))
            for power in (0, 1, 2, 3, 4, 7, 100):
                _same(_compiled(lambda x: x**power)(x), x**power)
        x = torch.tensor([-1, 1, 3])
        _same(_compiled(lambda x: x**(2**62 + 1))(x), x**(2**62 + 1))

    @pytest.mark.parametrize("dynamic", (False, True))
    def test_a_negative_number_is_refused(self, dynamic: bool) -> None:
        for exponent in (-1, -2, -7):
            for dtype in INTEGERS:
                x = torch.tensor([1, 2, 3]).to(dtype)
                with pytest.raises(RuntimeError, match="negative integer powers"):
                    _compiled(lambda x: x**exponent + 1, dynamic=dynamic)(x)
        _same(_compiled(lambda x: 1.0 * x**-1.0)(torch.tensor([1, 2])), torch.tensor([1.0, 0.5]))


# ---- numbers that do not fit

MASK = torch.tensor([True, False, True, False])
INDEX = torch.tensor([0, 1, 2, 3])
TAKES_A_NUMBER = {
    "clamp": lambda x, v: x.clamp(v, None), "clamp max": lambda x, v: x.clamp(None, v),
    "clamp both": lambda x, v: x.clamp(-1000, v),
    "clamp_min": lambda x, v: x.clamp_min(v), "clamp_max": lambda x, v: x.clamp_max(v),
    "masked_fill": lambda x, v: x.masked_fill(MASK, v), "masked_fill_": lambda x, v: x.clone().masked_fill_(MASK, v),
    "masked_fill tensor": lambda x, v: x.masked_fill(MASK, torch.tensor(v)), "fill": lambda x, v: A.fill.Scalar(x, v),
    "fill_": lambda x, v: x.clone().fill_(v), "assignment": lambda x, v: x.clone().__setitem__(slice(1, 3), v),
    "full": lambda x, v: torch.full((4,), v, dtype=x.dtype), "full_like": lambda x, v: torch.full_like(x, v),
    "new_full": lambda x, v: x.new_full((2, 2), v), "where": lambda x, v: torch.where(MASK, x, v),
    "where first": lambda x, v: torch.where(MASK, v, x), "where both": lambda x, v: torch.where(MASK, v, 1) + x,
    "scatter": lambda x, v: x.scatter(0, INDEX, v), "scatter add": lambda x, v: x.scatter(0, INDEX, v, reduce="add"),
    "index_fill": lambda x, v: x.index_fill(0, INDEX[:2], v), "pad": lambda x, v: F.pad(x, (1, 2), value=v),
    "threshold": lambda x, v: F.threshold(x, v, 1), "threshold value": lambda x, v: F.threshold(x, 1, v),
    "hardtanh": lambda x, v: F.hardtanh(x, v, 1000.0), "hardtanh max": lambda x, v: F.hardtanh(x, 0, v),
    "hardshrink": lambda x, v: F.hardshrink(x, v), "leaky_relu": lambda x, v: F.leaky_relu(x, v),
    "elu": lambda x, v: F.elu(x, v),
    "celu": lambda x, v: F.celu(x, v), "softplus": lambda x, v: F.softplus(x, v),
    "add alpha": lambda x, v: torch.add(x, x, alpha=v),
    "sub alpha": lambda x, v: torch.sub(x, x, alpha=v), "rsub alpha": lambda x, v: torch.rsub(x, x, alpha=v),
    "addcmul": lambda x, v: torch.addcmul(x, x, x, value=v),
    "addcdiv": lambda x, v: torch.addcdiv(x, x, x + 1, value=v),
    "lerp": lambda x, v: torch.lerp(x, x + 1, v), "pow": lambda x, v: x**v, "rpow": lambda x, v: v**x,
    "add": lambda x, v: x + v, "sub": lambda x, v: x - v, "rsub": lambda x, v: v - x, "mul": lambda x, v: x * v,
    "div": lambda x, v: x / v, "lt": lambda x, v: x < v, "eq": lambda x, v: x == v, "ge": lambda x, v: x >= v,
    "and": lambda x, v: x & v, "index_add": lambda x, v: x.index_add(0, INDEX, x, alpha=v),
    "scalar_tensor": lambda x, v: torch.scalar_tensor(v, dtype=x.dtype) + x,
    "linspace": lambda x, v: torch.linspace(0, v, 4, dtype=x.dtype),
    "maximum": lambda x, v: torch.maximum(x, torch.tensor(v)), "copysign": lambda x, v: torch.copysign(x, v),
    "xlogy": lambda x, v: torch.xlogy(x, v), "fmod": lambda x, v: torch.fmod(x, v), "addmm": lambda x, v: torch.addmm(
        x.view(2, 2), x.view(2, 2), x.view(2, 2), alpha=v),
        "index_fill tensor": lambda x, v: x.index_fill(0, INDEX[:2], torch.tensor(v)),
}
DTYPES = (*INTEGERS, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool)


def _numbers(chosen: random.Random, dtype: torch.dtype) -> list[float]:
    """Of those that just fit, those that just don't, and those of another kind."""
    if dtype == torch.bool:
        return chosen.sample((True, 2, -1, 0.5, float("nan")), 2)
    if dtype.is_floating_point:
        most = torch.finfo(dtype).max
        return chosen.sample((most, -most, min(most * 1.001, 1.7e308), -1e9, 1e39, 70000, -2**62, float("inf"),
                              float("nan"), 2.5), 3)
    info = torch.iinfo(dtype)
    return chosen.sample((info.max, info.min, min(info.max + 1, 2**63 - 1), max(info.min - 1, -2**63), -255, 1000,
                          -1000, 2**40, 2.5,
                          float(info.max) * 2, float("inf"), -1), 4)


def _outcome(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Exception as error:
        return error


def _check_number(function: Callable[..., Any], dtype: torch.dtype, number: float) -> None:
    x = torch.arange(4).to(dtype)
    run = lambda x: function(x, number)
    expected = _outcome(run, x)
    if isinstance(expected, NotImplementedError):
        return  # nothing about the number
    torch._dynamo.reset()
    actual = _outcome(_compiled(run), x)
    if isinstance(expected, Exception) and not isinstance(actual, Exception):
        # What torch traces may be other operators, which take the number.
        torch._dynamo.reset()
        expected = _outcome(torch.compile(run, backend="aot_eager"), x)
    if isinstance(expected, Exception):
        kind = RuntimeError if isinstance(expected, RuntimeError) else Exception
        assert isinstance(actual, kind), f"{dtype}, {number!r}: {actual} where eager raises {expected!r}"
        return
    assert not isinstance(actual, Exception), f"{dtype}, {number!r}: {actual!r}"
    close: dict[str, Any] = {} if dtype.is_floating_point or number.__class__ is float else {"rtol": 0, "atol": 0}
    try:
        torch.testing.assert_close(actual, expected, equal_nan=True, **close)
    except AssertionError:  # what torch traces may also multiply and divide in another order
        torch._dynamo.reset()
        expected = torch.compile(run, backend="aot_eager")(x)
        torch.testing.assert_close(actual, expected, equal_nan=True, **close)


class TestNumbers:
    @pytest.mark.parametrize("name", TAKES_A_NUMBER)
    def test_as_eager(self, name: str) -> None:
        chosen = random.Random(name)
        for dtype in chosen.sample(DTYPES, 1 if CAMPAIGN == 1 else len(DTYPES)):
            for number in _numbers(chosen, dtype)[: 2 * CAMPAIGN]:
                _check_number(TAKES_A_NUMBER[name], dtype, number)

    @pytest.mark.parametrize("function, name, number", [
        (lambda x: x.clamp(-1000, 1000), "clamp", "-1000"), (lambda x: x.masked_fill(MASK, 300), "masked_fill", "300"),
        (lambda x: torch.full_like(x, 1e9), "full", "1e"), (lambda x: F.pad(x, (1, 1), value=-200), "constant_pad_nd",
                                                            "-200"),
        (lambda x: x**-2, "pow", "-2"), (lambda x: x.scatter(0, INDEX, 128), "scatter", "128")])
    def test_what_is_refused_is_named(self, function: Callable[..., torch.Tensor], name: str, number: str,
                                      monkeypatch: pytest.MonkeyPatch) -> None:
        x = torch.arange(4, dtype=torch.int8)
        monkeypatch.setenv("KILN_FALLBACK", "error")  # one node is PyTorch's, not the graph
        with pytest.raises(RuntimeError) as raised:
            _compiled(function)(x)
        text = " ".join([str(raised.value), *getattr(raised.value, "__notes__", ())])
        assert "negative integer" in text or (name in text and number in text), text

    @pytest.mark.usefixtures("no_fallback")
    def test_what_fits_is_compiled(self) -> None:
        x = torch.arange(4, dtype=torch.int8)
        for function in (lambda x: x.clamp(-128, 127), lambda x: x.masked_fill(MASK, -128), lambda x: x + 1000,
                         lambda x: x * 300 < 1000,
                         lambda x: x.to(torch.uint8).masked_fill(MASK, -255),
                         lambda x: x.half().clamp(-65504, float("inf")),
                         lambda x: x.bfloat16().masked_fill(MASK, -1e9), lambda x: torch.sub(x, x, alpha=128)):
            _same(_compiled(function)(x), function(x))


# ---- what eager refuses beside numbers that do not fit

OUT_OF_RANGE: dict[str, tuple[Callable[..., torch.Tensor], tuple[float, ...]]] = {
    "smooth_l1_loss": (lambda x, v: F.smooth_l1_loss(x, x + 1, beta=v), (0.0, 0.5, -0.5, -2.0)),
    "celu": (lambda x, v: F.celu(x, v), (1.0, -1.0, 0.0)),
    "bernoulli": (lambda x, v: torch.bernoulli(x, v) * 0, (0.0, 1.0, 1.5, -0.25)),
    "bernoulli_": (lambda x, v: x.clone().bernoulli_(v) * 0, (0.5, 1.25, -1.0)),
    "native_dropout": (lambda x, v: torch.native_dropout(x, v, True)[0] * 0, (0.0, 0.5, 1.5, -0.5)),
}


def _class_weights(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return F.cross_entropy(x, torch.arange(len(x)) % x.shape[1], torch.ones(x.shape[1], dtype=dtype))


def _batch_norm(x: torch.Tensor, y: torch.Tensor, training: bool) -> torch.Tensor:
    return F.batch_norm(x, y[0].clone(), y[0].abs() + 1, training=training)


WANTS_DTYPES = {
    "index_put": lambda x, y, i: x.index_put((i,), y), "index_add": lambda x, y, i: x.index_add(0, i, y),
    "index_copy": lambda x, y, i: x.index_copy(0, i, y), "index_fill": lambda x, y, i: x.index_fill(0, i, 2.0) + y,
    "put": lambda x, y, i: x.put(i, y[: len(i), 0]), "heaviside": lambda x, y, i: torch.heaviside(x, y),
    "binary_cross_entropy": lambda x, y, i: F.binary_cross_entropy(x.sigmoid(), y.sigmoid()),
    "nll_loss": lambda x, y, i: F.nll_loss(x, i), "class weights": lambda x, y, i: _class_weights(x, y.dtype),
    "softmax's gradient": lambda x, y, i: torch.ops.aten._softmax_backward_data(x, y, 1, x.dtype),
    "layer_norm": lambda x, y, i: F.layer_norm(x, x.shape[1:], y[0]), "layer_norm bias": lambda x, y, i: F.layer_norm(
        x, x.shape[1:], x[0], y[0]), "group_norm": lambda x, y, i: F.group_norm(x, 1, y[0], y[0]),
    "batch_norm": lambda x, y, i: F.batch_norm(x, None, None, y[0], y[0], training=True),
    "batch_norm statistics": lambda x, y, i: _batch_norm(x, y, True),
    "batch_norm inference": lambda x, y, i: _batch_norm(x, y, False),
    "rsub": lambda x, y, i: torch.rsub(x > 0, 1) * y, "rsub tensor": lambda x, y, i: torch.rsub(x > 0, y),
    "argmax": lambda x, y, i: (x > 0).argmax(1) + y[:, 0], "argmin": lambda x, y, i: (x > 0).argmin() + y,
}
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)

# Of a matrix of any dtype; eager refuses booleans, or whole numbers as well.
WANTS_NUMBERS = {
    **{name: getattr(torch, name) for name in ("abs", "ceil", "floor", "trunc", "round", "frac", "trace")},
    **{name: getattr(F, name) for name in ("relu", "glu", "silu", "mish", "elu", "gelu", "hardsigmoid", "hardswish")},
    "threshold": lambda x: F.threshold(x, 0, 1), "prelu": lambda x: F.prelu(x, x[0, :1]),
    "sub": lambda x: x - x[:1], "sub of a number": lambda x: x - 2, "number minus": lambda x: 2 - x,
    "sub beside floats": lambda x: torch.ones(x.shape) - x, "foreach": lambda x: torch._foreach_sub([x], [x])[0],
    "dot": lambda x: torch.dot(x[0], x[0]), "mv": lambda x: torch.mv(x, x[0]), "pow": lambda x: torch.pow(x, x[:1]),
    "clamp": lambda x: torch.clamp(x, x[:1], x[:1]), "bucketize": lambda x: torch.bucketize(x, x[0].sort().values),
    "addcmul": lambda x: torch.addcmul(x, x, x), "addcdiv": lambda x: torch.addcdiv(torch.ones(x.shape), x, x),
    "ldexp": lambda x: torch.ldexp(torch.ones(x.shape), x), "lerp": lambda x: torch.lerp(x, x, 0.5),
    "lerp by a tensor": lambda x: torch.lerp(x, x, x), "masked": lambda x: torch.masked.var(x, 1),
    "reflect": lambda x: F.pad(x, (1, 1), "reflect"), "replicate": lambda x: F.pad(x, (1, 1), "replicate"),
    "softmax's gradient": lambda x: torch.ops.aten._softmax_backward_data(x, x, 1, x.dtype),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "soft_margin_loss": lambda x: F.soft_margin_loss(x, torch.ones(x.shape)), "softplus": F.softplus,
    "celu": lambda x: F.celu(x, 1.5), "smooth_l1_loss": lambda x: F.smooth_l1_loss(x, x),
    "huber_loss": lambda x: F.huber_loss(x, x), "logaddexp": lambda x: torch.logaddexp(x, x),
    "logaddexp2": lambda x: torch.logaddexp2(x, x), "bernoulli": lambda x: torch.bernoulli(x - x),
    "add a share": lambda x: torch.add(x, x, alpha=0.5), "subtract a share": lambda x: torch.sub(x, x, alpha=0.5),
    "a share of a number": lambda x: torch.add(x, 2, alpha=0.5), "rsub": lambda x: torch.rsub(x, x, alpha=1.0),
}


def _as_eager(function: Callable[..., Any], *arguments: Any) -> bool:
    """Eager's result, or eager's very error."""
    torch._dynamo.reset()
    expected, actual = _outcome(function, *arguments), _outcome(_compiled(function), *arguments)
    if isinstance(expected, Exception):
        assert type(actual) is type(expected) and str(actual).split("\n")[0] == str(expected).split("\n")[0], (actual,
                                                                                                               expected)
        return False
    assert not isinstance(actual, Exception), actual
    tolerance = 1e-2 if actual.dtype in (torch.bfloat16, torch.float16) else 1e-5
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
    return True


class TestWhatEagerRefuses:
    @pytest.mark.parametrize("name", OUT_OF_RANGE)
    def test_numbers(self, name: str) -> None:
        function, numbers = OUT_OF_RANGE[name]
        taken = [_as_eager(lambda x, v=number: function(x, v), torch.randn(random.randrange(1, 9), 5))
                 for number in numbers]
        assert {True, False} <= set(taken)

    @pytest.mark.parametrize("name", WANTS_DTYPES)
    def test_dtypes(self, name: str) -> None:
        chosen = random.Random(name)
        drawn = [(one, one, torch.int64) for one in chosen.sample(FLOATS, 2)]
        drawn += [(torch.bfloat16, torch.float32, torch.int64)]
        for _ in range(4):
            one, other = chosen.sample(FLOATS, 2)
            drawn.append((one, other, chosen.choice((torch.int64, torch.int32))))
        for first, second, third in drawn:
            rows = chosen.randrange(2, 6)
            x, y = torch.randn(rows, 6).to(first), torch.randn(rows, 6).to(second)
            _as_eager(WANTS_DTYPES[name], x, y, torch.randperm(rows).to(third))

    @pytest.mark.parametrize("name", ["index_select", "index_add", "index_copy", "index_fill"])
    def test_dtypes_of_positions(self, name: str) -> None:
        function = {"index_select": lambda x, i: x.index_select(0, i), "index_add": lambda x, i: x.index_add(0, i, x),
                    "index_copy": lambda x, i: x.index_copy(0, i, x),
                    "index_fill": lambda x, i: x.index_fill(0, i, 2.0)}[name]
        taken = [_as_eager(function, torch.randn(4, 3), torch.randperm(4).to(dtype))
                 for dtype in (torch.int64, torch.int32, torch.int16, torch.int8)]
        assert {True, False} <= set(taken)

    @pytest.mark.parametrize("dynamic", [False, True])
    def test_truth_values_as_factors(self, dynamic: bool) -> None:
        def add(x: torch.Tensor) -> torch.Tensor:
            return torch.add(x, x, alpha=True)

        for dtype in (torch.bool, torch.int32, torch.float32):
            torch._dynamo.reset()
            x = torch.ones(5).to(dtype)
            expected, actual = _outcome(add, x), _outcome(_compiled(add, dynamic=dynamic), x)
            assert type(actual) is type(expected) and str(actual) == str(expected)

    @pytest.mark.parametrize("name", WANTS_NUMBERS)
    def test_truth_values_and_whole_numbers(self, name: str) -> None:
        whole = random.Random(name).choice((torch.uint8, torch.int8, torch.int32, torch.int64))
        refused = []
        for dtype in (torch.bool, whole, torch.float32):
            torch._dynamo.reset()
            x = torch.randint(1, 4, (6, 6)).to(dtype)
            expected, actual = _outcome(WANTS_NUMBERS[name], x), _outcome(_compiled(WANTS_NUMBERS[name]), x)
            refused.append(isinstance(expected, Exception))
            if refused[-1]:
                assert isinstance(actual, RuntimeError), f"{dtype}: {actual} where eager raises {expected!r}"
            else:
                torch.testing.assert_close(actual, expected)
        assert refused[0] and not refused[2]


    def test_a_margin_beside_a_wider_target(self) -> None:
        """Eager multiplies in the input's dtype, in which the exponential is infinite."""
        for dtype in FLOATS:
            x, target = torch.linspace(-90, 90, 7).to(dtype), torch.ones(7, dtype=random.choice(FLOATS))
            _as_eager(lambda x, target: F.soft_margin_loss(x, target, reduction="none"), x, target)


class TestWhere:
    @pytest.mark.usefixtures("no_fallback")
    @pytest.mark.parametrize("seed", range(2 * CAMPAIGN))
    def test_dtypes(self, seed: int) -> None:
        chosen = random.Random(seed)
        for _ in range(4):
            a, b = (torch.randint(0, 100, chosen.choice(((4,), (), (1,))),
                                  generator=torch.Generator().manual_seed(seed)).to(dtype)
                    for dtype in chosen.choices(DTYPES, k=2))
            number = chosen.choice((True, 3, 2.5))
            condition = MASK
            functions: tuple[Callable[..., torch.Tensor], ...] = (
                lambda a, b: torch.where(condition, a, b), lambda a, b: torch.where(condition, a, number),
                lambda a, b: torch.where(condition, number, b), lambda a, b: torch.where(condition, number, 7))
            for function in functions:
                torch._dynamo.reset()
                _same(_compiled(function)(a, b), function(a, b))


@pytest.mark.usefixtures("no_fallback")
@pytest.mark.parametrize("dtype", DTYPES)
def test_masked_index_put_accumulate(dtype: torch.dtype) -> None:
    x, mask = torch.arange(6).to(dtype), torch.tensor([True, False, True, True])
    index, values = torch.tensor([0, 99, 2, 0]), torch.tensor([1, 1, 0, 1]).to(dtype)
    put: Callable[..., Any] = lambda x: A._unsafe_masked_index_put_accumulate(x, mask, [index], values)
    _same(_compiled(put)(x), put(x))
    get: Callable[..., Any] = lambda x: A._unsafe_masked_index(x, mask, [index], 1)
    _same(_compiled(get)(x), get(x))
