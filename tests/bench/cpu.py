"""Eager, TorchInductor and kiln side by side on this machine; prints Markdown tables.

Each way is a process of its own (tests/bench/measure.py). Cold: empty caches and a fresh daemon; warm: the same caches,
a new process, the daemon running. The processes of the warm start then stay, and their steps are timed in turn: a
round is some steps of each, so that drift of the machine hits all of them, and ratios are taken within a round.

  --quick   no cold Inductor, no front end: kiln's own start, and steps
  --warm N  warm starts of N processes each, in turn (medians)
"""
import argparse
import contextlib
import json
import math
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

from cell import Cell, Failed  # noqa: E402

WAYS = ("eager", "inductor", "kiln")
# The bound of a cold start: Inductor's front end and this part of what Inductor adds to it.
CODE_GENERATION_SHARE = 0.08


def stop_daemons(directory):
    """Ends the embedded daemons whose runtime directory lies in `directory`."""
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{process}/cmdline", "rb") as file:
                words = file.read().decode(errors="replace").split("\0")
        except OSError:
            continue
        if os.path.basename(words[0]) == "kilnd" and any(directory in word for word in words):
            os.kill(int(process), signal.SIGTERM)


def geometric_mean(values):
    values = [value for value in values if value and value > 0]
    return math.exp(sum(map(math.log, values)) / len(values)) if values else float("nan")


class Row:
    """One model and task, measured; `result` holds what worked, `errors` the rest."""

    def __init__(self, model, task, arguments):
        self.result = {"model": model, "task": task}
        self.errors = {}
        self._arguments = arguments
        self._directory = tempfile.mkdtemp(prefix="kiln-bench-")

    def measure(self):
        try:
            self._cold()
            with contextlib.ExitStack() as stack:
                self._steps(self._warm(stack))
        finally:
            stop_daemons(self._directory)
            shutil.rmtree(self._directory, ignore_errors=True)
        return self

    def _open(self, way):
        arguments = self._arguments
        return Cell(self.result["model"], self.result["task"], way, self._directory, arguments.dtype,
                    arguments.dynamic, arguments.timeout)

    @contextlib.contextmanager
    def _noting(self, name):
        try:
            yield
        except Failed as error:
            self.errors[name] = str(error)

    def _cold(self):
        for way in ("kiln",) if self._arguments.quick else ("inductor", "kiln", "front"):
            with self._noting(f"cold {way}"), self._open(way) as cell:
                self.result.setdefault("cold", {})[way] = cell.start

    def _warm(self, stack):
        """Processes that stay, by way."""
        starts = {way: [] for way in WAYS}
        cells = {}
        for number in range(self._arguments.warm):
            last = number == self._arguments.warm - 1
            for way in WAYS if last else WAYS[1:]:
                with self._noting(f"warm {way}"):
                    cell = stack.enter_context(self._open(way))
                    starts[way].append(cell.start["start_s"])
                    if last:
                        cells[way] = cell
                    else:
                        cell.close()
        self.result["warm_s"] = starts
        return cells

    def _steps(self, cells):
        rounds = self._arguments.rounds
        slice_ms = self._arguments.seconds * 1e3 / rounds
        counts = {way: max(1, round(slice_ms / cell.start["step_ms"])) for way, cell in cells.items()}
        times = self.result["step_ms"] = {way: [] for way in cells}
        peaks = self.result["peak_mb"] = {}
        for _ in range(rounds):
            for way, cell in cells.items():
                with self._noting(f"steps {way}"):
                    times[way].append(cell.ask(f"steps {counts[way]}"))
        for way, cell in cells.items():
            with self._noting(f"peak {way}"):
                peaks[way] = cell.ask("peak")
        if "kiln" in cells:
            with self._noting("stats kiln"):
                self.result["kiln"] = cells["kiln"].ask("stats")

    # ---- ratios; None where something is missing

    def step_ratios(self, better_of=("inductor",)):
        times = self.result.get("step_ms", {})
        if any(len(times.get(way, ())) != self._arguments.rounds for way in ("kiln", *better_of)):
            return None
        best = min(better_of, key=lambda way: statistics.median(times[way]))
        return [kiln / other for kiln, other in zip(times["kiln"], times[best])]

    def median_ratio(self, better_of=("inductor",)):
        ratios = self.step_ratios(better_of)
        return None if ratios is None else statistics.median(ratios)

    def cold_ratio(self):
        """kiln's cold start ÷ the bound that Inductor's front end and start set."""
        cold = self.result.get("cold", {})
        if any(way not in cold for way in ("inductor", "kiln", "front")):
            return None
        front = cold["front"]["start_s"]
        return cold["kiln"]["start_s"] / (front + CODE_GENERATION_SHARE * (cold["inductor"]["start_s"] - front))

    def warm_ratio(self):
        starts = self.result.get("warm_s", {})
        if not starts.get("kiln") or not starts.get("inductor"):
            return None
        return statistics.median(starts["kiln"]) / statistics.median(starts["inductor"])

    def peak_ratio(self):
        peaks = self.result.get("peak_mb", {})
        return peaks["kiln"] / peaks["inductor"] if peaks.get("kiln") and peaks.get("inductor") else None

    # ---- lines of the tables

    def _name(self):
        return f"{self.result['model']}, {self.result['task']}"

    def step_line(self):
        times, peaks = self.result.get("step_ms", {}), self.result.get("peak_mb", {})
        medians = [number(statistics.median(times[way]) if times.get(way) else None, 1) for way in WAYS]
        ratios, stats = self.step_ratios(), self.result.get("kiln", {})
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})" if ratios else "–"
        return (f"| {self._name()} | {' / '.join(medians)} | {spread} | "
                f"{number(self.median_ratio(('eager', 'inductor')), 2)} | "
                f"{' / '.join(number(peaks.get(way), 0) for way in WAYS)} | {stats.get('kernels', '–')} / "
                f"{stats.get('library_calls', '–')} / {sum(stats.get('fallbacks', {}).values())} |")

    def start_line(self):
        cold, warm = self.result.get("cold", {}), self.result.get("warm_s", {})
        cold_s = [number(cold[way]["start_s"] if way in cold else None, 1) for way in ("inductor", "front", "kiln")]
        warm_s = [number(statistics.median(warm[way]) if warm.get(way) else None, 2) for way in WAYS[1:]]
        return (f"| {self._name()} | {' / '.join(cold_s)} | {number(self.cold_ratio(), 2)} | {' / '.join(warm_s)} | "
                f"{number(self.warm_ratio(), 2)} |")


def number(value, digits):
    return "–" if value is None else f"{value:.{digits}f}"


def tables(rows, arguments):
    """The Markdown."""
    def mean(values):
        return f"{geometric_mean(values):.3f}"

    lines = [
        f"{time.strftime('%Y-%m-%d')}, {processor()}, {os.cpu_count()} threads, {arguments.dtype}"
        f"{', dynamic sizes' if arguments.dynamic else ''}; steps: medians of {arguments.rounds} rounds in turn; "
        f"warm starts: medians of {arguments.warm}.", "",
        "| model, task | step ms: eager / Inductor / kiln | kiln ÷ Inductor (spread) | kiln ÷ better of both | "
        "peak of a step MB: eager / Inductor / kiln | kiln's native kernels / library calls / fallbacks |",
        "|---|---|---|---|---|---|", *(row.step_line() for row in rows), "",
        "| model, task | cold start s: Inductor / its front end / kiln | kiln ÷ bound | "
        "warm start s: Inductor / kiln | kiln ÷ Inductor |", "|---|---|---|---|---|",
        *(row.start_line() for row in rows), "",
        f"Geometric means: step kiln ÷ Inductor {mean([row.median_ratio() for row in rows])}, kiln ÷ better of both "
        f"{mean([row.median_ratio(('eager', 'inductor')) for row in rows])}; peak of training kiln ÷ Inductor "
        f"{mean([row.peak_ratio() for row in rows if row.result['task'] == 'train'])}; cold start kiln ÷ bound "
        f"{mean([row.cold_ratio() for row in rows])} (bound: front end + {CODE_GENERATION_SHARE} × the rest of "
        f"Inductor's start); warm start {mean([row.warm_ratio() for row in rows])}."]
    return "\n".join(lines) + "\n"


def processor():
    with open("/proc/cpuinfo") as file:
        return next((line.split(":")[1].strip() for line in file if line.startswith("model name")), "CPU")


def parse():
    import models
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(models.MODELS), help="comma-separated")
    parser.add_argument("--tasks", default="infer,train")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--dynamic", action="store_true")
    parser.add_argument("--quick", action="store_true", help="only kiln's cold start; warm starts and steps of all")
    parser.add_argument("--warm", type=int, default=1, help="processes of each way a warm start is the median of")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of timed steps a way and row, about")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds a process may take for one answer")
    parser.add_argument("--json", metavar="FILE", help="also write the raw rows to this file")
    parser.add_argument("--markdown", metavar="FILE", help="also write the tables to this file")
    return parser.parse_args()


def main():
    arguments = parse()
    wanted = [(model, task) for model in arguments.models.split(",") for task in arguments.tasks.split(",")]
    rows, begin = [], time.monotonic()
    for count, (model, task) in enumerate(wanted, 1):
        row = Row(model, task, arguments).measure()
        rows.append(row)
        spent = time.monotonic() - begin
        print(f"[{count}/{len(wanted)}, {spent / 60:.1f} min, about {spent / count * (len(wanted) - count) / 60:.0f} "
              f"to go] {row.step_line()}", file=sys.stderr, flush=True)
        for name, reason in row.errors.items():
            print(f"  {model} {task} {name}: {reason}", file=sys.stderr, flush=True)
        if arguments.json:
            with open(arguments.json, "w") as file:
                json.dump([{**row.result, "errors": row.errors} for row in rows], file, indent=1)
    text = tables(rows, arguments)
    print(text, end="")
    if arguments.markdown:
        with open(arguments.markdown, "w") as file:
            file.write(text)
    return 1 if any(row.errors for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
