"""Kernels and bytes of two training steps against TorchInductor's of the same functions, counted alike.

tests/bench/fusion.py says what is counted. Inductor's figures are stored, so that a test compiles with kiln only;
with --full they are taken again.
"""
import importlib.util
import pathlib
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
import torch
import torch.nn.functional as F

from kiln import records

pytestmark = pytest.mark.usefixtures("no_fallback")

Cut: TypeAlias = Callable[[], None]

_NESTS, _BYTES = 1.1, 1.05  # times Inductor's, at most


def _counting() -> Any:
    path = pathlib.Path(__file__).parents[1] / "bench" / "fusion.py"
    specification = importlib.util.spec_from_file_location("bench_fusion", path)
    assert specification and specification.loader
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


fusion = _counting()


# `cut` runs between operators: nothing, or a graph break.


def _normalised(cut: Cut, x: torch.Tensor, dims: int | tuple[int, ...], scale: torch.Tensor,
                shift: torch.Tensor) -> torch.Tensor:
    centered = x - x.mean(dims, keepdim=True)
    cut()
    variance = centered.square().mean(dims, keepdim=True)
    cut()
    x = centered * torch.rsqrt(variance + 1e-5)
    cut()
    x = x * scale
    cut()
    return x + shift


def attention(cut: Cut, tokens: torch.Tensor, table: torch.Tensor, weights: torch.Tensor, wide: torch.Tensor,
              narrow: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """A layer of a transformer: embedding, attention by its operators with dropout, layer norms, a GELU."""
    x = F.embedding(tokens, table)
    cut()
    q, k, v = (x @ weights).view(4, 64, 3, 4, 32).permute(2, 0, 3, 1, 4).unbind()
    scores = q @ k.transpose(-1, -2) * 32**-0.5
    cut()
    exponentials = (scores - scores.detach().amax(-1, keepdim=True)).exp()
    cut()
    shares = exponentials / exponentials.sum(-1, keepdim=True)
    cut()
    shares = F.dropout(shares, 0.1)
    cut()
    mixed = (shares @ v).transpose(1, 2).reshape(4, 64, 128)
    cut()
    x = x + F.dropout(mixed, 0.1)
    cut()
    x = _normalised(cut, x, -1, scale, shift)
    cut()
    inner = x @ wide
    cut()
    share = torch.erf(inner * 0.5**0.5) + 1
    cut()
    x = x + (inner * share) @ narrow
    cut()
    return _normalised(cut, x, -1, scale, shift).square().sum()


def _attention_inputs() -> list[torch.Tensor]:
    return [torch.randint(0, 2000, (4, 64)), torch.randn(2000, 128), torch.randn(128, 384), torch.randn(128, 512),
            torch.randn(512, 128), torch.randn(128), torch.randn(128)]


def images(cut: Cut, x: torch.Tensor, first: torch.Tensor, second: torch.Tensor, scale: torch.Tensor,
           shift: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
    """A residual block of a convolution network with batch normalisation, pooled and classified."""
    scale, shift = scale.view(32, 1, 1), shift.view(32, 1, 1)
    y = _normalised(cut, F.conv2d(x, first, padding=1), (0, 2, 3), scale, shift)
    cut()
    y = F.relu(y)
    cut()
    y = _normalised(cut, F.conv2d(y, second, padding=1), (0, 2, 3), scale, shift)
    cut()
    y = F.relu(y + x)
    cut()
    return F.log_softmax(y.mean((2, 3)) @ head, -1).square().sum()


def _images_inputs() -> list[torch.Tensor]:
    return [torch.randn(4, 32, 28, 28), torch.randn(32, 32, 3, 3), torch.randn(32, 32, 3, 3), torch.randn(32),
            torch.randn(32), torch.randn(32, 10)]


FUNCTIONS: dict[str, tuple[Callable[..., torch.Tensor], Callable[[], list[torch.Tensor]]]] = {
    "attention": (attention, _attention_inputs), "images": (images, _images_inputs)}

# Inductor's of torch 2.13.0 on a CPU: loop nests, `metrics.num_bytes_accessed`, and those less what its fused loops
# count of tables but cannot touch.
TORCH = "2.13.0"
INDUCTOR = {
    "attention": {
        "forward": {"nests": 12, "loop_bytes": 4018212, "bytes": 7622708, "touched_bytes": 7622708},
        "backward": {"nests": 12, "loop_bytes": 7438852, "bytes": 14647812, "touched_bytes": 14647812},
    },
    "images": {
        "forward": {"nests": 12, "loop_bytes": 4666756, "bytes": 6348068, "touched_bytes": 6348068},
        "backward": {"nests": 10, "loop_bytes": 7531620, "bytes": 10091428, "touched_bytes": 10091428},
    },
}


def _step(name: str, backend: str, cut: Cut = lambda: None) -> None:
    """Compiles and runs a step."""
    torch.manual_seed(0)
    function, make = FUNCTIONS[name]
    inputs = [value.requires_grad_() if value.is_floating_point() else value for value in make()]
    torch._dynamo.reset()
    compiled: Callable[..., torch.Tensor] = torch.compile(function, backend=backend, dynamic=False)
    compiled(cut, *inputs).backward()


def _kiln_counts(name: str, cut: Cut = lambda: None) -> dict[str, dict[str, int]]:
    """Sums over the graphs of a step, by kind."""
    before = records.graph_count()
    _step(name, "kiln", cut)
    sums: dict[str, dict[str, int]] = {}
    for graph in fusion.kiln_counts(before):
        kind = sums.setdefault(graph["kind"], {"nests": 0, "bytes": 0})
        for what in kind:
            kind[what] += graph[what]
    return sums


def _excesses(name: str, counts: dict[str, dict[str, int]]) -> list[tuple[str, str]]:
    """[(kind, what)] over their bound."""
    assert counts.keys() == INDUCTOR[name].keys()
    found = []
    for kind, inductor in INDUCTOR[name].items():
        if counts[kind]["nests"] > _NESTS * inductor["nests"]:
            found.append((kind, "nests"))
        if counts[kind]["bytes"] > _BYTES * inductor["touched_bytes"]:
            found.append((kind, "bytes"))
    return found


@pytest.mark.parametrize("name", FUNCTIONS)
def test_kernels_and_bytes_against_inductor(name: str) -> None:
    counts = _kiln_counts(name)
    assert _excesses(name, counts) == [], (counts, INDUCTOR[name])


@pytest.mark.parametrize("name, kinds", [("attention", ["forward", "backward"]), ("images", ["forward"])])
def test_operators_that_are_not_fused_are_found(name: str, kinds: list[str]) -> None:
    """The control: the same function in pieces. (Inductor's gradient of the images moves more than kiln's pieces.)"""
    counts = _kiln_counts(name, torch._dynamo.graph_break)
    assert {(kind, "bytes") for kind in kinds} <= set(_excesses(name, counts)), counts


@pytest.mark.full
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_stored_figures_are_inductors(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.__version__.split("+")[0] != TORCH:
        pytest.skip(f"the figures are of torch {TORCH}")
    from torch._inductor import config
    from torch._inductor.graph import GraphLowering

    monkeypatch.setattr(GraphLowering, "compile_to_module", GraphLowering.compile_to_module)  # put back afterwards
    graphs = fusion.InductorGraphs()
    with config.patch(force_disable_caches=True):
        _step(name, "inductor")
    assert {graph.pop("kind"): graph for graph in graphs.counts()} == INDUCTOR[name]
