"""What torch refuses the runtime (memory, a tensor's data) is raised with torch's own error, and nothing runs on it."""
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from kiln import devices

pytestmark = pytest.mark.usefixtures("no_fallback")

FUNCTIONS = [
    lambda x, y: (x.sin() * y, (x @ y).relu()),
    lambda x, y: torch.softmax(x + y.t(), -1).sum(0),
    lambda x, y: (x @ y).cumsum(0).clone(),
    lambda x, y: x.mul_(2).sum() + y.sort(-1).values.amax(),
]


def refused(tensor: torch.Tensor) -> torch.Tensor:
    """`tensor`, whose memory torch gives to nobody, as that of an output that a CUDA graph has overwritten."""
    torch._C._set_throw_on_mutable_data_ptr(tensor)
    return tensor


def error_of(run: Callable[[], object]) -> tuple[type[BaseException], str]:
    with pytest.raises(Exception) as caught:
        run()
    return type(caught.value), str(caught.value)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_memory_that_is_not_to_be_read(function: Callable[..., torch.Tensor], dynamic: bool) -> None:
    draw = random.Random(FUNCTIONS.index(function))
    compiled = torch.compile(function, backend="kiln", dynamic=dynamic)
    size = draw.randint(2, 80)
    tensors = [torch.randn(size, size) for _ in range(2)]
    compiled(*[tensor.clone() for tensor in tensors])
    for position in range(2):
        inputs = [tensor.clone() for tensor in tensors]
        refused(inputs[position])
        assert error_of(lambda: compiled(*inputs)) == error_of(inputs[position].data_ptr)
        torch.testing.assert_close(inputs[1 - position], tensors[1 - position])  # nothing was written
        torch.testing.assert_close(compiled(*[tensor.clone() for tensor in tensors]),
                                   function(*[tensor.clone() for tensor in tensors]))


def test_memory_that_is_not_to_be_read_in_a_backward() -> None:
    weight = torch.randn(16, 16, requires_grad=True)
    compiled = torch.compile(lambda x: torch.tanh(x @ weight).sum(), backend="kiln")
    x = torch.randn(4, 16, requires_grad=True)
    loss = compiled(x)
    refused(weight)
    refused(x)
    assert error_of(loss.backward) == error_of(x.data_ptr)
    assert x.grad is None and weight.grad is None


def test_storage_that_was_given_back() -> None:
    compiled = torch.compile(lambda x: x * 2, backend="kiln")
    compiled(torch.ones(8))
    x = torch.ones(8)
    x.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="input 0 has no memory"):
        compiled(x)
    empty = torch.compile(lambda x: x * 2, backend="kiln")(torch.ones(0, 3))  # there is none to read
    assert empty.shape == (0, 3)


@pytest.mark.parametrize("function", [lambda x: x.expand(1 << 44) + 1, lambda x: x.expand(1 << 22, 1 << 22).clone()])
def test_memory_that_cannot_be_allocated(function: Callable[..., torch.Tensor]) -> None:
    x = torch.ones(1)
    kind, text = error_of(lambda: function(x))
    compiled = torch.compile(function, backend="kiln")
    got_kind, got_text = error_of(lambda: compiled(x))
    assert got_kind is kind
    words = "you tried to allocate"
    assert words in text and text[text.index(words):] == got_text[got_text.index(words):]


def test_pinned_numbers_are_read_before_the_call_returns() -> None:
    class Pinned(torch.Tensor):
        def is_pinned(self, device: Any = None) -> bool:
            return True

    for kind, same in ((torch.Tensor, True), (Pinned, False)):
        x = torch.ones(()).as_subclass(kind)
        assert (devices.brought_to(torch.device("cpu"), x).data_ptr() == x.data_ptr()) is same
