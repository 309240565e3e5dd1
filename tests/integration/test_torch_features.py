"""What torch has beside plain operators on plain tensors: each feature runs, and only what has to runs in Python."""
import copy
import textwrap
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._higher_order_ops import associative_scan, map as torch_map, scan, while_loop
from torch.utils.checkpoint import checkpoint

import kiln
from agreement import gradient_of
from daemons import Place
from model_checks import programs
from torch_versions import needs_torch

pytestmark = pytest.mark.usefixtures("no_fallback")


def compare(function: Callable[..., Any], *inputs: torch.Tensor, backward: bool = False,
            **compile_arguments: Any) -> set[str]:
    """Compiled against eager, gradients too. Returns the operators that ran in Python."""
    runs = []
    for run in (torch.compile(function, backend="kiln", **compile_arguments), function):
        given = [value.clone().requires_grad_(backward and value.is_floating_point()) for value in inputs]
        torch.manual_seed(3)
        outputs = torch.utils._pytree.tree_leaves(run(*given))
        if backward:
            total: Any = sum(output.sum() for output in outputs)
            total.backward()
        runs.append([*outputs, *(value.grad for value in given if backward and value.grad is not None)])
    for actual, expected in zip(*runs, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    assert not kiln.stats()["fallbacks"]
    return {name for program in programs() for call in program.get("python_calls", ()) for name in call["operators"]}


# ---- higher-order operators

map_over: Any = torch_map  # whose type is another function's
HIGHER_ORDER: dict[str, Callable[..., Any]] = {
    "while_loop": lambda x: while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, (x * 1.1).sin()),
                                       (torch.tensor(0), x))[1],
    "scan": lambda x: scan(lambda carry, x: (carry + x, (carry * x).cos()), torch.zeros(3), x, dim=0)[1] + 1,
    "map_impl": lambda x: map_over(lambda row: row.sin().softmax(0), x) + 1,
    "cond": lambda x: torch.cond(x.sum() > 0.01, lambda x: x.sin(), lambda x: x.cos() * 2, (x,)) * 2,
}


@pytest.mark.parametrize("name", HIGHER_ORDER)
def test_sub_graphs_are_native(name: str) -> None:
    assert compare(HIGHER_ORDER[name], torch.randn(5, 3), backward=name not in ("while_loop",)) == {name}
    titles = [program["title"] for program in programs() if program["kernels"]]
    assert any(" of " in title for title in titles), titles


def test_control_without_compiled_sub_graphs_they_run_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kiln.python_calls, "sub_graphs", lambda module: [])
    compare(HIGHER_ORDER["cond"], torch.randn(5, 3))
    assert not any(" of " in program["title"] for program in kiln.records.graphs_since(0))


@pytest.mark.parametrize("number", [3, -2, 0.5, True])
def test_a_sub_graph_that_takes_a_number(number: float) -> None:
    from functorch.experimental import control_flow

    def function(x: torch.Tensor) -> Any:
        return control_flow.map(lambda row, number: (row + number).sin(), x * 2, number) + 1

    x = torch.randn(3, 5)
    torch.testing.assert_close(torch.compile(function, backend="kiln")(x), ((x * 2 + number).sin()) + 1)
    assert not kiln.stats()["fallbacks"]


def test_associative_scan() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return associative_scan(lambda a, b: a * b + 1, x, 0, combine_mode="generic") * 2

    assert not compare(f, torch.randn(5, 3))


@torch.compiler.nested_compile_region
def region(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.gelu(x @ w) + x.sin()


@pytest.mark.parametrize("dynamic", [False, pytest.param(True, marks=needs_torch(
    2, 13, "each call of a region with symbolic sizes is a graph of its own"))])
def test_a_region_is_compiled_once(dynamic: bool) -> None:
    def three(x: torch.Tensor, w: torch.Tensor) -> Any:
        return region(region(region(x, w), w), w) * 2

    assert compare(three, torch.randn(6, 4), torch.randn(4, 4), backward=True, dynamic=dynamic) == {"invoke_subgraph"}
    assert kiln.stats()["graphs"] == 4  # forward and backward, and the region's


def test_checkpointing_repeats_its_random_numbers() -> None:
    layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(8, 4))

    def f(x: torch.Tensor) -> Any:
        return checkpoint(layers, x * 2, use_reentrant=False) + 1

    names = compare(f, torch.randn(5, 4), backward=True, options={"fallback_random": True})
    assert names == {"run_and_save_rng_state", "run_with_rng_state"}


def test_draws_in_python_keep_their_order() -> None:
    def branch(x: torch.Tensor, low: float, high: float) -> Any:
        return torch.cond(x.sum() > 0.01, lambda x: F.dropout(x, low), lambda x: F.dropout(x, high) * 2, (x,))

    def f(x: torch.Tensor) -> tuple[Any, ...]:
        return branch(x.sin(), 0.5, 0.4), branch(x, 0.3, 0.2), branch(branch(x.exp(), 0.1, 0.6).tanh(), 0.7, 0.8)

    for _ in range(3):
        torch._dynamo.reset()
        assert compare(f, torch.randn(9, 4), options={"fallback_random": True}) == {"cond"}


def test_checks_of_sizes_are_guards() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        torch._check(x.shape[0] > 2)
        torch._check(x.shape[0] * 3 < 100)
        return x.sin().sum()

    assert not compare(f, torch.randn(5, 4), dynamic=True)


@pytest.mark.full
def test_flex_attention_by_inductor(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.nn.attention.flex_attention import flex_attention

    monkeypatch.setattr(kiln.inductor_calls, "_SCORE_BYTES_MIN", 1 << 20)
    compare(lambda q, k, v: flex_attention(q * 1.5, k, v, score_mod=lambda s, b, h, i, j: s + (i - j) * 0.01) * 2,
            *(torch.randn(1, 2, 512, 16) for _ in range(3)))
    (call,) = programs()[0]["python_calls"]
    assert call["name"] == "Python 0: flex_attention by TorchInductor" and not kiln.stats()["left_out"]


def test_flex_attention() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    names = compare(lambda q, k, v: 2 * flex_attention(q * 1.5, k, v,
                                                       score_mod=lambda s, b, h, i, j: s + (i - j) * 0.01),
                    *(torch.randn(1, 2, 64, 16) for _ in range(3)))
    assert names == {"flex_attention"}


# ---- dtypes


def test_scaled_gemms_of_float8() -> None:
    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a, b = (a * 1.0).to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).t().contiguous().t()
        gemm = torch._scaled_mm(a, b, scale_a=torch.tensor(1.0), scale_b=torch.tensor(0.5), out_dtype=torch.float32)
        return gemm.relu() * 2

    names = compare(f, torch.randn(16, 32), torch.randn(32, 16))
    assert "aten._scaled_mm.default" in names and not names & {"aten.relu.default", "aten.mul.Tensor"}


def test_gemms_of_integers() -> None:
    assert not compare(lambda a, b: torch._int_mm((a * 9).to(torch.int8), (b * 9).to(torch.int8)).float().sin(),
                       torch.randn(32, 32), torch.randn(32, 32))


def test_weights_of_eight_and_four_bits() -> None:
    weight = torch.randint(-100, 100, (16, 64), dtype=torch.int8)
    scales = torch.rand(16).to(torch.bfloat16)
    assert not compare(lambda x: torch._weight_int8pack_mm((x * 2).to(torch.bfloat16), weight, scales).float() + 1,
                       torch.randn(8, 64))
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(torch.randint(0, 15, (32, 64), dtype=torch.int32), 1)
    zeros = torch.rand(2, 32, 2).to(torch.bfloat16)
    assert not compare(lambda x: torch.ops.aten._weight_int4pack_mm_for_cpu((x * 2).to(torch.bfloat16), packed, 32,
                                                                            zeros).float() + 1, torch.randn(8, 64))


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@needs_torch(2, 13, "torch's fakes of quantized tensors are others")
def test_quantized_tensors() -> None:
    """torch's fakes of them claim float32."""
    names = compare(lambda x: torch.quantize_per_tensor(x.sin(), 0.1, 0, torch.qint8).dequantize() * 2,
                    torch.randn(4, 4))
    assert names == {"aten.quantize_per_tensor.default", "aten.dequantize.self"}


def test_unsigned_integers() -> None:
    names = compare(lambda x: (x.to(torch.uint32).view(torch.int32) + 1, x.to(torch.uint64).to(torch.float32).sin(),
                               x.to(torch.uint16)), torch.arange(10))
    assert names == {"aten._to_copy.default", "aten.view.dtype"}


# ---- nested tensors, transforms, modes

_weight = torch.randn(6, 4)
NESTED: dict[str, Callable[..., Any]] = {
    "linear": lambda x: F.linear(x, _weight).relu(),
    "softmax": lambda x: torch.softmax(x * 2, -1) * x,
    "attention": lambda x: F.scaled_dot_product_attention(
        *[F.linear(x, _weight).unflatten(-1, [2, 3]).transpose(1, 2)] * 3).transpose(1, 2),
    "padded": lambda x: torch.nested.to_padded_tensor(x * 2, 0.0).sin(),
}


@pytest.mark.parametrize("name", NESTED)
def test_nested_tensors_by_their_parts(name: str) -> None:
    def dense(value: Any) -> Any:
        return value.values() if value.is_nested else value

    compiled = torch.compile(NESTED[name], backend="kiln")
    for lengths in ((3, 5, 2), (7, 1, 2)):
        backward = name in ("linear", "softmax")
        x = torch.nested.nested_tensor([torch.randn(length, 4) for length in lengths], layout=torch.jagged,
                                       requires_grad=backward)
        y = x.detach().clone().requires_grad_(backward)
        actual, expected = dense(compiled(x)), dense(NESTED[name](y))
        torch.testing.assert_close(actual, expected)
        if backward:
            actual.sum().backward()
            expected.sum().backward()
            torch.testing.assert_close(gradient_of(x).values(), gradient_of(y).values())
    assert kiln.stats()["graphs"] and not kiln.stats()["python_calls"]


TRANSFORMS = {
    "vmap": lambda x: torch.vmap(lambda row: (row * 2).sin().sum())(x) * 2,
    "grad": lambda x: torch.func.grad(lambda a: (a.sin() ** 2).sum())(x) + 1,
    "jvp": lambda x: torch.func.jvp(lambda a: a.sin() * a, (x,), (x.cos(),)),
    "jacrev": lambda x: torch.func.jacrev(lambda a: a.sin() * a.sum())(x[0]),
    "vmap of grad": lambda x: torch.vmap(torch.func.grad(lambda a: (a ** 3).sum()))(x),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms(name: str) -> None:
    assert not compare(TRANSFORMS[name], torch.randn(4, 5))


def test_compiled_autograd() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 1))
    eager, x = copy.deepcopy(model), torch.randn(5, 4)
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="kiln")):
        torch.compile(model, backend="kiln")(x).sum().backward()
    eager(x).sum().backward()
    for actual, expected in zip(model.parameters(), eager.parameters()):
        torch.testing.assert_close(actual.grad, expected.grad)
    assert kiln.stats()["graphs"] >= 2


def test_stances() -> None:
    compiled, x = torch.compile(lambda x: (x * 2).sin(), backend="kiln"), torch.randn(4)
    with torch.compiler.set_stance("force_eager"):
        torch.testing.assert_close(compiled(x), (x * 2).sin())
        assert not kiln.stats()["graphs"]
    torch.testing.assert_close(compiled(x), (x * 2).sin())
    with torch.compiler.set_stance("eager_on_recompile"):
        compiled(torch.randn(5))
    assert kiln.stats()["graphs"] == 1


def test_distributed_tensors(place: Place) -> None:
    """One process: DTensor's and FSDP2's parts of a graph."""
    place.run(textwrap.dedent("""
        import copy, os, tempfile
        import torch, kiln
        import torch.distributed as dist
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
        store = dist.FileStore(os.path.join(tempfile.mkdtemp(), "store"), 1)
        dist.init_process_group("gloo", rank=0, world_size=1, store=store)
        mesh = init_device_mesh("cpu", (1,))
        def f(x, w):
            return (x @ w).relu() * 2
        x, w = (distribute_tensor(torch.randn(4, 4), mesh, [Shard(dim)]) for dim in range(2))
        torch.testing.assert_close(torch.compile(f, backend="kiln")(x, w).to_local(), f(x, w).to_local())
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 1))
        eager, x = copy.deepcopy(model), torch.randn(5, 4)
        fully_shard(model[0], mesh=mesh)
        fully_shard(model, mesh=mesh)
        torch.compile(model, backend="kiln")(x).sum().backward()
        eager(x).sum().backward()
        for actual, expected in zip(model.parameters(), eager.parameters()):
            torch.testing.assert_close(actual.grad.full_tensor(), expected.grad)
        assert kiln.stats()["graphs"] and not kiln.stats()["fallbacks"]
        dist.destroy_process_group()
    """))
