"""deploy/demo_cluster.sh: a job that one machine has compiled compiles nothing on the next; and its control."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import pytest

DEPLOY = pathlib.Path(__file__).resolve().parents[2] / "deploy"
DEMO, REPORT = DEPLOY / "demo_cluster.sh", DEPLOY / "demo_cluster_report.py"
FIRST, LATER, KEPT, OTHER, FARM = ("machine-1, first process", "machine-1, later process",
                                   "machine-1, with AOTAutograd's cache", "machine-2, first process",
                                   "machine-2, by the hub's kilnd")


@pytest.fixture
def temporary() -> Iterator[pathlib.Path]:
    """A TMPDIR of the demonstration's own; in /tmp because a socket's path is short."""
    with tempfile.TemporaryDirectory(prefix="kd") as folder:
        yield pathlib.Path(folder)


def start(temporary: pathlib.Path, *words: str) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KILN_")}
    return subprocess.Popen([DEMO, *words], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            env={**environment, "KILN_PYTHON": sys.executable, "TMPDIR": str(temporary)},
                            # What a shell runs in the background ignores it, and so would all it starts.
                            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))


def finished(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """(exit code, output, errors); a host that can't play it skips the test with the script's reason."""
    output, errors = process.communicate(timeout=600)
    if process.returncode == 3:
        pytest.skip(errors.strip())
    return process.returncode, output, errors


def names_left(temporary: pathlib.Path) -> list[object]:
    """Processes and files of the demonstration."""
    found: list[object] = [*temporary.iterdir()]
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_text(errors="replace").replace("\0", " ")
        except OSError:  # it has ended
            continue
        found += [words] if str(temporary) in words else []
    return found


def is_serving(temporary: pathlib.Path) -> bool:
    return any("kilnd --config" in str(name) for name in names_left(temporary))


@pytest.mark.parametrize("options", [[], pytest.param(["--without-tier"], marks=pytest.mark.full)])
def test_what_the_next_machine_compiles(temporary: pathlib.Path, options: list[str], tmp_path: pathlib.Path) -> None:
    code, output, errors = finished(start(temporary, *options, "--json", str(tmp_path / "rows.json")))
    assert code == 0, output + errors
    counts = {row["name"]: row["counts"] for row in json.loads((tmp_path / "rows.json").read_text())["rows"]}
    compiled = counts[FIRST]["compiles"]
    assert compiled > 0 and counts[FIRST]["graphs_uploaded"] == compiled
    for name in (LATER, KEPT):
        assert counts[name]["compiles"] == 0 and counts[name]["hits"] == counts[name]["lookups"]
    for name in (OTHER, FARM):
        assert counts[name]["compiles"] == counts[name]["graphs_uploaded"] == (compiled if options else 0)
        assert counts[name]["tier_hits"] == (0 if options else compiled)
    assert names_left(temporary) == []


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_nothing_stays_however_it_ends(temporary: pathlib.Path, number: int, code: int) -> None:
    process = start(temporary)
    deadline = time.time() + 60
    while process.poll() is None and not is_serving(temporary):
        assert time.time() < deadline
        time.sleep(0.2)
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    if process.returncode == 3:
        pytest.skip(errors.strip())
    assert process.returncode == code, output + errors
    if number == signal.SIGKILL:  # the kernel ends the processes; an empty directory stays
        folder, = temporary.iterdir()
        while [name for name in names_left(temporary) if name != folder]:
            assert time.time() < deadline
            time.sleep(0.1)
        folder.rmdir()
    assert names_left(temporary) == []


@pytest.mark.parametrize("words, code, told", [
    (["--help"], 0, "--without-tier  the control"),
    (["--fast"], 2, '"--fast" is no option; --help lists them'),
    (["--rounds", "no"], 2, "--rounds takes a number from 1 to 99"),
    (["--rounds"], 2, "--rounds takes a number from 1 to 99"),
])
def test_its_options(temporary: pathlib.Path, words: list[str], code: int, told: str) -> None:
    process = start(temporary, *words)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == code and told in output + errors
    assert names_left(temporary) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_is_told_what_it_takes(temporary: pathlib.Path) -> None:
    ran = subprocess.run(["setpriv", "--reuid=65534", "--clear-groups", "bash", "-s"], input=DEMO.read_text(),
                         text=True, capture_output=True, timeout=60, cwd="/")
    assert ran.returncode == 3 and "namespaces and networks take root: sudo" in ran.stderr, ran.stderr


GOOD = {"lookups": 4, "hits": 0, "compiles": 0, "graphs_uploaded": 0, "fetched_objects": 9}


def report(folder: pathlib.Path, changes: dict[str, Any], *options: str,
           rounds: int = 1) -> subprocess.CompletedProcess[str]:
    """What the report says of processes that are as promised but for `changes`: {process: {count: number}}."""
    in_rounds = [f"{kind}, {number}" for kind in (LATER, KEPT, OTHER) for number in range(1, rounds + 1)]
    for name in (FIRST, *in_rounds, FARM):
        counts = {**GOOD, **({"compiles": 4, "graphs_uploaded": 4} if name == FIRST else {}), **changes.get(name, {})}
        losses = counts.pop("losses", [8.0, 7.5])
        start = counts.pop("first_step_s", 1.0)
        (folder / f"{name}.job").write_text(json.dumps({"first_step_s": start, "losses": losses}))
        for end, stats in (("before", dict.fromkeys(GOOD, 0)), ("after", counts)):
            (folder / f"{name}.{end}.stats").write_text(json.dumps(stats))
            (folder / f"{name}.{end}.status").write_text("{}")
    return subprocess.run([sys.executable, REPORT, *options, folder], text=True, capture_output=True, timeout=60)


@pytest.mark.parametrize("changes, options, problem", [
    ({}, [], None),
    ({FIRST: {"compiles": 0, "graphs_uploaded": 0}}, [], "so that this shows nothing"),
    ({f"{LATER}, 1": {"compiles": 1}}, [], f"{LATER}: it compiled 1 programs again"),
    ({f"{KEPT}, 1": {"compiles": 1}}, [], f"{KEPT}: it compiled 1 programs again"),
    ({f"{OTHER}, 1": {"compiles": 1}}, [], f"{OTHER}: compiled 1, not 0"),
    ({FARM: {"graphs_uploaded": 2}}, [], f"{FARM}: uploaded 2, not 0"),
    ({f"{OTHER}, 1": {"losses": [8.0, 7.6]}}, [], "the losses of the processes differ"),
    ({}, ["--without-tier"], f"{OTHER}: compiled 0, not 4"),
])
def test_what_is_not_as_promised_is_a_problem(tmp_path: pathlib.Path, changes: dict[str, Any], options: list[str],
                                              problem: str | None) -> None:
    ran = report(tmp_path, changes, *options)
    assert (ran.returncode == 0) == (problem is None), ran.stderr
    assert (problem or "") in ran.stderr and bool(problem) == ("PROBLEM" in ran.stderr)


def slow(*seconds: float) -> dict[str, Any]:
    return {f"{OTHER}, {number}": {"first_step_s": second} for number, second in enumerate(seconds, 1)}


@pytest.mark.parametrize("changes, options, rounds, problem", [
    (slow(1.1, 1.1, 1.1, 1.1, 1.1), [], 5, False),
    (slow(1.12, 1.12, 1.12, 1.0, 1.0), [], 5, True),
    (slow(9.0, 9.0, 1.0, 1.0, 1.0), [], 5, False),  # of medians
    (slow(2.0, 2.0, 2.0, 2.0), [], 4, False),  # too few to judge by
    (slow(2.0, 2.0, 2.0, 2.0, 2.0), ["--without-tier"], 5, False),  # it compiles, which is the control's point
])
def test_a_slow_start_is_a_problem(tmp_path: pathlib.Path, changes: dict[str, Any], options: list[str], rounds: int,
                                   problem: bool) -> None:
    ran = report(tmp_path, changes, *options, rounds=rounds)
    assert (f"{OTHER}: its start is" in ran.stderr) == problem, ran.stderr
    assert options or (ran.returncode == 0) != problem, ran.stderr


def test_a_start_with_aotautograds_cache_is_printed_beside(tmp_path: pathlib.Path) -> None:
    ran = report(tmp_path, {f"{KEPT}, 1": {"first_step_s": 0.5}})
    assert ran.returncode == 0 and KEPT in ran.stdout, ran.stderr
    assert "1.00 times that of a later process" in ran.stdout and "2.00 times that of one with it" in ran.stdout
