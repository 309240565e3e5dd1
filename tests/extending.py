#!/usr/bin/env python3
"""The toys of docs/extending.md: do the patches apply, each and all of them, and touch what the document says?

tests/integration/test_extending.py asks `faults`, and with --full builds and tests the tree that has them all. By hand:
  tests/extending.py              says what is wrong
  tests/extending.py DIRECTORY    makes a copy of the sources there, with all patches applied
"""
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator

DOCUMENT = os.path.join("docs", "extending.md")
PATCHES = os.path.join("docs", "extending")
TOY = re.compile(r"^As a patch: \[(\w+)\.patch\]\(extending/\1\.patch\), (\d+) files?\.$", re.MULTILINE)
ROW = re.compile(r"^\| (`.*?) \| (.*) \|$", re.MULTILINE)
TOPS = ("cache", "client", "compiler", "deploy", "docs", "proto", "server", "tests")
LINES_MAX = 4  # of a list that takes "a line": an include and the reason for the place are lines too
# The most files that a kind of extension may take.
FILES_MAX = {"loop_operator": 3, "fusion_rule": 1, "schedule": 3, "dtype": 4}


def copy_sources(root: str | os.PathLike[str], to: str | os.PathLike[str]) -> None:
    """What git has of the tree, as it lies there; of a tree without git, all but what is built."""
    listed = subprocess.run(["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                            capture_output=True, text=True, check=False)
    if listed.returncode != 0 or not os.path.exists(os.path.join(root, ".git")):
        shutil.copytree(root, to, symlinks=True, dirs_exist_ok=True,
                        ignore=lambda folder, names: [name for name in names if folder == str(root)
                                                      and (name in (".git", ".venv") or name.startswith("build"))])
        return
    for path in filter(None, listed.stdout.split("\0")):
        source, target = os.path.join(root, path), os.path.join(to, path)
        if os.path.lexists(source):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)


def git_apply(tree: str | os.PathLike[str], patch: str, *options: str) -> str:
    """What git says against it. Outside of any repository, so that every path is the tree's own."""
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": os.path.dirname(os.path.abspath(tree))}
    done = subprocess.run(["git", "apply", *options, patch], cwd=tree, env=environment, capture_output=True, text=True,
                          check=False)
    return (done.stderr or done.stdout).strip() if done.returncode != 0 else ""


def touched(patch: str) -> dict[str, int]:
    """{file: lines that the patch adds to it}."""
    done = subprocess.run(["git", "apply", "--numstat", patch], cwd="/", capture_output=True, text=True, check=True)
    rows = (line.split("\t") for line in done.stdout.splitlines())
    return {path: int(added) for added, _, path in rows}


def sections(text: str) -> Iterator[tuple[str, int, list[tuple[str, str]]]]:
    """(name, files that it may touch, [(places, what)]) of each section with a patch."""
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        tables = re.split(TOY, section)  # a section may have several: each is of the rows before it
        for rows, name, files in zip(tables[::3], tables[1::3], tables[2::3], strict=False):
            yield name, int(files), ROW.findall(rows)


def patterns(places: str) -> list[re.Pattern[str]]:
    """Of a row's first cell: a path that has no folder is in the last one's, `.cc` beside it is of its name."""
    found: list[str] = []
    for place in re.findall(r"`([^`]+)`", places):
        if place.startswith("."):
            place = os.path.splitext(found[-1])[0] + place
        elif "/" not in place:
            place = os.path.join(os.path.dirname(found[-1]), place)
        elif place.split("/")[0] not in TOPS:
            place = os.path.join("compiler", place)
        found.append(place)
    return [re.compile(re.sub(r"[A-Z]{3,}", "[^/]+", re.escape(place).replace(r"\*", "[^/]*"))) for place in found]


def is_counted(path: str) -> bool:
    return path.split("/")[0] not in ("tests", "docs") and os.path.basename(path) != "CMakeLists.txt"


def toy_faults(name: str, files_max: int, rows: list[tuple[str, str]], added: dict[str, int]) -> Iterator[str]:
    """What of a patch is otherwise than its section says. `added`: as `touched` gives it."""
    files = set()
    named = [(patterns(places), what) for places, what in rows]
    for path in filter(is_counted, added):
        # One that is named by its own name is not the new file beside it.
        matching = [(patterns_of_row, what) for patterns_of_row, what in named
                    if any(pattern.fullmatch(path) for pattern in patterns_of_row)]
        matching.sort(key=lambda row: all(pattern.pattern != re.escape(path) for pattern in row[0]))
        if not matching:
            yield f"{name}.patch touches {path}, which its section does not name"
        elif matching[0][1].startswith("a line"):
            if added[path] > LINES_MAX:
                yield f"{name}.patch adds {added[path]} lines to {path}, where its section says a line"
        else:
            files.add(os.path.splitext(path)[0])
    if len(files) != files_max:
        yield f"{name}.patch touches {len(files)} files ({', '.join(sorted(files))}); its section says {files_max}"
    if files_max > FILES_MAX.get(name, files_max):
        yield f"{name}.patch may touch {FILES_MAX[name]} files"
    for places, what in rows:
        if places.startswith("`tests/") or what.startswith("if "):
            continue
        if not any(pattern.fullmatch(path) for pattern in patterns(places) for path in added):
            yield f"{name}.patch touches nothing of {places}, which its section names"
    if not any(path.startswith("tests/") for path in added):
        yield f"{name}.patch has no test"


def faults(root: str | os.PathLike[str], tree: str | os.PathLike[str]) -> list[str]:
    """What is wrong, a line each. `tree`: a copy of the sources, which has all patches afterwards."""
    with open(os.path.join(root, DOCUMENT), encoding="utf-8") as file:
        toys = list(sections(file.read()))
    patches = {name: os.path.join(os.path.abspath(root), PATCHES, f"{name}.patch") for name, _, _ in toys}
    stray = {path.removesuffix(".patch") for path in os.listdir(os.path.join(root, PATCHES))} ^ patches.keys()
    found = [f"{name}.patch is in one of {DOCUMENT} and {PATCHES} alone" for name in sorted(stray)]
    toys = [toy for toy in toys if os.path.exists(patches[toy[0]])]
    for name, files_max, rows in toys:
        if said := git_apply(tree, patches[name], "--check"):
            found.append(f"{name}.patch does not apply: {said}")
        found += toy_faults(name, files_max, rows, touched(patches[name]))
    if not found:
        for name, _, _ in toys:
            if said := git_apply(tree, patches[name]):
                found.append(f"{name}.patch does not apply after those before it: {said}")
    return found


def main(arguments: list[str]) -> int:
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if not arguments:
        import tempfile
        with tempfile.TemporaryDirectory() as tree:
            copy_sources(root, tree)
            found = faults(root, tree)
    else:
        os.makedirs(arguments[0])
        copy_sources(root, arguments[0])
        found = faults(root, arguments[0])
    print("\n".join(found) or "extending: the patches apply, and touch what the document says")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
