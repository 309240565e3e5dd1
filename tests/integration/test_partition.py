"""Graphs that are recorded in parts: what no CUDA graph can record costs its own node.

On the CPU nothing is recorded; a recording is put in its place that counts runs, and refuses what torch's trees refuse:
a result that lies in an input's memory. tests/integration/test_gpu_graphs.py has torch's own.
"""
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import kiln
from agreement import gradient_of
from kiln import cuda_graphs, fallback
from kiln.partition import Slot, partition

# ---- the cut itself


def drawn_program(rng: random.Random) -> Callable[..., Any]:
    """A function of (x, y, n, size) with views, numbers, draws and a write. AOTAutograd gives a graph its sizes,
    too."""
    steps = [rng.randrange(8) for _ in range(rng.randint(3, 14))]
    picks = [(rng.random(), rng.random()) for _ in steps]
    outputs = sorted(rng.sample(range(len(steps)), min(len(steps), rng.randint(1, 3))))
    writes = rng.random() < 0.5

    def program(x: torch.Tensor, y: torch.Tensor, n: int, size: int) -> list[torch.Tensor]:
        values = [x * 1.5, y + n]
        made = []
        for step, (first, second) in zip(steps, picks):
            a, b = values[int(first * len(values))], values[int(second * len(values))]
            made.append((lambda: a + b.sum(), lambda: a.t().contiguous().t(), lambda: a.diagonal()[:n].sum() + b,
                         lambda: a.unsqueeze(0).squeeze(0), lambda: torch.softmax(a, -1) * n,
                         lambda: a + torch.rand_like(b), lambda: a.split(1)[0] + b, lambda: a.sin())[step]())
            values.append(made[-1])
        if writes:
            y.copy_(values[-1] * 0.5)
        return [made[i] for i in outputs] + [n * 2, x.t()]

    return program


def run_parts(found: Any, inputs: list[Any]) -> list[Any]:
    slots = [*inputs, *[None] * (found.slot_count - len(inputs))]
    for part in found.parts:
        arguments = [slots[slot] for slot in part.reads]
        for slot in part.frees:
            slots[slot] = None
        for slot, result in zip(part.gives, fallback.boxed(part.module)(arguments)):
            slots[slot] = result
    return [slots[output.number] if isinstance(output, Slot) else output for output in found.outputs]


@pytest.mark.parametrize("seed", range(60))
def test_parts_compute_what_the_graph_does(seed: int) -> None:
    rng = random.Random(seed)
    program = drawn_program(rng)
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(4, 4, generator=generator) for _ in range(2))
    module = make_fx(program, tracing_mode="symbolic")(x, y, 3, 4)
    nodes = module.graph.find_nodes(op="call_function", target=torch.ops.aten.sum.default) + [
        node for node in module.graph.nodes if node.op == "call_function" and isinstance(node.meta.get("val"),
                                                                                         torch.Tensor)
        and not isinstance(node.meta["val"], (list, tuple)) and rng.random() < 0.25]
    found = partition(module, dict.fromkeys(nodes, "drawn"))

    def outcome(run: Callable[..., Any]) -> Any:
        inputs = [x.clone(), y.clone(), 3, 4]
        torch.manual_seed(seed)
        return run(list(inputs)), inputs[1]

    (expected, written), (actual, also_written) = (
        outcome(run) for run in (fallback.boxed(module), lambda inputs: run_parts(found, inputs)))
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)
    torch.testing.assert_close(also_written, written, rtol=0, atol=0)
    inside = {node.name for part in found.parts if part.recorded for node in part.module.graph.nodes
              if node.op == "call_function"}
    assert inside.isdisjoint(node.name for node in nodes)


def test_there_are_no_more_parts_than_the_graph_asks_for() -> None:
    """Two nodes apart that do not feed each other share a part, whatever lies between them in the graph."""
    def program(x: torch.Tensor) -> tuple[torch.Tensor]:
        a = x.sin().cumsum(0)
        b = x.cos() * 2
        return (a.exp() + b.cumsum(0).exp(),)

    module = make_fx(program)(torch.randn(8))
    apart = module.graph.find_nodes(op="call_function", target=torch.ops.aten.cumsum.default)
    assert [part.recorded for part in partition(module, dict.fromkeys(apart, "")).parts] == [True, False, True]
    assert [part.recorded for part in partition(module, {}).parts] == [True]


# ---- whole models, with a recording that counts


class Recorder:
    def __init__(self) -> None:
        self.runs = 0
        self.sizes: dict[Any, list[torch.Size]] = {}
        self.copied: set[int] = set()  # memory of inputs that torch's trees would copy

    def wrap(self, run: Callable[..., Any], recording: cuda_graphs.Recording, constants: Any,
             record: dict[str, Any]) -> Callable[..., Any]:
        if recording.skip:
            record["cuda_graph"] = f"skipped: {recording.skip}"
            return run
        record["cuda_graph"] = "recorded"

        def recorded(inputs: list[Any]) -> list[Any]:
            self.runs += 1
            sizes = [value.shape for value in inputs if isinstance(value, torch.Tensor)]
            integers = tuple(value for value in inputs if isinstance(value, int))
            # trees tell recordings apart by integers alone
            assert self.sizes.setdefault((run, integers), sizes) == sizes
            moving = [value for i, value in enumerate(inputs)
                      if isinstance(value, torch.Tensor) and i not in recording.static_inputs]
            held = {value.untyped_storage().data_ptr() for value in moving}
            self.copied |= held
            results: list[Any] = run(inputs)
            for result in results:
                assert not isinstance(result, torch.Tensor) or result.untyped_storage().data_ptr() not in held
            del moving  # until here it keeps their memory from being given to a result
            return results

        boxed: Any = recorded
        boxed._boxed_call = True
        return recorded


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    describe = cuda_graphs.describe
    monkeypatch.setattr(cuda_graphs, "describe", lambda module, inputs, kind, gpu, *more:
                        describe(module, inputs, kind, torch.device("cuda:0"), *more))
    monkeypatch.setattr(cuda_graphs, "wrap", recorder.wrap)
    monkeypatch.setattr(torch._inductor.cudagraph_utils, "check_caching_allocator_for_cudagraphs", lambda: "",
                        raising=False)
    return recorder


@torch.library.custom_op("kiln_parts::add_into", mutates_args=("x",))
def add_into(x: torch.Tensor, y: torch.Tensor) -> None:
    x.add_(y)


def scale_between(x: torch.Tensor) -> torch.Tensor:
    y = x.sin() + 1
    add_into(y, x)
    return y.cumsum(-1) + x


class Block(torch.nn.Module):
    """A layer with an operator that writes into a buffer between two layers."""

    cache: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)
        self.register_buffer("cache", torch.zeros(4, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first(x))
        add_into(self.cache, y.detach())
        result: torch.Tensor = self.second(y + self.cache).tanh()
        return result


def trained(model: torch.nn.Module, wrapped: Callable[..., Any], steps: int = 3) -> list[list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(3)
    losses = []
    for _ in range(steps):
        model.zero_grad()
        loss = wrapped(torch.randn(4, 16, generator=generator)).square().sum()
        loss.backward()
        losses.append([loss.detach(), *(gradient_of(parameter).clone() for parameter in model.parameters())])
    return losses


def compiled(function: Callable[..., Any], **arguments: Any) -> Callable[..., Any]:
    return torch.compile(function, backend="kiln", mode="reduce-overhead", **arguments)


@pytest.mark.usefixtures("no_fallback")
def test_training_is_recorded_around_a_call_of_python(recorder: Recorder) -> None:
    torch.manual_seed(0)
    model, other = Block(), Block()
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(trained(other, compiled(other)), trained(model, model))
    torch.testing.assert_close(other.cache, model.cache)
    assert recorder.runs == 3 * 3  # two parts of the forward, and the backward


@pytest.mark.usefixtures("no_fallback")
def test_explain_tells_the_parts(recorder: Recorder) -> None:
    model = Block()
    with torch.no_grad():
        explanation = kiln.explain(model, mode="reduce-overhead")(torch.randn(4, 16))
    told = [(program["title"].split(", ")[-1], program["cuda_graph"].split(":")[0]) for program in explanation.programs
            if "fallback" not in program]
    assert told == [("part 1 of 3", "recorded"), ("part 2 of 3", "skipped"), ("part 3 of 3", "recorded")]
    assert sum(bool(program.get("python_calls")) for program in explanation.programs) == 1


@pytest.mark.usefixtures("no_fallback")
@pytest.mark.parametrize("dynamic", [False, True])
def test_sizes_that_only_the_run_knows_cost_their_part(recorder: Recorder, dynamic: bool) -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.softmax(x @ w, -1)
        rows = torch.nonzero(y.sum(0) > 1).flatten()
        return y[:, rows] * 2, (w * 2).relu()

    call = compiled(function, dynamic=dynamic)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True), torch.no_grad():
        for rows in (3, 5, 9):
            x, w = torch.randn(rows, 6), torch.randn(6, 6)
            torch.testing.assert_close(call(x, w), function(x, w))
    assert recorder.runs >= 3


@pytest.mark.usefixtures("no_fallback")
@pytest.mark.parametrize("static", [False, True])
def test_what_was_written_is_read_from_the_input(recorder: Recorder, static: bool) -> None:
    """A recording reads a static one, and no other, which it would copy at each call."""
    def function(cache: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, Any]:
        y = x.exp() * 2
        add_into(cache, y)
        return cache.sum(0) * 2, y.cos(), cache.max(0)

    cache, x = torch.zeros(4, 16), torch.randn(4, 16)
    if static:
        torch._dynamo.mark_static_address(cache)
    expected_cache = cache + x.exp() * 2
    call = compiled(function)
    torch.testing.assert_close(call(cache, x), (
        expected_cache.sum(0) * 2, (x.exp() * 2).cos(), expected_cache.max(0)))
    torch.testing.assert_close(cache, expected_cache)
    assert recorder.runs == 2 and cache.data_ptr() not in recorder.copied


@pytest.mark.usefixtures("no_fallback")
def test_parts_of_changing_sizes_have_them_as_integers(recorder: Recorder) -> None:
    call = compiled(lambda x: scale_between(x), dynamic=True)
    for rows in (3, 5, 9):
        x = torch.randn(rows, 6)
        torch.testing.assert_close(call(x), scale_between(x))
    assert recorder.runs == 6


@pytest.mark.usefixtures("no_fallback")
def test_a_graph_that_is_all_python_is_not_recorded(recorder: Recorder) -> None:
    call = compiled(lambda x, y: add_into(x, y))
    x = torch.ones(4)
    call(x, torch.ones(4))
    assert x.sum() == 8 and recorder.runs == 0
