"""tests/bench/cpu.py --resume: what its file has is not measured again, and the file is of the same kiln and
options."""
import json
import os
import pathlib
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "bench"))
import cpu

_ROW = {"model": "bert", "task": "infer", "errors": {}, "peak_mb": {},
        "step_ms": {"eager": [3.0], "inductor": [2.0], "kiln": [1.0], "dynamic": [1.0]}}


class _Measured(Exception):
    pass


def _nursery() -> NoReturn:
    raise _Measured


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> Callable[..., int]:
    """Runs the script with a file of one row; nothing is measured, but _Measured raised where something would be."""
    monkeypatch.setattr(cpu, "Nursery", _nursery)
    path = tmp_path / "cpu.json"

    def arguments(rounds: int) -> None:
        monkeypatch.setattr(sys, "argv", ["cpu.py", "--models", "bert", "--tasks", "infer", "--sections", "steps",
                                          "--processes", "1", "--rounds", str(rounds), "--json", str(path), "--resume"])

    def run(row: dict[str, Any], rounds: int = 1) -> int:
        arguments(1)
        path.write_text(json.dumps({"of": cpu.subject(cpu.parse()), "rows": [row], "kernels": None,
                                    "scale": None}))
        arguments(rounds)
        return cpu.main()

    return run


def test_a_row_of_the_file_is_shown(run: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(_ROW) == 0
    assert "| bert, infer | 3.0 / 2.0 / 1.0 | 0.50 " in capsys.readouterr().out


def test_a_row_with_errors_is_measured_again(run: Callable[..., int]) -> None:
    with pytest.raises(_Measured):
        run({**_ROW, "errors": {"steps kiln": "it ended"}})


def test_a_file_of_other_options_is_refused(run: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(_ROW, rounds=2) == 2
    assert "of other options or of another kiln" in capsys.readouterr().err
