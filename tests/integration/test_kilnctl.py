"""kilnctl against a daemon that compiled a real graph: what people read and what scripts parse."""
import json
import textwrap
from collections.abc import Callable

import pytest

from daemons import Place, kilnctl

TRAIN = textwrap.dedent("""
    import torch, kiln
    layer = torch.nn.Linear(16, 8)
    def f(x, factor):
        rows = x.shape[0] if x.shape[0] % 100 else 1  # a guard
        return torch.softmax(layer(x).relu() * factor, -1).sum(0) * rows
    compiled = torch.compile(f, backend="kiln", dynamic=True)
    compiled(torch.randn(4, 16), 2.5).sum().backward()
    torch._dynamo.reset()
    torch.compile(f, backend="kiln", dynamic=True)(torch.randn(9, 16), 2.5).sum().backward()
    assert kiln.stats()["compiles"] == 2, kiln.stats()
""")


@pytest.fixture
def ask(place: Place) -> Callable[..., str]:
    """kilnctl's text for some words, once the daemon has compiled TRAIN's two graphs."""
    place.run(TRAIN)

    def run(*words: str, code: int = 0) -> str:
        result = kilnctl(place, *words)
        assert result.returncode == code, result.stderr
        return result.stdout if code == 0 else result.stderr

    return run


def test_every_command_with_a_real_graph(ask: Callable[..., str]) -> None:
    stats = json.loads(ask("stats", "--json"))
    assert {"lookups", "hits", "misses", "compiles", "joined", "failures", "entries", "bytes"} <= set(stats)
    assert stats["compiles"] == 2 and stats["hits"] + stats["joined"] >= 2 and stats["bytes"] > 0
    assert json.loads(ask("status", "--json"))["store_writable"]
    assert json.loads(ask("jobs", "--json"))["jobs"] == []
    assert json.loads(ask("verify", "--json"))["corrupt"] == 0
    assert json.loads(ask("doctor", "--json"))["ok"]
    for command in ("status", "stats", "jobs", "verify", "keys", "doctor"):
        assert ask(command)

    entries = json.loads(ask("ls", "--json"))["entries"]
    assert {entry["title"] for entry in entries} == {"f forward", "f backward"}
    forward = next(entry for entry in entries if entry["title"] == "f forward")
    assert forward["hits"] == 1
    key = forward["compile_key"]
    assert key[:12] in ask("ls")

    text = ask("show", key[:10])
    for part in (key, "size ", "age ", "hits          1", "torch 2.", "s0 in [2, inf]", "(the graph's own)",
                 "TENSOR_MATCH L['x']", "kiln.softmax_exp.default", "fused:", "parallel", "reduce max",
                 "aten.addmm.default (gemm)"):
        assert part in text, (part, text)
    assert "define" not in text
    listing = ask("show", "--listings", key[:10])
    assert "define" in listing and "kiln_kernel:" in listing  # LLVM IR, assembly
    shown = json.loads(ask("show", key, "--json"))["entries"][0]
    assert shown["sections"]["graph_digest"] and shown["notes"]["guards"] and shown["manifest"]["guards"]["symbols"]
    assert all(kernel["loop_ir"] and kernel["kernel"]["notes"]["operators"] for kernel in shown["kernels"])

    assert json.loads(ask("rm", key, "--json"))["removed"] == 1
    assert "no entry" in ask("show", key, code=1)
    assert "1 entry removed" in ask("rm", "--all") and ask("ls") == "no entries\n"


OTHER_NUMERICS = TRAIN.replace("import torch, kiln", "import torch, kiln\ntorch.use_deterministic_algorithms(True)")


def test_why_and_diff_of_real_graphs(ask: Callable[..., str], place: Place) -> None:
    """The same model under other numerics compiles again, and kilnctl says for what."""
    place.run(OTHER_NUMERICS, KILN_JOB="nightly")
    reply = json.loads(ask("why", "nightly", "--json"))
    assert len(reply["explanations"]) == 2 and reply["compared"] == reply["stored"] == 4
    for explanation in reply["explanations"]:
        assert explanation["why"] == "WHY_INGREDIENT" and explanation["program"]["title"] in ("f forward", "f backward")
        assert [(each["ingredient"], each["field"], each["here"], each["there"])
                for each in explanation["differences"]] == [("numerics", "deterministic", "true", "false")]
    assert "numerics    deterministic  true  false" in ask("why", "nightly")

    keys = {entry["title"]: entry["compile_key"] for entry in json.loads(ask("ls", "--json"))["entries"]}
    diff = json.loads(ask("diff", keys["f forward"], keys["f backward"], "--json"))
    assert "graph" in {each["ingredient"] for each in diff["differences"]}
    assert any(line.startswith("-") and "addmm" in line for line in diff["nodes"]), diff["nodes"]
    assert diff["kernels"] and {fact["name"] for fact in diff["facts"]} >= {"nodes", "kernels"}
    text = ask("diff", keys["f forward"][:12], keys["f backward"][:12])
    assert "nodes of the graphs" in text and "@@ " in text
