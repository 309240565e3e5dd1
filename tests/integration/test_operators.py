"""Operators one by one against PyTorch: forward and backward, fp32 and bf16, static and dynamic shapes.

Errors are measured against an fp64 run, and may be a few times eager's own (agreement.py).
"""
import copy
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch

import core_evaluator
from agreement import disagreement, rms
from operator_samples import SAMPLES, Sample

needs_passes = pytest.mark.skipif(not core_evaluator.binary().exists(), reason="graph_passes is not built")


def _leaves(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [leaf for part in value for leaf in _leaves(part)]
    return []


def assert_close(actual: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor, largest: float) -> None:
    """The rule of agreement.py; infinities and NaN have to be eager's, in the same places.

    A mean in bfloat16 is one number: eager's may be the nearest one by luck, and a neighbour of it is right as well.
    So up to 10 numbers of bfloat16 may be off by one unit in the last place; more have the models' rule."""
    assert actual.stride() == eager.stride() or actual.numel() == 0
    if actual.is_floating_point():
        assert actual.dtype == eager.dtype and actual.shape == eager.shape
        assert torch.equal(torch.isnan(actual), torch.isnan(eager))
        infinite = torch.isinf(eager)
        assert torch.equal(actual[infinite], eager[infinite])
        finite = torch.isfinite(exact) & torch.isfinite(eager)
        actual, eager, exact = actual[finite], eager[finite], exact[finite]
    one_unit = eager.dtype == torch.bfloat16 and eager.numel() <= 10
    text = disagreement(actual, eager, exact, largest, slack=2 ** -8 if one_unit else 1e-5)
    assert text is None, text


def _prepare(inputs: Iterable[torch.Tensor], dtype: torch.dtype, grad: bool) -> list[torch.Tensor]:
    prepared = []
    for value in inputs:
        value = value.detach().to(dtype) if value.is_floating_point() else value
        strided = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
        value = strided.copy_(value)
        prepared.append(value.requires_grad_(grad and value.is_floating_point()))
    return prepared


def run(function: Callable[..., Any], inputs: Iterable[torch.Tensor], dtype: torch.dtype,
        grad: bool) -> list[torch.Tensor]:
    """Outputs and gradients."""
    inputs = _prepare(inputs, dtype, grad)
    with torch.set_grad_enabled(grad):
        outputs = _leaves(function(*inputs))
    if not grad:
        return outputs
    tangents = []
    for number, output in enumerate(outputs):
        generator = torch.Generator().manual_seed(number)
        tangents.append(torch.randn(output.shape, generator=generator).to(output.dtype))
    roots = [(output, tangent) for output, tangent in zip(outputs, tangents) if output.requires_grad]
    torch.autograd.backward([o for o, _ in roots], [g for _, g in roots])
    return [output.detach() for output in outputs] + [value.grad for value in inputs if value.grad is not None]


def check(sample: Sample, backend: str | Callable[..., Any], dtype: torch.dtype, dynamic: bool) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(sample.function, backend=backend, dynamic=dynamic, fullgraph=True)
    actual = run(compiled, sample.inputs, dtype, sample.differentiable)
    eager = run(sample.function, sample.inputs, dtype, sample.differentiable)
    exact = run(sample.function, [_rounded(value, dtype) for value in sample.inputs], torch.float64,
                sample.differentiable)
    assert len(actual) == len(eager) == len(exact)
    largest = max([rms(value[torch.isfinite(value)]) for value in exact if value.is_floating_point()], default=0.0)
    for got, wanted, reference in zip(actual, eager, exact):
        assert_close(got, wanted, reference, largest)


def _rounded(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return value.to(dtype) if value.is_floating_point() else copy.copy(value)


def _named(samples: Iterable[Sample]) -> list[Any]:
    return [pytest.param(sample, id=sample.name) for sample in samples]


@needs_passes
@pytest.mark.parametrize("sample", _named(SAMPLES))
def test_core_float32(sample: Sample) -> None:
    check(sample, core_evaluator.backend, torch.float32, dynamic=False)


@pytest.mark.part(2)
@needs_passes
@pytest.mark.parametrize("sample", _named([s for s in SAMPLES if s.half]))
def test_core_bfloat16(sample: Sample) -> None:
    check(sample, core_evaluator.backend, torch.bfloat16, dynamic=False)


@pytest.mark.part(2)
@needs_passes
@pytest.mark.parametrize("sample", _named([s for s in SAMPLES if s.dynamic]))
def test_core_dynamic(sample: Sample) -> None:
    check(sample, core_evaluator.backend, torch.float32, dynamic=True)


# ---- the whole way: daemon, worker, kernels ----


@pytest.fixture
def no_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KILN_FALLBACK", "error")


@pytest.mark.parametrize("sample", _named(SAMPLES))
def test_kiln_float32(sample: Sample, no_fallback: None) -> None:
    check(sample, "kiln", torch.float32, dynamic=False)


@pytest.mark.part(2)
@pytest.mark.parametrize("sample", _named([s for s in SAMPLES if s.half]))
def test_kiln_bfloat16(sample: Sample, no_fallback: None) -> None:
    check(sample, "kiln", torch.bfloat16, dynamic=False)


@pytest.mark.part(2)
@pytest.mark.parametrize("sample", _named([s for s in SAMPLES if s.dynamic]))
def test_kiln_dynamic(sample: Sample, no_fallback: None) -> None:
    check(sample, "kiln", torch.float32, dynamic=True)
