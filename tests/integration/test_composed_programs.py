"""Operators one behind the other, drawn by seed: results, inputs that are written and gradients have eager's bits."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from composed_programs import ComposedProgram, copied, draw_program

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def _run(function: Callable[..., Any], program: ComposedProgram) -> list[torch.Tensor]:
    """What it returns, its inputs afterwards, and their gradients."""
    inputs = [copied(value) for value in program.inputs]
    leaves = [value.requires_grad_() for value in inputs if program.gradient and value.is_floating_point()]
    results = function(*inputs)
    gradients: Sequence[torch.Tensor | None] = ()
    differentiable = [value.sum(dtype=torch.float64) for value in results if value.requires_grad]
    if differentiable:
        total: Any = sum(differentiable)
        gradients = torch.autograd.grad(total, leaves, allow_unused=True)
    return [*results, *inputs, *(value for value in gradients if value is not None)]


def _compiled(program: ComposedProgram, backend: str, dynamic: bool) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(program, backend=backend, dynamic=dynamic)


def _compare(program: ComposedProgram, actual: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    assert len(actual) == len(expected), program
    for position, (a, e) in enumerate(zip(actual, expected)):
        torch.testing.assert_close(a, e, rtol=0, atol=0, equal_nan=True,
                                   msg=lambda m: f"tensor {position}: {m}\n{program}")


def check(seed: int, gradient: bool, dynamic: bool) -> bool:
    """False where torch does not compile the program: eager has no gradient, or Dynamo allows no such write."""
    program = draw_program(seed, gradient)
    with torch.set_grad_enabled(gradient), torch._dynamo.config.patch(specialize_int=True):
        try:
            expected = _run(program, program)
            _run(_compiled(program, "aot_eager", dynamic), program)
        except (RuntimeError, torch._dynamo.exc.TorchDynamoException):
            return False
        _compare(program, _run(_compiled(program, "kiln", dynamic), program), expected)
    return True


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("gradient", [False, True])
def test_composed_operators(gradient: bool, dynamic: bool, request: pytest.FixtureRequest) -> None:
    count = 400 if request.config.getoption("--full") else 8
    assert sum(check(seed, gradient, dynamic) for seed in range(count)) > count / 2


def test_a_wrong_element_is_seen() -> None:
    """The control, of every seed: one element of one result is another."""
    for seed in range(12):
        program = draw_program(seed, False)
        expected = _run(program, program)
        actual = [value.clone(memory_format=torch.contiguous_format) for value in expected]
        place = random.Random(seed).choice([value for value in actual if value.numel()]).view(-1)
        place[-1:] = ~place[-1:] if place.dtype == torch.bool else place[-1:] + 1
        with pytest.raises(AssertionError, match="input"):
            _compare(program, actual, expected)
