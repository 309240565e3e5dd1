"""The rule of agreement: kiln may err against an fp64 run at most a few times as much as eager does."""
import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch


def gradient_of(tensor: torch.Tensor) -> torch.Tensor:
    """A leaf's, which has one."""
    assert tensor.grad is not None
    return tensor.grad


def rms(tensor: torch.Tensor) -> float:
    return tensor.double().pow(2).mean().sqrt().item() if tensor.numel() else 0.0


def factor(tensor: torch.Tensor) -> int:
    if tensor.numel() <= 10:
        return 10
    return 3 if tensor.numel() < 1000 or tensor.dtype in (torch.bfloat16, torch.float16) else 2


def disagreement(actual: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor, largest: float,
                 slack: float = 1e-5) -> str | None:
    """None, or text that says how far `actual` is from the rule.

    `slack`: what is allowed above eager's share, of the exact tensor's RMS."""
    assert actual.shape == exact.shape and actual.dtype == eager.dtype
    if not exact.is_floating_point():
        return None if torch.equal(actual, eager) else "differs"
    error, own = rms(actual.double() - exact), rms(eager.double() - exact)
    allowed = factor(eager) * own + slack * rms(exact) + 1e-7 * largest
    return None if error <= allowed else f"error {error:.3g}, allowed {allowed:.3g} (eager {own:.3g})"


def doubled(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.detach().double().requires_grad_(value.requires_grad)
    return value


def check(named: Sequence[tuple[str, torch.Tensor, torch.Tensor, torch.Tensor]], slack: float = 1e-5) -> None:
    """`named`: [(name, actual, eager, exact)]. Fails with every tensor that breaks the rule; `slack`:
    disagreement's."""
    assert named
    largest = max((rms(exact) for _, _, _, exact in named if exact.is_floating_point()), default=0.0)
    wrong = [f"{name}: {text}" for name, actual, eager, exact in named
             if (text := disagreement(actual.detach(), eager.detach(), exact.detach(), largest, slack))]
    assert not wrong, "\n".join(wrong)


def check_function(function: Callable[..., Any], *args: Any, backward: bool = True,
                   **compile_arguments: Any) -> Callable[..., Any]:
    """Compares a function of tensors, and the gradients of its inputs, with eager and with fp64.

    Arguments that the function changes in place are compared as well. Returns the compiled function."""
    compiled = torch.compile(function, backend="kiln", **compile_arguments)
    runs = []
    for run, convert in ((compiled, _same), (function, _same), (function, doubled)):
        inputs = [convert(_cloned(value)) for value in args]
        torch.manual_seed(7)
        outputs = [value for value in torch.utils._pytree.tree_leaves(run(*inputs)) if isinstance(value, torch.Tensor)]
        leaves = [value for value in inputs if isinstance(value, torch.Tensor) and value.requires_grad]
        gradients: Sequence[torch.Tensor | None] = ()
        differentiable = [value for value in outputs if value.requires_grad]
        if backward and leaves and differentiable:
            total: Any = sum((value * torch.arange(1, value.numel() + 1, dtype=value.dtype).view(value.shape)
                              / max(value.numel(), 1)).sum() for value in differentiable)
            gradients = torch.autograd.grad(total, leaves, allow_unused=True)
        kept = [("output", value) for value in outputs]
        kept += [("gradient", value) for value in gradients if value is not None]
        kept += [("input", value) for value in inputs if isinstance(value, torch.Tensor) and not value.requires_grad]
        runs.append(kept)
    assert [name for name, _ in runs[0]] == [name for name, _ in runs[1]]
    for (name, actual), (_, eager) in zip(runs[0], runs[1]):
        assert actual.shape == eager.shape, name
        assert actual.stride() == eager.stride() or name == "gradient" or actual.numel() <= 1, name
    check([(f"{name} {i}", a[1], e[1], x[1]) for i, (a, e, x) in enumerate(zip(*runs)) for name in (a[0],)])
    return compiled


def _same(value: Any) -> Any:
    return value


def _cloned(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        copied = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
        copied.copy_(value.detach())
        return copied.requires_grad_(value.requires_grad)
    return copy.deepcopy(value)
