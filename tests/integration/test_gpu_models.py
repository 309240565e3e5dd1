"""Transformers' models on an NVIDIA GPU against eager fp64 there: inference, training, native share. Without one
these tests skip themselves. TF32 is off, so that the rule is as tight as on the CPU.
"""
from collections.abc import Callable
from typing import Any

import pytest
import torch

import kiln
from agreement import check, gradient_of
from model_checks import check_inference, check_library_calls, check_training, doubles
from promised_models import FULL_SIZE, MODELS, make, make_full_size

pytest.importorskip("transformers")
pytestmark = [pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here"),
              pytest.mark.usefixtures("no_fallback", "no_tf32")]

# Its sums have no fixed order in a kernel of ours.
POOLING = frozenset(["max_pool2d_with_indices_backward"])


@pytest.fixture
def no_tf32(allow_tf32: Callable[[bool], None]) -> None:
    allow_tf32(False)


def on_gpu(model: torch.nn.Module, inputs: dict[str, Any]) -> tuple[torch.nn.Module, dict[str, Any]]:
    return model.cuda(), {key: value.cuda() for key, value in inputs.items()}


@pytest.mark.parametrize("name", MODELS)
def test_inference(name: str) -> None:
    check_inference(*on_gpu(*make(name)), POOLING)


@pytest.mark.parametrize("name", MODELS)
def test_training(name: str) -> None:
    model, inputs = on_gpu(*make(name))
    check_training(model.train(), inputs, POOLING)


@pytest.mark.parametrize("name", [*FULL_SIZE, "mobilenet", "beit", "detr"])
def test_full_size_inference(name: str) -> None:
    check_inference(*make_full_size(name, "infer", "cuda"), POOLING)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "vit", "resnet50"])
def test_full_size_training(name: str) -> None:
    check_training(*on_gpu(*make_full_size(name, "train")), POOLING)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("name", ["bert", "llama", "gpt2", "vit"])
def test_bfloat16_training(name: str, mode: str) -> None:
    model, inputs = on_gpu(*make(name))
    model = model.bfloat16().train()
    inputs = {key: value.bfloat16() if value.is_floating_point() else value for key, value in inputs.items()}
    exact, exact_inputs = doubles(model, inputs)
    eager, _ = doubles(model, inputs)
    eager = eager.bfloat16()
    compiled = torch.compile(model, backend="kiln", mode=mode)
    for _ in range(3 if mode == "reduce-overhead" else 1):  # the second call records, the third replays
        model.zero_grad()
        loss = compiled(**inputs).loss
        loss.backward()
    named = []
    for run, its_inputs in ((eager, inputs), (exact, exact_inputs)):
        run(**its_inputs).loss.backward()
    for (parameter, mine), its, exactly in zip(model.named_parameters(), eager.parameters(), exact.parameters()):
        if exactly.grad is not None:
            named.append((parameter, gradient_of(mine), gradient_of(its), exactly.grad))
    check(named)
    check_library_calls(POOLING)
    assert kiln.stats()["fallbacks"] == {}
