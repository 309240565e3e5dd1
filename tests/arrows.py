#!/usr/bin/env python3
"""Which folder may include from which. Every arrow goes from what knows to what is known, and there is no circle.

tests/lint.sh and tests/integration/test_arrows.py ask `faults` about every #include of the sources. To add a folder is
to add its row; a row names what its folder includes from and no more. Python's modules need no rows: `module_faults`
says where their imports go round, those within a function and those for types alone included.
"""
import ast
import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping

# A row is a folder, without those below it, or a program's own file, which may know more than its folder. Everybody may
# know proto, and nobody a program's file.
ARROWS = """
compiler/support:
compiler/channel: compiler/support
compiler/graph: compiler/support
compiler/ir: compiler/graph compiler/support
compiler/target: compiler/ir compiler/support
compiler/frontend: compiler/graph compiler/support
compiler/library: compiler/graph compiler/target
compiler/passes: compiler/graph compiler/ir compiler/library compiler/support compiler/target
compiler/lower: compiler/graph compiler/ir compiler/library compiler/passes compiler/support compiler/target
compiler/schedule: compiler/graph compiler/ir compiler/lower compiler/support compiler/target
compiler/image: compiler/support
compiler/codegen: compiler/image compiler/ir compiler/schedule compiler/support compiler/target
compiler/artifact: compiler/codegen compiler/frontend compiler/graph compiler/ir compiler/library compiler/lower
  compiler/passes compiler/schedule compiler/support compiler/target
compiler/worker: compiler/support
compiler/worker/worker_main.cc: compiler/artifact compiler/codegen compiler/support compiler/target compiler/worker

cache: compiler/support
cache/engine: cache compiler/support
cache/checks: cache compiler/support
cache/budget: cache cache/checks compiler/support
cache/tiers: cache compiler/support
cache/bundle: cache cache/checks compiler/graph compiler/support
cache/shared: cache compiler/support
cache/chain: cache cache/budget cache/checks cache/engine cache/tiers compiler/support

server/upstream: compiler/channel compiler/support server
server/config: cache cache/shared compiler/support compiler/worker server server/upstream
server/observe: server
server/auth: compiler/support
server/listen: compiler/support server server/auth server/config
server/schedule: compiler/support server
server/pool: compiler/support compiler/worker server server/observe
server/tune: cache cache/shared compiler/graph compiler/support server server/observe server/pool
server/build: cache compiler/graph compiler/library compiler/support compiler/target server/tune
server/flight: cache cache/shared compiler/channel compiler/graph compiler/support server server/build server/observe
  server/pool server/schedule server/tune server/upstream
server/rpc: cache cache/bundle cache/shared compiler/graph compiler/ir compiler/support compiler/worker server
  server/auth server/build server/flight server/observe server/schedule server/tune server/upstream
server: compiler/support
server/main.cc: cache/chain cache/shared compiler/support compiler/worker server server/auth server/config
  server/flight server/listen
  server/observe server/pool server/rpc server/schedule server/tune server/upstream

client:
client/include/kiln:
client/src: client client/include/kiln compiler/channel compiler/graph compiler/support
client/runtime: client compiler/graph compiler/image compiler/ir compiler/library compiler/support
client/tuner: client client/runtime compiler/graph compiler/image compiler/ir compiler/support
client/tuner/tuner_main.cc: client/runtime client/tuner compiler/support compiler/worker
client/python: client/include/kiln client/runtime compiler/graph compiler/support compiler/target
client/admin: client client/include/kiln client/src compiler/channel compiler/graph compiler/support compiler/worker
"""

ROOTS = ("cache", "client", "compiler", "server")
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def read_table(text: str) -> dict[str, set[str]]:
    rows = (row.split(":") for row in re.sub(r"\n +", " ", text).strip().splitlines() if row)
    return {name: set(known.split()) for name, known in rows}


def circle(table: Mapping[str, Collection[str]]) -> list[str] | None:
    """The names along a circle of the table, or None."""
    done: set[str] = set()

    def follow(name: str, path: list[str]) -> list[str] | None:
        if name in path:
            return [*path[path.index(name):], name]
        if name not in done:
            for known in sorted(table.get(name, ())):
                if found := follow(known, [*path, name]):
                    return found
            done.add(name)
        return None

    return next(filter(None, (follow(name, []) for name in table)), None)


def place_of(included: str) -> str | None:
    """The folder that an #include names; None for proto's messages and for what is not ours."""
    if included.startswith("kiln/v1/"):
        return None
    folder = os.path.dirname(included)
    if folder == "kiln":
        return "client/include/kiln"
    return folder if folder.split("/")[0] in (*ROOTS, "tests") else None


def sources(root: str | os.PathLike[str]) -> Iterator[str]:
    for top in ROOTS:
        for folder, _, names in os.walk(os.path.join(root, top)):
            for name in sorted(names):
                if name.endswith((".h", ".cc")):
                    yield os.path.relpath(os.path.join(folder, name), root)


def faults(root: str | os.PathLike[str], table: dict[str, set[str]]) -> list[str]:
    """What is wrong with the sources under `root`, a line each."""
    found = []
    if names := circle(table):
        found.append("the table has a circle: " + " -> ".join(names))
    used: dict[str, set[str]] = {name: set() for name in table}
    for path in sources(root):
        row = path if path in table else os.path.dirname(path)
        if row not in table:
            found.append(f"{path}: tests/arrows.py has no row for {row}")
            continue
        with open(os.path.join(root, path), encoding="utf-8") as file:
            text = file.read()
        for match in INCLUDE.finditer(text):
            known = place_of(match[1])
            if known is None or known == os.path.dirname(path) == row:
                continue
            used[row].add(known)
            if known not in table[row]:
                line = text.count("\n", 0, match.start()) + 1
                found.append(f"{path}:{line}: {row} may not include from {known}; what both need belongs below both")
    for row, allowed in table.items():
        found += [f"tests/arrows.py: nothing in {row} includes from {name}" for name in sorted(allowed - used[row])]
    return found


# Who reads a caller's sizes makes code depend on what no key has: compiler/graph evaluates guards with them, and
# nobody else in the compiler, or through a function that records a guard for what it has read.
HINTS = re.compile(r"\bhints\(\)|\bmutable_hints\b|\bv1::Hints\b")
HINTS_READERS = ("compiler/graph",)


def hint_faults(root: str | os.PathLike[str]) -> list[str]:
    """Where the compiler reads hints, a line each."""
    found = []
    for path in sources(root):
        if not path.startswith("compiler/") or os.path.dirname(path) in HINTS_READERS:
            continue
        with open(os.path.join(root, path), encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if HINTS.search(line.split("//")[0]):
                    found.append(f"{path}:{number}: reads hints, which are in no key")
    return found


PACKAGE = "client/python/kiln"


def _imported(path: str) -> Iterator[str]:
    """The names behind every `from . import` and `from .module import` of a file."""
    with open(path, encoding="utf-8") as file:
        tree = ast.parse(file.read(), path)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            yield from [node.module.split(".")[0]] if node.module else (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "kiln":
            yield from [*node.module.split(".")[1:2]] or (alias.name for alias in node.names)


def read_modules(root: str | os.PathLike[str]) -> dict[str, set[str]]:
    """{module: the modules that it imports} of the package under `root`."""
    folder = os.path.join(root, PACKAGE)
    files = {name.rpartition(".")[0]: os.path.join(folder, name) for name in sorted(os.listdir(folder))
             if name.endswith((".py", ".pyi"))}
    return {name: files.keys() & set(_imported(path)) for name, path in files.items()}


def module_faults(root: str | os.PathLike[str]) -> list[str]:
    """What is wrong with the imports of the package under `root`, a line each."""
    names = circle(read_modules(root))
    return [f"{PACKAGE}: the imports have a circle: " + " -> ".join(names)] if names else []


def main() -> None:
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    found = faults(root, read_table(ARROWS)) + hint_faults(root) + module_faults(root)
    print("\n".join(found) or "arrows: one way", file=sys.stderr if found else sys.stdout)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
