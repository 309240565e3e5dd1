"""tests/bench/pages.py: the pages of docs/benchmarks are what the JSON beside them gives; one that is not is named."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
from typing import Any

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BENCH = os.path.join(ROOT, "tests", "bench")
sys.path.insert(0, BENCH)
import facts  # noqa: E402
import pages  # noqa: E402
import scale  # noqa: E402


def run(documents: object, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, os.path.join(BENCH, "pages.py"), "--documents", str(documents), *arguments],
                          capture_output=True, text=True)


@pytest.fixture
def documents(tmp_path: pathlib.Path) -> pathlib.Path:
    """A copy of docs/benchmarks."""
    return pathlib.Path(shutil.copytree(pages.DOCUMENTS, tmp_path / "benchmarks"))


@pytest.mark.parametrize("name", pages.kept(pages.DOCUMENTS))
def test_a_page_is_what_its_files_give(name: str) -> None:
    assert not pages.stale([name], pages.DOCUMENTS)


def test_a_page_written_by_hand_is_named_and_printed_again(documents: pathlib.Path) -> None:
    page = documents / "gpu.md"
    printed = page.read_text()
    page.write_text(printed.replace("| vit |", "| ViT |", 1))
    checked = run(documents, "--check")
    assert checked.returncode == 1
    assert checked.stderr == "gpu.md is not what its files give: run tests/bench/pages.py gpu\n"
    assert run(documents, "gpu").returncode == 0
    assert page.read_text() == printed


def test_a_page_without_files_says_where_they_go(documents: pathlib.Path) -> None:
    shutil.rmtree(documents / "data" / "tier")
    done = run(documents, "tier")
    assert done.returncode == 2
    assert "data/tier has no JSON" in done.stderr


def test_an_unknown_page_is_refused() -> None:
    done = run(pages.DOCUMENTS, "tires")
    assert done.returncode == 2
    assert "no page tires" in done.stderr


def test_the_command_has_no_place_of_a_file() -> None:
    assert facts.without_places(["--rounds", "3", "--json", "/tmp/a", "--kilnd", "b", "--full"]) == [
        "--rounds", "3", "--full"]


def graph(operators: int, seconds: float) -> dict[str, Any]:
    return {"graph": f"of {operators}", "operators": operators, "seconds": seconds, "plan_seconds": seconds / 4}


def test_graphs_are_counted_by_size_and_what_failed_is_told() -> None:
    of = {"date": "2026-01-02", "processor": "P", "processors": 2, "kiln": "kilnd 1", "torch": "2", "command": "c"}
    rows = [graph(10, 0.1), graph(100, 0.2), graph(400, 0.4), graph(1600, 0.8),
            {"graph": "a", "operators": 7, "seconds": 1.0, "fallback": "why"}, {"graph": "b", "unread": "why"}]
    page = scale.page([json.loads(json.dumps({"facts": of, "rows": rows}))])
    assert "6 captured graphs, 2 fallbacks or not read" in page
    assert "| 100–499 | 2 | 75, 100 | 300, 400 |" in page
    assert "grow as operators^0.50 over" in page  # twice the seconds for four times the operators
    assert "of 1600 with 1600 operators" in page.replace("\n", " ")
