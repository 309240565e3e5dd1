"""Dynamic shapes: one program for many sizes, and a new one where a guard does not hold."""
import copy
import json
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import kiln
from agreement import check
from daemons import Place
from kiln import records, symbols
from model_checks import programs
from promised_models import make

pytestmark = pytest.mark.usefixtures("no_fallback")


def test_dynamic_true_compiles_once() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.softmax(x @ w, -1).sum(0) * x.shape[0]

    compiled = torch.compile(f, backend="kiln", dynamic=True)
    w = torch.randn(8, 5)
    for rows in (2, 3, 17, 64, 33):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(compiled(x, w), f(x, w))
    assert kiln.stats()["graphs"] == 1


def test_automatic_dynamic() -> None:
    f = torch.compile(lambda x: (x * 2).reshape(-1).cumsum(0), backend="kiln")
    for rows in (4, 5, 6, 40):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(f(x), (x * 2).reshape(-1).cumsum(0))
    assert kiln.stats()["graphs"] == 2  # static first, then one for all sizes


def test_mark_dynamic_with_gradients() -> None:
    layer = torch.nn.Linear(6, 4)
    compiled = torch.compile(lambda x: F.layer_norm(layer(x).relu(), (4,)).pow(2).mean(), backend="kiln")
    for batch in (2, 16, 7):
        x = torch.randn(batch, 3, 6)
        torch._dynamo.mark_dynamic(x, 0)
        layer.zero_grad()
        compiled(x).backward()
        assert layer.weight.grad is not None
        actual = layer.weight.grad.clone()
        layer.zero_grad()
        F.layer_norm(layer(x).relu(), (4,)).pow(2).mean().backward()
        torch.testing.assert_close(actual, layer.weight.grad, rtol=1e-4, atol=1e-6)
    assert kiln.stats()["graphs"] == 2


def test_sums_down_any_number_of_rows() -> None:
    """They are added up by whole blocks of rows and what is left behind the last one, either of which may be none."""
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.sigmoid()
        return y, y.sum(0), (x * y).sum(0)

    compiled = torch.compile(f, backend="kiln")
    start = records.graph_count()
    for rows in (200, 64, 63, 1, 65, 1000):
        x = torch.randn(rows, 4096)
        if rows > 1:  # torch makes a program of its own for one row
            torch._dynamo.mark_dynamic(x, 0)
        check(list(zip(("y", "sum", "product"), compiled(x), f(x), f(x.double()))))
    graphs = programs(start)
    assert [len(graph["kernels"]) for graph in graphs] == [4, 1], graphs


def test_windows_of_which_there_may_be_none() -> None:
    """Strides of a contiguous tensor count a dimension of size 0 as 1, and such a tensor is viewed like any other."""
    def f(x: torch.Tensor) -> torch.Tensor:
        x = F.pad(x, (0, 0, 0, -x.shape[1] % 4))
        windows = x.view(2, x.shape[1] // 4, 4, 8)
        keys = torch.cat([windows] * 3, 2).permute(0, 3, 1, 2)
        return torch.bmm(keys.reshape(16, 1, -1), keys.reshape(16, -1, 1))

    compiled = torch.compile(f, backend="kiln", dynamic=True)
    for rows in (8, 9, 23, 12):
        x = torch.randn(2, rows, 8)
        torch.testing.assert_close(compiled(x), f(x))


def test_sizes_that_are_rounded_fractions() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = x.shape[0] // 3
        return (torch.arange(0.5, rows) * 2, torch.arange(0.25, rows, 0.5).sin(), torch.arange(rows, -0.75, -1.0) + 1,
                torch.arange(-1.5, rows, 4.0) + x.sum())

    compiled = torch.compile(f, backend="kiln", dynamic=True)
    for rows in (12, 13, 30, 31, 100, 15):
        x = torch.randn(rows)
        for actual, expected in zip(compiled(x), f(x)):
            torch.testing.assert_close(actual, expected)
    assert kiln.stats()["graphs"] == 1


def test_a_size_that_floats_round_is_pythons() -> None:
    """Ten tenths are one in floats, and more than one in fractions."""
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.arange(0, x.shape[0], 0.1) + x.sin().sum()

    compiled = torch.compile(f, backend="kiln", dynamic=True)
    for rows in (7, 10, 13):
        x = torch.randn(rows)
        torch.testing.assert_close(compiled(x), f(x))
    # Of every program that is alive: a reference cycle may keep one of another test.
    (runs,) = [counts["runs"] for reason, counts in kiln.stats()["python"].items()
               if "only fractions by powers of two are exact" in reason]
    assert runs == 3


def test_a_dimension_that_a_guard_makes_one() -> None:
    """What is squeezed may have a size that is no constant: torch has a guard that it is 1."""
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        windows = F.pad(x, (0, 0, 0, -x.shape[1] % 16)).view(2, -(-x.shape[1] // 16), 16, 8)
        return windows.squeeze(1).softmax(-1), windows.sum(2).squeeze() * 2

    compiled = torch.compile(f, backend="kiln", dynamic=True)
    for rows in (9, 12, 16, 20, 40, 11):
        x = torch.randn(2, rows, 8)
        torch.testing.assert_close(compiled(x), f(x))


def test_a_violated_guard_recompiles() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.sin() if x.shape[0] > 10 else x.cos()

    compiled = torch.compile(f, backend="kiln", dynamic=True)
    for rows in (4, 20, 5, 30):
        x = torch.randn(rows)
        torch.testing.assert_close(compiled(x), f(x))
    assert kiln.stats()["graphs"] == 2


OWN_GUARDS = """
import json, os
import torch, kiln
def f(x):
    return x.view(x.shape[0] // 4, 4, -1).softmax(1) if x.shape[0] % 4 == 0 and x.shape[0] > 10 else x.cos()
compiled = torch.compile(f, backend="kiln", dynamic=True)
for rows in json.loads(os.environ["ROWS"]):
    x = torch.randn(rows, 6)
    torch.testing.assert_close(compiled(x), f(x))
print(json.dumps(kiln.stats()))
"""


def test_guards_of_the_graph_are_not_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """They came from torch; what lowering assumes beyond them is asked for."""
    asked = []

    def evaluate(nodes: Any, conditions: Any, values: Any) -> Any:
        asked.append(len(conditions))
        return symbols.evaluate(nodes, conditions, values)

    monkeypatch.setattr(kiln.compiled, "evaluate", evaluate)

    def given(x: torch.Tensor) -> torch.Tensor:
        return x.softmax(0) if x.shape[0] % 4 == 0 and x.shape[0] > 10 else x.cos()

    def assumed(x: torch.Tensor) -> torch.Tensor:
        return x.select_scatter(torch.ones(3), 0, 3)

    for function, sizes, some in ((given, (16, 20, 18, 8), False), (assumed, (5, 4, 7), True)):
        asked.clear()
        compiled = torch.compile(function, backend="kiln", dynamic=True)
        for rows in sizes:
            x = torch.randn(rows, 3)
            torch.testing.assert_close(compiled(x), function(x))
        assert bool(asked) == some, asked


def test_guards_of_the_graph_in_a_new_process(place: Place) -> None:
    """A program that torch's cache returns is not used for sizes that its graph does not hold for."""
    loads = []
    for rows in ([16, 20], [24, 18, 8, 40]):
        output, _ = place.run(OWN_GUARDS, ROWS=json.dumps(rows))
        loads.append(json.loads(output.strip().splitlines()[-1])["autograd_cache_loads"])
    assert loads == [0, 1]


@pytest.mark.part(2)
@pytest.mark.parametrize("way", ["dynamic", "marked", "automatic"])
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_one_program_serves_all_sizes(name: str, way: str) -> None:
    pytest.importorskip("transformers")
    model, _ = make(name, positions=512)
    exact = copy.deepcopy(model).double()
    compiled = torch.compile(model, backend="kiln", dynamic=True if way == "dynamic" else None)
    with torch.no_grad():
        for batch, length in ((2, 16), (3, 17), (64, 512), (2, 512), (64, 16), (33, 257)):
            tokens = torch.randint(0, 200, (batch, length))
            if way == "marked":
                torch._dynamo.mark_dynamic(tokens, 0, min=2, max=64)
                torch._dynamo.mark_dynamic(tokens, 1, min=16, max=512)
            check([("logits", *(run(input_ids=tokens).logits for run in (compiled, model, exact)))])
    # Automatic dynamic begins with a static program.
    assert kiln.stats()["graphs"] == (2 if way == "automatic" else 1)


SIZES = """
import json, os, sys
import torch, kiln
from promised_models import make
batch, length = json.loads(os.environ["SIZE"])
model, _ = make("bert")
compiled = torch.compile(model, backend="kiln", dynamic=os.environ["DYNAMIC"] == "1")
tokens = torch.randint(0, 200, (batch, length))
with torch.no_grad():
    actual, expected = compiled(input_ids=tokens).logits, model(input_ids=tokens).logits
torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)
print(json.dumps(kiln.stats()))
"""


@pytest.mark.parametrize("dynamic", [True, False])
def test_a_new_process_at_another_size(place: Place, dynamic: bool) -> None:
    """Hits where sizes are dynamic; the control, with static sizes, has to compile again."""
    pytest.importorskip("transformers")
    for number, size in enumerate(([2, 16], [5, 33])):
        output, _ = place.run(SIZES, SIZE=str(size), DYNAMIC=str(int(dynamic)))
        stats = json.loads(output.strip().splitlines()[-1])
        hit = dynamic and number == 1
        assert (stats["graphs"], stats["compiles"], stats["hits"]) == (1, int(not hit), int(hit))


@pytest.mark.parametrize("name", [pytest.param("bert", marks=pytest.mark.full), "llama"])
def test_one_pair_of_programs_trains_at_all_sizes(name: str) -> None:
    """A forward and a backward program for batch 2-64 and sequence 16-512; every gradient agrees with eager's."""
    pytest.importorskip("transformers")
    model, _ = make(name, positions=512)
    runs = (model, copy.deepcopy(model), copy.deepcopy(model).double())
    compiled = torch.compile(model, backend="kiln", dynamic=True)
    for batch, length in ((2, 16), (3, 17), (64, 16), (2, 512), (33, 65), (64, 512)):
        tokens = torch.randint(0, 200, (batch, length))
        losses, gradients = [], []
        for run in runs:
            run.zero_grad()
            loss = (compiled if run is model else run)(input_ids=tokens, labels=tokens).loss
            loss.backward()
            losses.append(loss)
            gradients.append([parameter.grad for parameter in run.parameters()])
        named = [(f"{parameter} at {batch} x {length}", *triple)
                 for (parameter, _), *triple in zip(model.named_parameters(), *gradients) if triple[2] is not None]
        check([("loss", *losses), *named])
    assert kiln.stats()["graphs"] == 2


def test_a_selected_index_past_the_end() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.select_scatter(torch.ones(3), 0, 3)

    compiled = torch.compile(f, backend="kiln", dynamic=True)
    for rows in (5, 4):
        torch.testing.assert_close(compiled(torch.zeros(rows, 3)), f(torch.zeros(rows, 3)))
    with pytest.raises(IndexError, match="index 3 out of range"):  # eager's own: the node that is refused runs there
        compiled(torch.zeros(2, 3))
