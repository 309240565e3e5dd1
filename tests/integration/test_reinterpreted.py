"""What looks at memory as something else: complex numbers, conjugates, views of another dtype."""
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import kiln
from agreement import check_function, gradient_of


def _complex(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.complex64)


@pytest.mark.usefixtures("no_fallback")
class TestComplex:
    def test_conjugates(self) -> None:
        x, y = _complex(8), _complex(8)
        check_function(lambda x, y: x.conj() * y, x, y)
        check_function(lambda x: (x * 2).conj(), x)
        check_function(lambda x: x.conj().imag + 1, x)
        check_function(lambda x, y: (x.conj() * y).sum().real + x.abs().sum(), x, y)

    def test_functions_that_are_others_for_real_numbers(self) -> None:
        x = _complex(3, 8)
        for function in (torch.var, torch.sgn, torch.square, torch.isfinite, torch.reciprocal, torch.positive,
                         torch.view_as_real, torch.real, torch.imag, lambda x: torch.addcmul(x, x, x, value=2),
                         lambda x: torch.lerp(x, x.flip(0), 0.25), lambda x: torch.linalg.vector_norm(x, dim=1),
                         lambda x: torch.cat([x, x.t().reshape(3, 8)]).sum(0), lambda x: x.mean(1)):
            check_function(function, x)

    @pytest.mark.parametrize("dynamic", [False, True])
    @pytest.mark.parametrize("split", [
        lambda x, dim: torch.unsafe_chunk(x, 2, dim), lambda x, dim: torch.unsafe_split(x, 2, dim),
        lambda x, dim: torch.unsafe_split_with_sizes(x, [1, x.shape[dim] - 1], dim), lambda x, dim: x.unbind(dim)])
    def test_parts_share_memory(self, split: Callable[..., Sequence[torch.Tensor]], dynamic: bool) -> None:
        for rank in (1, 2, 3):
            x = _complex(*torch.randint(3, 6, (rank,)).tolist())
            for dim in range(rank):
                parts = torch.compile(lambda x: split(x, dim), backend="kiln", dynamic=dynamic)(x)
                torch.testing.assert_close(parts, split(x, dim), check_stride=True)
                assert all(part.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() for part in parts)
                check_function(lambda x: [part * 2 for part in split(x + 1, dim)], x)

    # As Llama's own code has it; the two results of view_as_complex are of one size, and the first outlives its
    # argument.
    def test_rotary_embedding(self) -> None:
        def rotate(q: torch.Tensor, k: torch.Tensor, by: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            q, k = (torch.view_as_complex((part * 2).reshape(2, 8, -1, 2)) for part in (q, k))
            return torch.view_as_real(q * by).flatten(2), torch.view_as_real(k * by).flatten(2)

        check_function(rotate, torch.randn(2, 8, 64), torch.randn(2, 8, 64), _complex(8, 32))


def _check_bits(function: Callable[..., Any], *arguments: torch.Tensor) -> None:
    """The same bits as eager's. (An fp64 run, as check_function makes, would have other bits to view.)"""
    compiled, eager = [value.clone() for value in arguments], [value.clone() for value in arguments]
    actual, expected = torch.compile(function, backend="kiln")(*compiled), function(*eager)
    torch.testing.assert_close((actual, compiled), (expected, eager), rtol=0, atol=0, check_stride=True)


@pytest.mark.usefixtures("no_fallback")
class TestOtherDtypes:
    @pytest.mark.parametrize("dtype, to", [(torch.bfloat16, torch.int16), (torch.float32, torch.int16),
                                           (torch.float32, torch.int32), (torch.int64, torch.int32)])
    def test_a_view_outlives_what_it_views(self, dtype: torch.dtype, to: torch.dtype) -> None:
        x, y = torch.randint(100, (2, 4096)).to(dtype)
        _check_bits(lambda x, y: ((x * 2).view(to), y * 3), x, y)

    def test_a_view_leaves(self) -> None:
        x = torch.randn(8)
        _check_bits(lambda x: x.view(torch.int32), x)
        _check_bits(lambda x: torch.sort((x * 2).view(torch.int32))[0] + 1, x)
        _check_bits(lambda x: (x * 2).view(torch.int32)[::2], x)

    def test_what_is_viewed_changes(self) -> None:
        def change(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            bits = x.view(torch.int16)
            x.add_(1)
            return bits.sum(), x * 2

        _check_bits(change, torch.randn(64).bfloat16())


@pytest.mark.usefixtures("no_fallback")
class TestFlags:
    """Tensors whose elements are the conjugates or the negatives of what memory holds."""

    @pytest.mark.parametrize("flagged",
                             [lambda x: x.conj(), lambda x: x.conj().imag, lambda x: torch._neg_view(x.real)])
    def test_inputs(self, flagged: Callable[..., torch.Tensor]) -> None:
        value = flagged(_complex(8))
        assert value.is_conj() or value.is_neg()
        torch.testing.assert_close(torch.compile(lambda y: y + 1, backend="kiln")(value), value + 1)

    def test_inputs_that_are_written(self) -> None:
        def change(x: torch.Tensor) -> torch.Tensor:
            x.add_(1).mul_(x)
            return x * 2

        compiled = _complex(8)
        eager = compiled.clone()
        results = torch.compile(change, backend="kiln")(compiled.conj().imag), change(eager.conj().imag)
        torch.testing.assert_close(*results)
        torch.testing.assert_close(compiled, eager)

    def test_gradients(self) -> None:
        def gradient(function: Callable[..., torch.Tensor], by: torch.Tensor) -> torch.Tensor:
            x = torch.linspace(0, 2, 8, requires_grad=True)
            function(x).backward(by)
            return gradient_of(x)

        # The graph is traced with plain gradients.
        compiled = torch.compile(torch.sin, backend="kiln")
        for by in (torch.randn(8), torch._neg_view(torch.randn(8))):
            torch.testing.assert_close(gradient(compiled, by), gradient(torch.sin, by))

    def test_conjugates_that_are_saved(self) -> None:
        def gradients(function: Callable[..., torch.Tensor]) -> tuple[torch.Tensor | None, torch.Tensor | None]:
            torch.manual_seed(0)
            x, y = _complex(8).requires_grad_(), _complex(8).requires_grad_()
            torch.view_as_real(function(x, y)).sum().backward()
            return x.grad, y.grad

        def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x * y.conj() + 1

        torch.testing.assert_close(gradients(torch.compile(product, backend="kiln")), gradients(product))


_library = torch.library.Library("kiln_zeros", "FRAGMENT")
_library.define("without_memory(Tensor x) -> Tensor")


@torch.library.impl(_library, "without_memory", "CPU")
def _(x: torch.Tensor) -> torch.Tensor:
    return torch._efficientzerotensor(x.shape, dtype=x.dtype)


@torch.library.register_fake("kiln_zeros::without_memory")  # type: ignore[untyped-decorator]  # torch gives it no types
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def _gradient_of_signs(*shape: int) -> torch.Tensor:
    x = torch.randn(shape, requires_grad=True)
    zeros = torch.autograd.grad(torch.sgn(x).sum(), x)[0]
    assert zeros._is_zerotensor()
    return zeros


@pytest.mark.usefixtures("no_fallback")
class TestZerosWithoutMemory:
    """Gradients of what is flat are zeros, for which torch has tensors without memory."""

    @pytest.mark.parametrize("dynamic", [False, True])
    @pytest.mark.parametrize("view", [lambda x: x, lambda x: x[1:], lambda x: x.t(), lambda x: x[:, 1::2]])
    def test_as_inputs(self, view: Callable[..., torch.Tensor], dynamic: bool) -> None:
        def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return x[-1] + 1, (x * 2 + y[:x.shape[0], :x.shape[1]]).sum(1), x @ x.t()

        compiled = torch.compile(function, backend="kiln", dynamic=dynamic)
        for _ in range(3):
            shape = torch.randint(3, 9, (2,)).tolist()
            y = torch.randn(9, 9)
            zeros = view(_gradient_of_signs(*shape))
            torch.testing.assert_close(compiled(zeros, y), function(zeros.clone(), y))
            assert zeros._is_zerotensor()
        torch.testing.assert_close(compiled(view(y), y), function(view(y), y))

    def test_as_results_of_operators(self) -> None:
        def function(x: torch.Tensor) -> tuple[Any, ...]:
            zeros = torch.ops.kiln_zeros.without_memory(x)
            return zeros + x, zeros[1:].exp(), zeros.sum(0)

        x = torch.randn(torch.randint(2, 9, (2,)).tolist())
        torch.testing.assert_close(torch.compile(function, backend="kiln")(x),
                                   (x, torch.ones_like(x[1:]), torch.zeros(x.shape[1])))

    @pytest.mark.parametrize("flat",
                             [lambda x: x.trace() * torch.eye(3), lambda x: x.sgn() * x.sum(), lambda x: x.ceil()])
    def test_second_derivatives_of_what_is_linear(self, flat: Callable[..., torch.Tensor]) -> None:
        def function(x: torch.Tensor) -> Any:
            return torch.func.jacfwd(torch.func.jacfwd(flat))(x)

        x = torch.randn(3, 3)
        torch.testing.assert_close(torch.compile(function, backend="kiln")(x), function(x).clone())


@pytest.mark.filterwarnings("ignore:kiln")
def test_complex_inputs_that_are_written_cost_a_call_of_python() -> None:
    compiled = _complex(8)
    eager = compiled.clone()
    torch.compile(lambda x: x.mul_(2), backend="kiln")(compiled)
    torch.testing.assert_close(compiled, eager.mul_(2))
    assert not kiln.stats()["fallbacks"]
    assert any("complex numbers written to an input" in reason for reason in kiln.stats()["python"])
