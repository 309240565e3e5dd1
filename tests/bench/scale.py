"""Compile time against the size of real graphs: each captured graph goes through export, service and load, alone.

  tests/bench/scale.py DIRECTORY [--only TEXT] [--json FILE] [--plot FILE.svg]

DIRECTORY holds captures (tests/bench/capture.py tells their form), also in folders. Every file has a process, an
embedded daemon and an empty store of its own. Prints, per graph, operators in it, milliseconds of planning (the
service's own count) and until it can be called (the daemon's start left out), kernels, library calls; then the
exponent of seconds against operators over the graphs of 100 and more (n log n is about 1.15 there). Of the JSON
pages.py makes docs/benchmarks/compile-time.md.
"""
from __future__ import annotations

import argparse
import glob
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from facts import facts, said, wrapped

if TYPE_CHECKING:
    import capture

COUNTED_FROM = 100  # operators; below, the constant part hides the growth
SIZES = (1, 100, 500, 1000, 2000, 5000)  # of the page's rows: operators from here on


class Unread(Exception):
    """A file that this PyTorch cannot make a graph of; the message is the last line of errors."""


def measure(found: capture.Capture, name: str) -> dict[str, Any]:
    """A row of the table. `found`: a capture.Capture."""
    from kiln import backend, options, records

    records.reset_stats()
    start = time.perf_counter()
    compiled = backend.compile_graph(found.module, found.inputs, found.kind, options.parse(None, None))
    seconds = time.perf_counter() - start
    record = records.graphs_since(0)[-1]
    row: dict[str, Any] = {"graph": name, "operators": found.node_count, "seconds": seconds}
    if "fallback" in record:
        return dict(row, fallback=record["fallback"])
    del compiled
    row["seconds"] -= record["connect_seconds"]
    return dict(row, plan_seconds=plan_seconds(record["compile_key"]), kernels=len(record["launches"]),
                distinct=len(record["kernels"]), library_calls=len(record["library_calls"]), hit=record["hit"])


def plan_seconds(key: str) -> float:
    from kiln import environment

    shown = environment.show(key)
    assert shown is not None, key
    return float(shown["manifest"]["statistics"]["plan_seconds"])


def find(value: Any, names: tuple[str, ...]) -> Any:
    """The first field of one of the names in a JSON value."""
    if isinstance(value, dict):
        for key, part in value.items():
            if key in names:
                return part
            inner = find(part, names)
            if inner is not None:
                return inner
    if isinstance(value, list):
        return next((inner for inner in (find(part, names) for part in value) if inner is not None), None)
    return None


def exponent(rows: list[dict[str, Any]]) -> float:
    """Slope of log seconds over log operators."""
    points = [(math.log(row["operators"]), math.log(row["seconds"])) for row in rows
              if row["operators"] >= COUNTED_FROM]
    if len({x for x, _ in points}) < 2:
        return float("nan")
    mean_x, mean_y = (sum(axis) / len(points) for axis in zip(*points))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return float(sum((x - mean_x) * (y - mean_y) for x, y in points) / spread)


def plot(rows: list[dict[str, Any]], path: str) -> None:
    """Seconds over operators, both logarithmic, as an SVG."""
    rows = [row for row in compiled(rows) if row["operators"] > 1]
    width, height, margin = 640, 420, 50
    xs, ys = [math.log10(row["operators"]) for row in rows], [math.log10(row["seconds"]) for row in rows]
    left, right, low, high = math.floor(min(xs)), math.ceil(max(xs)), math.floor(min(ys)), math.ceil(max(ys))
    across: Callable[[float], float] = lambda x: margin + (x - left) / (right - left) * (width - 2 * margin)
    up: Callable[[float], float] = lambda y: height - margin - (y - low) / (high - low) * (height - 2 * margin)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
             'font-size="12"><rect width="100%" height="100%" fill="white"/>']
    for tick in range(left, right + 1):
        at = across(tick)
        parts.append(f'<line x1="{at}" x2="{at}" y1="{margin}" y2="{height - margin}" stroke="#ddd"/>'
                     f'<text x="{at}" y="{height - margin + 16}" text-anchor="middle">{10 ** tick:g}</text>')
    for tick in range(low, high + 1):
        at = up(tick)
        parts.append(f'<line x1="{margin}" x2="{width - margin}" y1="{at}" y2="{at}" stroke="#ddd"/>'
                     f'<text x="{margin - 6}" y="{at + 4}" text-anchor="end">{10.0 ** tick:g}</text>')
    for x, y, row in zip(xs, ys, rows):
        parts.append(f'<circle cx="{across(x):.1f}" cy="{up(y):.1f}" r="3" fill="#c33">'
                     f'<title>{row["graph"]}: {row["seconds"]:.2f} s</title></circle>')
    parts.append(f'<text x="{width / 2}" y="{height - 8}" text-anchor="middle">operators in the graph</text>'
                 f'<text x="{margin}" y="{margin - 16}">seconds until it can be called</text></svg>')
    with open(path, "w") as file:
        file.write("\n".join(parts))


def stop_daemon() -> None:
    import kiln
    from kiln import environment

    kilnctl = os.path.join(os.path.dirname(environment.daemon_binary()), "kilnctl")
    status = subprocess.run([kilnctl, "--address", kiln.status()["address"], "status", "--json"],
                            capture_output=True, text=True)
    pid = find(json.loads(status.stdout or "{}"), ("pid",))
    if pid:
        os.kill(int(pid), signal.SIGTERM)


def measure_file(path: str, name: str) -> list[dict[str, Any]]:
    """The rows of one file, in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="kiln-scale-", ignore_cleanup_errors=True) as directory:
        environment = dict(os.environ, KILN_STORE=os.path.join(directory, "store"),
                           KILN_RUNTIME_DIR=os.path.join(directory, "run"))
        done = subprocess.run([sys.executable, __file__, "--one", path, name], env=environment, text=True,
                              capture_output=True)
        if done.returncode != 0:
            raise Unread((done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1])
        rows: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
        return rows


def captures(directory: str, only: str = "") -> list[str]:
    """Paths of the captures under `directory` whose name holds `only`; raises ValueError where there are none."""
    paths = sorted(glob.glob(os.path.join(directory, "**", "*.json.gz"), recursive=True))
    paths = [path for path in paths if only in path]
    if not paths:
        named = f" with {only!r} in its name" if only else ""
        raise ValueError(f"no *.json.gz{named} under {directory}")
    return paths


def measure_files(paths: list[str], directory: str) -> Iterator[dict[str, Any]]:
    """The rows of `paths`, each as soon as it is measured; of a file that cannot be read one that says so."""
    for path in paths:
        name = os.path.relpath(path, directory).removesuffix(".json.gz")
        try:
            yield from measure_file(path, name)
        except Unread as error:
            yield {"graph": name, "unread": str(error)}


def lines(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    """The table of all rows, a line as soon as its row is there."""
    yield "| graph | operators | plan ms | callable ms | kernels | library calls |"
    yield "|---|---|---|---|---|---|"
    seen = []
    for row in rows:
        seen.append(row)
        if "unread" in row:
            yield f"| {row['graph']} | not read: {row['unread']} | | | | |"
            continue
        rest = (f"{row['plan_seconds'] * 1e3:.0f} | {row['seconds'] * 1e3:.0f} | {row['kernels']} | "
                f"{row['library_calls']} |" if "fallback" not in row else f"fallback: {row['fallback']} | | | |")
        yield f"| {row['graph']} | {row['operators']} | {rest}"
    if whole := compiled(seen):
        yield ""
        yield (f"{len(seen)} graphs, {len(seen) - len(whole)} fallbacks or not read; slowest plan "
               f"{max(row['plan_seconds'] for row in whole):.2f} s, slowest until callable "
               f"{max(row['seconds'] for row in whole):.2f} s; seconds grow as operators^{exponent(whole):.2f}")


def compiled(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if "fallback" not in row and "unread" not in row]


def page(reports: list[dict[str, Any]]) -> str:
    """docs/benchmarks/compile-time.md: graphs by their size."""
    text = ["# Compile time against size", ""]
    for report in reports:
        rows = compiled(report["rows"])
        text += [said(report["facts"], f"{len(report['rows'])} captured graphs, {len(report['rows']) - len(rows)} "
                      "fallbacks or not read, each with a daemon and an empty store of its own"), "",
                 "| operators | graphs | plan ms: median, most | ms until callable: median, most |",
                 "|---|---|---|---|"]
        for low, high in zip(SIZES, [*SIZES[1:], None]):
            of = [row for row in rows if low <= row["operators"] and (high is None or row["operators"] < high)]
            if of:
                cells = [", ".join(f"{pick(row[what] for row in of) * 1e3:.0f}" for pick in (statistics.median, max))
                         for what in ("plan_seconds", "seconds")]
                size = f"{low}–{high - 1}" if high is not None else f"{low} and more"
                text.append(f"| {size} | {len(of)} | {' | '.join(cells)} |")
        largest = max(rows, key=lambda row: int(row["operators"]))
        text += ["", wrapped(f"Seconds until callable grow as operators^{exponent(rows):.2f} over the graphs of "
                             f"{COUNTED_FROM} operators and more. The largest graph is {largest['graph']} with "
                             f"{largest['operators']} operators."), ""]
    return "\n".join(text)


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        import capture  # and with it torch, which the table needs not

        path, name = sys.argv[2:]
        measured = [measure(found, f"{name} {number}") for number, found in enumerate(capture.read(path))]
        stop_daemon()
        print(json.dumps(measured))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory")
    parser.add_argument("--only", default="", help="files whose name holds this text")
    parser.add_argument("--json", help="file for the rows")
    parser.add_argument("--plot", help="file for the picture (SVG)")
    arguments = parser.parse_args()
    try:
        paths = captures(arguments.directory, arguments.only)
    except ValueError as error:
        parser.error(str(error))
    rows: list[dict[str, Any]] = []

    def kept() -> Iterator[dict[str, Any]]:
        for row in measure_files(paths, arguments.directory):
            rows.append(row)
            yield row

    for line in lines(kept()):
        print(line, flush=True)
    if arguments.json:
        of = facts("tests/bench/scale.py", [word for word in sys.argv[1:] if word != arguments.directory])
        with open(arguments.json, "w") as file:
            json.dump({"facts": of, "rows": rows}, file, indent=1)
    if arguments.plot and compiled(rows):
        plot(rows, arguments.plot)


if __name__ == "__main__":
    main()
