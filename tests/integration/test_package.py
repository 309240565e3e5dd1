"""What users see: options, explain, stats, the interpreter."""
import pytest
import torch

import kiln


def test_unknown_mode_and_options_name_the_valid_ones():
    with pytest.raises(Exception, match="max-autotune"):
        torch.compile(lambda x: x + 1, backend="kiln", mode="fastest")(torch.ones(2))
    with pytest.raises(Exception, match="fallback_random"):
        torch.compile(lambda x: x + 1, backend="kiln", options={"fallback_radnom": True})(torch.ones(2))
    with pytest.raises(Exception, match="True or False"):
        torch.compile(lambda x: x + 1, backend="kiln", options={"fallback_random": 1})(torch.ones(2))


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
def test_modes(mode):
    x = torch.randn(5)
    torch.testing.assert_close(torch.compile(lambda x: x.exp() - 1, backend="kiln", mode=mode)(x), x.exp() - 1)
    assert not kiln.stats()["fallbacks"]


def test_explain():
    layer = torch.nn.Linear(4, 3)

    def f(x):
        y = torch.relu(layer(x)) * 2
        torch._dynamo.graph_break()
        return y.softmax(-1)

    explanation = kiln.explain(f)(torch.randn(2, 4))
    assert len(explanation.breaks) == 1 and not explanation.fallbacks
    assert len(explanation.graphs) == 4  # two forward, two backward
    assert any("addmm" in target for target in explanation.library_calls)
    operators = [operator for kernel in explanation.kernels for operator in kernel["operators"]]
    assert any("relu" in operator for operator in operators)
    assert "graph break" in str(explanation) and "kernel 0" in str(explanation)


def test_fallback_is_counted_and_told_once():
    f = torch.compile(lambda x: torch.view_as_real(x * 1j), backend="kiln")
    x = torch.randn(3, dtype=torch.complex64)
    torch.testing.assert_close(f(x), torch.view_as_real(x * 1j))
    stats = kiln.stats()
    assert stats["graphs"] + sum(stats["fallbacks"].values()) == 1


def test_interpreter(monkeypatch):
    monkeypatch.setenv("KILN_DEBUG_INTERPRET", "all")
    x = torch.randn(6, 5)
    torch.testing.assert_close(torch.compile(lambda x: x.softmax(-1).sin(), backend="kiln")(x), x.softmax(-1).sin())
    assert not kiln.stats()["fallbacks"]


def test_debug_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("KILN_DEBUG", str(tmp_path))
    x = torch.randn(6, 5)
    torch.testing.assert_close(torch.compile(lambda x: x.softmax(-1) + 2, backend="kiln")(x), x.softmax(-1) + 2)
    names = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()]
    assert len(names) > 3 and any("kernel" in name for name in names), names


def test_key_holds_no_sizes_of_the_moment(monkeypatch):
    from kiln import records

    for rows in (4, 9):
        torch._dynamo.reset()
        torch.compile(lambda x: x * 3, backend="kiln", dynamic=True)(torch.randn(rows))
    keys = [graph["request_key"] for graph in records.graphs_since(0)]
    assert len(keys) == 2 and keys[0] == keys[1]


def test_status():
    status = kiln.status()
    assert status["address"].startswith("unix:") and status["fallback"] in ("eager", "error")
