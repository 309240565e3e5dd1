"""One unknown node costs one node: programs at random that mix what the compiler knows with what it does not.

Results and gradients are eager's, no graph falls back, and nothing runs in Python but what has to.
"""
import random
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import pytest
import torch

import kiln
from daemons import Place
from kiln import graph, graph_cut
from kiln.errors import Unsupported
from model_checks import programs
from torch_versions import needs_torch

pytestmark = pytest.mark.usefixtures("no_fallback")

COLUMNS = 6
_checked_with_effects = needs_torch(2, 13, "the check of linalg.inv is no effect, and is traced away")


# ---- what the compiler does not know


_library = torch.library.Library("kiln_unknown", "FRAGMENT")
_library.define("scale(Tensor x, float[] factors, str[] how) -> Tensor")  # lists of strings do not travel


@torch.library.impl(_library, "scale", "CompositeExplicitAutograd")
def _(x: torch.Tensor, factors: list[float], how: list[str]) -> torch.Tensor:
    return x * factors[0] if "once" in how else x * factors[0] * factors[1]


@torch.library.register_fake("kiln_unknown::scale")  # type: ignore[untyped-decorator]  # torch gives it no types
def _(x: torch.Tensor, factors: list[float], how: list[str]) -> torch.Tensor:
    return torch.empty_like(x)


scale = torch.ops.kiln_unknown.scale
torch.library.register_autograd(
    "kiln_unknown::scale", lambda ctx, gradient: (scale(gradient, ctx.factors, ctx.how), None, None),
    setup_context=lambda ctx, inputs, output: ctx.__dict__.update(factors=inputs[1], how=inputs[2]))


@torch.library.custom_op("kiln_unknown::bump", mutates_args=("into",))
def bump(x: torch.Tensor, into: torch.Tensor) -> None:
    into.add_(x, alpha=2)


@bump.register_fake
def _(x: torch.Tensor, into: torch.Tensor) -> None:
    return None


def bumped(x: torch.Tensor) -> torch.Tensor:
    into = x.detach() * 0.25
    bump(x.detach(), into)
    return x + into


def _positive_sum(x: torch.Tensor) -> torch.Tensor:
    return x * x.detach()[x.detach() > 0.0137].sum().tanh()


def _positions(x: torch.Tensor) -> torch.Tensor:
    return x + (x.detach() > 0.0137).nonzero().sum().remainder(3)


def _counted(x: torch.Tensor) -> torch.Tensor:
    count = (x.detach() > 0.0137).sum().item()
    torch._check(count >= 0)
    return x + torch.arange(count).sum().remainder(5)


def _nested(x: torch.Tensor) -> Any:
    return torch.cond(x.mean() > 0.0137, lambda x: torch.cond(x.max() > 1, lambda x: x.cos(), lambda x: x * 3, (x,)),
                      lambda x: x.sin(), (x,))


UNKNOWN = {
    "float8": lambda x: x + (x.detach() * 4).round().to(torch.float8_e4m3fn).to(torch.float32),
    "uint16": lambda x: x + (x.detach().abs() * 9).to(torch.int32).to(torch.uint16).to(torch.float32),
    "uint32": lambda x: x * (x.detach() > 0.0137).to(torch.uint32).to(torch.int64),
    "complex32": lambda x: x * ((x.detach() > 0.0137).half() + (1 + 2j)).abs().float(),
    "complex": lambda x: x * torch.full((x.shape[0], 1), 1 + 2j).abs(),
    "cond": lambda x: torch.cond(x.sum() > 0.0137, lambda x: x.cos() * 2, lambda x: x.square(), (x,)),
    "conds": _nested,
    "custom": lambda x: scale(x, [0.5, 1.5], ["twice"]) + scale(x, [0.75], ["once", "more"]),
    "mutates": bumped,
    "inverse": lambda x: x @ torch.linalg.inv(x.detach()[:COLUMNS].T @ x.detach()[:COLUMNS] + 9 * torch.eye(COLUMNS)),
}

# ---- and what it does; none of these operators may run in Python

KNOWN = {
    "sigmoid": lambda x: x.sigmoid() - 0.4,
    "softmax": lambda x: x.softmax(-1) * 3,
    "norm": lambda x: torch.nn.functional.layer_norm(x, (COLUMNS,)),
    "erf": lambda x: x.erf() + 0.1,
    "mm": lambda x: torch.mm(x, torch.ones(COLUMNS, COLUMNS) / 3),
    "cumsum": lambda x: x.cumsum(1) / 4,
    "complex number":
        lambda x: torch.view_as_real(torch.view_as_complex(x.unflatten(1, (-1, 2))) * (1 + 2j)).flatten(1),
    "positive": _positive_sum,
    "positions": _positions,
    "counted": _counted,
}
_NATIVE = ("aten.mul", "aten._conj", "aten.sigmoid", "aten._softmax", "aten.native_layer_norm", "aten.erf", "aten.mm",
           "aten.cumsum", "aten.index",
           "aten.nonzero", "aten._local_scalar_dense", "aten.arange")


def drawn(draw: random.Random, unknown: Sequence[str], length: int = 8) -> Callable[..., Any]:
    """A program of `length` steps, each on a value that a step before made."""
    pieces = draw.choices(list(KNOWN), k=length - len(unknown)) + list(unknown)
    draw.shuffle(pieces)
    steps = [(piece, draw.randrange(max(i - 2, 0), i + 1), draw.random() < 0.3) for i, piece in enumerate(pieces)]

    def program(x: torch.Tensor) -> Any:
        values = [x]
        for piece, source, joined in steps:
            value = (KNOWN.get(piece) or UNKNOWN[piece])(values[source])
            values.append(value + values[-1] if joined else value)
        return values[-1], sum(values)

    return program


def results(function: Callable[..., Any], x: torch.Tensor, gradient: bool) -> list[torch.Tensor]:
    x = x.clone().requires_grad_(gradient)
    outputs = function(x)
    total = sum(output.sum() for output in outputs if output.requires_grad)
    gradients = torch.autograd.grad(total, x) if gradient else ()
    return [value.detach() for value in (*outputs, *gradients)]


def check(program: Callable[..., Any], draw: random.Random, gradient: bool, dynamic: bool) -> None:
    compiled = torch.compile(program, backend="kiln", dynamic=dynamic)
    for rows in draw.sample(range(COLUMNS, 30), 3) if dynamic else (9,):
        x = torch.randn(rows, COLUMNS, generator=torch.Generator().manual_seed(rows))
        for actual, expected in zip(results(compiled, x, gradient), results(program, x, gradient)):
            torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def python_calls() -> list[Any]:
    return [call for program in kiln.records.graphs_since(0) if "fallback" not in program
            for call in program.get("python_calls", ())]


@pytest.fixture(autouse=True)
def captured() -> Iterator[None]:
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        yield


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=_checked_with_effects if kind == "inverse" else ())
                                  for kind in UNKNOWN])
def test_each_kind(kind: str) -> None:
    draw = random.Random(kind)
    program, gradient, dynamic = drawn(draw, [kind], length=4), draw.random() < 0.5, draw.random() < 0.5
    for _ in range(2):  # the second time from torch's cache, where it keeps such graphs
        torch._dynamo.reset()
        check(program, draw, gradient, dynamic)
    stats, calls = kiln.stats(), python_calls()
    assert calls and stats["kernels"] and not stats["fallbacks"]
    assert not [name for call in calls for name in call["operators"] if name.startswith(_NATIVE)]
    assert all(counts["runs"] and 0 < counts["seconds"] <= counts["of_seconds"] for counts in stats["python"].values())


@pytest.mark.parametrize("seed", range(5))
def test_programs_at_random(seed: int) -> None:
    draw = random.Random(seed)
    program = drawn(draw, draw.sample(list(UNKNOWN), 3))
    check(program, draw, gradient=seed % 2 == 0, dynamic=draw.random() < 0.5)
    assert not kiln.stats()["fallbacks"]
    assert not [name for call in python_calls() for name in call["operators"] if name.startswith(_NATIVE)]


def test_control_without_the_cut_a_graph_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(module: Any, refused: Any, *_: object) -> NoReturn:
        raise Unsupported(next(iter(refused.values())))

    monkeypatch.setattr(graph_cut, "cut", refuse)
    monkeypatch.setenv("KILN_FALLBACK", "eager")
    with pytest.warns(RuntimeWarning, match="runs without kiln: unsupported: dtype torch.float8_e4m3fn"):
        check(drawn(random.Random(0), ["float8"]), random.Random(0), gradient=False, dynamic=False)
    assert kiln.stats()["fallbacks"]


def test_unknown_inputs_and_outputs() -> None:
    def f(packed: torch.Tensor, x: torch.Tensor, flags: torch.Tensor) -> tuple[torch.Tensor, ...]:
        wide = packed.to(torch.float32)
        return packed.t(), (wide * x).sin(), flags, (x * 2).to(torch.float8_e5m2), x.cos()

    packed, x = torch.randn(5, 4).to(torch.float8_e4m3fn), torch.randn(5, 4)
    flags = torch.arange(7).to(torch.uint16)
    for dynamic in (False, True):
        torch._dynamo.reset()
        compiled = torch.compile(f, backend="kiln", dynamic=dynamic)
        for rows in (5, 3):
            given = packed[:rows], x[:rows], flags
            for actual, expected in zip(compiled(*given), f(*given)):
                assert actual.dtype == expected.dtype and actual.stride() == expected.stride()
                torch.testing.assert_close(actual.float(), expected.float())


def test_what_is_written_into_is_written_into() -> None:
    def f(packed: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        x.mul_(packed.to(torch.float32))
        packed.copy_(x.sin())
        return x.cos() + packed.to(torch.float32)

    packed, x = torch.randn(5, 4).to(torch.float8_e4m3fn), torch.randn(5, 4)
    expected_packed, expected_x = packed.clone(), x.clone()
    expected = f(expected_packed, expected_x)
    torch.testing.assert_close(torch.compile(f, backend="kiln")(packed, x), expected)
    torch.testing.assert_close(x, expected_x)
    assert torch.equal(packed.view(torch.uint8), expected_packed.view(torch.uint8))


def test_explain_tells_the_reason() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() * 2).to(torch.float8_e4m3fn).to(torch.float32).cos()

    text = str(kiln.explain(f)(torch.randn(3, 4)))
    assert "1 calls of Python" in text
    assert "Python 0: aten._to_copy.default, aten._to_copy.default (dtype torch.float8_e4m3fn)" in text
    assert 0 < python_calls()[0]["share"] <= 1
    with kiln.profile() as profile:
        torch.compile(f, backend="kiln")(torch.randn(3, 4))
    assert any(line.name.startswith("Python 0: ") for line in profile.lines)


@_checked_with_effects
def test_an_error_in_the_call_is_the_users(no_fallback: None) -> None:
    def f(x: torch.Tensor) -> Any:
        return torch.linalg.inv(x * 0) + 1

    with pytest.raises(torch.linalg.LinAlgError, match="singular"):  # type: ignore[attr-defined]  # another name's
        torch.compile(f, backend="kiln")(torch.randn(3, 3))


@_checked_with_effects
@pytest.mark.parametrize("seed", range(5))
def test_inputs_of_unknown_dtypes_beside_effects(seed: int) -> None:
    """In torch's graph the tokens of effects come before the inputs."""
    draw = random.Random(seed)
    dtypes = [draw.choice([torch.float8_e4m3fn, torch.uint16, torch.float32]) for _ in range(draw.randrange(4))]
    inputs = [torch.arange(9.0).view(3, 3).to(dtype) for dtype in (*dtypes, torch.uint16)]
    draw.shuffle(inputs)

    def f(*inputs: torch.Tensor) -> Any:
        total = sum((i + 1) * x.to(torch.float32) for i, x in enumerate(inputs))
        return torch.linalg.inv(total + torch.eye(3) * 100), *inputs

    for actual, expected in zip(torch.compile(f, backend="kiln")(*inputs), f(*inputs)):
        torch.testing.assert_close(actual, expected)
    stats = kiln.stats()
    assert stats["kernels"] and not stats["fallbacks"]


def test_the_key_covers_what_runs() -> None:
    def digests(*functions: Callable[..., Any]) -> int:
        found = set()
        for function in functions:
            torch._dynamo.reset()
            kiln.reset_stats()
            chosen = torch.compile(lambda x: torch.cond(x.sum() > 0, function, torch.sin, (x,)) * 2, backend="kiln")
            chosen(torch.ones(4))
            found.add(programs(0)[0]["request_key"])
        return len(found)

    assert digests(lambda x: x * 3, lambda y: y * 3) == 1
    assert digests(lambda x: x * 3, lambda x: x * 4, lambda x: x * 3.0, lambda x: x + 3, torch.cos) == 5


PROCESS = textwrap.dedent("""
    import json
    import torch, kiln
    torch._dynamo.config.capture_dynamic_output_shape_ops = True
    def f(x, packed):
        y = torch.cond(x.sum() > 0, lambda x: x.cos() * 2, lambda x: x.square(), (x,)) if {cond} else x
        y = y + x.sin().to(torch.float8_e4m3fn).to(torch.float32) * packed.to(torch.float32)
        return y.softmax(-1), x[x > 0].sum()
    x, packed = torch.randn(5, 4), torch.randn(5, 4).to(torch.float8_e5m2)
    for actual, expected in zip(torch.compile(f, backend="kiln")(x, packed), f(x, packed)):
        torch.testing.assert_close(actual, expected)
    print(json.dumps(kiln.stats()))
""")


@pytest.mark.parametrize("cond", [False, True])
def test_a_second_process_hits(place: Place, cond: bool) -> None:
    import json

    first, second = (json.loads(place.run(PROCESS.format(cond=cond))[0].splitlines()[-1]) for _ in range(2))
    assert first["compiles"] == first["graphs"] == (3 if cond else 1)  # the branches, too
    assert first["python_calls"] and not first["fallbacks"]
    assert second["compiles"] == 0 and second["hits"] == first["graphs"]
    assert second["python_calls"] == first["python_calls"]
    if not cond:  # torch's own rule keeps no graph with cond
        assert second["autograd_cache_loads"] == 1


_written: list[int] = []  # addresses of what `append` wrote into


@torch.library.custom_op("kiln_unknown::append", mutates_args=("cache",))
def append(cache: torch.Tensor, row: torch.Tensor, at: int) -> torch.Tensor:
    _written.append(cache.data_ptr())
    cache[at] = row
    return row * 2


@append.register_fake
def _(cache: torch.Tensor, row: torch.Tensor, at: int) -> torch.Tensor:
    return torch.empty_like(row)


def _one(cache: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    doubled = append(cache, row.sin(), 1)
    total: torch.Tensor = cache.sum(0) + doubled
    return total


def _row_of_calls(cache: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    append(cache, row.sin(), 0)
    append(cache, row.cos(), 2)
    return (cache * 2).sum(0)


def _read_before(cache: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    before = cache.exp()
    append(cache, row, 1)
    return before.sum(0) + cache.sum(0)


def _part(cache: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    append(cache[1:], row, 1)
    return cache.cos()


def _given_twice(cache: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    append(cache, cache[0], 1)
    return cache + row


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function, copied",
                         [(_one, False), (_row_of_calls, False), (_read_before, True), (_part, False),
                                              (_given_twice, True)])
def test_an_input_that_is_written_into_is_not_copied(function: Callable[..., torch.Tensor], copied: bool,
                                                     dynamic: bool) -> None:
    compiled = torch.compile(function, backend="kiln", dynamic=dynamic)
    for rows in (4, 7) if dynamic else (4,):
        cache, row = torch.randn(rows, 5), torch.randn(5)
        expected_cache = cache.clone()
        expected = function(expected_cache, row)
        _written.clear()
        torch.testing.assert_close(compiled(cache, row), expected)
        torch.testing.assert_close(cache, expected_cache)
        inside = [cache.data_ptr() <= address < cache.data_ptr() + 4 * cache.numel() for address in _written]
        assert inside and all(inside) != copied


class Peak:
    """Bytes that the process held at most beyond what it held at the beginning."""

    def __enter__(self) -> "Peak":
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # the peak is from now on
        self.before = self._read("VmRSS")
        return self

    def __exit__(self, *_: object) -> None:
        self.bytes = self._read("VmHWM") - self.before

    @staticmethod
    def _read(name: str) -> int:
        with open("/proc/self/status") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith(name))


def _given_its_row(cache: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
    append(cache, cache[0], 1)
    return cache[1] + row


def _made_for_the_call(row: torch.Tensor) -> torch.Tensor:
    cache = torch.empty(256, row.numel())
    append(cache, row.sin(), 0)
    return cache[0] * 2


def _made_of_zeros(row: torch.Tensor) -> torch.Tensor:
    cache = torch.zeros(256, row.numel())
    append(cache, row.sin(), 0)
    return cache.sum()


def _made_like(row: torch.Tensor) -> torch.Tensor:
    cache = torch.zeros_like(row.expand(256, -1), memory_format=torch.contiguous_format)
    append(cache, row.sin(), 0)
    return cache.sum()


def _made_of_values(row: torch.Tensor) -> torch.Tensor:
    cache = row.expand(256, -1) + 1
    append(cache, row, 0)
    return cache.sum()


@pytest.mark.parametrize("function, copies", [(_one, False), (_row_of_calls, False), (_given_its_row, True)])
def test_a_large_cache_that_is_written_into_is_held_once(function: Callable[..., torch.Tensor], copies: bool) -> None:
    check_peak(lambda cache, row: function(cache, row).sum(), copies, torch.zeros(256, 1 << 20), torch.randn(1 << 20))


@pytest.mark.parametrize("function, copies", [(_made_for_the_call, False), (_made_of_zeros, False),
                                              (_made_like, False), (_made_of_values, True)])
def test_memory_made_to_be_written_into_is_held_once(function: Callable[..., torch.Tensor], copies: bool) -> None:
    check_peak(function, copies, torch.randn(1 << 20))


def check_peak(function: Callable[..., torch.Tensor], copies: bool, *inputs: torch.Tensor) -> None:
    """Of a step with 1 GiB that an operator writes into; `copies` is a control, which shows that a copy is seen."""
    compiled = torch.compile(function, backend="kiln")
    compiled(*inputs)
    with Peak() as eager:
        expected = function(*inputs)
    with Peak() as peak:
        actual = compiled(*inputs)
    torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-2)
    assert (peak.bytes > eager.bytes + (900 << 20)) == copies
    assert copies or peak.bytes <= eager.bytes + (64 << 20)


def test_what_has_no_written_form_bypasses_torchs_cache() -> None:
    from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache
    from torch.fx.experimental.proxy_tensor import make_fx

    from kiln import options
    from kiln.backend import compile_graph

    module = make_fx(lambda x: (x.sin() * 2,), tracing_mode="fake")(torch.randn(3))
    (sine,) = module.graph.find_nodes(op="call_function", target=torch.ops.aten.sin.default)
    sine.target = lambda x: x.cos()  # of the user's own
    inputs = [node.meta["val"] for node in module.graph.find_nodes(op="placeholder")]
    compiled = compile_graph(module, inputs, graph.INFERENCE, options.parse())
    x = torch.randn(3)
    torch.testing.assert_close(compiled([x])[0], x.cos() * 2)
    with pytest.raises(BypassAOTAutogradCache, match="a call of Python holds an object of type function"):
        compiled.prepare_for_serialization()
    assert kiln.stats()["autograd_cache_bypasses"] == 1


def test_what_is_written_reads_as_it_was() -> None:
    from kiln import written_graph

    calls = []
    for kind in UNKNOWN:
        torch._dynamo.reset()
        compiled = torch.compile(UNKNOWN[kind], backend="kiln")
        compiled(torch.randn(8, COLUMNS))
        calls += [call for one in kiln.compiled.live_graphs() if one.python is not None for call in one.python.calls]
    for call in calls:
        assert written_graph.digest(written_graph.read(written_graph.write(call.module))) == call.digest
    assert len(calls) >= len(UNKNOWN)


def test_other_devices_are_pythons() -> None:
    """No GPU is asked for: the graph is only exported."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    from kiln import devices

    def f(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, written: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return ((a * 2).sin().cos(), b + 1, (b * 3).to("cuda:0") + a, c * 2, torch.rand(4, 4).to("cuda:0") * a,
                written.copy_(a))

    with FakeTensorMode(allow_non_fake_inputs=True):
        inputs = [torch.empty(4, 4, device=device) for device in ("cuda:0", "cuda:1", "cpu", "cpu")]
        module = make_fx(f)(*inputs)
    gpu = devices.gpu_of(module)
    assert gpu == torch.device("cuda:0")
    exported = graph.export(module, graph.INFERENCE, gpu=gpu)
    assert exported.python
    operators = sorted(name for call in exported.python.calls for name in call.operators)
    assert operators == ["aten._to_copy.default", "aten.add.Tensor", "aten.copy_.default", "aten.mul.Tensor",
                         "aten.rand.default"]
    reasons = exported.python.reasons()
    for reason in ("a tensor on another GPU", "random numbers of the CPU's generator in a graph on a GPU",
                   "a graph on a GPU that writes into a tensor on the CPU"):
        assert reason in reasons
    assert exported.to_cpu == [3]  # and none of the results that keep calls alive


@pytest.mark.parametrize("seed", range(4))
def test_a_refusal_without_a_name_is_searched_for(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """The service names no node: those that it can't compile are found, and alone run in Python."""
    draw = random.Random(seed)
    names = draw.sample(["sin", "cos", "tanh", "exp", "erf", "sigmoid", "atan", "sqrt", "abs", "neg", "square"], 9)
    culprits = draw.sample(names, 1 + seed % 2)
    get = kiln._C.get

    def refusing(key: Any, header: Any, written: Any, *more: Any) -> Any:
        if any(f"aten.{culprit}.default".encode() in written for culprit in culprits):
            raise kiln._C.ServiceError("INTERNAL", "a kernel that can't be")
        return get(key, header, written, *more)

    monkeypatch.setattr(kiln._C, "get", refusing)

    def f(x: torch.Tensor) -> torch.Tensor:
        for name in names:
            x = getattr(torch, name)(x) * 0.5 + 1
        return x

    x = torch.rand(4, 4)
    with torch._functorch.config.patch(enable_autograd_cache=False):
        torch.testing.assert_close(torch.compile(f, backend="kiln")(x), f(x))
    calls = python_calls()
    assert {name for call in calls for name in call["operators"]} == {f"aten.{culprit}.default" for culprit in culprits}
    assert all("a kernel that can't be" in call["reason"] for call in calls)
    assert kiln.stats()["graphs"] == 1  # what was tried on the way is not counted


def test_complex_numbers_written_to_an_input() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.abs() + 1
        x.mul_(2j)
        return y.sin()

    x = torch.randn(4, dtype=torch.complex64)
    expected_x = x.clone()
    expected = f(expected_x)
    torch.testing.assert_close(torch.compile(f, backend="kiln")(x), expected)
    torch.testing.assert_close(x, expected_x)


def test_numbers_that_are_made_after_a_call() -> None:
    """Sizes of later nodes stand behind the call in the graph, and before it where they are its operands."""
    def f(x: torch.Tensor) -> torch.Tensor:
        image = torch.nn.functional.interpolate(x[None, None], scale_factor=1.7, mode="bicubic",
                                                recompute_scale_factor=True)
        return image.sin().to(torch.float8_e4m3fn).to(torch.float32) * image.shape[-1]

    compiled = torch.compile(f, backend="kiln", dynamic=True)
    for rows in (7, 12):
        x = torch.randn(rows, COLUMNS)
        torch.testing.assert_close(compiled(x), f(x), rtol=0.1, atol=1e-3)
    assert python_calls() and not kiln.stats()["fallbacks"]


def test_views_of_inputs_that_python_makes_are_views() -> None:
    """What reaches outside of an input is the library's; the caller reads it from the input's memory, by its offset."""
    base = torch.randn(40)
    compiled = torch.compile(lambda x, offset: (x.as_strided((2, 2), (1, 2), offset), x * 2), backend="kiln",
                             dynamic=True)
    for offset in (0, 10, 7, 30):
        x = base[5:15]
        view, twice = compiled(x, offset)
        expected = x.as_strided((2, 2), (1, 2), offset)
        torch.testing.assert_close(view, expected, rtol=0, atol=0)
        torch.testing.assert_close(twice, x * 2)
        assert (view.data_ptr(), view.stride(), view.storage_offset()) == (
            expected.data_ptr(), expected.stride(), expected.storage_offset())
    assert kiln.stats()["python"] and not kiln.stats()["fallbacks"]


def test_views_of_inputs_that_native_nodes_read_too() -> None:
    base = torch.randn(40)

    def function(x: torch.Tensor, offset: int) -> tuple[torch.Tensor, ...]:
        view = x.as_strided((2, 2), (1, 2), offset)
        return view, view * 2, view.sum()

    compiled = torch.compile(function, backend="kiln", dynamic=True)
    for offset in (0, 10, 7, 30):
        x = base[5:15]
        actual, expected = compiled(x, offset), function(x, offset)
        torch.testing.assert_close(actual, expected)
        assert actual[0].data_ptr() == expected[0].data_ptr()
    (name,) = {call["name"] for call in python_calls()}
    assert "as_strided" in name and "mul" not in name
