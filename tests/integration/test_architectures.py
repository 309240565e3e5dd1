"""Every architecture of transformers: outputs and gradients agree with eager, at fixed sizes and at any."""
import copy
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
import torch

import kiln
from agreement import check
from architectures import ARCHITECTURES, inputs, make

pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("no_fallback")

# A unit of a ReLU that is no module lies at its kink, and fp64 has no numbers: gradients differ.
AT_A_KINK = {"fastspeech2_conformer_with_hifigan"}


Named: TypeAlias = list[tuple[str, torch.Tensor]]


def outputs(run: Callable[..., Any], given: dict[str, Any]) -> list[torch.Tensor]:
    torch.manual_seed(5)
    leaves = torch.utils._pytree.tree_leaves(dict(run(**given)))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]


def results(run: Callable[..., Any], model: torch.nn.Module, given: dict[str, Any], train: bool) -> Named:
    """Named outputs and, with `train`, gradients of parameters."""
    with torch.no_grad():
        found = [(f"output {number}", value) for number, value in enumerate(outputs(run, given))]
    if train:
        model.zero_grad()
        generator = torch.Generator().manual_seed(9)
        shares = [(value, torch.randn(value.shape, generator=generator)) for value in outputs(run, given)]
        total: Any = sum((value * share.to(value.dtype)).mean() for value, share in shares if value.requires_grad)
        total.backward()
        found += [(name, parameter.grad.clone()) for name, parameter in model.named_parameters()
                  if parameter.grad is not None]
    return found


def exact_results(model: torch.nn.Module, given: dict[str, Any], train: bool) -> Named | None:
    """In fp64; None where an operator takes none (grouped gemms of experts)."""
    exact = copy.deepcopy(model).double()
    exactly = {name: value.double() if value.is_floating_point() else value for name, value in given.items()}
    try:
        return results(exact, exact, exactly, train)
    except RuntimeError:
        return None


def infinities(value: torch.Tensor) -> torch.Tensor:
    """-1, 0 or 1 an element."""
    return value.isposinf().int() - value.isneginf().int()


def agree(model: Any, compiled: Callable[..., Any], given: dict[str, Any]) -> None:
    """`compiled` is `model`'s. By the fp64 rule, and by a ten thousandth where fp64 has no numbers."""
    train = model.config.model_type not in AT_A_KINK
    actual, eager = (results(run, model, given, train) for run in (compiled, model))
    exact: list[tuple[str, torch.Tensor | None]] = [*(exact_results(model, given, train) or ())]
    exact = exact or [(name, None) for name, _ in eager]
    assert [name for name, _ in actual] == [name for name, _ in eager] == [name for name, _ in exact]
    by_rule, by_slack = [], []
    for (name, mine), (_, own), (_, right) in zip(actual, eager, exact):
        assert torch.equal(mine.isnan(), own.isnan()), name
        assert torch.equal(infinities(mine), infinities(own)), name
        if right is not None and right.isfinite().all():
            by_rule.append((name, mine, own, right))
        else:
            mine, own = (value.nan_to_num(0, 0, 0) for value in (mine, own))
            by_slack.append((name, mine, own, own.double()))
    for compared, slack in ((by_rule, 1e-5), (by_slack, 1e-4)):
        if compared:
            check(compared, slack)


PARTS = {"test_fixed_sizes": 32, "test_any_sizes": 83}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """All architectures with --full, one in so many without."""
    part = 1 if metafunc.config.getoption("--full") else PARTS[metafunc.definition.originalname]
    chosen = ARCHITECTURES[::part]
    metafunc.parametrize("name, mapping", chosen, ids=[f"{name}-{'lm' if 'LM' in mapping else 'base'}"
                                                       for name, mapping in chosen])


def test_fixed_sizes(name: str, mapping: str) -> None:
    model = make(name, mapping)
    agree(model, torch.compile(model, backend="kiln"), inputs(model))
    assert kiln.stats()["calls"]


def test_any_sizes(name: str, mapping: str) -> None:
    model = make(name, mapping)
    compiled = torch.compile(model, backend="kiln", dynamic=True)
    for batch, length in ((2, 12), (3, 20), (4, 17)):
        agree(model, compiled, inputs(model, batch, length))
    assert kiln.stats()["calls"]
