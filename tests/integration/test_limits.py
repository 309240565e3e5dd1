"""A tree's limits stand in one header (tests/limits.py), and the check sees one that stands elsewhere."""
import os
import pathlib
import sys
from collections.abc import Mapping

import pytest

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ROOT = os.path.dirname(TESTS)
sys.path.insert(0, TESTS)
import limits  # noqa: E402 - the path comes first


def test_no_limit_stands_elsewhere() -> None:
    assert limits.faults(ROOT, limits.OTHER) == []


def faults_of(root: pathlib.Path, file: str, text: str, other: Mapping[str, str] | None = None) -> list[str]:
    """What is wrong in a tree with this file alone."""
    path = root / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return limits.faults(root, other or {})


@pytest.mark.parametrize("text, name", [
    ("constexpr size_t kEntriesMax = 64;  // of a list\n", "kEntriesMax"),
    ("inline constexpr uint64_t kBytesMin = 1u << 20;\n", "kBytesMin"),
    ("class Table {\n  static constexpr int kRowsMax = 3;\n};\n", "kRowsMax"),
    ("void F() {\n  const int kTriesMax{4};\n}\n", "kTriesMax"),
    ("constexpr std::chrono::minutes kIdleMax(5);\n", "kIdleMax"),
    ("constexpr absl::Duration kTurnMax =\n    absl::Seconds(5);\n", "kTurnMax"),
    ("constexpr int kFew = 3, kDepthMax = 24;\n", "kDepthMax"),
    ("enum { kFirst, kRoundsMax = 8 };\n", "kRoundsMax"),
    ("template <class T>\nconstexpr size_t kLengthMax<T> = 8;\n", "kLengthMax"),
    ("constexpr int kSizesMax[2] = {1, 2};\n", "kSizesMax"),
    ("constexpr int kMaxDepth = 24;\n", "kMaxDepth"),
    ("constexpr int kMax = 24;\n", "kMax"),
])
@pytest.mark.parametrize("folder", ["cache/shared", "client/runtime", "compiler/graph", "server"])
def test_one_is_named(tmp_path: pathlib.Path, folder: str, text: str, name: str) -> None:
    found, = faults_of(tmp_path, f"{folder}/table.cc", text)
    assert found.startswith(f"{folder}/table.cc:") and f": {name} is a limit" in found


@pytest.mark.parametrize("file, text", [
    ("cache/cache_limits.h", "inline constexpr size_t kEntriesMax = 64;\n"),
    ("compiler/schedule/rows.cc", "constexpr uint32_t kRowsMax = 64;\n"),
    ("server/table.cc", "// constexpr int kRowsMax = 64;\nconstexpr char kName[] = \"kRowsMax = 3\";\n"),
    ("server/table.cc", "Table(size_t rows_max = kRowsMax);\nif (rows == kRowsMax) return;\nF(rows, kRowsMax);\n"),
    ("server/table.cc", "const int rows = F(kRowsMax);\nconst bool full = rows >= kRowsMax;\nkSizes[kRowsMax] = 3;\n"),
    ("server/table.cc", "constexpr absl::Duration kFirstPauseMin = absl::Seconds(1);\n"),
    ("server/table.cc", "constexpr char kMaximum[] = \"maximum\";\nconstexpr size_t kRowsMaxDefault = 8;\n"),
])
def test_other_things_are_not(tmp_path: pathlib.Path, file: str, text: str) -> None:
    assert faults_of(tmp_path, file, text) == []


def test_the_headers_know_nothing_else(tmp_path: pathlib.Path) -> None:
    assert faults_of(tmp_path, "server/server_limits.h", "#include <cstddef>\n#include <cstdint>\n") == []
    assert faults_of(tmp_path, "server/server_limits.h", '#include <cstddef>\n#include "absl/time/time.h"\n') == [
        'server/server_limits.h: it includes "absl/time/time.h"']


def test_an_exception_goes_when_nothing_needs_it(tmp_path: pathlib.Path) -> None:
    row, file = "server/table.cc: kRowsMax", "server/table.cc"
    assert faults_of(tmp_path, file, "constexpr int kRowsMax = 64;\n", {row: "a fact of tables"}) == []
    assert faults_of(tmp_path, file, "", {row: "a fact of tables"}) == [f"tests/limits.py: nothing is {row}"]
