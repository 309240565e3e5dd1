"""The service's benchmark runs, and its page has a row of each table that was measured."""
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BENCH = os.path.join(ROOT, "tests", "bench")
BUILD = os.environ.get("KILN_BUILD", os.path.join(ROOT, "build"))


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    if not os.access(os.path.join(BUILD, "bin", "service_load"), os.X_OK):
        pytest.skip("no build with tests")
    path = tmp_path_factory.mktemp("service") / "service.json"
    done = subprocess.run(
        [sys.executable, os.path.join(BENCH, "service.py"), "--build", BUILD, "--only", "hit,tls,waiting,workers",
         "--rounds", "1", "--seconds", "0.3", "--connections", "1,2", "--waiting", "50", "--workers", "1,2",
         "--worker-rounds", "1", "--report-only", "--json", str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return path


def test_the_page_says_what_was_measured_and_how(measured: pathlib.Path) -> None:
    done = subprocess.run([sys.executable, os.path.join(BENCH, "service_document.py"), str(measured)],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--only hit,tls,waiting,workers" in done.stdout
    for begin in ("| hit, ", "| hit by TLS, ", "| waiting | 50 clients | memory a client", "| 2 | "):
        assert any(line.startswith(begin) for line in done.stdout.splitlines()), begin
    assert "Attackers" not in done.stdout, "what was not measured has no table"


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def page(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, os.path.join(BENCH, "service_document.py"), *map(str, arguments)],
                          capture_output=True, text=True)


def made_up(measured: pathlib.Path, tmp_path: pathlib.Path,
            change: Callable[[list[dict[str, Any]]], None]) -> pathlib.Path:
    """Files whose rows `change` has had."""
    with open(measured) as file:
        result = json.load(file)
    change(result["rows"])
    path = tmp_path / "made_up.json"
    path.write_text(json.dumps(result))
    return path


@pytest.mark.parametrize("factor, verdict", [(1.0, "yes"), (0.86, "yes"), (0.84, "no")])
def test_each_row_says_whether_it_holds(measured: pathlib.Path, tmp_path: pathlib.Path, factor: float,
                                        verdict: str) -> None:
    def change(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            if row["row"] == "hit":
                row["rate"]["ratio"]["median"] = factor
                row["p50"]["ratio"]["median"] = 1.15

    lines = page(made_up(measured, tmp_path, change)).stdout.splitlines()
    head = next(cells(line) for line in lines if line.startswith("| row |"))
    assert head[-1] == "holds"
    rows = [cells(line) for line in lines if line.startswith("| hit, ")]
    assert rows and all(len(row) == len(head) for row in rows)
    assert {row[-1] for row in rows if row[2] == "rate"} == {verdict}
    assert {row[-1] for row in rows if row[2] == "p50"} == {"yes"}
    assert {row[-1] for row in rows if row[2] == "processor"} == {""}, "it has no limit"


def test_limits_are_what_they_say() -> None:
    sys.path.insert(0, BENCH)
    try:
        import service_limits
    finally:
        sys.path.remove(BENCH)
    ratio: Callable[[float], dict[str, Any]] = lambda value: {"ratio": {"median": value}}
    call: dict[str, Any] = {"row": "miss", "connections": 256, "rate": ratio(0.85), "p50": ratio(1.15),
                            "p99": ratio(1.5)}
    waiting: dict[str, Any] = {"row": "waiting", "clients": 1000, "kilnd": {"threads_idle": 9, "threads_waiting": 13},
                               "bytes_ratio": 1.3}
    many: dict[str, Any] = {"row": "manifests", "manifests": 10, "open_seconds": 2.0, "ratio": {"median": 1.2},
                            "spinner": {"p99": {"median": 10}},
                            "evicting": {"p99": {"median": 20}, "seconds": 120, "disk_peak": 1.1}}
    objects: dict[str, Any] = {"row": "objects", "connections": 1, "bytes_rate": ratio(0.85)}
    assert service_limits.broken([call, waiting, many, objects]) == []
    for row, change, what in (
            (call, {"rate": ratio(0.84)}, "rate"), (call, {"p50": ratio(1.16)}, "p50"),
            (call, {"p99": ratio(1.51)}, "p99"), (objects, {"bytes_rate": ratio(0.84)}, "bytes_rate"),
            (waiting, {"bytes_ratio": 1.31}, "bytes_ratio"),
            (waiting, {"kilnd": {"threads_idle": 9, "threads_waiting": 14}}, "threads_waiting"),
            (many, {"open_seconds": 2.1}, "open_seconds"), (many, {"ratio": {"median": 1.21}}, "p99"),
            (many, {"evicting": {"p99": {"median": 21}, "seconds": 120, "disk_peak": 1.1}}, "evicting"),
            (many, {"evicting": {"p99": {"median": 20}, "seconds": 121, "disk_peak": 1.1}}, "evicting"),
            (many, {"evicting": {"p99": {"median": 20}, "seconds": 120, "disk_peak": 1.2}}, "evicting")):
        told = service_limits.broken([{**row, **change}])
        assert len(told) == 1 and told[0].endswith(f": {what}") and told[0].startswith(row["row"]), told
    assert not service_limits.verdicts({**call, "connections": 64, "p99": ratio(9)}).get("p99", False)
    assert len(service_limits.broken([{"row": "attackers", "kind": "pings", "holds": False}])) == 1
    assert service_limits.broken([{"row": "overload", "holds": {"right": True, "shares": False}}]) == [
        "overload: shares"]


def test_what_does_not_hold_ends_the_command_with_one() -> None:
    """Under a limit that nothing holds."""
    if not os.access(os.path.join(BUILD, "bin", "service_load"), os.X_OK):
        pytest.skip("no build with tests")
    code = ("import sys; sys.path.insert(0, sys.argv[1]); import service, service_limits; service_limits.P50_MAX = 0; "
            "sys.exit(service.main(sys.argv[2:]))")
    command = [sys.executable, "-c", code, BENCH, "--build", BUILD, "--only", "hit", "--rounds", "1", "--seconds",
               "0.2", "--connections", "1"]
    judged = subprocess.run(command, capture_output=True, text=True)
    assert judged.returncode == 1 and "does not hold: hit, 1 connections: p50" in judged.stderr, judged.stderr
    reported = subprocess.run([*command, "--report-only"], capture_output=True, text=True)
    assert reported.returncode == 0, reported.stderr


def test_some_attackers_make_no_page_unless_told(measured: pathlib.Path, tmp_path: pathlib.Path) -> None:
    median = {"median": 1, "least": 1, "largest": 1}
    one = {"row": "attackers", "limits": True, "failed": 0, "retried": 0, "calls": 1, "growth": 0, "descriptors": 1,
           "left": 0, "holds": True, "attack": {"done": median, "closed": 0, "refused": 0, "share": median},
           "p99": {"attacked": median, "control": median, "ratio": median}}
    kinds = ("messages", "silent", "dribble", "resets", "pings")
    some = made_up(measured, tmp_path, lambda rows: rows.extend(dict(one, kind=kind) for kind in kinds[:2]))
    refused = page(some)
    assert refused.returncode == 1 and "dribble, resets, pings" in refused.stderr and not refused.stdout
    assert page("--partial", some).returncode == 0
    every = made_up(measured, tmp_path, lambda rows: rows.extend(dict(one, kind=kind) for kind in kinds))
    assert page(every).returncode == 0


def test_results_of_two_builds_make_no_page(measured: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with open(measured) as file:
        other = json.load(file)
    other["facts"]["kiln"] += " of another build"
    (tmp_path / "other.json").write_text(json.dumps(other))
    done = subprocess.run([sys.executable, os.path.join(BENCH, "service_document.py"), str(measured),
                           str(tmp_path / "other.json")], capture_output=True, text=True)
    assert done.returncode == 1
    assert "several builds" in done.stderr


def test_the_plots_are_drawn(measured: pathlib.Path, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("matplotlib")
    done = subprocess.run([sys.executable, os.path.join(BENCH, "service_plot.py"), str(measured), str(tmp_path)],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name in ("hits", "compiles"):
        assert (tmp_path / f"service-{name}.png").read_bytes().startswith(b"\x89PNG")
    assert not (tmp_path / "service-open.png").exists(), "no manifests were measured"
