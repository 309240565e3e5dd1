"""deploy/quickstart.sh, as a user runs it a second time: the set-up is there, the comparison is run anew."""
import json
import os
import pathlib
import re
import subprocess
from typing import Any

import pytest

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_QUICKSTART = os.path.join(_ROOT, "deploy", "quickstart.sh")
_TRAIN = os.path.join(_ROOT, "deploy", "quickstart_train.py")
_PYTHON = os.path.join(_ROOT, ".venv", "bin", "python")

# Without the set-up the script would make it: half an hour, which is tests/run.sh's own beginning.
_set_up = pytest.mark.skipif(not os.path.exists(os.path.join(_ROOT, "build", "wheel.stamp")),
                             reason="this checkout is not set up (deploy/setup.sh)")


def _run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    everything = {name: value for name, value in os.environ.items() if not name.startswith("KILN_")}
    everything.pop("PYTHONPATH", None)
    return subprocess.run(command, env={**everything, **environment}, text=True, capture_output=True,
                          timeout=600)


@_set_up
def test_quickstart_prints_its_table() -> None:
    ran = _run(_QUICKSTART, "--steps", "6", "--layers", "2")
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    rows = (re.split(r"\s{2,}", line.strip()) for line in ran.stdout.splitlines())
    table = {row[0]: [float(cell) for cell in row[1:]] for row in rows
             if row[1:] and all(re.fullmatch(r"[\d.]+", cell) for cell in row[1:])}
    assert len(table["first step, s"]) == len(table["later step, ms"]) == 3
    assert max(table["loss, step 6"]) - min(table["loss, step 6"]) < 1e-3
    assert table["fallbacks"] == [0, 0]
    (cold, warm), (cold_hits, warm_hits) = table["compiled"], table["cache hits"]
    assert cold > 0 and warm == 0 and cold_hits == 0 and warm_hits == cold
    assert min(table["kernels: native"]) > 0 and min(table["library calls"]) > 0
    assert not [name for name in os.listdir("/tmp") if name.startswith("kiln-quickstart-")], "left something behind"


@_set_up
def test_quickstart_says_what_failed() -> None:
    ran = _run(_QUICKSTART, "--steps", "1", "--layers", "none")
    assert ran.returncode != 0
    assert "the run 'eager' failed" in ran.stderr and "invalid int value: 'none'" in ran.stderr


def _table(tmp_path: pathlib.Path, **warm: Any) -> subprocess.CompletedProcess[str]:
    """What --table says of three runs, the last of them other by `warm`."""
    good = {"losses": [8.0, 7.5], "first_step_s": 1.0, "step_ms": 2.0,
            "kiln": {"graphs": 2, "hits": 0, "compiles": 0, "kernels": 5, "library_calls": 4, "fallbacks": 0,
                     "reasons": {}}}
    paths = []
    for name, result in (("eager", good), ("cold", good), ("warm", {**good, **warm})):
        paths.append(str(tmp_path / f"{name}.json"))
        with open(paths[-1], "w") as file:
            json.dump(result, file)
    return _run(_PYTHON if os.path.exists(_PYTHON) else "python3", _TRAIN, "--table", *paths)


@pytest.mark.parametrize("warm, problem", [
    ({}, None),
    ({"losses": [8.0, 7.6]}, "the losses of the warm run differ from eager's by 1.00e-01"),
    ({"losses": [8.0, float("nan")]}, "the losses of the warm run differ"),
    ({"kiln": {"graphs": 2, "hits": 0, "compiles": 0, "kernels": 5, "library_calls": 4, "fallbacks": 1,
               "reasons": {"unsupported": 1}}}, "the warm run fell back to eager: {'unsupported': 1}"),
    ({"kiln": {"graphs": 2, "hits": 1, "compiles": 1, "kernels": 5, "library_calls": 4, "fallbacks": 0,
               "reasons": {}}}, "the warm run compiled 1 graphs again"),
])
def test_a_run_that_went_wrong_is_a_problem(tmp_path: pathlib.Path, warm: dict[str, Any], problem: str | None) -> None:
    ran = _table(tmp_path, **warm)
    assert (ran.returncode == 0) == (problem is None)
    assert (problem or "") in ran.stderr and bool(problem) == ("PROBLEM" in ran.stderr)
