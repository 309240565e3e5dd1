"""Linear resizing samples where eager does: dimensions, sizes, scales, dtypes and gradients drawn at random.

On the CPU eager copies along a dimension whose size stays, whatever scale the caller gave; its ratio of sizes is a
number of the tensor's dtype, rounded before it is used.
"""
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

pytestmark = pytest.mark.usefixtures("no_fallback")

TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-13, torch.bfloat16: 3e-2}


MODES = {1: "linear", 2: "bilinear", 3: "trilinear"}


def drawn(seed: int, dims: int) -> tuple[list[int], torch.dtype, dict[str, Any], bool]:
    rng = random.Random(seed)
    shape = [rng.randint(1, 2), rng.randint(1, 3), *(rng.randint(1, 9) for _ in range(dims))]
    options = {"mode": MODES[dims], "align_corners": rng.random() < 0.3}
    if rng.random() < 0.6:
        options["scale_factor"] = [rng.choice([2.0, 1.5, 0.5, 2.3, 0.7, 3.0, 1.1, 1.05]) for _ in range(dims)]
    else:
        options["size"] = [rng.randint(1, 12) for _ in range(dims)]
    return shape, rng.choice([*TOLERANCE]), options, rng.random() < 0.4


def run(function: Callable[..., torch.Tensor], x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    x = x.clone().requires_grad_()
    y = function(x)
    weights = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).view(y.shape)
    return y.detach(), torch.autograd.grad((y.double() * weights).sum(), x)[0]


@pytest.mark.parametrize("part, dims", [(0, 2), (1, 2), (2, 2), (3, 2), (4, 1), (5, 3)])
def test_linear(part: int, dims: int) -> None:
    for seed in range(part * 12, part * 12 + 12):
        shape, dtype, options, dynamic = drawn(seed, dims)
        try:
            x = (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 3).to(dtype)
            expected = run(lambda x: F.interpolate(x, **options), x)
        except RuntimeError:  # eager makes no image of no points
            continue
        torch._dynamo.reset()
        compiled = torch.compile(lambda x: F.interpolate(x, **options), backend="kiln", dynamic=dynamic)
        actual = run(compiled, x)
        for mine, own in zip(actual, expected):
            torch.testing.assert_close(mine, own, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * 10, msg=lambda text: (
                f"seed {seed}: {shape} {dtype} {options} dynamic={dynamic}\n{text}"))
