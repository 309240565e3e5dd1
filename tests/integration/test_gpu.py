"""The NVIDIA back-end against eager on a real GPU. Without one these tests skip themselves; what needs no GPU
(PTX that each target's assembler takes) is in tests/golden."""
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import kiln
from agreement import check, check_function, gradient_of
from model_checks import losses
from test_integers_and_numbers import integer_inputs, integer_program
from test_random_numbers import RANGES, check_uniform

pytestmark = [pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here"),
              pytest.mark.usefixtures("no_counted_fallback")]

FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "pointwise": lambda x: x.cos() + x.sin(),
    "row softmax": lambda x: torch.softmax(x, -1),
    "layer norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "column sums": lambda x: x.sum(0),
    "sum of all": lambda x: x.sum(),
    "column softmax": lambda x: torch.softmax(x, 0),
    "layer norm of columns": lambda x: F.layer_norm(x.t(), x.shape[:1]),
    "column argmax": lambda x: x.argmax(0),
    "sums of few columns": lambda x: (x[:, :10] * 2).sum(0) + (x[:, :10] - 1).abs().amax(0),
    "sums of sums": lambda x: x.view(513, 7, 111).sum((0, 2)),
    "argmax": lambda x: x.argmax(-1),
    "transposed add": lambda x: x.t()[:500, :500] + x[:500, :500],
    "transposed in large tiles": lambda x: x.repeat(3, 2).t().contiguous() * 2,
    "transposed halves": lambda x: x.repeat(4, 1)[:, :768].view(-1, 16, 48).transpose(0, 2).contiguous() + 1,
    "softmax of short rows": lambda x: torch.softmax(x[:, :128], -1),
    "softmax of many short rows": lambda x: torch.softmax(x.repeat(40, 1)[:, :101], -1),
    "argmax of many short rows": lambda x: x.repeat(40, 1)[:, :100].argmax(-1),
    "softmax of long rows": lambda x: torch.softmax(x[:320].flatten()[:7 * 32000].view(7, 32000), -1),
    "gather": lambda x: x[torch.arange(300, device=x.device) * 3 % x.shape[0]],
    "prefix sums": lambda x: x.cumsum(-1),
    "gemm": lambda x: torch.relu(x @ x.t()),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_function(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(513, 777, device="cuda").to(dtype)
    exact = FUNCTIONS[name](x.double()).double()
    eager = (FUNCTIONS[name](x).double() - exact).abs().max().item()
    got = torch.compile(FUNCTIONS[name], backend="kiln")(x)
    error = (got.double() - exact).abs().max().item()
    assert got.dtype == FUNCTIONS[name](x).dtype
    assert error <= 3 * eager + 1e-5 * exact.abs().max().item()


@pytest.mark.parametrize("seed", range(30))
def test_integers_wrap(seed: int) -> None:
    program, inputs = integer_program(seed), [value.cuda() for value in integer_inputs(seed, 5 + seed % 300)]
    torch.testing.assert_close(torch.compile(program, backend="kiln", dynamic=seed % 2 == 1)(*inputs), program(*inputs),
                               rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_integers_by_zero(dtype: torch.dtype) -> None:
    def divisions(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (torch.div(a, b, rounding_mode="trunc"), torch.div(a, b, rounding_mode="floor"), a // b, a % b,
                torch.fmod(a, b), 7 % b)

    limits = torch.iinfo(dtype)
    a = torch.tensor([7, 0, 100, 1, limits.min, limits.max, limits.min // 2, limits.max // 2 + 1], dtype=dtype,
                     device="cuda")
    for b in (torch.zeros_like(a), torch.tensor([0, 1, 0, 3, 0, 0, 5, 0], dtype=dtype, device="cuda"),
              torch.zeros((), dtype=dtype, device="cuda")):
        assert all(map(torch.equal, torch.compile(divisions, backend="kiln")(a, b), divisions(a, b)))


@pytest.mark.parametrize("low, high", RANGES)
def test_random_integers(low: int, high: int) -> None:
    torch.manual_seed(abs(low + high) % 1000)
    draw = lambda x: torch.randint(low, high, (40_000,), device=x.device) + x
    values = torch.compile(draw, backend="kiln")(torch.zeros((), dtype=torch.int64, device="cuda"))
    check_uniform(values.tolist(), low, high)


VIEWS = {  # of an array of 514 by 1032: rows that are aligned, rows that are not, and both by turns
    "whole": lambda x: x,
    "shifted": lambda x: x.flatten()[1:-1031].view(513, 1032),
    "columns from one": lambda x: x[:, 1:1029],
    "long rows": lambda x: x.flatten()[:26 * 20401].view(26, 20401),
    "odd rows": lambda x: x.flatten()[:513 * 1031].view(513, 1031),
}


@pytest.mark.parametrize("function", ["pointwise", "row softmax", "argmax"])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_alignment(function: str, view: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = VIEWS[view](torch.randn(514, 1032, device="cuda").to(dtype))
    exact = FUNCTIONS[function](x.double()).double()
    eager = (FUNCTIONS[function](x).double() - exact).abs().max().item()
    got = torch.compile(FUNCTIONS[function], backend="kiln")(x)
    error = (got.double() - exact).abs().max().item()
    assert error <= 3 * eager + 1e-5 * exact.abs().max().item()


MATH = {  # name: (function, least and largest argument)
    "exp": (torch.exp, -110, 95),
    "erf": (torch.erf, -6, 6),
    "sin": (torch.sin, -2e6, 2e6),
    "cos": (torch.cos, -100, 100),
    "tanh": (torch.tanh, -12, 12),
    "sigmoid": (torch.sigmoid, -110, 110),
}


@pytest.mark.parametrize("name", MATH)
def test_math(name: str) -> None:
    """Within 4 units in the last place, or of the smallest normal number; special values as eager has them."""
    function, low, high = MATH[name]
    special = torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e-30, -1e-40, 88.7, 3.4e38])
    x = torch.cat([torch.linspace(low, high, 1 << 20), torch.linspace(-1, 1, 1 << 18), special]).cuda()
    got, exact = torch.compile(function, backend="kiln")(x), function(x.double())
    rounded = exact.float()
    finite = rounded.isfinite()
    assert torch.equal(got[~finite].nan_to_num(7), rounded[~finite].nan_to_num(7))
    zero = rounded == 0
    assert torch.equal(got[zero].signbit(), rounded[zero].signbit())
    unit = torch.exp2(exact[finite].abs().clamp_min(2.0**-126).log2().floor() - 23)
    assert ((got[finite].double() - exact[finite]).abs() / unit).max().item() <= 4


def test_random_numbers_are_the_same_one_by_one_and_in_vectors() -> None:
    drop = torch.compile(lambda x: F.dropout(x, 0.3), backend="kiln")
    masks = []
    for size in (100_001, 1 << 20, (1 << 20) + 3):
        for dtype in (torch.float32, torch.bfloat16):
            torch.manual_seed(5)
            masks.append(drop(torch.ones(size, device="cuda", dtype=dtype)) != 0)
    assert all(torch.equal(mask[:100_001], masks[0]) for mask in masks)
    assert torch.equal(masks[2], masks[4][:1 << 20])
    assert masks[2].float().mean().item() == pytest.approx(0.7, abs=3e-3)


GEMMS: dict[str, Callable[..., torch.Tensor]] = {  # name: function of matrices x, w and a row b
    "gemm": lambda x, w, b: x @ w,
    "gemm of transposes": lambda x, w, b: (w.t() @ x.t()).t(),
    "linear": lambda x, w, b: F.linear(x, w.t().contiguous(), b),
    "sum of both": lambda x, w, b: torch.addmm(x @ w + 1, x, w, beta=0.5, alpha=2),
    "row": lambda x, w, b: x[:1] @ w,
    "column": lambda x, w, b: x @ w[:, :1],
    "shifted": lambda x, w, b: x[1:, 1:] @ w[1:],
    "batches": lambda x, w, b: x.view(4, -1, x.shape[1]) @ w.expand(4, -1, -1),
    "heads": lambda x, w, b: torch.einsum("ihd,jhd->hij", x.view(64, 4, -1), x.view(64, 4, -1)),
}


@pytest.fixture(params=["highest", "high"])
def precision(request: pytest.FixtureRequest) -> Iterator[str]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(request.param)
    yield request.param
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("name", GEMMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_gemms(name: str, dtype: torch.dtype, precision: str) -> None:
    torch.manual_seed(0)
    x, w, b = torch.randn(64, 768, device="cuda"), torch.randn(768, 132, device="cuda"), torch.randn(132, device="cuda")
    operands = [value.to(dtype) for value in (x, w, b)]
    exact = GEMMS[name](*(value.double() for value in operands))
    eager = GEMMS[name](*operands)
    got = torch.compile(GEMMS[name], backend="kiln")(*operands)
    assert got.dtype == eager.dtype and got.shape == eager.shape
    scale = exact.pow(2).mean().sqrt().item()
    error, bound = ((value.double() - exact).pow(2).mean().sqrt().item() for value in (got, eager))
    assert error <= 2 * bound + 1e-6 * scale
    if dtype == torch.float32 and precision == "highest":
        assert error <= 1e-5 * scale  # not rounded to TF32


ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": F.relu,
    "gelu by tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu written out": lambda x: 0.5 * x * (1 + torch.tanh((2 / torch.pi)**0.5 * (x + 0.044715 * x.pow(3)))),
    "gelu by erf": F.gelu,
}


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("dtype, tf32", [(torch.float32, False), (torch.float32, True), (torch.bfloat16, False),
                                         (torch.float16, False)])
@pytest.mark.parametrize("biased", [False, True])
def test_activations_of_gemms(name: str, dtype: torch.dtype, tf32: bool, biased: bool,
                              allow_tf32: Callable[[bool], None]) -> None:
    """In the gemm, but where cuBLASLt has no such function, or F32 is to be exact, or a gradient wants what GELU is
    of."""
    def function(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor, *b: torch.Tensor) -> Any:
        return ACTIVATIONS[name](F.linear(x, w, *b)) @ v

    allow_tf32(tf32)
    torch.manual_seed(0)
    x, w, v, b = (torch.randn(*sizes, device="cuda").to(dtype)
                  for sizes in ((4, 96, 256), (1024, 256), (1024, 64), (1024,)))
    inputs = (x, w / 16, v / 32, b)[:4 if biased else 3]
    plain, activated = "addmm" if biased else "mm", "_addmm_activation"
    exact_gelu = dtype == torch.float32 and not tf32
    for training in (False, True):
        torch._dynamo.reset()
        leaves = [value.detach().requires_grad_(training) for value in inputs]
        check_function(function, *leaves)
        apart = name == "gelu by erf" or (name != "relu" and (training or exact_gelu))
        calls = kiln.explain(function)(*leaves).library_calls
        assert set(calls) == {f"aten.{target}.default" for target in (plain if apart else activated, "mm")}


@pytest.mark.parametrize("biased", [False, True])
def test_unaligned_vocabulary(biased: bool) -> None:
    """Rows of no whole 16 bytes: the gemm and its gradients are padded, and what is padded is not seen."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(1024, 1003, bias=biased, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(4, 512, 1024, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    labels = torch.randint(0, 1003, (2048,), device="cuda")

    def loss(layer: torch.nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = layer(x)
        return F.cross_entropy(logits.view(-1, 1003).to(torch.promote_types(x.dtype, torch.float32)), labels), logits

    exact_layer = torch.nn.Linear(1024, 1003, bias=biased, device="cuda", dtype=torch.float64)
    exact_layer.load_state_dict({key: value.double() for key, value in layer.state_dict().items()})
    found = []
    for run, its_layer, its_x in ((torch.compile(loss, backend="kiln"), layer, x), (loss, layer, x),
                                  (loss, exact_layer, x.detach().double().requires_grad_())):
        value, logits = run(its_layer, its_x)
        assert logits.is_contiguous() and logits.shape == (4, 512, 1003)
        found.append([value, logits, *torch.autograd.grad(value, [its_x, *its_layer.parameters()])])
    check([(str(i), *values) for i, values in enumerate(zip(*found))])


def test_precision_is_read_at_each_call(precision: str) -> None:
    x = torch.randn(256, 256, device="cuda")
    exact = x.double() @ x.double()
    call = torch.compile(lambda x: x @ x, backend="kiln")
    errors = []
    for value in ("highest", "high"):
        torch.set_float32_matmul_precision(value)
        errors.append((call(x).double() - exact).abs().max().item())
    assert errors[0] * 20 < errors[1]


class Convolutions(torch.nn.Module):
    """One kind of convolution between others, with what stands around them in networks."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(3, 32, 3, stride=2, padding=1)
        self.norm = torch.nn.BatchNorm2d(32)
        self.kind = torch.nn.Conv2d(**{"in_channels": 32, "out_channels": 64, "kernel_size": 1, **arguments})
        self.last = torch.nn.Conv2d(64, 10, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.max_pool2d(F.relu(self.norm(self.first(x))), 3, 2, 1)
        y = F.pad(y, (1, 0, 0, 1))
        result: torch.Tensor = self.last(F.gelu(self.kind(y))).flatten(2).softmax(-1)
        return result


KINDS: dict[str, dict[str, Any]] = {
    "one point": dict(),
    "one point, strided": dict(stride=2, bias=False),
    "three by three": dict(kernel_size=3, padding=1, bias=False),
    "dilated": dict(kernel_size=3, dilation=2),
    "patches": dict(kernel_size=2, stride=2),
    "long patches": dict(kernel_size=(4, 3), stride=(4, 3), bias=False),
    "in groups": dict(kernel_size=3, groups=4),
    "a channel each": dict(kernel_size=3, groups=32, padding=1),
    "a channel each, strided": dict(kernel_size=(3, 5), groups=32, stride=(2, 1), padding=(0, 2), dilation=(2, 1)),
    "a channel each, wide": dict(kernel_size=7, groups=32, padding=3, bias=False),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype, tf32", [(torch.float32, False), (torch.float32, True), (torch.bfloat16, False),
                                         (torch.float64, False)])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_convolutions(kind: str, dtype: torch.dtype, tf32: bool, memory_format: torch.memory_format,
                      allow_tf32: Callable[[bool], None]) -> None:
    allow_tf32(tf32)
    torch.manual_seed(0)
    model = Convolutions(**KINDS[kind]).cuda().eval().to(dtype)
    x = torch.randn(2, 3, 61, 50, device="cuda").to(dtype).to(memory_format=memory_format)
    with torch.no_grad():
        eager, got = model(x), torch.compile(model, backend="kiln")(x)
        exact = model.double()(x.double())
    assert got.shape == eager.shape and got.stride() == eager.stride()
    error, bound = ((value.double() - exact).abs().max().item() for value in (got, eager))
    # cuDNN need not make use of TF32 in eager's layout where it does in ours.
    assert error <= 3 * bound + (1e-3 if tf32 else 1e-5) * exact.abs().max().item()


@pytest.mark.parametrize("kind", ["three by three", "a channel each", "patches"])
def test_training_of_convolutions(kind: str, allow_tf32: Callable[[bool], None]) -> None:
    allow_tf32(False)
    gradients = []
    for wrap in (lambda model: model, lambda model: torch.compile(model, backend="kiln")):
        torch.manual_seed(0)
        model = Convolutions(**KINDS[kind]).cuda()
        x = torch.randn(2, 3, 61, 50, device="cuda")
        wrap(model)(x).pow(2).mean().backward()
        gradients.append([gradient_of(value) for value in model.parameters()])
    # A bias before batch norm has no gradient but rounding, so the scale is that of the largest.
    scale = max(value.abs().max().item() for value in gradients[0])
    for eager, got in zip(*gradients):
        torch.testing.assert_close(got, eager, rtol=1e-3, atol=1e-5 * scale)


def test_channels_last_images_leave_in_the_declared_layout() -> None:
    """Inside, images are channels-last; what leaves the graph lies as eager's does."""
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3)).cuda()

    def function(x: torch.Tensor) -> tuple[Any, ...]:
        y = model[1](model[0](x))
        return y * 2, y.flatten(1), model[2](y), y.mean((2, 3))

    x = torch.randn(2, 3, 20, 30, device="cuda")
    with torch.no_grad():
        for eager, got in zip(function(x), torch.compile(function, backend="kiln")(x)):
            assert got.stride() == eager.stride()
            torch.testing.assert_close(got, eager, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("tokens", [12, 200])
def test_attention_without_gradients(dtype: torch.dtype, tokens: int) -> None:
    """The library gives no sums of exponentials then, whatever its fake says."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, tokens, 64, device="cuda").to(dtype) for _ in range(3))
    with torch.no_grad():
        got = torch.compile(F.scaled_dot_product_attention, backend="kiln")(q, k, v)
        exact = F.scaled_dot_product_attention(q.double(), k.double(), v.double())
        eager = (F.scaled_dot_product_attention(q, k, v).double() - exact).abs().max().item()
    assert (got.double() - exact).abs().max().item() <= 3 * eager + 1e-5


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("kept", [3, 64], ids=["heads of 8", "heads of 64"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_attention_with_dropout(dtype: torch.dtype, kept: int, mode: str) -> None:
    """Which the library draws again from a seed on the CPU, or on the GPU where a stream records. What a value takes
    part in forward, of it the gradient flows back: out and its gradients are linear in the value, with the same
    weights."""
    head = 8 if kept == 3 else 64
    torch.manual_seed(0)
    query, key, value = (torch.randn(4, 4, tokens, head, device="cuda").to(dtype).requires_grad_()
                         for tokens in (kept, 64, 64))
    attend: Callable[..., torch.Tensor] = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.5)
    compiled = torch.compile(attend, backend="kiln", mode=mode)
    grad = torch.randn(4, 4, kept, head, device="cuda").to(dtype)
    dropped = set()
    for _ in range(4):
        out = compiled(query, key, value)
        back = torch.autograd.grad(out, value, grad)[0]
        forward, backward = (out.double() * grad.double()).sum(), (back.double() * value.double()).sum()
        torch.testing.assert_close(backward, forward, rtol=0, atol=2e-4 if dtype == torch.float32 else 0.5)
        dropped.add(out.flatten()[0].item())
    assert len(dropped) == 4  # drawn anew in each call


def test_training() -> None:
    expected = losses(lambda model: model)
    assert losses(lambda model: torch.compile(model, backend="kiln")) == pytest.approx(expected, rel=1e-4)


def test_new_thread() -> None:
    """A thread's first GPU work may be a kernel of ours: torch has made no context current there yet."""
    call, x, results = torch.compile(lambda x: x.sin() + 1, backend="kiln"), torch.randn(1000, device="cuda"), []
    call(x)
    thread = threading.Thread(target=lambda: results.append(call(x)))
    thread.start()
    thread.join()
    torch.testing.assert_close(results[0], x.sin() + 1)


def test_numbers_on_the_cpu() -> None:
    """A 0-d tensor on the CPU takes part in a graph on the GPU, as an input and as a constant."""
    def function(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return x * scale + torch.tensor(1.5)

    x = torch.randn(64, 32, device="cuda")
    call = torch.compile(function, backend="kiln")
    for value in (2.0, 3.0):
        torch.testing.assert_close(call(x, torch.tensor(value)), x * value + 1.5)


def test_a_number_on_the_cpu_is_saved_for_the_backward() -> None:
    x, scale = torch.randn(64, device="cuda", requires_grad=True), torch.tensor(0.5)
    call = torch.compile(lambda x, scale: (x.sin() * scale).sum(), backend="kiln")
    call(x, scale).backward()
    torch.testing.assert_close(x.grad, x.detach().cos() * 0.5)


def test_tensors_brought_over() -> None:
    """A graph may copy its input to the GPU, and make tensors there without having any input there."""
    x = torch.randn(64, 32)
    torch.testing.assert_close(torch.compile(lambda x: x.cuda().sin(), backend="kiln")(x), x.cuda().sin())
    made = torch.compile(lambda: torch.arange(10, device="cuda") * 2, backend="kiln")()
    torch.testing.assert_close(made, torch.arange(10, device="cuda") * 2)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_results_on_the_cpu(mode: str) -> None:
    """As a mixture of experts counts its tokens: what was computed on the GPU leaves the graph on the CPU."""
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        counts = (x > 0).sum(0).cpu()
        return counts, counts.double() / 2, x.sin(), x.t().cpu()

    call = torch.compile(function, backend="kiln", mode=mode)
    for _ in range(4):
        x = torch.randn(64, 32, device="cuda")
        torch.testing.assert_close(call(x), function(x), check_stride=True)


def test_gradients_of_results_on_the_cpu() -> None:
    x = torch.randn(64, device="cuda", requires_grad=True)
    call = torch.compile(lambda x: (x.sin().cpu() * 2).square().sum(), backend="kiln")
    loss = call(x)
    loss.backward()
    assert loss.device.type == "cpu"
    torch.testing.assert_close(x.grad, 4 * (2 * x.detach()).sin())


def test_results_on_the_cpu_lie_as_eagers() -> None:
    """With gaps, and with elements that share memory."""
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (x * 2).t().cpu(), (x.sum(0, keepdim=True) * 2).cpu().expand(5, -1), x.new_empty_strided((3, 4), (10, 2),
                                                                                                      device="cpu")

    x = torch.randn(4, 6, device="cuda")
    (*mine, empty), (*own, expected) = torch.compile(function, backend="kiln")(x), function(x)
    torch.testing.assert_close(mine, own, check_stride=True)
    assert (empty.device, empty.shape, empty.stride()) == (expected.device, expected.shape, expected.stride())


def test_pinned_number_written_right_after_the_call() -> None:
    compiled = torch.compile(lambda x, scale: x * scale, backend="kiln")
    x, scale = torch.ones(1 << 20, device="cuda"), torch.full((), 3.0).pin_memory()
    compiled(x, scale)
    for value in range(20):
        scale.fill_(value)
        torch.cuda._sleep(20_000_000)  # what is copied asynchronously is read after this
        y = compiled(x, scale)
        scale.fill_(-1)
        assert (y == value).all()


MEETING = {  # sums of many values in few elements
    "embedding": lambda table, at, values: F.embedding(at, table) * values,
    "indexing": lambda table, at, values: table[at] * values,
    "index_put": lambda table, at, values: table.index_put((at,), values, accumulate=True).sin(),
    "index_add": lambda table, at, values: table.index_add(0, at, values).sin(),
    "scatter_add": lambda table, at, values: table.scatter_add(0, at[:, None].expand(-1, table.shape[1]), values).sin(),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", MEETING)
def test_deterministic_sums(name: str, dtype: torch.dtype) -> None:
    """The same bits each time; test_deterministic_algorithms_are_part_of_the_key and lower_index_test have the
    controls, since what has no order may well agree."""
    table = torch.randn(5, 64, device="cuda", dtype=dtype, requires_grad=True)
    at = torch.randint(0, 5, (20000,), device="cuda")
    values = torch.randn(20000, 64, device="cuda", dtype=dtype, requires_grad=True)
    torch.use_deterministic_algorithms(True)
    try:
        compiled = torch.compile(MEETING[name], backend="kiln")
        runs = []
        for _ in range(5):
            table.grad = values.grad = None
            result = compiled(table, at, values)
            result.float().pow(2).sum().backward()
            runs.append((result.detach(), table.grad, values.grad))
    finally:
        torch.use_deterministic_algorithms(False)
    for run in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(run, runs[0]))


def test_memory_that_cannot_be_allocated() -> None:
    compiled = torch.compile(lambda x: x.expand(1 << 40) + 1, backend="kiln")
    with pytest.raises(torch.OutOfMemoryError):
        compiled(torch.ones(1, device="cuda"))
    torch.cuda.synchronize()
    check_function(lambda x: x.sin() + 1, torch.randn(1000, device="cuda"))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("function", [F.hardswish, F.hardsigmoid])
def test_a_sixth_is_rounded_as_eager_rounds_it(function: Callable[..., torch.Tensor], dtype: torch.dtype) -> None:
    x = torch.linspace(-4, 4, 1001, dtype=dtype, device="cuda", requires_grad=True)
    mine, own = torch.compile(function, backend="kiln")(x), function(x)
    for one, other in ((mine, own), *zip(*(torch.autograd.grad(each.sum(), x) for each in (mine, own)))):
        torch.testing.assert_close(one, other, rtol=2 * torch.finfo(dtype).eps, atol=torch.finfo(dtype).eps)


def test_batch_norm_in_evaluation_gives_its_statistics() -> None:
    """On a GPU, where nothing of the library's saves them: the running ones."""
    x, (weight, bias, mean), var = torch.randn(2, 3), torch.randn(3, 3), torch.rand(3) + 0.1
    arguments = [value.cuda() for value in (x, weight, bias, mean, var)]
    function: Callable[..., Any] = lambda x, weight, bias, mean, var: torch.native_batch_norm(
        x, weight, bias, mean, var, False, 0.5, 1e-5)
    torch.testing.assert_close(torch.compile(function, backend="kiln")(*arguments), function(*arguments), rtol=1e-6,
                               atol=1e-6)


@pytest.mark.parametrize("name", ["attention's seed", "attention's seed in a kernel", "declared on the GPU"])
def test_results_of_operators_that_are_on_the_cpu(name: str) -> None:
    if name == "declared on the GPU":
        made = torch.library.custom_op("kiln_gpu_test::to_cpu", lambda x: x.cpu() * 2, mutates_args=(),
                                       schema="(Tensor x) -> Tensor")
        made.register_fake(torch.empty_like)
        x = torch.randn(7, 5, device="cuda")
        torch.testing.assert_close(torch.compile(lambda x: made(x.sin()) + x, backend="kiln")(x), x.sin() * 2 + x)
        return
    query, key = torch.randn(2, 11, 4, 8, device="cuda"), torch.randn(2, 32, 4, 8, device="cuda")
    attend = torch.ops.aten._efficient_attention_forward
    function: Callable[..., Any]
    if name == "attention's seed in a kernel":
        function = lambda q, k: (seed := attend(q, k, k, None, None, None, None, None, 0.5, 0, True)[2], seed * 2 + 1)
        seed, more = torch.compile(function, backend="kiln")(query, key)
        assert more.item() == seed.item() * 2 + 1
        return
    function = lambda q, k: attend(q, k, k, None, None, None, None, None, 0.0, 0, True)
    got, eager = torch.compile(function, backend="kiln")(query, key), function(query, key)
    torch.testing.assert_close(got[:2], eager[:2])
    assert [value.device for value in got[2:4]] == [value.device for value in eager[2:4]]
