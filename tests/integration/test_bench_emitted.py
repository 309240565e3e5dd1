"""tests/bench/emitted.py: digests are the same each time, and what differs from older ones is named."""
import gzip
import json
import os
import pathlib
import subprocess
import sys

import pytest

BENCH = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "bench")
sys.path.insert(0, BENCH)
import emitted  # noqa: E402

BUILD = os.environ.get("KILN_BUILD", os.path.join(os.path.dirname(os.path.dirname(BENCH)), "build"))
TARGETS = "avx2,avx512,sm_80"


def write_capture(path: pathlib.Path, operator: str) -> None:
    meta = {"dtype": "float32", "shape": [100], "stride": [1]}
    node = {"args": [], "kwargs": {}, "meta": meta}
    nodes = [{**node, "name": "x", "op": "placeholder", "target": "x"},
             {**node, "name": "y", "op": "call_function", "target": operator, "args": [{"n": "x"}]},
             {**node, "name": "output", "op": "output", "target": "output", "args": [[{"n": "y"}]], "meta": None}]
    with gzip.open(path, "wt") as file:
        json.dump({"model": "one", "task": "infer", "graphs": [{"kind": "inference", "nodes": nodes}]}, file)


@pytest.mark.skipif(not os.path.exists(os.path.join(BUILD, "bin", emitted.PROGRAM)),
                    reason="emitted_kernels is not built")
def test_a_changed_graph_is_named_and_no_other(tmp_path: pathlib.Path) -> None:
    old = tmp_path / "old.json"

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, os.path.join(BENCH, "emitted.py"), str(tmp_path), "--build", BUILD,
                               "--targets", TARGETS, "--processes", "1", *words], text=True, capture_output=True)

    for name, operator in (("kept", "exp"), ("other", "exp"), ("wrong", "no_such")):
        write_capture(tmp_path / f"{name}.json.gz", f"aten.{operator}.default")
    first = run("--json", str(old))
    assert first.returncode == 0 and "3 graphs, 3 targets, 12 digests, 3 errors" in first.stdout, first
    digests = json.loads(old.read_text())
    assert digests["kept 0"] == digests["other 0"]
    assert len({digests["kept 0"][target]["exp_0"] for target in TARGETS.split(",")}) == 3
    write_capture(tmp_path / "other.json.gz", "aten.sin.default")
    second = run("--compare", str(old))
    assert second.returncode == 1 and "kept" not in second.stdout and "wrong" not in second.stdout
    assert "other 0: avx512: exp_0: gone" in second.stdout and "other 0: avx512: sin_0: new" in second.stdout


def test_what_differs_is_named_by_graph_target_and_kernel() -> None:
    old = {"a 0": {"avx2": {"add": "1", "mul": "2", "gone": "3"}}, "only old 0": {"avx2": {"add": "1"}}}
    new = {"a 0": {"avx2": {"add": "1", "mul": "4", "new": "3"}, "sm_80": {"add": "1"}}}
    assert emitted.differences(old, new) == [("a 0", "avx2", "gone", "gone"), ("a 0", "avx2", "mul", "changed"),
                                             ("a 0", "avx2", "new", "new")]
    assert emitted.differences(old, old) == []
