"""What looks at memory as something else: complex numbers, conjugates, views of another dtype."""
import pytest
import torch

import kiln
from agreement import check_function


def _complex(*shape):
    return torch.randn(*shape, dtype=torch.complex64)


@pytest.mark.usefixtures("no_fallback")
class TestComplex:
    def test_conjugates(self):
        x, y = _complex(8), _complex(8)
        check_function(lambda x, y: x.conj() * y, x, y)
        check_function(lambda x: (x * 2).conj(), x)
        check_function(lambda x: x.conj().imag + 1, x)
        check_function(lambda x, y: (x.conj() * y).sum().real + x.abs().sum(), x, y)

    def test_functions_that_are_others_for_real_numbers(self):
        x = _complex(3, 8)
        for function in (torch.var, torch.sgn, torch.square, torch.isfinite, torch.reciprocal, torch.positive,
                         torch.view_as_real, torch.real, torch.imag, lambda x: torch.addcmul(x, x, x, value=2),
                         lambda x: torch.lerp(x, x.flip(0), 0.25), lambda x: torch.linalg.vector_norm(x, dim=1),
                         lambda x: torch.cat([x, x.t().reshape(3, 8)]).sum(0), lambda x: x.mean(1)):
            check_function(function, x)

    # As Llama's own code has it; the two results of view_as_complex are of one size, and the first outlives its argument.
    def test_rotary_embedding(self):
        def rotate(q, k, by):
            q, k = (torch.view_as_complex((part * 2).reshape(2, 8, -1, 2)) for part in (q, k))
            return torch.view_as_real(q * by).flatten(2), torch.view_as_real(k * by).flatten(2)

        check_function(rotate, torch.randn(2, 8, 64), torch.randn(2, 8, 64), _complex(8, 32))


def _check_bits(function, *arguments):
    """The same bits as eager's. (An fp64 run, as check_function makes, would have other bits to view.)"""
    compiled, eager = [value.clone() for value in arguments], [value.clone() for value in arguments]
    actual, expected = torch.compile(function, backend="kiln")(*compiled), function(*eager)
    torch.testing.assert_close((actual, compiled), (expected, eager), rtol=0, atol=0, check_stride=True)


@pytest.mark.usefixtures("no_fallback")
class TestOtherDtypes:
    @pytest.mark.parametrize("dtype, to", [(torch.bfloat16, torch.int16), (torch.float32, torch.int16),
                                           (torch.float32, torch.int32), (torch.int64, torch.int32)])
    def test_a_view_outlives_what_it_views(self, dtype, to):
        x, y = torch.randint(100, (2, 4096)).to(dtype)
        _check_bits(lambda x, y: ((x * 2).view(to), y * 3), x, y)

    def test_a_view_leaves(self):
        x = torch.randn(8)
        _check_bits(lambda x: x.view(torch.int32), x)
        _check_bits(lambda x: torch.sort((x * 2).view(torch.int32))[0] + 1, x)
        _check_bits(lambda x: (x * 2).view(torch.int32)[::2], x)

    def test_what_is_viewed_changes(self):
        def change(x):
            bits = x.view(torch.int16)
            x.add_(1)
            return bits.sum(), x * 2

        _check_bits(change, torch.randn(64).bfloat16())


@pytest.mark.filterwarnings("ignore:kiln")
def test_inputs_with_flags_run_without_kiln():
    x = _complex(8)
    for count, value in enumerate((x.conj(), x.conj().imag), 1):
        torch.testing.assert_close(torch.compile(lambda y: y + 1, backend="kiln")(value), value + 1)
        torch._dynamo.reset()
        assert sum(kiln.stats()["fallbacks"].values()) == count
