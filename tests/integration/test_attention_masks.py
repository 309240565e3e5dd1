"""Masks that hide nothing go before autograd sees a graph; every other mask stays."""
from collections.abc import Callable
from typing import Any

import pytest
import torch

from agreement import check_function
from kiln import attention_masks

attention = torch.nn.functional.scaled_dot_product_attention
pytestmark = pytest.mark.usefixtures("no_fallback")


def positions(x: torch.Tensor) -> torch.Tensor:
    return torch.arange(x.shape[-2], device=x.device) + 0


def full(x: torch.Tensor) -> torch.Tensor:
    """As transformers builds it."""
    return (positions(x)[None, None, :, None] >= 0).expand(x.shape[0], -1, x.shape[-2], x.shape[-2])


def causal(x: torch.Tensor) -> torch.Tensor:
    return positions(x)[None, None, :, None] >= positions(x)[None, None, None, :]


def written(x: torch.Tensor) -> torch.Tensor:
    mask = full(x).contiguous()
    mask[:, 0][..., 3:] = False  # through a view
    return mask


def of_written_positions(x: torch.Tensor) -> torch.Tensor:
    moved = positions(x)
    moved.sub_(3)
    return (moved >= 0)[None, None, None, :]


HIDE_NOTHING: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "of sizes": full,
    "two": lambda x: full(x) & (torch.arange(3, 3 + x.shape[-2])[None, None, None, :] >= 3),
}
HIDE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "causal": causal,
    "causal and full": lambda x: full(x) & causal(x),
    "all but the first": lambda x: (positions(x) >= 1)[None, None, None, :],
    "from before the first": lambda x: (torch.arange(-1, x.shape[-2] - 1) >= 0)[None, None, None, :],
    "written": written,
    "of written positions": of_written_positions,
    "of data": lambda x: (x[:, :1, None, :, 0] > -100),
}


def masks_left(mask: Callable[[torch.Tensor], torch.Tensor], dynamic: bool) -> list[Any]:
    """Masks in the graph that Dynamo hands over, after the pass."""
    left = []

    def backend(module: torch.fx.GraphModule, _: object) -> Callable[..., Any]:
        attention_masks.drop(module)
        for node in module.graph.nodes:
            if node.target is attention:
                left.append((*node.args[3:4], *filter(None, [node.kwargs.get("attn_mask")])))
        return module.forward

    torch._dynamo.reset()
    x = torch.randn(2, 3, 16, 8)
    torch.compile(lambda x: attention(x, x, x, attn_mask=mask(x)), backend=backend, dynamic=dynamic)(x)
    torch.compile(lambda x: attention(x, x, x, mask(x)), backend=backend, dynamic=dynamic)(x)
    assert len(left) == 2
    return [mask for masks in left for mask in masks if mask is not None]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", [*HIDE_NOTHING, *HIDE])
def test_only_masks_that_hide_nothing_go(name: str, dynamic: bool) -> None:
    kept = masks_left({**HIDE_NOTHING, **HIDE}[name], dynamic)
    assert len(kept) == (0 if name in HIDE_NOTHING else 2)


@pytest.mark.parametrize("name", [*HIDE_NOTHING, *HIDE])
def test_results(name: str) -> None:
    mask = {**HIDE_NOTHING, **HIDE}[name]
    query, key, value = (torch.randn(2, 3, 16, 8, requires_grad=True) for _ in range(3))
    check_function(lambda q, k, v: attention(q, k, v, attn_mask=mask(q)), query, key, value)
