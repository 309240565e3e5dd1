"""Eager, TorchInductor and kiln side by side on this machine; prints Markdown tables.

Each way is a process of its own (tests/bench/measure.py). Cold: empty caches and a fresh daemon; warm: the same caches,
new processes, the daemon running, the ways in turn; and after each of these starts but the last kiln with no daemon
running. The processes of the last three warm starts stay together for a while, for steps and peaks: steps are timed in
turn, a round is some of each, so that drift of the machine hits all of them, and ratios are taken within a round. Three
processes, because where a process's memory lies makes more of a difference than one round to the next. Kiln with
dynamic=True is one of them.

Sections, all by default:
  start    cold and warm starts
  steps    steps, peak memory, dynamic=True against static
  fusion   loop nests and bytes moved of each graph (tests/bench/fusion.py says what is counted)
  kernels  memory-bound kernels, a call's and a step's own cost, a graph's look-up (tests/bench/kernels.py)
  scale    with --graphs DIRECTORY: seconds to compile against size, of the captures there (tests/bench/scale.py)

  --quick  no cold Inductor, no front end, one warm start: kiln's own start, and steps

All of it takes two hours. With --json FILE each row is kept there once it is measured, and with --resume those that
FILE has are not measured again, if FILE is of the same options and the same kiln. Of the JSON pages.py makes
docs/benchmarks/cpu.md.
"""
from __future__ import annotations

import argparse
import contextlib
import glob
import hashlib
import json
import math
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import fusion  # noqa: E402
import kernels  # noqa: E402
import scale  # noqa: E402
from cell import Cell, Failed  # noqa: E402
from facts import daemon, facts, package, said  # noqa: E402
from nursery import Nursery  # noqa: E402

SECTIONS = ("start", "steps", "fusion", "kernels", "scale")
TASKS = ("infer", "train")
WAYS = ("eager", "inductor", "kiln")
PEAKS = 2  # of a process, for the median of all: where the allocator finds room differs from step to step
# The bound of a cold start: Inductor's front end and this part of what Inductor adds to it.
CODE_GENERATION_SHARE = 0.08


def stop_daemons(directory: str) -> None:
    """Ends the embedded daemons whose runtime directory lies in `directory`, and waits for their end."""
    ending = []
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{process}/cmdline", "rb") as file:
                words = file.read().decode(errors="replace").split("\0")
        except OSError:
            continue
        if os.path.basename(words[0]) == "kilnd" and any(directory in word for word in words):
            os.kill(int(process), signal.SIGTERM)
            ending.append(process)
    for process in ending:
        deadline = time.monotonic() + 10
        while os.path.exists(f"/proc/{process}") and time.monotonic() < deadline:
            time.sleep(0.01)


def geometric_mean(values: Iterable[float | None]) -> float:
    logarithms = [math.log(value) for value in values if value and value > 0]
    return math.exp(sum(logarithms) / len(logarithms)) if logarithms else float("nan")


class Row:
    """One model and task, measured; `result` holds what worked, `errors` the rest."""

    def __init__(self, model: str, task: str, arguments: argparse.Namespace) -> None:
        self.result: dict[str, Any] = {"model": model, "task": task}
        self.errors: dict[str, str] = {}
        self._arguments = arguments
        self._nursery: Nursery | None = None
        self._directory = ""

    @classmethod
    def of(cls, result: dict[str, Any], arguments: argparse.Namespace) -> Row:
        """As it was kept, with or without its errors; measured with `arguments`."""
        row = cls(result["model"], result["task"], arguments)
        row.result = {name: value for name, value in result.items() if name != "errors"}
        row.errors = result.get("errors", {})
        return row

    def measure(self, nursery: Nursery) -> Row:
        sections = self._arguments.sections
        self._nursery, self._directory = nursery, tempfile.mkdtemp(prefix="kiln-bench-")
        try:
            self._cold()
            if "start" in sections or "steps" in sections:
                self._warm_rounds()
        finally:
            stop_daemons(self._directory)
            shutil.rmtree(self._directory, ignore_errors=True)
        return self

    def _open(self, way: str, *flags: str) -> Cell:
        arguments = self._arguments
        words = [self.result["model"], self.result["task"], way, "--dtype", arguments.dtype, "--device",
                 arguments.device, *flags]
        if arguments.dynamic and "--dynamic" not in flags:
            words.append("--dynamic")
        assert self._nursery
        return Cell(self._nursery, words, self._directory, arguments.timeout)

    @contextlib.contextmanager
    def _noting(self, name: str) -> Iterator[None]:
        try:
            yield
        except (Failed, ValueError) as error:
            self.errors[name] = str(error)

    def _cold(self) -> None:
        arguments = self._arguments
        count = "fusion" in arguments.sections
        ways = ["inductor", "kiln"] if count else []
        if "start" in arguments.sections:
            ways = ["kiln"] if arguments.quick else ["inductor", "kiln", "front"]
        counted = {}
        for way in ways:
            flags = ("--count-fusion",) if count and way != "front" else ()
            with self._noting(f"cold {way}"), self._open(way, *flags) as cell:
                self.result.setdefault("cold", {})[way] = cell.start
                if flags:
                    counted[way] = cell.ask("fusion")
        if "inductor" in counted and "kiln" in counted:
            with self._noting("fusion"):
                self.result["fusion"] = fusion.pairs(counted["inductor"], counted["kiln"])

    def _warm_rounds(self) -> None:
        arguments = self._arguments
        stepped = arguments.processes if "steps" in arguments.sections else 0
        count = max(arguments.warm_rounds, stepped) if "start" in arguments.sections else stepped
        for left in range(count, 0, -1):
            with contextlib.ExitStack() as stack:
                cells = self._warm(stack, left <= stepped)
                if left <= stepped:
                    self._steps(cells)
            if "start" in arguments.sections and count - left < arguments.stopped_rounds:
                self._stopped()

    def _stopped(self) -> None:
        """kiln's start where no daemon runs; the one that it starts is there for the next ones."""
        stop_daemons(self._directory)
        with self._noting("warm, daemon stopped"), self._open("kiln") as cell:
            self.result.setdefault("stopped_s", []).append(cell.start["start_s"])

    def _note_load(self, way: str, cell: Cell) -> None:
        """Milliseconds of one graph of a warm start, from asking the daemon until it can be called."""
        if way == "kiln":
            stats = cell.ask("stats")
            if stats["hits"] and not stats["compiles"]:
                loads = self.result.setdefault("load_ms", [])
                loads.append(stats["seconds"]["load"] * 1e3 / stats["hits"])

    def _warm(self, stack: contextlib.ExitStack, stepped: bool) -> dict[str, Cell]:
        """Processes that stay, by way; stepped: their steps are to be timed, eager's and those of dynamic sizes too."""
        starts = self.result.setdefault("warm_s", {way: [] for way in WAYS})
        cells = {}
        for way in WAYS if stepped else WAYS[1:]:
            with self._noting(f"warm {way}"):
                cells[way] = stack.enter_context(self._open(way))
                starts[way].append(cells[way].start["start_s"])
                self._note_load(way, cells[way])
        if stepped and not self._arguments.dynamic:
            with self._noting("dynamic kiln"):
                cells["dynamic"] = stack.enter_context(self._open("kiln", "--dynamic"))
        return cells

    def _steps(self, cells: dict[str, Cell]) -> None:
        arguments = self._arguments
        slice_ms = arguments.seconds * 1e3 / arguments.rounds
        counts = {way: max(1, round(slice_ms / cell.start["step_ms"])) for way, cell in cells.items()}
        times, peaks = self.result.setdefault("step_ms", {}), self.result.setdefault("peak_mb", {})
        for _ in range(arguments.rounds // arguments.processes):
            for way, cell in cells.items():
                with self._noting(f"steps {way}"):
                    times.setdefault(way, []).append(cell.ask(f"steps {counts[way]}"))
        for way, cell in cells.items():
            if way in WAYS:
                with self._noting(f"peak {way}"):
                    peaks.setdefault(way, []).extend(cell.ask("peak") for _ in range(PEAKS))
        if "kiln" in cells:
            with self._noting("stats kiln"):
                self.result["kiln"] = cells["kiln"].ask("stats")

    # ---- ratios; None where something is missing

    def step_ratios(self, better_of: tuple[str, ...] = ("inductor",), way: str = "kiln") -> list[float] | None:
        times = self.result.get("step_ms", {})
        if any(len(times.get(one, ())) != self._arguments.rounds for one in (way, *better_of)):
            return None
        best = min(better_of, key=lambda one: statistics.median(times[one]))
        return [mine / other for mine, other in zip(times[way], times[best])]

    def median_ratio(self, better_of: tuple[str, ...] = ("inductor",), way: str = "kiln") -> float | None:
        ratios = self.step_ratios(better_of, way)
        return None if ratios is None else statistics.median(ratios)

    def dynamic_ratio(self) -> float | None:
        return self.median_ratio(("kiln",), "dynamic")

    def cold_ratio(self) -> float | None:
        """kiln's cold start ÷ the bound that Inductor's front end and start set."""
        cold = self.result.get("cold", {})
        if any(way not in cold for way in ("inductor", "kiln", "front")):
            return None
        front = cold["front"]["start_s"]
        share = self._arguments.code_generation_share
        return float(cold["kiln"]["start_s"] / (front + share * (cold["inductor"]["start_s"] - front)))

    def warm_ratio(self) -> float | None:
        starts = self.result.get("warm_s", {})
        if not starts.get("kiln") or not starts.get("inductor"):
            return None
        return float(statistics.median(starts["kiln"]) / statistics.median(starts["inductor"]))

    def peak_ratio(self) -> float | None:
        kiln, inductor = self.peak("kiln"), self.peak("inductor")
        return kiln / inductor if kiln and inductor else None

    def peak(self, way: str) -> float | None:
        """MB."""
        peaks = self.result.get("peak_mb", {}).get(way)
        return statistics.median(peaks) if peaks else None

    def fusion_ratios(self, what: str, of: str | None = None) -> list[float]:
        """Of each graph: kiln's count ÷ Inductor's (of its own name)."""
        return [kiln[what] / inductor[of or what] for _, inductor, kiln in self.result.get("fusion", ())
                if inductor[of or what]]

    # ---- lines of the tables

    def _name(self) -> str:
        return f"{self.result['model']}, {self.result['task']}"

    def step_line(self) -> str:
        times = self.result.get("step_ms", {})
        medians = [number(statistics.median(times[way]) if times.get(way) else None, 1) for way in WAYS]
        ratios, stats = self.step_ratios(), self.result.get("kiln", {})
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})" if ratios else "–"
        return (f"| {self._name()} | {' / '.join(medians)} | {spread} | "
                f"{number(self.median_ratio(('eager', 'inductor')), 2)} | {number(self.dynamic_ratio(), 2)} | "
                f"{' / '.join(number(self.peak(way), 0) for way in WAYS)} | {stats.get('kernels', '–')} / "
                f"{stats.get('library_calls', '–')} / {sum(stats['fallbacks'].values()) if stats else '–'} |")

    def start_line(self) -> str:
        cold, warm = self.result.get("cold", {}), self.result.get("warm_s", {})
        cold_s = [number(cold[way]["start_s"] if way in cold else None, 1) for way in ("inductor", "front", "kiln")]
        warm_s = [number(statistics.median(warm[way]) if warm.get(way) else None, 2) for way in WAYS[1:]]
        stopped = self.result.get("stopped_s")
        more = statistics.median(stopped) - statistics.median(warm["kiln"]) if stopped and warm.get("kiln") else None
        load = statistics.median(self.result["load_ms"]) if self.result.get("load_ms") else None
        return (f"| {self._name()} | {' / '.join(cold_s)} | {number(self.cold_ratio(), 2)} | {' / '.join(warm_s)} | "
                f"{number(self.warm_ratio(), 2)} | {number(more, 2)} | {number(load, 1)} |")

    def fusion_lines(self) -> list[str]:
        lines = []
        for kind, inductor, kiln in self.result.get("fusion", ()):
            cells = [f"{inductor['nests']} / {kiln['nests']}", number(kiln["nests"] / inductor["nests"], 2)]
            for what in ("bytes", "loop_bytes"):
                cells += [f"{inductor[what] / 1e6:.1f} / {kiln[what] / 1e6:.1f}",
                          number(kiln[what] / inductor[what], 2)]
                if what == "bytes":
                    cells.append(number(kiln["bytes"] / inductor["touched_bytes"], 2))
            lines.append(f"| {self._name()}, {kind} | {' | '.join(cells)} |")
        return lines


def number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def mean(values: Iterable[float | None]) -> str:
    return f"{geometric_mean(values):.3f}"


def step_table(rows: list[Row], arguments: argparse.Namespace) -> list[str]:
    return [
        f"Steps: medians of {arguments.rounds} rounds in turn; processes of each way: {arguments.processes}.", "",
        "| model, task | step ms: eager / Inductor / kiln | kiln ÷ Inductor (spread) | kiln ÷ better of both | "
        "kiln dynamic ÷ static | peak of a step MB: eager / Inductor / kiln | "
        "kiln's native kernels / library calls / fallbacks |",
        "|---|---|---|---|---|---|---|", *(row.step_line() for row in rows), "",
        f"Geometric means: kiln ÷ Inductor {mean([row.median_ratio() for row in rows])}, kiln ÷ better of both "
        f"{mean([row.median_ratio(('eager', 'inductor')) for row in rows])}; dynamic ÷ static "
        f"{mean([row.dynamic_ratio() for row in rows])}; peak of training kiln ÷ Inductor "
        f"{mean([row.peak_ratio() for row in rows if row.result['task'] == 'train'])}.", ""]


def start_table(rows: list[Row], arguments: argparse.Namespace) -> list[str]:
    return [
        f"Starts: warm ones are medians of {arguments.warm_rounds} new processes of each in turn, those with no daemon "
        f"running of {arguments.stopped_rounds}.", "",
        "| model, task | cold start s: Inductor / its front end / kiln | kiln ÷ bound | "
        "warm start s: Inductor / kiln | kiln ÷ Inductor | s more with no daemon running | "
        "ms to look up, fetch and load a graph |", "|---|---|---|---|---|---|---|",
        *(row.start_line() for row in rows), "",
        f"Geometric means: cold start kiln ÷ bound {mean([row.cold_ratio() for row in rows])} (bound: front end + "
        f"{arguments.code_generation_share} × the rest of Inductor's start); warm start "
        f"{mean([row.warm_ratio() for row in rows])}.", ""]


def fusion_table(rows: list[Row]) -> list[str]:
    ratios = [ratio for row in rows for ratio in row.fusion_ratios("nests")]
    moved = [ratio for row in rows for ratio in row.fusion_ratios("bytes")]
    touched = [ratio for row in rows for ratio in row.fusion_ratios("bytes", "touched_bytes")]
    over_bytes, over_touched = (sum(ratio > 1.05 for ratio in all_ratios) for all_ratios in (moved, touched))
    return [
        "Fusion of each graph: loop nests, bytes that all of it moves, and those of its loops alone; Inductor / kiln. "
        "Can touch: Inductor's bytes less those of tables that its fused loops cannot touch, which it counts whole.",
        "",
        "| graph | loop nests | kiln ÷ Inductor | MB moved | kiln ÷ Inductor | kiln ÷ what Inductor can touch | "
        "MB of loops | kiln ÷ Inductor |", "|---|---|---|---|---|---|---|---|",
        *(line for row in rows for line in row.fusion_lines()), "",
        f"Geometric means: loop nests {mean(ratios)}, bytes {mean(moved)}, of what Inductor can touch {mean(touched)}; "
        f"graphs over 1.1 × the nests: {sum(ratio > 1.1 for ratio in ratios)}, over 1.05 × the bytes: {over_bytes}, "
        f"over 1.05 × what Inductor can touch: {over_touched}, of {len(ratios)}.", ""]


def row_tables(rows: list[Row], arguments: argparse.Namespace) -> list[str]:
    lines: list[str] = []
    if "steps" in arguments.sections:
        lines += ["## Steps, peak memory", "", *step_table(rows, arguments)]
    if "start" in arguments.sections:
        lines += ["## Starts", "", *start_table(rows, arguments)]
    if "fusion" in arguments.sections:
        lines += ["## Fusion", "", *fusion_table(rows)]
    return lines


def tables(results: Results, arguments: argparse.Namespace) -> str:
    """The Markdown."""
    lines = [said(results.facts), "", *row_tables(results.rows(), arguments)]
    if "kernels" in arguments.sections and results.kernels:
        lines.append(kernels.tables(results.kernels))
    if "scale" in arguments.sections and results.scale:
        lines += ["Compiling captured graphs, each alone, with an empty store:", "", *scale.lines(results.scale)]
    return "\n".join(lines).rstrip("\n") + "\n"


def page(reports: list[dict[str, Any]]) -> str:
    """docs/benchmarks/cpu.md: a run's steps, starts and fusion."""
    lines = ["# CPU: ten models", ""]
    for report in reports:
        options = argparse.Namespace(**report["of"]["options"], code_generation_share=CODE_GENERATION_SHARE)
        rows = [Row.of(result, options) for result in report["rows"]]
        lines += [said(report["facts"], options.dtype + (", dynamic sizes" if options.dynamic else "")), ""]
        lines += row_tables(rows, options)
        lines += [f"{row.result['model']}, {row.result['task']}, {what}: {reason}" for row in rows
                  for what, reason in row.errors.items()]
    return "\n".join(lines).rstrip("\n") + "\n"


def parse() -> argparse.Namespace:
    import models
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(models.MODELS), help="comma-separated")
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--dynamic", action="store_true")
    parser.add_argument("--quick", action="store_true", help="only kiln's cold start; warm starts and steps of all")
    parser.add_argument("--sections", default=",".join(SECTIONS), help="comma-separated")
    parser.add_argument("--graphs", metavar="DIRECTORY", help="captured graphs, for the section scale")
    parser.add_argument("--warm-rounds", type=int, default=5, help="processes of each way, in turn (medians)")
    parser.add_argument("--stopped-rounds", type=int, default=4,
                        help="starts with no daemon running, one after each warm round (median)")
    parser.add_argument("--processes", type=int, default=3, help="of each way whose steps are timed")
    parser.add_argument("--rounds", type=int, default=6, help="of steps, in all processes of a way together")
    parser.add_argument("--seconds", type=float, default=3.0, help="of timed steps a way and row, about")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds a process may take for one answer")
    parser.add_argument("--json", metavar="FILE", help="also write the raw rows to this file, each when it is measured")
    parser.add_argument("--resume", action="store_true", help="measure only what the file of --json has not")
    arguments = parser.parse_args()
    arguments.device, arguments.code_generation_share = "cpu", CODE_GENERATION_SHARE
    arguments.sections = arguments.sections.split(",")
    for what, known in (("sections", SECTIONS), ("models", models.MODELS), ("tasks", TASKS)):
        given = arguments.sections if what == "sections" else getattr(arguments, what).split(",")
        if unknown := set(given) - set(known):
            parser.error(f"unknown {what} {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    if min(arguments.warm_rounds, arguments.processes, arguments.rounds) < 1 or arguments.stopped_rounds < 0:
        parser.error("there has to be a round")
    if arguments.rounds % arguments.processes:
        parser.error("each process times as many rounds: let --rounds be a multiple of --processes")
    if arguments.resume and not arguments.json:
        parser.error("--resume: of which --json FILE?")
    if not arguments.graphs:
        arguments.sections = [section for section in arguments.sections if section != "scale"]
    if not arguments.sections:
        parser.error("the section scale is of --graphs DIRECTORY")
    if "scale" in arguments.sections:
        try:
            arguments.captures = scale.captures(arguments.graphs)
        except ValueError as error:
            parser.error(str(error))
    if arguments.quick:
        arguments.warm_rounds, arguments.stopped_rounds, arguments.processes = 1, 0, 1
        arguments.sections = [section for section in arguments.sections if section != "fusion"]
    return arguments


def subject(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the numbers are of: the options that change them, and a digest of kiln's programs. Raises ValueError or
    OSError where those are missing."""
    place, kilnd = package(), daemon()
    files = [*sorted(glob.glob(f"{place}/*.py") + glob.glob(f"{place}/*.so")), kilnd,
             os.path.join(os.path.dirname(kilnd), "kiln-worker")]
    digest = hashlib.sha256()
    for path in files:
        with open(path, "rb") as file:
            digest.update(file.read())
    names = ("dtype", "device", "dynamic", "quick", "sections", "warm_rounds", "stopped_rounds", "processes", "rounds",
             "seconds", "graphs")
    return {"options": {name: getattr(arguments, name) for name in names}, "kiln": digest.hexdigest()}


def resumed(arguments: argparse.Namespace, of: dict[str, Any]
            ) -> tuple[dict[tuple[str, str], Row], dict[str, Any] | None, list[dict[str, Any]] | None]:
    """Rows without errors, by (model, task), the kernels and the rows of scale of an earlier run; raises ValueError
    where they are not of `of`."""
    if not arguments.resume or not os.path.exists(arguments.json):
        return {}, None, None
    with open(arguments.json) as file:
        try:
            earlier = json.load(file)
        except ValueError as error:
            raise ValueError(f"{arguments.json} is no file of results: {error}") from error
    if not isinstance(earlier, dict) or earlier.get("of") != of:
        raise ValueError(f"{arguments.json} is of other options or of another kiln: name another file, or leave "
                         "--resume out to overwrite it")
    rows = {}
    for result in earlier["rows"]:
        if not result["errors"]:
            rows[result["model"], result["task"]] = Row.of(result, arguments)
    return rows, earlier["kernels"], earlier["scale"]


class Results:
    """Rows in the order of `wanted`, the kernels and the rows of scale, kept in the file of --json as they come."""

    def __init__(self, wanted: list[tuple[str, str]], arguments: argparse.Namespace) -> None:
        self._wanted, self._arguments, self._of = wanted, arguments, subject(arguments)
        self.facts = facts("tests/bench/cpu.sh", sys.argv[1:])
        self._rows, self.kernels, self.scale = resumed(arguments, self._of)

    def rows(self) -> list[Row]:
        return [self._rows[key] for key in self._wanted if key in self._rows]

    def measure_rows(self) -> None:
        missing = [key for key in self._wanted if key not in self._rows]
        if len(missing) < len(self._wanted):
            print(f"{len(self._wanted) - len(missing)} rows are of {self._arguments.json}", file=sys.stderr)
        if missing:
            with Nursery() as nursery:
                self._measure(missing, nursery)

    def measure_kernels(self) -> None:
        if self.kernels is None:
            self.kernels = kernels.measure()
            self._keep()

    def measure_scale(self) -> None:
        if self.scale is None:
            self.scale = list(scale.measure_files(self._arguments.captures, self._arguments.graphs))
            self._keep()

    def _measure(self, missing: list[tuple[str, str]], nursery: Nursery) -> None:
        begin = time.monotonic()
        for count, (model, task) in enumerate(missing, 1):
            row = self._rows[model, task] = Row(model, task, self._arguments).measure(nursery)
            spent = time.monotonic() - begin
            print(f"[{count}/{len(missing)}, {spent / 60:.1f} min, about "
                  f"{spent / count * (len(missing) - count) / 60:.0f} to go] {row.step_line()}", file=sys.stderr,
                  flush=True)
            for name, reason in row.errors.items():
                print(f"  {model} {task} {name}: {reason}", file=sys.stderr, flush=True)
            self._keep()

    def _keep(self) -> None:
        """Whole or not at all, so that a run that is stopped here loses nothing."""
        if not self._arguments.json:
            return
        rows = [{**row.result, "errors": row.errors} for row in self._rows.values()]
        with open(self._arguments.json + ".new", "w") as file:
            json.dump({"facts": self.facts, "of": self._of, "rows": rows, "kernels": self.kernels,
                       "scale": self.scale}, file, indent=1)
        os.replace(self._arguments.json + ".new", self._arguments.json)


def main() -> int:
    arguments = parse()
    wanted = [(model, task) for model in arguments.models.split(",") for task in arguments.tasks.split(",")]
    try:
        results = Results(wanted, arguments)
    except (ValueError, OSError) as error:
        print(f"cpu.py: {error}", file=sys.stderr)
        return 2
    if any(section in arguments.sections for section in ("start", "steps", "fusion")):
        results.measure_rows()
    if "kernels" in arguments.sections:
        results.measure_kernels()
    if "scale" in arguments.sections:
        results.measure_scale()
    print(tables(results, arguments), end="")
    return 1 if any(row.errors for row in results.rows()) else 0


if __name__ == "__main__":
    sys.exit(main())
