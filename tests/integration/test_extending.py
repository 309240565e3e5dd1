"""docs/extending.md's toys apply and touch what it says (tests/extending.py); with --full they are built and tested."""
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ROOT = os.path.dirname(TESTS)
sys.path.insert(0, TESTS)
import arrows  # noqa: E402 - the path comes first
import class_sizes  # noqa: E402
import extending  # noqa: E402
import limits  # noqa: E402
import machine_numbers  # noqa: E402


@pytest.fixture
def copy(tmp_path: pathlib.Path) -> pathlib.Path:
    tree = tmp_path / "tree"
    tree.mkdir()
    extending.copy_sources(ROOT, tree)
    return tree


def test_the_patches_apply_and_touch_what_the_document_says(copy: pathlib.Path) -> None:
    assert extending.faults(ROOT, copy) == []
    # What they make keeps to the rules that lint asks of the tree.
    assert arrows.faults(copy, arrows.read_table(arrows.ARROWS)) == []
    assert class_sizes.faults(copy, class_sizes.LARGER) == []
    assert limits.faults(copy, limits.OTHER) == []
    assert machine_numbers.faults(copy, machine_numbers.OTHER) == []


def test_a_tree_without_git_is_copied_too(copy: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (copy / "build").mkdir()
    (copy / "build" / "large").write_text("")
    again = tmp_path / "again"
    extending.copy_sources(copy, again)
    assert not (again / "build").exists()
    assert extending.faults(copy, again) == []


def test_a_stale_patch_is_named(copy: pathlib.Path) -> None:
    place = copy / "compiler" / "passes" / "pipeline.cc"
    text = place.read_text()
    assert 'runner.Run("algebra", SimplifyAlgebra)' in text
    place.write_text(text.replace('runner.Run("algebra", SimplifyAlgebra)', 'runner.Run("algebra", Simplify)'))
    found, = extending.faults(ROOT, copy)
    assert found.startswith("pass.patch does not apply: ") and "pipeline.cc" in found


@pytest.mark.parametrize("old, new, said", [
    ("(extending/pass.patch), 1 file.", "(extending/pass.patch), 2 files.",
     "pass.patch touches 1 files (compiler/passes/drop_repeated); its section says 2"),
    ("| `client/runtime/kernels.cc` | a `KernelRunner` that runs its objects |\n", "",
     "backend.patch touches client/runtime/kernels.cc, which its section does not name"),
    ("| `passes/pipeline.cc` | a line", "| `passes/decompose.cc` | a line",
     "pass.patch touches nothing of `passes/decompose.cc`, which its section names"),
    ("As a patch: [store.patch](extending/store.patch), 3 files.\n", "",
     "store.patch is in one of docs/extending.md and docs/extending alone"),
])
def test_a_document_that_says_something_else_is_named(copy: pathlib.Path, old: str, new: str, said: str) -> None:
    page = copy / "docs" / "extending.md"
    assert page.read_text().count(old) == 1
    page.write_text(page.read_text().replace(old, new))
    assert said in extending.faults(copy, copy)


def test_too_many_files_and_long_lines_are_named() -> None:
    rows = [("`schedule/NAME.h`, `NAME.cc`", "what"), ("`schedule/list.cc`", "a line"), ("`tests/unit/a.cc`", "cases")]
    added = {"compiler/schedule/new.h": 9, "compiler/schedule/new.cc": 9, "compiler/schedule/list.cc": 1,
             "compiler/schedule/CMakeLists.txt": 1, "tests/unit/a.cc": 9}
    assert list(extending.toy_faults("schedule", 1, rows, added)) == []
    added["compiler/schedule/list.cc"] = extending.LINES_MAX + 1
    found, = extending.toy_faults("schedule", 1, rows, added)
    assert "adds 5 lines to compiler/schedule/list.cc" in found
    added |= {"compiler/schedule/list.cc": 1, "compiler/schedule/other.cc": 1}
    found, = extending.toy_faults("schedule", 1, rows, added)
    assert "touches 2 files" in found
    assert "fusion_rule.patch may touch 1 files" in list(extending.toy_faults("fusion_rule", 2, rows, added))
    del added["tests/unit/a.cc"]
    assert "schedule.patch has no test" in list(extending.toy_faults("schedule", 2, rows, added))


@pytest.mark.full
def test_all_of_them_are_built_and_their_tests_pass() -> None:
    """In build/extending: the next run builds what has changed."""
    place = os.path.join(os.environ.get("KILN_BUILD", os.path.join(ROOT, "build")), "extending")
    fresh, tree = os.path.join(place, "fresh"), os.path.join(place, "tree")
    shutil.rmtree(fresh, ignore_errors=True)
    os.makedirs(fresh)
    extending.copy_sources(ROOT, fresh)
    assert extending.faults(ROOT, fresh) == []
    replace_changed(fresh, tree)
    build = os.path.join(tree, "build")
    run("cmake", "-S", tree, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
        f"-DPython3_EXECUTABLE={sys.executable}")
    programs = programs_of_tests()
    jobs = os.environ.get("KILN_JOBS", str(os.cpu_count()))
    run("ninja", "-C", build, "-j", jobs, "kiln_wheel", *programs)
    for program in programs:
        run(os.path.join(build, "bin", program), "--gtest_filter=" + FILTERS.get(program, "*"))
    packages = os.path.join(place, "packages")
    shutil.rmtree(packages, ignore_errors=True)
    run("cmake", "--install", build, "--component", "wheel", "--prefix", packages)
    shutil.copytree(os.path.join(tree, "client", "python", "kiln"), os.path.join(packages, "kiln"), dirs_exist_ok=True)
    integration = os.path.join(tree, "tests", "integration")
    run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", os.path.join(integration, "test_uint16.py"),
        cwd=tree, PYTHONPATH=packages, KILN_BUILD=build)
    run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", os.path.join(integration, "test_operators.py"),
        "-k", "entr or spherical_bessel", cwd=tree, PYTHONPATH=packages, KILN_BUILD=build)


# Suites that find a toy by its row; and what else asks about rows.
FILTERS = {"backend_conformance_test": "*PointwiseOperator*:*/loops", "store_test": "*size_limit*", "wire_test": "*",
           "auth_test": "RoleTable.*", "passes_test": "*"}


def programs_of_tests() -> list[str]:
    """Of the toys' own tests, then of FILTERS."""
    own = []
    for name in sorted(os.listdir(os.path.join(ROOT, extending.PATCHES))):
        with open(os.path.join(ROOT, extending.PATCHES, name), encoding="utf-8") as patch:
            own += re.findall(r"^\+kiln_test\((\w+) ", patch.read(), re.MULTILINE)
    assert len(own) >= 8
    return [*own, *FILTERS]


def replace_changed(fresh: str, tree: str) -> None:
    """Makes `tree`, but for its build, what `fresh` is: an equal file keeps its time, and is not compiled again."""
    paths = {os.path.relpath(os.path.join(folder, name), fresh)
             for folder, _, names in os.walk(fresh) for name in names}
    for folder, folders, names in os.walk(tree):
        folders[:] = [name for name in folders if os.path.join(folder, name) != os.path.join(tree, "build")]
        for name in names:
            path = os.path.join(folder, name)
            if os.path.relpath(path, tree) not in paths:
                os.remove(path)
    for path in paths:
        source, target = os.path.join(fresh, path), os.path.join(tree, path)
        with open(source, "rb") as file:
            text = file.read()
        if os.path.exists(target):
            with open(target, "rb") as file:
                if file.read() == text:
                    continue
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copy(source, target)


def run(*command: str, cwd: str | None = None, **environment: str) -> None:
    done = subprocess.run(command, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
