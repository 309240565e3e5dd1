"""Transformers' models against eager fp64: inference, training, native share, five steps of Adam.

Small copies for everything; real configurations for inference, and with --full for training.
"""
import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from agreement import check, gradient_of
from model_checks import (
    REST_SHARE_MAX,
    THE_REST,
    check_inference,
    check_training,
    doubles,
    library_calls,
    name_of,
    outside_closed_list,
    share_of_the_rest,
)
from promised_models import FULL_SIZE, MODELS, make, make_full_size

pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("no_fallback")

def copies(name: str) -> tuple[torch.nn.Module, torch.nn.Module, torch.nn.Module, dict[str, Any], dict[str, Any]]:
    model, inputs = make(name)
    exact, exact_inputs = doubles(model, inputs)
    return model, copy.deepcopy(model), exact, inputs, exact_inputs


def test_closed_list_is_exact() -> None:
    allowed = ["aten.mm.default", "aten.sort.stable", "aten.max_pool2d_with_indices_backward.default",
               "aten.linalg_cholesky_ex.default"]
    native = ["aten.avg_pool2d.default", "aten.max_pool2d_with_indices.default", "aten.sum.dim_IntList",
              "aten.embedding.default", "aten.argsort.default", "aten.mul.Tensor"]
    assert outside_closed_list(allowed) == []
    assert outside_closed_list(native) == sorted(native)


def test_the_rule_refuses_wrong_gradients() -> None:
    exact = torch.randn(2000, dtype=torch.float64)
    eager = exact.float()
    check([("right", eager.clone(), eager, exact)])
    nothing = torch.full_like(eager, float("nan"))
    for wrong in (eager * 1.001, eager.roll(1), torch.zeros_like(eager), nothing):
        with pytest.raises(AssertionError, match="wrong one"):
            check([("wrong one", wrong, eager, exact)])


@pytest.mark.parametrize("mostly", ["sort", "gemm"])
def test_the_share_shows_what_is_not_native(mostly: str) -> None:
    """A control: a graph that mostly sorts is over the limit, one with a gemm and a tiny sort is not."""
    rows, columns = (256, 512) if mostly == "sort" else (1, 16)
    compiled = torch.compile(lambda x, w: (x[:rows, :columns].sort(-1)[0], x @ w), backend="kiln")
    x, w = torch.randn(256, 512), torch.randn(512, 16 if mostly == "sort" else 16384)
    compiled(x, w)
    assert (share_of_the_rest(lambda: compiled(x, w)) > REST_SHARE_MAX) == (mostly == "sort")


def test_pooling_is_native() -> None:
    """ResNet's max pooling would be the only one of the rest in the eight models; real widths, small images."""
    from kiln import records

    model, inputs = make_full_size("resnet50", "train")
    inputs = {"pixel_values": inputs["pixel_values"][:2, :, :96, :96], "labels": inputs["labels"][:2]}
    start = records.graph_count()
    compiled = torch.compile(model, backend="kiln")
    compiled(**inputs).loss.backward()
    calls = {name_of(target) for target in library_calls(start)}
    assert "convolution_backward" in calls and not calls & THE_REST


@pytest.mark.parametrize("name", MODELS)
def test_inference(name: str) -> None:
    check_inference(*make(name))


@pytest.mark.parametrize("name", MODELS)
def test_training(name: str) -> None:
    model, inputs = make(name)
    check_training(model.train(), inputs)


@pytest.mark.part(3)
@pytest.mark.parametrize("name", FULL_SIZE)
def test_full_size_inference(name: str) -> None:
    model, inputs = make_full_size(name, "infer")
    compiled = check_inference(model, inputs)
    with torch.no_grad():
        assert share_of_the_rest(lambda: compiled(**inputs)) <= REST_SHARE_MAX


@pytest.mark.full
@pytest.mark.parametrize("name", FULL_SIZE)
def test_full_size_training(name: str) -> None:
    model, inputs = make_full_size(name, "train")
    compiled = check_training(model, inputs)
    assert share_of_the_rest(lambda: compiled(**inputs).loss.backward()) <= REST_SHARE_MAX


@pytest.mark.part(2)
@pytest.mark.parametrize("name", MODELS)
def test_five_steps_of_adam(name: str) -> None:
    model, eager, _, inputs, _ = copies(name)
    runs: list[tuple[Callable[..., Any], torch.optim.Optimizer]] = [
        (torch.compile(model.train(), backend="kiln"), torch.optim.Adam(model.parameters(), 1e-3)),
        (eager.train(), torch.optim.Adam(eager.parameters(), 1e-3))]
    losses: list[list[torch.Tensor]] = [[], []]
    for _ in range(5):
        for (run, optimizer), kept in zip(runs, losses):
            optimizer.zero_grad()
            loss = run(**inputs).loss
            loss.backward()
            optimizer.step()
            kept.append(loss.item())
    assert losses[0][-1] < losses[0][0]
    torch.testing.assert_close(torch.tensor(losses[0]), torch.tensor(losses[1]), rtol=2e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_bfloat16(name: str) -> None:
    model, eager, exact, inputs, exact_inputs = copies(name)
    model, eager = model.bfloat16(), eager.bfloat16()
    exact.load_state_dict({key: value.double() for key, value in eager.state_dict().items()})
    named = []
    runs: list[Callable[..., Any]] = [torch.compile(model, backend="kiln"), eager, exact]
    losses = []
    for run, its_inputs in zip(runs, (inputs, inputs, exact_inputs)):
        loss = run(**its_inputs).loss
        loss.backward()
        losses.append(loss)
    for (parameter, mine), its, exactly in zip(model.named_parameters(), eager.parameters(), exact.parameters()):
        if mine.grad is not None:
            named.append((parameter, mine.grad, gradient_of(its), gradient_of(exactly)))
    check(named)
