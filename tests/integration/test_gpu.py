"""The NVIDIA back-end against eager on a real GPU. Without one these tests skip themselves; what needs no GPU
(PTX that each target's assembler takes) is in tests/golden."""
import copy

import pytest
import torch
import torch.nn.functional as F

import kiln

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here")

FUNCTIONS = {
    "pointwise": lambda x: x.cos() + x.sin(),
    "row softmax": lambda x: torch.softmax(x, -1),
    "layer norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "column sums": lambda x: x.sum(0),
    "sum of all": lambda x: x.sum(),
    "argmax": lambda x: x.argmax(-1),
    "transposed add": lambda x: x.t()[:500, :500] + x[:500, :500],
    "gather": lambda x: x[torch.arange(300, device=x.device) * 3 % x.shape[0]],
    "prefix sums": lambda x: x.cumsum(-1),
    "product": lambda x: torch.relu(x @ x.t()),
}


@pytest.fixture(autouse=True)
def no_fallback():
    torch._dynamo.reset()
    before = sum(kiln.stats()["fallbacks"].values())
    yield
    assert sum(kiln.stats()["fallbacks"].values()) == before


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_function(name, dtype):
    torch.manual_seed(0)
    x = torch.randn(513, 777, device="cuda").to(dtype)
    exact = FUNCTIONS[name](x.double()).double()
    eager = (FUNCTIONS[name](x).double() - exact).abs().max().item()
    got = torch.compile(FUNCTIONS[name], backend="kiln")(x)
    error = (got.double() - exact).abs().max().item()
    assert got.dtype == FUNCTIONS[name](x).dtype
    assert error <= 3 * eager + 1e-5 * exact.abs().max().item()


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
def test_alignment(function, view, dtype):
    torch.manual_seed(0)
    x = VIEWS[view](torch.randn(514, 1032, device="cuda").to(dtype))
    exact = FUNCTIONS[function](x.double()).double()
    eager = (FUNCTIONS[function](x).double() - exact).abs().max().item()
    got = torch.compile(FUNCTIONS[function], backend="kiln")(x)
    error = (got.double() - exact).abs().max().item()
    assert error <= 3 * eager + 1e-5 * exact.abs().max().item()


def test_training():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.LayerNorm(512), torch.nn.GELU(),
                                torch.nn.Linear(512, 10)).cuda()
    x, labels = torch.randn(64, 256, device="cuda"), torch.randint(0, 10, (64,), device="cuda")

    def losses(wrap):
        trained = copy.deepcopy(model)
        call, optimizer, values = wrap(trained), torch.optim.Adam(trained.parameters(), 1e-3), []
        for _ in range(5):
            optimizer.zero_grad()
            loss = F.cross_entropy(call(x), labels)
            loss.backward()
            optimizer.step()
            values.append(loss.item())
        return values

    assert losses(lambda m: torch.compile(m, backend="kiln")) == pytest.approx(losses(lambda m: m), rel=1e-4)
