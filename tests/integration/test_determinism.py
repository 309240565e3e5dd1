"""Same key, same bytes; and the same results bit by bit whatever the number of threads."""
import json
import os
import textwrap
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F

from daemons import Place, kilnctl
from kiln import records
from model_checks import programs

GRAPHS = textwrap.dedent("""
    import json, os
    import torch, kiln
    import torch.nn.functional as F
    from kiln import records
    torch.set_num_threads(int(os.environ["THREADS"]))
    unary = [torch.sin, torch.exp, torch.tanh, torch.sigmoid, torch.erf, F.gelu, F.silu, torch.log1p, torch.rsqrt,
             torch.floor]
    shapes = [(7,), (64, 33), (3, 128, 5), (2, 1, 9), (1000,)]
    count = int(os.environ["GRAPHS"])
    for number in range(count):
        f, shape = unary[number % len(unary)], shapes[number // len(unary) % len(shapes)]
        x = torch.arange(1, 1 + torch.Size(shape).numel(), dtype=torch.float32).view(shape) / 50
        torch._dynamo.reset()
        torch.compile(lambda x: (f(x) * 2 + x.sum(-1, keepdim=True), f(x).amax(0)), backend="kiln")(x)
    graphs = records.graphs_since(0)
    assert len(graphs) == count and not any("fallback" in graph for graph in graphs)
    print(json.dumps([[graph["compile_key"], graph["manifest_digest"], *[k["digest"] for k in graph["kernels"]]]
                      for graph in graphs]))
""")


def digests(place: Place, run: int, count: int) -> list[list[str]]:
    root = os.path.join(place.root, str(run))
    os.mkdir(root, mode=0o700)
    place.environment.update(KILN_RUNTIME_DIR=os.path.join(root, "run"), KILN_STORE=os.path.join(root, "store"),
                             TORCHINDUCTOR_CACHE_DIR=os.path.join(root, "torch"))
    place.runtime_dir = place.environment["KILN_RUNTIME_DIR"]
    output, _ = place.run(GRAPHS, timeout=900, THREADS=str(1 + run % 2), GRAPHS=str(count))
    place.stop()
    found: list[list[str]] = json.loads(output.strip().splitlines()[-1])
    return found


def test_same_key_same_bytes(place: Place) -> None:
    runs, count = 5, 50
    first, *others = [digests(place, run, count) for run in range(runs)]
    assert len({tuple(graph) for graph in first}) == count
    for other in others:
        assert other == first


CALLER = textwrap.dedent("""
    import json, os, sys
    import torch, kiln
    from kiln import records
    sys.path.insert(0, os.environ["FOLDER"])
    module = __import__(os.environ["FILE"])
    x = torch.randn(int(os.environ["SIZE"]), 16)
    torch.compile(module.function, backend="kiln", dynamic=True)(x)
    graph, = records.graphs_since(0)
    print(json.dumps(graph, default=str))
""")


def test_callers_share_a_program_and_are_told_of_their_own_sizes_and_lines(place: Place) -> None:
    """explain's notes are each caller's own, kilnctl's those of who had the graph compiled."""
    told = {}
    for name, lines, size in (("first", 1, 8), ("second", 5, 80)):
        with open(os.path.join(place.root, f"{name}.py"), "w") as file:
            file.write("\n" * lines + "def function(x):\n    return (x * 2).sin().sum(-1)\n")
        # Each traces for itself: what torch's cache keeps has the lines of who put it there.
        output, _ = place.run(CALLER, FOLDER=place.root, FILE=name, SIZE=str(size),
                              TORCHINDUCTOR_CACHE_DIR=os.path.join(place.root, f"torch-{name}"))
        told[name] = json.loads(output.strip().splitlines()[-1])
    first, second = told["first"], told["second"]
    assert second["hit"] and not first["hit"]
    assert first["manifest_digest"] == second["manifest_digest"]
    for one, line in ((first, "first.py:3 in function"), (second, "second.py:7 in function")):
        assert [kernel["sources"] for kernel in one["kernels"]] == [[line]]
    assert [kernel["bytes_read"] for kernel in first["kernels"]] == [8 * 16 * 4]
    assert [kernel["bytes_read"] for kernel in second["kernels"]] == [80 * 16 * 4]
    text = kilnctl(place, "show", first["compile_key"]).stdout
    assert "from first.py:3 in function" in text and "second.py" not in text
    assert "bytes at s0 = 8" in text and "reads 512 B" in text


@pytest.mark.usefixtures("no_fallback")
def test_results_do_not_depend_on_threads() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = F.layer_norm(x @ w, (w.shape[1],))
        return y.softmax(-1).sum(0), y.exp().sum(), y.var(0), (x * 2).cumsum(0)

    compiled = torch.compile(f, backend="kiln")
    x, w = torch.randn(512, 300), torch.randn(300, 200)
    threads = torch.get_num_threads()
    results = []
    try:
        for number in (1, 2, 1):
            torch.set_num_threads(number)
            # The gemm is torch's own and may differ; give each run the same one.
            results.append(compiled(x, w))
        with torch.no_grad():
            torch.set_num_threads(1)
            gemm = x @ w
            g = torch.compile(lambda p: (F.layer_norm(p, (200,)).softmax(-1).sum(0), p.exp().sum(), p.var(0)),
                              backend="kiln")
            one = g(gemm)
            torch.set_num_threads(2)
            two = g(gemm)
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(results[0], results[2]))
    assert all(torch.equal(a, b) for a, b in zip(one, two))


@pytest.fixture
def deterministic() -> Iterator[Callable[[bool], None]]:
    yield torch.use_deterministic_algorithms
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("no_fallback")
@pytest.mark.parametrize("training", [False, True])
def test_deterministic_algorithms_are_part_of_the_key(deterministic: Callable[[bool], None], training: bool) -> None:
    """Neither Dynamo's cache nor torch's on disk nor the service's store gives a graph that was made without."""
    table = torch.randn(7, 3, requires_grad=training)
    places = torch.tensor([1, 1, 4])
    keys: dict[bool, list[str]] = {}
    for flag in (False, True, False, True):
        deterministic(flag)
        start = records.graph_count()
        torch._dynamo.reset()
        result = torch.compile(lambda table: F.embedding(places, table).sin(), backend="kiln")(table)
        if training:
            result.sum().backward()
        graphs = [graph["compile_key"] for graph in programs(start)]
        assert len(graphs) == 1 + training
        assert keys.setdefault(flag, graphs) == graphs
    assert not set(keys[False]) & set(keys[True])
    compiled = torch.compile(lambda table: F.embedding(places, table).cos(), backend="kiln")
    start = records.graph_count()
    for flag in (False, True):
        deterministic(flag)
        compiled(table)
    assert len({graph["compile_key"] for graph in programs(start)}) == 2 * (1 + training)
