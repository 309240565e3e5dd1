"""What users see: options, explain, stats, the interpreter."""
import collections
import os
import pathlib
import subprocess
from html.parser import HTMLParser
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import kiln
from kiln import dataflow, environment
from model_checks import programs


def test_unknown_mode_and_options_name_the_valid_ones() -> None:
    with pytest.raises(Exception, match="max-autotune"):
        torch.compile(lambda x: x + 1, backend="kiln", mode="fastest")(torch.ones(2))
    with pytest.raises(Exception, match="fallback_random"):
        torch.compile(lambda x: x + 1, backend="kiln", options={"fallback_radnom": True})(torch.ones(2))
    with pytest.raises(Exception, match="True or False"):
        torch.compile(lambda x: x + 1, backend="kiln", options={"fallback_random": 1})(torch.ones(2))
    with pytest.raises(Exception, match="take a dict"):
        wrong: Any = ["fallback_random"]
        torch.compile(lambda x: x + 1, backend="kiln", options=wrong)(torch.ones(2))


@pytest.mark.parametrize("name, value, way_out", [
    ("KILN_FALLBACK", "never", "valid values are eager, error"),
    ("KILN_COMPILE_TIMEOUT", "soon", "positive number of seconds"),
    ("KILN_CONNECT_TIMEOUT", "nan", "positive number of seconds"),
    ("KILN_CLASS", "batch", "valid values are interactive, background"),
    ("KILN_TRUSTED_KEYS", "nonsense", '"nonsense" is no public key'),
    ("KILN_TRUSTED_KEYS", "/nowhere", "neither public keys nor a file of them"),
    ("KILN_ADDRESS", "somewhere", "unix:/path, /path or HOST:PORT"),
    ("KILN_DEBUG", "/dev/null/files", "no directory for files"),
    ("KILN_DEBUG_INTERPRET", "first", "kernel numbers such as 0,3"),
])
def test_a_wrong_environment_names_the_variable_and_the_way_out(monkeypatch: pytest.MonkeyPatch, name: str, value: str,
                                                                way_out: str) -> None:
    monkeypatch.setattr("kiln.environment._configured", False)
    monkeypatch.setenv(name, value)
    with pytest.raises(Exception, match=f"{name}.*{way_out}"):
        torch.compile(lambda x: x + 1, backend="kiln")(torch.ones(2))


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
def test_modes(mode: str) -> None:
    x = torch.randn(5)
    torch.testing.assert_close(torch.compile(lambda x: x.exp() - 1, backend="kiln", mode=mode)(x), x.exp() - 1)
    assert not kiln.stats()["fallbacks"]


def test_explain() -> None:
    layer = torch.nn.Linear(4, 3)

    def f(x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(layer(x)) * 2
        torch._dynamo.graph_break()
        return y.softmax(-1)

    explanation = kiln.explain(f)(torch.randn(2, 4))
    # What torch._dynamo.explain's output holds, by its names.
    assert explanation.ops_per_graph
    assert explanation.graph_count == len(explanation.graphs) == len(explanation.ops_per_graph) == 2
    assert explanation.graph_break_count == 1 and len(explanation.break_reasons) == 1
    assert explanation.op_count > 0 and explanation.out_guards and explanation.compile_times
    assert "graph_break" in explanation.breaks[0] and not explanation.fallbacks
    assert "TENSOR_MATCH L['x']" in explanation.guards
    assert len(explanation.programs) == 4  # two forward, two backward
    assert any("addmm" in target for target in explanation.library_calls)
    operators = [operator for kernel in explanation.kernels for operator in kernel["operators"]]
    assert any("relu" in operator for operator in operators)
    assert "graph break" in str(explanation) and "kernel 0" in str(explanation)


class _Outside(HTMLParser):
    """Names of tags, and whatever a page would take from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: collections.Counter[str] = collections.Counter()
        self.open: list[str] = []
        self.outside: list[str | None] = []
        self.ids: set[str | None] = set()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        if tag not in ("meta", "br"):
            self.open.append(tag)
        for name, value in attributes:
            if name == "id":
                self.ids.add(value)
            if name == "href" and value and value.startswith("#"):
                self.links.append(value[1:])
            elif name in ("src", "href", "data", "xlink:href"):
                self.outside.append(value)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes nothing"


def test_explain_writes_a_page_that_stands_alone(tmp_path: pathlib.Path) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 8)
            setattr(self, "<script>alert(1)</script>", torch.nn.LayerNorm(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = getattr(self, "<script>alert(1)</script>")(torch.relu(self.layer(x)))
            torch._dynamo.graph_break(msg="<b>because</b> & so")
            result: torch.Tensor = y.softmax(-1)
            return result

    Model.__name__ = Model.__qualname__ = "Model<script>"
    path = tmp_path / "page.html"
    explanation = kiln.explain(Model(), html=path)(torch.randn(4, 8))
    text = path.read_text()
    page = _Outside()
    page.feed(text)
    assert not page.open and not page.outside and not page.tags["script"] and not page.tags["b"]
    assert page.tags["svg"] == len(explanation.programs) == 4
    assert "url(" not in text and "@import" not in text
    # Each kernel has a row that its box leads to, with a time, its operators and its loops.
    kernels = [kernel for program in explanation.programs if "fallback" not in program for kernel in program["kernels"]]
    assert kernels and set(page.links) == page.ids and len(page.ids) == len(kernels)
    assert all(kernel["name"] in text for kernel in kernels)
    assert text.count("for i0 in 0..") == len(kernels) and "rsqrt" in text and "addmm" in text
    assert "test_package.py:" in text and " ms</td>" in text
    assert "&lt;b&gt;because&lt;/b&gt; &amp; so" in text


def test_explain_refuses_a_page_that_cannot_be_written(tmp_path: pathlib.Path) -> None:
    ran = []
    with pytest.raises(ValueError, match=r"there is no directory .*nowhere"):
        kiln.explain(lambda x: ran.append(x), html=tmp_path / "nowhere" / "page.html")
    with pytest.raises(ValueError, match="no file can be written"):
        kiln.explain(lambda x: ran.append(x), html=tmp_path)
    assert not ran


def test_lines_of_the_drawing_follow_the_data() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.mm(x.exp(), w)
        return torch.cat([y.sin(), y.cumsum(0)]), y.sum(-1)

    explanation = kiln.explain(f)(torch.randn(4, 4), torch.randn(4, 4))
    program, = explanation.programs
    assert "fallback" not in program
    entry = environment.show(program["compile_key"])
    assert entry
    boxes = dataflow.steps_of(entry)
    gemm, = (number for number, box in enumerate(boxes) if box.kernel is None)
    before, after = boxes[:gemm], boxes[gemm + 1:]
    assert before and boxes[gemm].before == [gemm - 1] and not before[0].before
    scan, = (number for number, box in enumerate(boxes) if "cumsum" in box.lines)
    # cat takes the scan's result, and sin of the gemm by itself: windows of one buffer are no order.
    assert {tuple(box.before) for box in after} == {(gemm,), (scan,)}
    assert any(box.giving for box in after) and not any(box.giving for box in before)
    assert boxes[gemm].result == "f32[4, 4]"


def test_fallback_is_counted_and_told_once() -> None:
    f = torch.compile(lambda x: torch.view_as_real(x * 1j), backend="kiln")
    x = torch.randn(3, dtype=torch.complex64)
    torch.testing.assert_close(f(x), torch.view_as_real(x * 1j))
    stats = kiln.stats()
    assert stats["graphs"] + sum(stats["fallbacks"].values()) == 1


class _Kernel:
    """Stands for a Triton kernel, which can't be made without Triton."""

    def __init__(self, src: str) -> None:
        self.src = src


def _with_triton_kernel(kernel: Any, constants: dict[str, Any]) -> Any:
    """A graph with the node that Dynamo makes of a user's kernel, compiled."""
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table, triton_kernel_wrapper_functional

    from kiln import options
    from kiln.backend import compile_graph
    from kiln.graph import INFERENCE

    graph = make_fx(lambda x: (x * 2,), tracing_mode="fake")(torch.randn(3))
    (doubled,) = [node for node in graph.graph.nodes if node.op == "call_function"]
    doubled.target, doubled.args = triton_kernel_wrapper_functional, ()
    doubled.kwargs = {"kernel_idx": kernel_side_table.add_kernel(kernel),
                      "constant_args_idx": kernel_side_table.add_constant_args(constants), "grid": [(1, 1, 1)],
                      "tma_descriptor_metadata": {}, "kwargs": {}, "tensors_to_clone": []}
    inputs = [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]
    return compile_graph(graph, inputs, INFERENCE, options.parse())


def test_triton_kernels_of_users_are_calls_of_python(no_fallback: None) -> None:
    from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache

    compiled = _with_triton_kernel(_Kernel("x + 1"), {})
    (call,) = compiled.python.calls
    assert call.reason == "higher-order operator triton_kernel_wrapper_functional"
    # torch knows the kernel by a number of this process.
    with pytest.raises(BypassAOTAutogradCache, match="a call of Python holds a Triton kernel"):
        compiled.prepare_for_serialization()


def test_the_key_covers_a_triton_kernels_source_and_constants(no_fallback: None) -> None:
    keys = [_with_triton_kernel(_Kernel(src), {"BLOCK": block}).request_key
            for src, block in (("x + 1", 64), ("x + 1", 64), ("x + 2", 64), ("x + 1", 128))]
    assert keys[0] == keys[1] and len(set(keys)) == 3


def test_tensor_subclasses_are_compiled_as_their_parts(no_fallback: None) -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    both = TwoTensor(torch.ones(4), torch.zeros(4))
    actual = torch.compile(lambda t: t.sin() + 1, backend="kiln")(both)
    torch.testing.assert_close(actual.a, torch.ones(4).sin() + 1)
    torch.testing.assert_close(actual.b, torch.ones(4))
    assert kiln.stats()["graphs"] == 1


@pytest.mark.parametrize("kernels", ["all", "0", "1"])
def test_interpreter(monkeypatch: pytest.MonkeyPatch, no_fallback: None, kernels: str) -> None:
    """Only the kernels that are named run on the interpreter: they take many times as long as the same work native."""
    monkeypatch.setenv("KILN_DEBUG_INTERPRET", kernels)
    x, w = torch.randn(128, 128), torch.eye(128)
    compiled = torch.compile(lambda x, w: (x.exp() @ w).sin(), backend="kiln")
    torch.testing.assert_close(compiled(x, w), x.exp().sin())
    with kiln.profile() as profile:
        compiled(x, w)
    seconds = {line.kernel: line.least_seconds for line in profile.lines if line.kernel is not None}
    if kernels != "all":
        interpreted = int(kernels)
        assert seconds[interpreted] > 5 * seconds[1 - interpreted]


def test_debug_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    monkeypatch.setenv("KILN_DEBUG", str(tmp_path))
    x = torch.randn(6, 5)
    torch.testing.assert_close(torch.compile(lambda x: x.softmax(-1) + 2, backend="kiln")(x), x.softmax(-1) + 2)
    (directory,) = tmp_path.iterdir()
    texts = {path.name: path.read_text() for path in directory.rglob("*.txt")}
    assert all(texts.values())
    # The graph, after each pass that changed it, loops, groups, memory; then a file of each kind a kernel.
    stages = ["graph", "after_decompose", "loops", "schedule", "memory"]
    assert [stage for stage in stages if not any(name.endswith(f"_{stage}.txt") for name in texts)] == []
    (listing,) = [text for name, text in texts.items() if name.endswith(".listing.txt")]
    assert [part for part in ("loop IR", "LLVM IR", "assembly") if f"; ---- {part}" not in listing] == []
    assert any(name.endswith(".loops.txt") for name in texts)
    # And the kernel's object, for disassemblers and debuggers.
    (elf,) = directory.rglob("*.o")
    symbols = subprocess.run(["nm", elf], check=True, stdout=subprocess.PIPE, text=True).stdout
    assert "kiln_kernel" in symbols and " U " not in symbols, symbols


def test_perf_map_names_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    path = f"/tmp/perf-{os.getpid()}.map"

    def compiled(x: torch.Tensor) -> Any:
        return torch.compile(lambda x: x.softmax(-1) * 3, backend="kiln")(x)

    compiled(torch.randn(6, 5))
    assert not os.path.exists(path), "only when asked for"
    monkeypatch.setenv("KILN_PERF_MAP", "1")
    torch._dynamo.reset()
    try:
        compiled(torch.randn(6, 5))
        with open(path) as file:
            lines = [line.split() for line in file]
    finally:
        os.unlink(path)
    ((address, size, name),) = lines
    assert name.startswith("kiln::") and "exp" in name
    # The address lies in memory that is executable and that no file holds.
    with open("/proc/self/maps") as maps:
        ranges = [line.split() for line in maps]
    start = int(address, 16)
    (inside,) = [row for row in ranges if int(row[0].split("-")[0], 16) <= start < int(row[0].split("-")[1], 16)]
    assert inside[1] == "r-xp" and len(inside) == 5
    assert start + int(size, 16) <= int(inside[0].split("-")[1], 16)


def test_key_holds_no_sizes_of_the_moment(monkeypatch: pytest.MonkeyPatch) -> None:

    for rows in (4, 9):
        torch._dynamo.reset()
        torch.compile(lambda x: x * 3, backend="kiln", dynamic=True)(torch.randn(rows))
    keys = [graph["request_key"] for graph in programs()]
    assert len(keys) == 2 and keys[0] == keys[1]


def test_status() -> None:
    status = kiln.status()
    assert status["address"].startswith("unix:") and status["fallback"] in ("eager", "error")
