"""Gemms by oneDNN, which kiln takes on a CPU whose AVX-512 MKL leaves unused."""
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import kiln
from agreement import check_function

TARGET = "mkldnn._linear_pointwise.default"


def _reason_to_skip() -> str | None:
    if not torch.backends.mkldnn.is_available():
        return "this torch has no oneDNN"
    with open("/proc/cpuinfo") as file:
        text = file.read()
    if "GenuineIntel" in text:
        return "MKL uses all of an Intel CPU"
    return None if "avx512vl" in text else "this CPU has no AVX-512"


pytestmark = [pytest.mark.usefixtures("no_fallback"),
              pytest.mark.skipif(_reason_to_skip() is not None, reason=str(_reason_to_skip()))]


def _by_onednn(function: Callable[..., Any], *args: Any) -> int:
    """How many library calls are oneDNN's gemms."""
    return kiln.explain(function)(*args).library_calls.get(TARGET, 0)


def _weights() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(768, 512), torch.randn(768)


def test_linear_layers() -> None:
    arguments = torch.randn(4, 32, 512), *_weights()
    for function in (F.linear, lambda x, w, b: F.linear(x, w), lambda x, w, b: torch.addmm(b, x[0], w.t()),
                     lambda x, w, b: F.gelu(x[1] @ w.t().contiguous())):
        assert _by_onednn(function, *arguments) == 1
        check_function(function, *arguments)


def test_gradients() -> None:
    torch.manual_seed(0)
    weight, bias = (value.requires_grad_() for value in _weights())

    def layer(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.relu(F.linear(x, weight, bias)).square()

    check_function(layer, torch.randn(64, 512, requires_grad=True), weight, bias)
    assert _by_onednn(layer, torch.randn(64, 512, requires_grad=True), weight, bias) == 2


def test_weights_that_are_views() -> None:
    table = torch.randn(3, 768, 1024)
    x = torch.randn(64, 512)
    for function in (lambda x, t: x @ t[1, :, 256:768].t(), lambda x, t: x @ t[2, 128:640]):
        assert _by_onednn(function, x, table) == 1
        check_function(function, x, table)


def test_any_number_of_rows() -> None:
    weight, bias = torch.randn(1024, 512), torch.randn(1024)
    compiled = check_function(F.linear, torch.randn(64, 512), weight, bias, dynamic=True)
    for rows in (3, 17, 200):
        x = torch.randn(rows, 512)
        torch.testing.assert_close(compiled(x, weight, bias), F.linear(x, weight, bias), rtol=1e-4, atol=1e-4)
    assert kiln.stats()["graphs"] == 1


def test_small_gemms_stay() -> None:
    weight = torch.randn(64, 64)
    assert _by_onednn(lambda x: x @ weight, torch.randn(64, 64)) == 0


def test_switched_off() -> None:
    """Control: and what was compiled with it is not taken for a process that goes without."""
    weight, bias = _weights()
    x = torch.randn(64, 512)

    def layer(x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, weight, bias)

    assert _by_onednn(layer, x) == 1
    with torch.backends.mkldnn.flags(enabled=False):
        torch._dynamo.reset()
        assert _by_onednn(layer, x) == 0
        torch.testing.assert_close(torch.compile(layer, backend="kiln")(x), layer(x), rtol=1e-4, atol=1e-4)


def test_results_may_be_changed() -> None:
    """They are the library's own memory, given out and written to."""

    def layer(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = F.linear(x, weight, bias)
        return y, y.t(), y.add_(1)

    check_function(layer, torch.randn(64, 512), *_weights())
