"""The service's benchmark runs, and its page has a row of each table that was measured."""
import json
import os
import subprocess
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BENCH = os.path.join(ROOT, "tests", "bench")
BUILD = os.environ.get("KILN_BUILD", os.path.join(ROOT, "build"))


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    if not os.access(os.path.join(BUILD, "bin", "service_load"), os.X_OK):
        pytest.skip("no build with tests")
    path = tmp_path_factory.mktemp("service") / "service.json"
    done = subprocess.run(
        [sys.executable, os.path.join(BENCH, "service.py"), "--build", BUILD, "--only", "hit,waiting,workers",
         "--rounds", "1", "--seconds", "0.3", "--connections", "1,2", "--waiting", "50", "--workers", "1,2",
         "--worker-rounds", "1", "--json", str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return path


def test_the_page_says_what_was_measured_and_how(measured):
    done = subprocess.run([sys.executable, os.path.join(BENCH, "service_document.py"), str(measured)],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--only hit,waiting,workers" in done.stdout
    for begin in ("| hit, ", "| waiting | 50 clients | memory a client", "| 2 | "):
        assert any(line.startswith(begin) for line in done.stdout.splitlines()), begin
    assert "Attackers" not in done.stdout, "what was not measured has no table"


def test_results_of_two_builds_make_no_page(measured, tmp_path):
    with open(measured) as file:
        other = json.load(file)
    other["facts"]["kiln"] += " of another build"
    (tmp_path / "other.json").write_text(json.dumps(other))
    done = subprocess.run([sys.executable, os.path.join(BENCH, "service_document.py"), str(measured),
                           str(tmp_path / "other.json")], capture_output=True, text=True)
    assert done.returncode == 1
    assert "several builds" in done.stderr


def test_the_plots_are_drawn(measured, tmp_path):
    pytest.importorskip("matplotlib")
    done = subprocess.run([sys.executable, os.path.join(BENCH, "service_plot.py"), str(measured), str(tmp_path)],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name in ("hits", "compiles"):
        assert (tmp_path / f"service-{name}.png").read_bytes().startswith(b"\x89PNG")
    assert not (tmp_path / "service-open.png").exists(), "no manifests were measured"
