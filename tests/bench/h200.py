"""Eager, TorchInductor and kiln side by side on this machine's GPU: Markdown on stdout, JSON with --json, each section
as soon as it is measured. Of one run, or of several with some of the sections each, pages.py makes
docs/benchmarks/gpu.md.

Sections, all of them by default:
  steps    inference of batch 1 and training, in default mode and with CUDA graphs (reduce-overhead)
  kernels  memory-bound kernels against a copy (gpu_kernels.py)
  calls    what a step and a result cost the CPU over the bare calls of the driver, cuBLASLt and torch (gpu_calls.py)
  start    cold and warm starts, as tests/bench/cpu.py measures them (minutes a row); each row has two cores to itself
           and as many rows run at a time as there are cores for
  autotune cold and warm starts with max-autotune (autotune.py; TorchInductor's are minutes a row) of the rows that
           --rows names, else of three, all at a time, which share the cores

Steps: a row is a process of its own that compiles its model in every way. All rows compile at the same time; then one
row after the other measures while the others wait, so that no compile disturbs a measurement. Within a row the ways
take turns: a figure is the median over the rounds of the mean step of a round.
"""
from __future__ import annotations

import argparse
import concurrent.futures
import functools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator
from typing import Any, TextIO, TypeAlias, TypeVar

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

from cpu import Row, mean, number, start_table, stop_daemons  # noqa: E402
from facts import facts, said, wrapped  # noqa: E402
from nursery import Nursery  # noqa: E402

Started: TypeAlias = tuple[subprocess.Popen[str], TextIO]  # a row's process, and its log
Columns: TypeAlias = list[tuple[str, Callable[[dict[str, Any]], float | None]]]
Measured = TypeVar("Measured")

WAYS: dict[str, dict[str, Any] | None] = {
    "eager": None, "inductor": dict(backend="inductor"),
    "inductor-graphs": dict(backend="inductor", mode="reduce-overhead"), "kiln": dict(backend="kiln"),
    "kiln-graphs": dict(backend="kiln", mode="reduce-overhead")}
# Only where --ways names them: TorchInductor's takes minutes to compile.
TUNED_WAYS = {f"{backend}-autotune": dict(backend=backend, mode="max-autotune") for backend in ("inductor", "kiln")}
# Ways whose temporary memory torch's allocator counts; a replayed graph's lies in a pool of its own.
COUNTED = ("eager", "inductor", "kiln")

# name: (model of models.py, task, dtype)
ROWS = {name: (name, "infer", "float32")
        for name in ("vit", "resnet50", "mobilenet", "bert", "convnext", "detr", "segformer", "beit")}
ROWS |= {f"{name}-train": (name, "train", "bfloat16") for name in ("bert", "gpt2", "llama", "vit")}
ROWS["resnet50-train"] = ("resnet50", "train", "float32")
TUNED = ["bert", "vit", "resnet50"]
QUICK = ["bert", "resnet50", "vit", "bert-train"]
SECTIONS = ("steps", "kernels", "calls", "start", "autotune")
# The bound of a cold start: Inductor's front end and this part of what Inductor adds to it.
CODE_GENERATION_SHARE = 0.10
START_CORES = 2  # of a row


# ---- one row, in a process of its own

def _steps(row: str, ways: list[str]) -> tuple[dict[str, Callable[[], Any]], dict[str, str], dict[str, dict[str, Any]]]:
    """(name, function of no arguments that takes one step) of every way that compiles; errors by name."""
    import torch

    import kiln
    import models

    torch.set_float32_matmul_precision("high")
    name, task, dtype = ROWS[row]
    steps: dict[str, Callable[[], Any]] = {}
    errors: dict[str, str] = {}
    stats: dict[str, dict[str, Any]] = {}
    for way in ways:
        model, inputs = models.build(name, task, getattr(torch, dtype), "cuda")
        options = {**WAYS, **TUNED_WAYS}[way]
        call = model if options is None else torch.compile(model, **options)
        optimizer = torch.optim.SGD(model.parameters(), 1e-4) if task == "train" else None

        def step(call: Any = call, inputs: Any = inputs, optimizer: Any = optimizer) -> Any:
            torch.compiler.cudagraph_mark_step_begin()
            if optimizer is None:
                with torch.no_grad():
                    return call(**inputs)
            optimizer.zero_grad(set_to_none=True)
            loss = call(**inputs).loss
            loss.backward()
            optimizer.step()

        try:
            kiln.reset_stats()
            begin = time.perf_counter()
            for _ in range(5):
                step()
            torch.cuda.synchronize()
            stats[way] = {"first_steps_s": time.perf_counter() - begin}
            if way.startswith("kiln"):
                stats[way]["stats"] = _kiln_stats()
            steps[way] = step
        except Exception as error:
            errors[way] = f"{type(error).__name__}: {error}"[:300]
    return steps, errors, stats


def _kiln_stats() -> dict[str, Any]:
    import kiln
    return {key: value for key, value in kiln.stats().items() if isinstance(value, (int, dict))}


def _peak(torch: types.ModuleType, step: Callable[[], Any]) -> float:
    """Megabytes that a step allocates at its peak, above what was allocated before it."""
    step()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return float(torch.cuda.max_memory_allocated() - before) / 1e6


def _measure_row(row: str, arguments: argparse.Namespace) -> dict[str, Any]:
    import torch

    steps, errors, stats = _steps(row, arguments.ways.split(","))
    print("ready", flush=True)
    sys.stdin.readline()
    times: dict[str, list[float]] = {way: [] for way in steps}
    for _ in range(arguments.rounds):
        for way, step in steps.items():
            step()
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(arguments.steps):
                step()
            torch.cuda.synchronize()
            times[way].append((time.perf_counter() - begin) / arguments.steps * 1e3)
    result = {"row": row, "errors": errors,
              "peak_mb": {way: _peak(torch, steps[way]) for way in COUNTED if way in steps}}
    for way, values in times.items():
        result[way] = {"step_ms": statistics.median(values), "low_ms": min(values), "high_ms": max(values),
                       **stats[way]}
    return result


def _measure_calls(_: argparse.Namespace) -> dict[str, Any]:
    import gpu_calls

    print("ready", flush=True)
    sys.stdin.readline()
    return {"row": "calls", "errors": {}, "calls": gpu_calls.measure()}


def _measure_kernels(arguments: argparse.Namespace) -> dict[str, Any]:
    import gpu_kernels

    calls, errors = gpu_kernels.prepare()
    print("ready", flush=True)
    sys.stdin.readline()
    return {"row": "kernels", "errors": errors, "gb_per_s": gpu_kernels.measure(calls, arguments.rounds)}


# ---- all of them

def _start(row: str, arguments: argparse.Namespace, directory: str) -> Started:
    environment = dict(os.environ, TORCHINDUCTOR_CACHE_DIR=os.path.join(directory, row),
                       KILN_STORE=os.path.join(directory, "kiln"), KILN_RUNTIME_DIR=os.path.join(directory, "run"),
                       TOKENIZERS_PARALLELISM="false", TORCHINDUCTOR_COMPILE_THREADS="2")
    command = [sys.executable, __file__, "--one", row, "--rounds", str(arguments.rounds), "--steps",
               str(arguments.steps), "--ways", arguments.ways]
    log = open(os.path.join(directory, f"{row}.log"), "w+")  # noqa: SIM115 - the caller's
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                            text=True), log


def _await_line(process: subprocess.Popen[str], log: TextIO) -> str:
    """The next line that is the row's own; "" when the process has ended."""
    assert process.stdout
    for line in process.stdout:
        if line.startswith(("ready", "{")):
            return line
    log.seek(0)
    return ""


def _run(rows: list[str], arguments: argparse.Namespace, directory: str) -> list[dict[str, Any]]:
    processes = {row: _start(row, arguments, directory) for row in rows}
    ready = {row: _await_line(*pair) for row, pair in processes.items()}
    results = []
    for row, (process, log) in processes.items():
        line = ""
        assert process.stdin
        if ready[row]:
            process.stdin.write("go\n")
            process.stdin.flush()
            line = _await_line(process, log)
        process.stdin.close()
        process.wait()
        print(f"{row}: {'measured' if line else 'failed'}", file=sys.stderr, flush=True)
        if line:
            results.append(json.loads(line))
        else:
            results.append({"row": row, "errors": {"process": (log.read().strip().splitlines() or ["died"])[-1][:300]}})
    return results


def _best(result: dict[str, Any], *ways: str) -> float | None:
    times = [result[way]["step_ms"] for way in ways if way in result]
    return min(times) if times else None


def _ratio(mine: float | None, other: float | None) -> float | None:
    return mine / other if mine and other else None


def _step_table(title: str, results: list[dict[str, Any]], columns: Columns, ways: list[str]) -> list[str]:
    """columns: (heading, function of a row's result that gives a ratio or None)."""
    lines = [title, "", "| row | " + " | ".join(f"{way} ms" for way in ways) + " | "
             + " | ".join(heading for heading, _ in columns)
             + " | peak MB: " + ", ".join(COUNTED) + " | launches / library calls / fallbacks |",
             "|---" * (len(ways) + len(columns) + 3) + "|"]
    for result in results:
        cells = [number(result[way]["step_ms"] if way in result else None, 3) for way in ways]
        cells += [number(ratio(result), 2) for _, ratio in columns]
        peak = result.get("peak_mb", {})
        cells.append(", ".join(number(peak.get(way), 0) for way in COUNTED))
        stats = result.get("kiln", {}).get("stats", {})
        cells.append(f"{stats.get('kernels', '–')} / {stats.get('library_calls', '–')} / "
                     f"{sum(stats.get('fallbacks', {}).values())}")
        lines.append(f"| {result['row']} | {' | '.join(cells)} |")
    means = [f"{heading} {mean([ratio(result) for result in results])}" for heading, ratio in columns]
    return [*lines, "", f"Geometric means: {', '.join(means)}.", ""]


INFERENCE_COLUMNS: Columns = [
    ("kiln ÷ inductor", lambda row: _ratio(_best(row, "kiln"), _best(row, "inductor"))),
    ("kiln ÷ eager", lambda row: _ratio(_best(row, "kiln"), _best(row, "eager"))),
    ("kiln-graphs ÷ inductor-graphs", lambda row: _ratio(_best(row, "kiln-graphs"), _best(row, "inductor-graphs")))]
TRAINING_COLUMNS: Columns = [
    ("best kiln ÷ best inductor",
     lambda row: _ratio(_best(row, "kiln", "kiln-graphs"), _best(row, "inductor", "inductor-graphs"))),
    ("best kiln ÷ eager", lambda row: _ratio(_best(row, "kiln", "kiln-graphs"), _best(row, "eager"))),
    ("peak kiln ÷ inductor",
     lambda row: _ratio(row.get("peak_mb", {}).get("kiln"), row.get("peak_mb", {}).get("inductor")))]


def _step_lines(report: dict[str, Any]) -> list[str]:
    lines = []
    for title, task, columns in (("Inference, batch 1, fp32 with TF32; medians of the rounds:", "infer",
                                  INFERENCE_COLUMNS),
                                 ("Training, bf16 (ResNet-50: fp32 with TF32):", "train", TRAINING_COLUMNS)):
        results = [row for row in report["rows"] if row["row"] in ROWS and ROWS[row["row"]][1] == task]
        if results:
            lines += _step_table(title, results, columns, report["ways"])
    return lines


def _kernel_lines(report: dict[str, Any]) -> list[str]:
    import gpu_kernels
    return [gpu_kernels.table(result["gb_per_s"]) + "\n" for result in report["rows"] if "gb_per_s" in result]


def _call_lines(report: dict[str, Any]) -> list[str]:
    import gpu_calls
    return [wrapped(gpu_calls.line(result["calls"])) + "\n" for result in report["rows"] if "calls" in result]


def _start_lines(report: dict[str, Any]) -> list[str]:
    if "start_rows" not in report:
        return []
    options = argparse.Namespace(**report["start_options"])
    return start_table([Row.of(result, options) for result in report["start_rows"]], options)


def _tuned_lines(report: dict[str, Any]) -> list[str]:
    import autotune
    return autotune.table([*map(autotune.Tuned, report["tuned_rows"])]) if "tuned_rows" in report else []


def _error_lines(report: dict[str, Any]) -> list[str]:
    rows = [*report["rows"], *report.get("start_rows", ()), *report.get("tuned_rows", ())]
    return [f"{result.get('row') or result['model']}, {what}: {error}" for result in rows
            for what, error in result.get("errors", {}).items()]


# What a page has, in its order: title, and what shows that section of a report.
SHOWN: tuple[tuple[str, Callable[[dict[str, Any]], list[str]]], ...] = (
    ("Steps", _step_lines), ("Starts", _start_lines), ("Starts with max-autotune", _tuned_lines),
    ("Kernels", _kernel_lines), ("The runtime's own cost", _call_lines))


def page(reports: list[dict[str, Any]]) -> str:
    """docs/benchmarks/gpu.md."""
    def lines() -> Iterator[str]:
        yield "# GPU\n"
        yield ("Of a host's cores a step in default mode takes more or less, so ratios hold beside each other in one "
               "call alone.\n")
        for title, show in SHOWN:
            for report in reports:
                if shown := show(report):
                    yield f"## {title}\n\n{said(report['facts'])}\n"
                    yield from shown
        yield from (line for report in reports for line in _error_lines(report))
    return "\n".join(lines()).rstrip("\n") + "\n"


def _side_by_side(rows: list[str], slots: list[set[int]],
                  measure: Callable[[str, Nursery], Measured]) -> list[Measured]:
    """`measure(name, nursery)` of each row by name, a row on the cores of one slot."""
    waiting, measured = list(rows), {}

    def work(own: set[int]) -> None:
        with Nursery(own) as nursery:
            while waiting:
                name = waiting.pop(0)
                measured[name] = measure(name, nursery)

    with concurrent.futures.ThreadPoolExecutor(len(slots)) as pool:
        for future in [pool.submit(work, own) for own in slots[:len(rows)]]:
            future.result()
    return [measured[name] for name in rows]


def _slots(cores_each: int) -> list[set[int]]:
    """Sets of cores."""
    cores = sorted(os.sched_getaffinity(0))
    return ([set(cores[i:i + cores_each]) for i in range(0, len(cores) - cores_each + 1, cores_each)]
            or [set(cores)])


def _starts(rows: list[str], arguments: argparse.Namespace) -> dict[str, Any]:
    """What _start_lines shows."""
    options = dict(sections=["start"], dtype=None, device="cuda", dynamic=False, quick=False,
                   warm_rounds=arguments.warm_rounds, stopped_rounds=0, timeout=300.0,
                   code_generation_share=CODE_GENERATION_SHARE)

    def measure(name: str, nursery: Nursery) -> Row:
        model, task, dtype = ROWS[name]
        row = Row(model, task, argparse.Namespace(**{**options, "dtype": dtype})).measure(nursery)
        print(row.start_line(), file=sys.stderr, flush=True)
        return row

    ordered = _side_by_side(rows, _slots(START_CORES), measure)
    return {"start_options": options, "start_rows": [{**row.result, "errors": row.errors} for row in ordered]}


def _tuned_starts(rows: list[str], arguments: argparse.Namespace) -> dict[str, Any]:
    """What _tuned_lines shows."""
    import autotune

    def measure(name: str, nursery: Nursery) -> dict[str, Any]:
        result = autotune.measure(name, ROWS[name], nursery, arguments.limit)
        print(autotune.Tuned(result).line(), file=sys.stderr, flush=True)
        return result

    cores = max(START_CORES, len(os.sched_getaffinity(0)) // len(rows))
    return {"tuned_rows": _side_by_side(rows, _slots(cores), measure)}


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", help=f"comma-separated, of {', '.join(ROWS)}; default: all")
    parser.add_argument("--quick", action="store_true", help=f"only {', '.join(QUICK)}")
    parser.add_argument("--sections", default=",".join(SECTIONS), help="comma-separated; default: %(default)s")
    parser.add_argument("--ways", default=",".join(WAYS), help="of steps, comma-separated")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=20, help="of a round")
    parser.add_argument("--warm-rounds", type=int, default=3, help="warm starts of each way, in turn (medians)")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for a start with max-autotune")
    parser.add_argument("--json", help="file for the figures")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.sections = arguments.sections.split(",")
    named = arguments.rows.split(",") if arguments.rows else QUICK if arguments.quick else None
    arguments.rows, arguments.tuned_rows = named or [*ROWS], named or TUNED
    for what, given, known in (("rows", arguments.rows, ROWS), ("sections", arguments.sections, SECTIONS),
                               ("ways", arguments.ways.split(","), {**WAYS, **TUNED_WAYS})):
        if unknown := set(given) - set(known):
            parser.error(f"unknown {what} {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    return arguments


def main() -> int:
    arguments = _parse()
    if arguments.one:
        alone = {"kernels": _measure_kernels, "calls": _measure_calls}
        measure = alone.get(arguments.one) or functools.partial(_measure_row, arguments.one)
        print(json.dumps(measure(arguments)), flush=True)
        return 0

    import torch
    if not torch.cuda.is_available():
        raise SystemExit("no NVIDIA GPU here")
    rows = arguments.rows if "steps" in arguments.sections else []
    report: dict[str, Any] = {
        "facts": facts("tests/bench/h200.sh", sys.argv[1:], device=torch.cuda.get_device_name()),
        "ways": arguments.ways.split(","), "rows": []}
    print(f"{said(report['facts'])}\n", flush=True)

    def tell(shows: Callable[[dict[str, Any]], list[str]], more: dict[str, Any]) -> None:
        report.update(more)
        print("\n".join(shows(report)), flush=True)
        if arguments.json:
            with open(arguments.json, "w") as file:
                json.dump(report, file, indent=1)

    directory = tempfile.mkdtemp(prefix="kiln-bench-")
    try:
        sections = [section for section in ("kernels", "calls") if section in arguments.sections]
        tell(lambda report: [line for _, show in SHOWN for line in show(report)],
             {"rows": _run(rows + sections, arguments, directory)})
    finally:
        stop_daemons(directory)
        shutil.rmtree(directory, ignore_errors=True)
    if "start" in arguments.sections:
        tell(_start_lines, _starts(arguments.rows, arguments))
    if "autotune" in arguments.sections:
        tell(_tuned_lines, _tuned_starts(arguments.tuned_rows, arguments))
    print("\n".join(_error_lines(report)), flush=True)
    return 1 if any(result["errors"] for result in report["rows"]) else 0


if __name__ == "__main__":
    sys.exit(main())
