"""What eager refuses for its values raises here too: indices, labels, probabilities, sizes, assertions."""
import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from agreement import check_function

pytestmark = pytest.mark.usefixtures("no_fallback")


def test_index_out_of_range() -> None:
    table = torch.randn(5, 3)
    ones = torch.ones(2, 3)
    uses: list[Callable[..., torch.Tensor]] = [
        lambda t, i: F.embedding(i, t), lambda t, i: t[i] * 2, lambda t, i: t.index_select(0, i) + 1,
        lambda t, i: t.gather(0, i[:, None].expand(-1, 3)), lambda t, i: t.clone().index_put((i,), ones),
        lambda t, i: t.clone().scatter_add(0, i[:, None].expand(-1, 3), ones),
        lambda t, i: t.clone().index_add(0, i, ones)]
    for use in uses:
        compiled = torch.compile(use, backend="kiln")
        torch.testing.assert_close(compiled(table, torch.tensor([0, 4])), use(table, torch.tensor([0, 4])))
        with pytest.raises((IndexError, RuntimeError)) as eager:
            use(table, torch.tensor([0, 5]))
        with pytest.raises(eager.type, match=r"index 5 is out of bounds for dimension .*with size 5"):
            compiled(table, torch.tensor([0, 5]))
        # The program is still good.
        torch.testing.assert_close(compiled(table, torch.tensor([1, 2])), use(table, torch.tensor([1, 2])))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("use", [
    lambda x, i: F.cross_entropy(x, i), lambda x, i: F.embedding(i, x), lambda x, i: x.gather(0, i[:, None]),
    lambda x, i: x.scatter(0, i[:, None], x), lambda x, i: x.scatter_add(0, i[:, None], x),
    lambda x, i: x.index_select(0, i), lambda x, i: x.index_add(0, i, x), lambda x, i: x.index_add(0, i, x, alpha=2),
    lambda x, i: x.index_copy(0, i, x), lambda x, i: torch.zeros_like(x).index_add(0, i, x) + x])
def test_negative_indices_count_from_the_end_only_where_eager_has_them(use: Callable[..., torch.Tensor],
                                                                       dynamic: bool) -> None:
    rows = random.Random(7).randrange(3, 9)
    x, valid = torch.randn(rows, rows + 1), torch.randperm(rows)
    negative = valid - rows * (torch.arange(rows) % 2)
    check_function(lambda x, i: (x[i], x.index_put((i,), x), x.index_fill(0, i, 2.0), x.take(i), x.put(i, x[0, :rows])),
                   x, negative)
    compiled = torch.compile(use, backend="kiln", dynamic=dynamic)
    torch.testing.assert_close(compiled(x, valid), use(x, valid))
    with pytest.raises((IndexError, RuntimeError)) as eager:
        use(x, negative)
    with pytest.raises(eager.type, match=r"index -\d+ is out of bounds for dimension .*with size"):
        compiled(x, negative)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_cross_entropy_of_what_is_no_probability_raises(reduction: str, dtype: torch.dtype) -> None:
    draw = random.Random(f"{reduction} {dtype}")

    def loss(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.binary_cross_entropy(x, target, reduction=reduction)

    compiled = torch.compile(loss, backend="kiln", dynamic=True)
    for wrong in (1.5, -0.25, float("nan"), float("inf"), -float("inf")):
        sizes = draw.randrange(2, 40), draw.randrange(2, 40)
        probabilities = [torch.rand(sizes).to(dtype) for _ in range(2)]
        probabilities[0].requires_grad_()
        torch.testing.assert_close(compiled(*probabilities), loss(*probabilities), atol=1e-5,
                                   rtol=4 * torch.finfo(dtype).eps)
        which = draw.randrange(2)
        spoilt = [given.detach().clone() for given in probabilities]
        spoilt[which].view(-1)[draw.randrange(spoilt[which].numel())] = wrong
        with pytest.raises(RuntimeError) as eager:
            loss(*spoilt)
        with pytest.raises(RuntimeError, match=str(eager.value)):
            compiled(*spoilt)


def test_assertions_raise() -> None:
    def positive(x: torch.Tensor) -> torch.Tensor:
        torch._assert_async((x > 0).all(), "not positive")
        return x + 1

    check_function(positive, torch.ones(3))
    with pytest.raises(RuntimeError, match="not positive"):
        torch.compile(positive, backend="kiln")(-torch.ones(3))


def test_one_hot_raises_where_its_decomposition_does() -> None:
    def one_hot(x: torch.Tensor) -> torch.Tensor:
        return F.one_hot(x, 3)

    check_function(one_hot, torch.tensor([0, 2]))
    outside = torch.tensor([0, 3])
    try:
        torch.compile(one_hot, backend="aot_eager")(outside)
    except RuntimeError:
        with pytest.raises(RuntimeError, match="smaller than num_classes"):
            torch.compile(one_hot, backend="kiln")(outside)
    else:
        assert torch.__version__ < "2.12"
        pytest.skip("torch 2.11's own decomposition checks nothing")


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("sizes", [(2, 5), (2, 3), (3, 4), (5,), (2, 2, 4), (1, 1, 4)])
def test_values_that_do_not_broadcast_are_refused(sizes: tuple[int, ...], dynamic: bool) -> None:
    def put(x: torch.Tensor, index: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.index_put((index,), values), x.index_put((index,), values, accumulate=True)

    compiled = torch.compile(put, backend="kiln", dynamic=dynamic)
    x, index = torch.randn(6, 4), torch.tensor([0, 2])
    for fits in (torch.randn(2, 4), torch.randn(4), torch.randn(2, 1), torch.tensor(2.0)):
        torch.testing.assert_close(compiled(x, index, fits), put(x, index, fits), rtol=0, atol=0)
    with pytest.raises(RuntimeError, match=r"shape mismatch|broadcast"):
        compiled(x, index, torch.randn(sizes))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("sizes", [(1, 4), (3, 1), (4,), (2, 4), (5, 4), (3, 5)])
def test_masks_that_index_do_not_broadcast(sizes: tuple[int, ...], dynamic: bool) -> None:
    def put(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x.index_put((mask,), torch.tensor(5.0))

    compiled = torch.compile(put, backend="kiln", dynamic=dynamic)
    x = torch.randn(3, 4)
    for fits in (torch.rand(3, 4) > 0.5, torch.rand(3) > 0.5):
        torch.testing.assert_close(compiled(x, fits), put(x, fits), rtol=0, atol=0)
    with pytest.raises((IndexError, RuntimeError)):
        compiled(x, torch.ones(sizes, dtype=torch.bool))


@pytest.mark.parametrize("largest", [lambda x: x.max(), lambda x: x.min(), lambda x: x.max(1), lambda x: x.min(-1)])
def test_largest_of_nothing(largest: Callable[..., torch.Tensor]) -> None:
    check_function(largest, torch.randn(2, 3))
    for run in (largest, torch.compile(largest, backend="kiln")):
        with pytest.raises((RuntimeError, IndexError), match="Expected reduction dim"):
            run(torch.empty(2, 0))


EXPANDED: dict[str, Callable[..., torch.Tensor]] = {
    "index": lambda t, i: t.expand(4, -1)[i] + 1, "gather": lambda t, i: t.expand(4, -1).gather(0, i[:, None]),
    "select": lambda t, i: t.expand(4, -1).index_select(0, i), "sum": lambda t, i: t.expand(4, -1)[i].sum(1),
    "embedding": lambda t, i: F.embedding(i, t.expand(4, -1)),
    "zeros": lambda t, i: F.embedding(i, torch.zeros(4, 3)) + t,
    "constant": lambda t, i: torch.full_like(t.expand(4, -1), 3)[i] * t, "take": lambda t, i: torch.ones(4).take(i)}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", EXPANDED)
def test_an_index_into_what_has_one_place_for_all(name: str, dynamic: bool) -> None:
    use, table = EXPANDED[name], torch.randn(1, 3)
    compiled = torch.compile(use, backend="kiln", dynamic=dynamic)
    good = torch.tensor([0, 3, 1])
    torch.testing.assert_close(compiled(table, good), use(table, good))
    for bad in (4, -5):
        indices = torch.tensor([0, bad, 1])
        with pytest.raises((IndexError, RuntimeError)) as eager:
            use(table, indices)
        with pytest.raises(eager.type, match=rf"index {bad} is out of bounds for dimension .*with size 4"):
            compiled(table, indices)


@pytest.mark.parametrize("subtract", [
    lambda x: x - True, lambda x: True - x, lambda x: torch.rsub(x, False), lambda x: x.clone().sub_(True),
    lambda x: torch._foreach_sub([x, x], True)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_truths_are_not_subtracted(subtract: Callable[..., object], dtype: torch.dtype) -> None:
    for run in (subtract, torch.compile(subtract, backend="kiln")):
        with pytest.raises(RuntimeError, match=r"[Ss]ubtraction, the `-` operator, with a bool"):
            run(torch.ones(3, dtype=dtype))
