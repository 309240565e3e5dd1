"""The folders know each other one way (tests/arrows.py), and the check sees what goes against that."""
import os
import pathlib
import shutil
import sys

import pytest

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ROOT = os.path.dirname(TESTS)
sys.path.insert(0, TESTS)
import arrows  # noqa: E402 - the path comes first

TABLE = arrows.read_table(arrows.ARROWS)


def test_the_sources_keep_to_the_table() -> None:
    assert arrows.faults(ROOT, TABLE) == []


@pytest.fixture
def copy(tmp_path: pathlib.Path) -> pathlib.Path:
    for top in arrows.ROOTS:
        shutil.copytree(os.path.join(ROOT, top), tmp_path / top,
                        ignore=lambda folder, names: [name for name in names if "." in name
                                                      and not name.endswith((".h", ".cc"))])
    assert arrows.faults(tmp_path, TABLE) == []
    return tmp_path


@pytest.mark.parametrize("path, included, said", [
    ("cache/artifact_store.h", "server/observe/stats.h", "cache may not include from server/observe"),
    ("cache/artifact_store.cc", "cache/chain/store_config.h", "cache may not include from cache/chain"),
    ("server/pool/zygote.cc", "server/flight/coordinator.h", "server/pool may not include from server/flight"),
    ("compiler/worker/worker_main.cc", "server/pool/zygote.h", "worker_main.cc may not include from server/pool"),
    ("compiler/worker/frame.cc", "compiler/codegen/math.h", "compiler/worker may not include from compiler/codegen"),
    ("client/runtime/heap.cc", "kiln/client.h", "client/runtime may not include from client/include/kiln"),
    ("server/rpc/compile_service.cc", "tests/fault/test_daemon.h", "server/rpc may not include from tests/fault"),
])
def test_an_include_against_the_arrows_is_named(copy: pathlib.Path, path: str, included: str, said: str) -> None:
    with open(copy / path, "a", encoding="utf-8") as file:
        file.write(f'#include "{included}"\n')
    found, = arrows.faults(copy, TABLE)
    assert found.startswith(f"{path}:") and said in found


def test_the_compiler_reads_no_hints() -> None:
    assert arrows.hint_faults(ROOT) == []


@pytest.mark.parametrize("line", ["int64_t n = request.hints().values(0);", "int64_t Widest(const v1::Hints& sizes);"])
def test_who_reads_hints_is_named(copy: pathlib.Path, line: str) -> None:
    with open(copy / "compiler/schedule/fuse.cc", "a", encoding="utf-8") as file:
        file.write(line + "\n")
    found, = arrows.hint_faults(copy)
    assert found.startswith("compiler/schedule/fuse.cc:") and "reads hints" in found


def test_the_modules_import_each_other_one_way() -> None:
    modules = arrows.read_modules(ROOT)
    assert {"backend", "compiled", "records"} <= modules["__init__"] | modules["backend"]
    assert arrows.module_faults(ROOT) == []


@pytest.mark.parametrize("line", ["from . import fallback", "from .fallback import policy", "from kiln import fallback",
                                  "from kiln.fallback import policy", "def late():\n    from . import fallback"])
def test_a_circle_of_modules_is_named(tmp_path: pathlib.Path, line: str) -> None:
    package = tmp_path / arrows.PACKAGE
    shutil.copytree(os.path.join(ROOT, arrows.PACKAGE), package)
    with open(package / "records.py", "a", encoding="utf-8") as file:
        file.write(line + "\n")
    found, = arrows.module_faults(tmp_path)
    assert "fallback -> records -> fallback" in found or "records -> fallback -> records" in found


def test_a_folder_without_a_row_is_named(copy: pathlib.Path) -> None:
    (copy / "server" / "new").mkdir()
    (copy / "server" / "new" / "thing.h").write_text("#pragma once\n")
    found, = arrows.faults(copy, TABLE)
    assert "no row for server/new" in found


def test_a_circle_and_an_arrow_that_nothing_follows_are_named(copy: pathlib.Path) -> None:
    table = {**TABLE, "server/tune": TABLE["server/tune"] | {"server/build"}}
    assert arrows.faults(copy, table) == ["the table has a circle: server/tune -> server/build -> server/tune",
                                          "tests/arrows.py: nothing in server/tune includes from server/build"]
