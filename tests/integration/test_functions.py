"""The small functions of PyTorch's tutorials, and corners: aliasing, mutation, layouts, dtypes, errors."""
import copy
import gc
import random

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

import kiln
from agreement import check, check_function
from kiln import options, records
from kiln.backend import compile_graph, kiln as kiln_backend
from kiln.graph import INFERENCE

pytestmark = pytest.mark.usefixtures("no_fallback")


def test_first_example():
    check_function(lambda x, y: x.cos() + y.sin(), torch.randn(10, 10), torch.randn(10, 10))
    assert kiln.stats()["kernels"] == 1 and kiln.stats()["library_calls"] == 0


def test_gradients():
    check_function(lambda x, y: x.cos() + y.sin() * x, torch.randn(33, 7, requires_grad=True),
                   torch.randn(33, 7, requires_grad=True))


def test_graph_break():
    def toy(a, b):
        x = a / (torch.abs(a) + 1)
        if b.sum() < 0:
            b = b * -1
        return x * b

    a = torch.randn(10, requires_grad=True)
    compiled = check_function(toy, a, torch.full((10,), 2.0))
    torch.testing.assert_close(compiled(a, torch.full((10,), -2.0)), toy(a, torch.full((10,), -2.0)))


def test_recompiles_for_another_number():
    def f(x, n):
        return (n + 1) * x ** 2

    compiled = torch.compile(f, backend="kiln")
    x = torch.randn(8)
    graphs = []
    for n in range(5):
        torch.testing.assert_close(compiled(x, n), f(x, n))
        graphs.append(kiln.stats()["graphs"])
    assert graphs == [1, 2, 2, 2, 2]  # the first for 0, the second for every n


def test_in_place():
    def f(x, y):
        x.add_(1).mul_(y)
        y[2:].zero_()
        return x.sum()

    check_function(f, torch.randn(6), torch.randn(6))


def test_rows_written_where_they_are_read():
    # The probabilities take the place of the scores; walks of neighbouring rows share a loop.
    check_function(lambda q, k: torch.softmax(q @ k, -1), torch.randn(8, 512, 64), torch.randn(8, 64, 2048))


def test_integer_divisions_beside_padding():
    a, b = torch.arange(8), torch.full((8,), 3)
    for divide in (torch.floor_divide, torch.remainder, torch.fmod,
                   lambda a, b: torch.div(a, b, rounding_mode="trunc")):
        check_function(lambda a, b: F.pad(divide(a, b), (1, 1)), a, b)
        check_function(lambda a, b: torch.cat([divide(a, b), a]) + 1, a, b)
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            torch.compile(lambda a, b: F.pad(divide(a, b), (1, 1)), backend="kiln")(a, b - 3)


def test_module_buffers_change():
    class Counter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

        def forward(self, x):
            self.steps += 1
            return x * self.steps

    module = Counter()
    compiled = torch.compile(module, backend="kiln")
    for step in range(1, 4):
        torch.testing.assert_close(compiled(torch.ones(3)), torch.full((3,), float(step)))
    assert module.steps == 3


def test_outputs_alias_inputs():
    def f(x):
        return x.view(-1), x[0], x.t(), x

    x = torch.randn(3, 4)
    flat, row, turned, same = torch.compile(f, backend="kiln")(x)
    assert same is x
    x.fill_(5)
    assert flat.eq(5).all() and row.eq(5).all() and turned.eq(5).all()


def test_a_view_of_an_input_that_leaves_in_training():
    x = torch.zeros(4, 3, requires_grad=True)
    view, _ = torch.compile(lambda x: (x.split(1, 1)[0].unsqueeze(2), x.sum()), backend="kiln")(x)
    with torch.no_grad():
        x.fill_(5)
    assert view.stride() == x.split(1, 1)[0].unsqueeze(2).stride() and (view.detach() == 5).all()


def test_views_of_inputs_and_layouts():
    base = torch.randn(6, 8)
    check_function(lambda x: torch.relu(x) * 2, base.t())
    check_function(lambda x: torch.relu(x) * 2, base[1:5:2, ::3])
    check_function(lambda x: x + 1, torch.randn(3, 1).expand(3, 5).contiguous().t())
    check_function(lambda x: (x.softmax(-1), x.sum(0)), torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last))


class Convolutions(torch.nn.Module):
    """Layers whose images are channels-last and one whose are row-major."""

    def __init__(self):
        super().__init__()
        self.window = torch.nn.Conv2d(3, 32, 3, stride=2, bias=False)
        self.each = torch.nn.Conv2d(32, 32, 3, padding=1, groups=32, bias=False)
        self.point, self.plain = torch.nn.Conv2d(32, 240, 1), torch.nn.Conv2d(32, 240, 1, bias=False)
        self.wide = torch.nn.Conv2d(240, 256, 3, padding=1)  # 2 MB of weights for images of 9 × 9

    def forward(self, x):
        x = F.relu6(self.window(F.pad(x, (0, 1, 0, 1))))
        x = F.relu6(self.each(x))
        x = self.point(x) + self.plain(x)
        y = self.wide(x)
        return x.mean((2, 3)), F.relu(y), y.flatten(2).transpose(1, 2) * 2


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_convolutions_in_inference(memory_format, dynamic):
    """Convolutions of one point are products, and what the library gives lies as was declared."""
    model = Convolutions().to(memory_format=memory_format)
    x = torch.randn(2, 3, 18, 18).to(memory_format=memory_format)
    gc.collect()  # graphs of earlier tests count as long as they live
    start, copies = records.graph_count(), kiln.stats()["stride_copies"]
    compiled = torch.compile(model, backend="kiln", dynamic=dynamic)
    with torch.no_grad():
        actual, eager, exact = compiled(x), model(x), copy.deepcopy(model).double()(x.double())
    check([(f"output {i}", *values) for i, values in enumerate(zip(actual, eager, exact))])
    assert [value.stride() for value in actual] == [value.stride() for value in eager]
    calls = [call for graph in records.graphs_since(start) for call in graph["library_calls"]]
    if dynamic and "mkldnn._linear_pointwise.default" in calls:  # by oneDNN where MKL leaves AVX-512 unused
        assert calls.count("mkldnn._linear_pointwise.default") == 2 and "aten.convolution.default" in calls, calls
    else:
        assert {"aten.mm.default", "aten.addmm.default", "aten.convolution.default"} <= set(calls), calls
    assert kiln.stats()["stride_copies"] == copies


def test_no_grad_and_inference():
    f = torch.compile(lambda x, w: F.gelu(x @ w), backend="kiln")
    x, w = torch.randn(4, 8), torch.randn(8, 3, requires_grad=True)
    with torch.no_grad():
        assert not f(x, w).requires_grad
    assert f(x, w).requires_grad


def test_sizes_zero_and_scalars():
    check_function(lambda x: (x.exp(), x.sum(), x.reshape(-1)), torch.randn(0, 4))
    check_function(lambda x, y: (x * y, x.sin() + 1), torch.tensor(2.5), torch.randn(3))
    check_function(lambda x: x.cumsum(0).mean(), torch.randn(1))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool, torch.float64, torch.bfloat16])
def test_dtypes(dtype):
    values = torch.randint(0, 5, (7, 9)).to(dtype)
    others = torch.randint(1, 4, (9,)).to(dtype)
    if dtype == torch.bool:
        check_function(lambda x, y: (x & y, x | y, ~x, x.any(), torch.where(x, 1.5, y)), values, others)
    else:
        check_function(lambda x, y: (x + y, x * y, torch.maximum(x, y), x.sum(1), x > y, x.float() / 3), values, others)


def test_integer_division():
    x, y = torch.tensor([-7, 7, 5, -5, 0]), torch.tensor([2, -2, 5, 3, 4])
    check_function(lambda a, b: (a // b, a % b, torch.div(a, b, rounding_mode="trunc"), a / b), x, y)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        torch.compile(lambda a, b: a // b, backend="kiln")(x, torch.zeros_like(y))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_computed_maxima(dtype):
    """What is compared with a maximum of itself is found, however often it was rounded."""
    x = torch.randn(4, 64).to(dtype).requires_grad_()
    check_function(lambda x: (x * 1.3).amax(-1), x)
    check_function(lambda x: (x * 1.3).max(), x)
    check_function(lambda x: (x * 1.3 == (x * 1.3).amax(-1, keepdim=True)).sum(-1), x)
    close = torch.tensor([[1.0, 1.0078125, 1.0]]).to(dtype)
    check_function(lambda x: ((x * 0.1 + 1).argmax(-1), (x * 0.1 + 1).min(-1)[1]), close)


def test_signs_and_remainders():
    x = torch.tensor([float("nan"), -0.0, 2.0, -3.0])
    torch.testing.assert_close(torch.compile(lambda x: (x.sign(), x.sgn()), backend="kiln")(x), (x.sign(), x.sgn()))
    number = torch.tensor([1.0, 2.0, 3.0, 4.0]).bfloat16()
    check_function(lambda x: (x % 0.1, torch.fmod(x, 0.1), torch.div(0.1, x, rounding_mode="trunc")), number)


def test_constants_of_other_dtypes():
    check_function(lambda y: (torch.full((4,), 2, dtype=torch.bool).float() + y,
                              torch.full((4,), 2, dtype=torch.bool).long() + y,
                              torch.full((4,), 0.1).double() + y), torch.zeros(4, dtype=torch.float64))


def test_indices_of_nothing():
    check_function(lambda x: x.scatter(0, torch.zeros(0, 4, dtype=torch.long), 3.0), torch.randn(0, 4))
    check_function(lambda x: x.index_add(0, torch.zeros(0, dtype=torch.long) + 3, x[:0]), torch.randn(3, 4))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_uniform_numbers_of_16_bits(dtype):
    drawn = torch.compile(lambda: (torch.rand(300_000, dtype=dtype), torch.empty(300_000, dtype=dtype).uniform_()),
                          backend="kiln")()
    for numbers in drawn:
        assert numbers.min() >= 0 and numbers.max() < 1
        assert abs(numbers.double().mean() - 0.5) < 0.01 and abs(numbers.double().var() - 1 / 12) < 0.005


def test_index_out_of_range():
    table = torch.randn(5, 3)
    ones = torch.ones(2, 3)
    uses = [lambda t, i: F.embedding(i, t), lambda t, i: t[i] * 2, lambda t, i: t.index_select(0, i) + 1,
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
def test_negative_indices_count_from_the_end_only_where_eager_has_them(use, dynamic):
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
def test_cross_entropy_of_what_is_no_probability_raises(reduction, dtype):
    draw = random.Random(f"{reduction} {dtype}")

    def loss(x, target):
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


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("gradient", [False, True])
def test_numbers_that_python_draws(gradient, dynamic):
    def function(x):
        return (x + random.uniform(10, 20)) * random.random() + random.randint(2, 18), x.sin() ** random.uniform(1, 2)

    compiled = torch.compile(function, backend="kiln", dynamic=dynamic)
    for seed in range(4):
        x = torch.rand(3 + seed * dynamic, 5, requires_grad=gradient)
        results = []
        for run in (function, compiled):
            random.seed(seed)
            outputs = run(x)
            results.append([*outputs, *(torch.autograd.grad(sum(map(torch.sum, outputs)), x) if gradient else ())])
        torch.testing.assert_close(results[1], results[0])


def test_assertions_raise():
    def positive(x):
        torch._assert_async((x > 0).all(), "not positive")
        return x + 1

    check_function(positive, torch.ones(3))
    with pytest.raises(RuntimeError, match="not positive"):
        torch.compile(positive, backend="kiln")(-torch.ones(3))


def test_one_hot_raises_where_its_decomposition_does():
    def one_hot(x):
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
def test_values_that_do_not_broadcast_are_refused(sizes, dynamic):
    def put(x, index, values):
        return x.index_put((index,), values), x.index_put((index,), values, accumulate=True)

    compiled = torch.compile(put, backend="kiln", dynamic=dynamic)
    x, index = torch.randn(6, 4), torch.tensor([0, 2])
    for fits in (torch.randn(2, 4), torch.randn(4), torch.randn(2, 1), torch.tensor(2.0)):
        torch.testing.assert_close(compiled(x, index, fits), put(x, index, fits), rtol=0, atol=0)
    with pytest.raises(RuntimeError, match=r"shape mismatch|broadcast"):
        compiled(x, index, torch.randn(sizes))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("sizes", [(1, 4), (3, 1), (4,), (2, 4), (5, 4), (3, 5)])
def test_masks_that_index_do_not_broadcast(sizes, dynamic):
    def put(x, mask):
        return x.index_put((mask,), torch.tensor(5.0))

    compiled = torch.compile(put, backend="kiln", dynamic=dynamic)
    x = torch.randn(3, 4)
    for fits in (torch.rand(3, 4) > 0.5, torch.rand(3) > 0.5):
        torch.testing.assert_close(compiled(x, fits), put(x, fits), rtol=0, atol=0)
    with pytest.raises((IndexError, RuntimeError)):
        compiled(x, torch.ones(sizes, dtype=torch.bool))


@pytest.mark.parametrize("largest", [lambda x: x.max(), lambda x: x.min(), lambda x: x.max(1), lambda x: x.min(-1)])
def test_largest_of_nothing(largest):
    check_function(largest, torch.randn(2, 3))
    for run in (largest, torch.compile(largest, backend="kiln")):
        with pytest.raises((RuntimeError, IndexError), match="Expected reduction dim"):
            run(torch.empty(2, 0))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("sizes", [(0, 2), (3, 0), (0, 0), 0])
def test_pools_of_no_windows(sizes, dynamic):
    compiled = torch.compile(lambda x: F.adaptive_avg_pool2d(x, sizes), backend="kiln", dynamic=dynamic)
    for _ in range(2):
        x = torch.randn([random.randrange(2, 9) for _ in range(4)])
        torch.testing.assert_close(compiled(x), F.adaptive_avg_pool2d(x, sizes))


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_samples_at_positions_that_are_no_numbers(padding, align_corners):
    image, grid = torch.randn(2, 3, 5, 6), torch.rand(2, 7, 9, 2) * 3 - 1.5
    for number in (float("nan"), float("inf"), -float("inf"), 1e20, -1e20):
        grid.masked_fill_(torch.rand(grid.shape) < 0.1, number)

    def function(image, grid):
        return F.grid_sample(image, grid, padding_mode=padding, align_corners=align_corners)

    torch.testing.assert_close(torch.compile(function, backend="kiln")(image, grid), function(image, grid),
                               equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_bounds_of_logit_that_round_to_one(dtype):
    x = (torch.rand(100) * 1.4 - 0.2).to(dtype).requires_grad_()
    for eps in (1e-6, 1e-4, 1e-3, 0.2):
        torch._dynamo.reset()
        mine, own = (call(x, eps) for call in (torch.compile(torch.logit, backend="kiln"), torch.logit))
        assert own[x > 1].isinf().all() or 1 - torch.tensor(eps, dtype=dtype) < 1
        for a, b in ((mine, own), (torch.autograd.grad(value.sum(), x)[0] for value in (mine, own))):
            assert torch.equal(a.isinf(), b.isinf()) and torch.equal(a.isnan(), b.isnan())
            torch.testing.assert_close(a.nan_to_num(), b.nan_to_num(), rtol=2e-2, atol=2e-2)


NAN_GRADIENTS = {
    "logit": torch.logit, "logit of bounds": lambda x: torch.logit(x, 1e-3),
    "l1": lambda x: F.l1_loss(x, torch.zeros_like(x), reduction="none"),
    "smooth l1": lambda x: F.smooth_l1_loss(x, torch.zeros_like(x), reduction="none", beta=0.7),
    "smooth l1 of 0": lambda x: F.smooth_l1_loss(x, torch.zeros_like(x), reduction="none", beta=0.0),
    "huber": lambda x: F.huber_loss(x, torch.zeros_like(x), reduction="none", delta=0.7),
    "hardtanh": F.hardtanh, "hardsigmoid": F.hardsigmoid, "hardswish": F.hardswish, "hardshrink": F.hardshrink,
    "relu6": F.relu6, "leaky relu": F.leaky_relu, "elu": F.elu, "softplus": F.softplus, "logsigmoid": F.logsigmoid,
    "clamp": lambda x: x.clamp(-1, 1), "threshold": lambda x: F.threshold(x, 0.1, 0.3),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", NAN_GRADIENTS)
def test_gradients_of_what_is_no_number(name, dtype):
    """NaN is neither within bounds nor outside: which it counts for is eager's choice."""
    function = NAN_GRADIENTS[name]
    x = torch.tensor([float("nan"), 0.4, float("nan"), -2.0, 3.0], dtype=dtype, requires_grad=True)
    mine, own = (torch.autograd.grad(call(x), x, torch.full_like(x, 1.5))[0]
                 for call in (torch.compile(function, backend="kiln"), function))
    torch.testing.assert_close(mine, own, equal_nan=True)


def test_hypotenuses_of_infinity():
    inf, nan = float("inf"), float("nan")
    x, y = torch.tensor([inf, nan, -inf, 3.0, 0.0, nan]), torch.tensor([nan, inf, nan, 4.0, 0.0, 1.0])
    torch.testing.assert_close(torch.compile(torch.hypot, backend="kiln")(x, y), torch.hypot(x, y), equal_nan=True)


def test_index_put_and_scatter():
    def f(x, i, v):
        y = x.clone()
        y[i] = v
        z = x.clone().index_put((i,), v, accumulate=True)
        return y, z, torch.zeros(6, 3, dtype=x.dtype).scatter_add(0, i[:, None].expand(-1, 3), v)

    check_function(f, torch.randn(6, 3, requires_grad=True), torch.tensor([1, 3, 4]),
                   torch.randn(3, 3, requires_grad=True))
    check_function(lambda x, i, v: x.clone().index_put((i,), v, accumulate=True), torch.randn(6, 3),
                   torch.tensor([1, 1, 1]), torch.randn(3, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_table_shared_by_embeddings_and_a_product(dtype):
    def scores(first, second, table):
        mixed = F.embedding(first, table, padding_idx=2).tanh() + F.embedding(second, table)
        return F.linear(mixed, table)

    table = torch.randn(11, 8, dtype=dtype, requires_grad=True)
    check_function(scores, torch.randint(0, 5, (4, 6)), torch.randint(0, 11, (4, 6)), table)


def test_lstm_cell():
    cell = torch.nn.LSTMCell(5, 8)

    def f(steps, h, c, *parameters):
        named = dict(zip(("weight_ih", "weight_hh", "bias_ih", "bias_hh"), parameters))
        for x in steps:
            h, c = torch.func.functional_call(cell, named, (x, (h, c)))
        return h, c

    inputs = torch.randn(4, 2, 5), torch.zeros(2, 8), torch.zeros(2, 8)
    with torch.no_grad():
        check_function(f, *inputs, *cell.parameters())
    check_function(f, *inputs, *cell.parameters())  # and through time


def test_masked_loss():
    def f(logits, labels, mask):
        losses = torch.logsumexp(logits, -1) - logits.gather(-1, labels[:, None]).squeeze(-1)
        return losses.masked_fill(~mask, 0).sum() / mask.sum()

    check_function(f, torch.randn(9, 11, requires_grad=True), torch.randint(0, 11, (9,)), torch.rand(9) > 0.4)


def test_normalizations():
    x = torch.randn(4, 6, 5, requires_grad=True)
    w, b = torch.randn(5, requires_grad=True), torch.randn(5, requires_grad=True)
    check_function(lambda x, w, b: F.layer_norm(x, (5,), w, b), x, w, b)
    check_function(lambda x: F.log_softmax(x, 1) + x.softmax(-1), x)
    check_function(lambda x, w: F.rms_norm(x, (5,), w), x, w)
    check_function(lambda x: F.group_norm(x, 3), x)


def test_cnn_with_batch_norm_and_dropout():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU(),
                                torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Dropout(0.3),
                                torch.nn.Linear(8 * 16, 4))
    import copy

    other = copy.deepcopy(model)
    x, y = torch.randn(4, 3, 8, 8), torch.tensor([0, 1, 2, 3])
    compiled = torch.compile(model, backend="kiln", options={"fallback_random": True})
    optimizers = [torch.optim.SGD(m.parameters(), 0.1) for m in (model, other)]
    for step in range(3):
        losses = []
        for run, optimizer in zip((compiled, other), optimizers):
            torch.manual_seed(step)
            optimizer.zero_grad()
            loss = F.cross_entropy(run(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss)
        torch.testing.assert_close(*losses)
    for mine, theirs in zip(model.state_dict().values(), other.state_dict().values()):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_activation_checkpointing():
    from torch.utils.checkpoint import checkpoint

    first, second = torch.nn.Linear(6, 6), torch.nn.Linear(6, 6)

    def f(x):
        return checkpoint(lambda y: second(torch.tanh(first(y))).sin(), x, use_reentrant=False).sum()

    x = torch.randn(5, 6, requires_grad=True)
    expected = torch.autograd.grad(f(x), x)[0]
    torch.testing.assert_close(torch.autograd.grad(torch.compile(f, backend="kiln")(x), x)[0], expected)


def test_dropout():
    drop = torch.compile(lambda x: F.dropout(x, 0.3), backend="kiln")
    x = torch.ones(200_000, requires_grad=True)
    torch.manual_seed(5)
    first = drop(x)
    (gradient,) = torch.autograd.grad(first.sum(), x)
    assert torch.equal(gradient, first.detach())  # one mask
    kept = first != 0
    assert abs(kept.float().mean().item() - 0.7) < 0.01
    torch.testing.assert_close(first[kept], torch.full_like(first[kept], 1 / 0.7))
    assert not torch.equal(drop(x), first)
    torch.manual_seed(5)
    assert torch.equal(drop(x), first)


def test_fallback_random_repeats_eager():
    def f(x):
        return F.dropout(x, 0.5) + torch.rand_like(x)

    x = torch.randn(64)
    torch.manual_seed(3)
    expected = f(x)
    torch.manual_seed(3)
    actual = torch.compile(f, backend="kiln", options={"fallback_random": True})(x)
    torch.testing.assert_close(actual, expected)


def test_constants_in_the_graph():
    def f(x):
        return x + torch.tensor([1.0, 2.0, 3.0]) * torch.arange(3)

    check_function(f, torch.randn(2, 3))


def test_library_calls_of_the_rest():
    check_function(lambda x: (x.sort(-1)[0], x.topk(3)[0],
                              torch.linalg.cholesky_ex(x @ x.T + 9 * torch.eye(5, dtype=x.dtype))[0]),
                   torch.randn(5, 6))
    calls = kiln.stats()["library_calls"]
    assert calls >= 3


def _library(name, schema, function, fake):
    """Keeps the operator torch.ops.NAME.run alive."""
    library = torch.library.Library(name, "DEF")
    library.define(f"run{schema}")
    library.impl("run", function, "CompositeExplicitAutograd")
    library.impl("run", fake, "Meta")
    return library


def test_custom_operator():
    """An operator of the caller's own is called as it is, between kernels, with the layout it was traced with."""
    seen = []

    @torch.library.custom_op("kiln_tests::scaled", mutates_args=())
    def scaled(x: torch.Tensor, by: float, times: int) -> torch.Tensor:
        seen.append(x.stride())
        return x * by + times

    scaled.register_fake(lambda x, by, times: torch.empty_like(x))
    scaled.register_autograd(lambda ctx, grad: (grad * ctx.by, None, None),
                             setup_context=lambda ctx, inputs, output: setattr(ctx, "by", inputs[1]))

    def function(x):
        return (scaled(x.sin().t(), 2.5, 3).cos() * 2).sum(0)

    check_function(function, torch.randn(6, 9, requires_grad=True))
    assert set(seen) == {(1, 9)}
    before = kiln.stats()["fallbacks"]
    explanation = kiln.explain(function)(torch.randn(6, 9))
    assert explanation.programs[0]["library_calls"] == ["kiln_tests.scaled.default"]
    assert kiln.stats()["fallbacks"] == before


def test_custom_operator_that_draws_is_called_each_time():
    drawn = []
    library = _library("kiln_draws", "(Tensor x) -> Tensor", lambda x: drawn.append(1) or x + len(drawn),
                       torch.empty_like)
    x = torch.zeros(3)
    call = torch.compile(lambda x: torch.ops.kiln_draws.run(x) - torch.ops.kiln_draws.run(x), backend="kiln")
    torch.testing.assert_close(call(x), torch.full((3,), -1.0))
    del library


def test_custom_operator_that_is_not_what_it_says():
    """Its fake tells sizes that it does not give: an error that names it, no kernel that reads beyond."""
    library = _library("kiln_lies", "(Tensor x) -> Tensor", lambda x: x[:2].clone(), torch.empty_like)
    with pytest.raises(RuntimeError, match="kiln_lies"):
        torch.compile(lambda x: torch.ops.kiln_lies.run(x).sin(), backend="kiln")(torch.zeros(4000))
    del library


@pytest.mark.parametrize("schema, says", [("(Tensor(a!) x) -> Tensor", None),
                                          ("(Tensor(a) x) -> Tensor(a)", "writes its arguments or gives them back"),
                                          ("(Tensor x) -> ()", "has no result")])
def test_custom_operator_that_is_no_function_of_values(schema, says):
    """AOTAutograd makes functions of those it can; here the graph itself. Python runs them, but for what writes into
    memory of the program."""
    graph, called = torch.fx.Graph(), []
    x = graph.placeholder("x")
    x.meta["val"] = torch.ones(3)
    result = None if schema.endswith("()") else x.meta["val"]
    library = _library(f"kiln_views{len(schema)}", schema,
                       lambda x: called.append(1) or (None if result is None else x), lambda x: result)
    call = graph.call_function(getattr(torch.ops, library.ns).run.default, (x,))
    call.meta["val"] = result
    graph.output((call, x))
    module = torch.fx.GraphModule({}, graph)
    if says is None:
        with pytest.raises(Exception, match="writes into memory of the program"):
            compile_graph(module, (), INFERENCE, options.parse())
    else:
        compiled = compile_graph(module, (), INFERENCE, options.parse())
        given = torch.randn(3)
        outputs = compiled([given])
        assert says in compiled.python.reasons() and called == [1]
        assert outputs[0] is None if result is None else torch.equal(outputs[0], given)
    del library


def test_double_call_frees_inputs():
    f = torch.compile(lambda x: (x * 2).relu().sum(), backend="kiln")
    for _ in range(3):
        f(torch.randn(1000))
    assert kiln.stats()["calls"] >= 3


def test_in_place_on_another_layout_than_compiled_for():
    """What AOTAutograd makes of it, called without Dynamo, whose guards would compile anew."""
    def update(x):
        x.mul_(2)
        return x + 1, x, x[1]

    compiled = kiln_backend(torch.fx.symbolic_trace(update), [torch.randn(5, 4)])
    x = torch.randn(4, 5)
    doubled, before = x * 2, kiln.stats()["stride_copies"]
    result, same, row = compiled(x.t())
    assert kiln.stats()["stride_copies"] == before + 2
    torch.testing.assert_close(x, doubled)
    torch.testing.assert_close(result, doubled.t() + 1)
    row.fill_(3)
    assert x[:, 1].eq(3).all()
    same.fill_(4)
    assert x.eq(4).all()


def test_graph_that_writes_called_with_another_layout():
    """The graph itself, with neither Dynamo nor AOTAutograd around it."""
    graph = make_fx(lambda x: (x.copy_(x * 2), x + 1, x[1]), tracing_mode="fake")(torch.randn(5, 4))
    compiled = compile_graph(graph, (), INFERENCE, options.parse())
    x = torch.randn(4, 5)
    doubled = x * 2
    same, result, row = compiled([x.t()])
    torch.testing.assert_close(x, doubled)
    assert same.data_ptr() == x.data_ptr() and same.stride() == x.t().stride()
    torch.testing.assert_close(result, doubled.t() + 1)
    torch.testing.assert_close(row, doubled.t()[1])


def test_float_that_changes():
    def f(x, n):
        return x * n, n * 2, n + x.shape[0]

    compiled = torch.compile(f, backend="kiln")
    x = torch.randn(3, 4)
    for n in (1.5, 2.5, 3.5, 4.5):
        torch.testing.assert_close(compiled(x, n), f(x, n), rtol=0, atol=0)


def test_differences_of_sizes_are_truncated():
    def f(x):
        return x + int((x.shape[0] - 10) / 3)

    compiled = torch.compile(f, backend="kiln", dynamic=True)
    for rows in (3, 9, 10, 12, 13):
        torch.testing.assert_close(compiled(torch.zeros(rows)), f(torch.zeros(rows)), rtol=0, atol=0)


def test_numbers_that_depend_on_sizes():
    def f(x):
        return x * 2, x.shape[0] / 2, x.shape[0] ** 0.5, x.shape[0] > 3

    compiled = torch.compile(f, backend="kiln", dynamic=True)
    for rows in (4, 7, 100):
        x = torch.randn(rows, 5)
        torch.testing.assert_close(compiled(x), f(x), rtol=0, atol=0)
    assert kiln.stats()["graphs"] == 1


@pytest.mark.parametrize("seed", range(6))
def test_views_by_a_flag_of_expanded_tensors(seed):
    """What is conjugate or negative by a flag is copied, an element that lies there for several once."""
    generator = torch.Generator().manual_seed(seed)
    sizes = [int(size) for size in torch.randint(1, 4, (3,), generator=generator)]
    kept = [size if torch.rand((), generator=generator) < 0.5 else 1 for size in sizes]
    x = torch.randn(kept, dtype=torch.complex64, generator=generator)

    def function(x):
        y = x.expand(sizes).conj()
        return y, y.imag, y.clone() * 2, torch.fft.fft(y)

    compiled = torch.compile(function, backend="kiln")
    torch.testing.assert_close(compiled(x), function(x))
    torch.testing.assert_close(compiled(x.conj()), function(x.conj()))
    torch.testing.assert_close(compiled(x.new_ones(1).expand(kept)), function(x.new_ones(1).expand(kept)))
