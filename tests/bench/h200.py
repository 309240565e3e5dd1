"""Eager, TorchInductor and kiln side by side on this machine's GPU: Markdown on stdout, JSON with --json.

A row is a process of its own that compiles its model in every way. All rows compile at the same time; then one row
after the other measures while the others wait, so that no compile disturbs a measurement. Within a row the ways take
turns: a figure is the median over the rounds of the mean step of a round. The memory table compares kernels that do
nothing but move data with the bandwidth of a device copy measured between them.
"""
import argparse
import datetime
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

WAYS = {"eager": None, "inductor": dict(backend="inductor"),
        "inductor-graphs": dict(backend="inductor", mode="reduce-overhead"), "kiln": dict(backend="kiln"),
        "kiln-graphs": dict(backend="kiln", mode="reduce-overhead")}
# What is compared with what: default with default, CUDA graphs with CUDA graphs.
RATIOS = [("kiln", "inductor"), ("kiln", "eager"), ("kiln-graphs", "inductor-graphs")]
# Ways whose temporary memory torch's allocator counts; a replayed graph's lies in a pool of its own.
COUNTED = ("eager", "inductor", "kiln")

# name: (model of models.py, task, dtype, changes of the inputs' sizes)
ROWS = {
    "vit": ("vit", "infer", "float32", {}),
    "resnet50": ("resnet50", "infer", "float32", {}),
    "mobilenet": ("mobilenet", "infer", "float32", {}),
    "bert": ("bert", "infer", "float32", {"input_ids": (1, 12)}),
    "convnext": ("convnext", "infer", "float32", {}),
    "segformer": ("segformer", "infer", "float32", {"pixel_values": (1, 3, 512, 512)}),
    "beit": ("beit", "infer", "float32", {}),
    "bert-train": ("bert", "train", "float32", {}),
    "resnet50-train": ("resnet50", "train", "float32", {}),
    "gpt2-train": ("gpt2", "train", "bfloat16", {}),
}
QUICK = ["bert", "resnet50", "vit", "bert-train"]


# ---- one row, in a process of its own

def _steps(row, ways):
    """(name, function of no arguments that takes one step) of every way that compiles; errors by name."""
    import models
    import torch
    import kiln

    torch.set_float32_matmul_precision("high")
    name, task, dtype, sizes = ROWS[row]
    steps, errors, stats = {}, {}, {}
    for way in ways:
        model, inputs = models.build(name, task, getattr(torch, dtype))
        for key, size in sizes.items():
            inputs[key] = inputs[key].new_empty(size).normal_() if inputs[key].is_floating_point() else \
                torch.randint(0, 1000, size)
        model = model.cuda()
        inputs = {key: value.cuda() for key, value in inputs.items()}
        call = model if WAYS[way] is None else torch.compile(model, **WAYS[way])
        optimizer = torch.optim.SGD(model.parameters(), 1e-4) if task == "train" else None

        def step(call=call, inputs=inputs, optimizer=optimizer):
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


def _kiln_stats():
    import kiln
    from kiln import backend
    return {key: value for key, value in {**kiln.stats(), **backend.run_counts()}.items()
            if isinstance(value, (int, dict))}


def _peak(torch, step):
    """Megabytes that a step allocates at its peak, above what was allocated before it."""
    step()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 1e6


def _measure_row(row, arguments):
    import torch

    steps, errors, stats = _steps(row, arguments.ways.split(","))
    print("ready", flush=True)
    sys.stdin.readline()
    times = {way: [] for way in steps}
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


# ---- the memory table

def _memory_functions(torch):
    function = torch.nn.functional
    return {  # name: (function, bytes moved per element of an fp32 matrix)
        "add and GELU": (lambda x: function.gelu(x + 1.5), 8),
        "softmax of rows": (lambda x: torch.softmax(x, -1), 8),
        "layer norm of rows": (lambda x: function.layer_norm(x, x.shape[-1:]), 8),
        "sums of columns": (lambda x: x.sum(0), 4),
        "sums of rows": (lambda x: x.sum(-1), 4),
        "transposed add": (lambda x: x.t().contiguous() * 2, 8),
    }


def _measure_memory(arguments):
    import torch
    import kiln  # noqa: F401  (names the back-end)

    x = torch.randn(16384, 4096, device="cuda")  # 256 MiB, several times the second-level cache
    y = torch.empty_like(x)
    errors, calls = {}, {}
    for name, (function, bytes_moved) in _memory_functions(torch).items():
        for way in ("eager", "inductor", "kiln"):
            call = function if WAYS[way] is None else torch.compile(function, **WAYS[way])
            try:
                call(x)
                calls[name, way] = (call, bytes_moved)
            except Exception as error:
                errors[f"{name}, {way}"] = f"{type(error).__name__}: {error}"[:300]
    calls["copy", "eager"] = (lambda x: y.copy_(x), 8)
    print("ready", flush=True)
    sys.stdin.readline()
    rates = {key: [] for key in calls}
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for _ in range(arguments.rounds):
        for key, (call, bytes_moved) in calls.items():
            call(x)
            start.record()
            for _ in range(10):
                call(x)
            end.record()
            torch.cuda.synchronize()
            rates[key].append(bytes_moved * x.numel() * 10 / start.elapsed_time(end) / 1e6)
    result = {"row": "memory", "errors": errors, "gb_per_s": {}}
    for (name, way), values in rates.items():
        result["gb_per_s"].setdefault(name, {})[way] = statistics.median(values)
    return result


# ---- all of them

def _geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values)) if values else float("nan")


def _start(row, arguments, directory):
    environment = dict(os.environ, TORCHINDUCTOR_CACHE_DIR=os.path.join(directory, row),
                       KILN_STORE=os.path.join(directory, "kiln"), KILN_RUNTIME_DIR=os.path.join(directory, "run"),
                       TOKENIZERS_PARALLELISM="false", TORCHINDUCTOR_COMPILE_THREADS="2")
    command = [sys.executable, __file__, "--one", row, "--rounds", str(arguments.rounds), "--steps",
               str(arguments.steps), "--ways", arguments.ways]
    log = open(os.path.join(directory, f"{row}.log"), "w+")
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                            text=True), log


def _await_line(process, log):
    """The next line that is the row's own; "" when the process has ended."""
    for line in process.stdout:
        if line.startswith(("ready", "{")):
            return line
    log.seek(0)
    return ""


def _run(rows, arguments, directory):
    processes = {row: _start(row, arguments, directory) for row in rows}
    ready = {row: _await_line(*pair) for row, pair in processes.items()}
    results = []
    for row, (process, log) in processes.items():
        line = ""
        if ready[row]:
            process.stdin.write("go\n")
            process.stdin.flush()
            line = _await_line(process, log)
        process.stdin.close()
        process.wait()
        if line:
            results.append(json.loads(line))
        else:
            results.append({"row": row, "errors": {"process": (log.read().strip().splitlines() or ["died"])[-1][:300]}})
    return results


def _markdown(report):
    ways = report["ways"]
    print(f"{report['device']}, torch {report['torch']}, {report['date']}\n")
    print("| row | " + " | ".join(f"{way} ms" for way in ways) + " | "
          + " | ".join(f"{a} ÷ {b}" for a, b in RATIOS)
          + " | peak MB: " + ", ".join(COUNTED) + " | launches / library calls / fallbacks |")
    print("|---" * (len(ways) + len(RATIOS) + 3) + "|")
    ratios = {pair: [] for pair in RATIOS}
    for result in report["rows"]:
        if "gb_per_s" in result:
            continue
        cells = [f"{result[way]['step_ms']:.3f}" if way in result else "failed" for way in ways]
        for pair in RATIOS:
            if all(way in result for way in pair):
                ratios[pair].append(result[pair[0]]["step_ms"] / result[pair[1]]["step_ms"])
                cells.append(f"{ratios[pair][-1]:.2f}")
            else:
                cells.append("–")
        peak = result.get("peak_mb", {})
        cells.append(", ".join(f"{peak[way]:.0f}" if way in peak else "–" for way in COUNTED))
        stats = result.get("kiln", {}).get("stats", {})
        cells.append(f"{stats.get('kernels', '–')} / {stats.get('library_calls', '–')} / "
                     f"{sum(stats.get('fallbacks', {}).values())}")
        print(f"| {result['row']} | " + " | ".join(cells) + " |")
    for pair, values in ratios.items():
        print(f"\nGeometric mean of {len(values)} rows, {pair[0]} ÷ {pair[1]}: {_geometric_mean(values):.3f}")
    for result in report["rows"]:
        if "gb_per_s" in result:
            copy = result["gb_per_s"]["copy"]["eager"]
            print(f"\nCopy: {copy:.0f} GB/s. Share of it:\n\n| kernel | eager | inductor | kiln |\n|---|---|---|---|")
            for name, rates in result["gb_per_s"].items():
                if name != "copy":
                    print(f"| {name} | " + " | ".join(
                        f"{rates[way] / copy:.2f}" if way in rates else "failed"
                        for way in ("eager", "inductor", "kiln")) + " |")
        for what, error in result["errors"].items():
            print(f"\n{result['row']}, {what}: {error}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", help=f"comma-separated, of {', '.join(ROWS)} and memory; default: all")
    parser.add_argument("--quick", action="store_true", help=f"only {', '.join(QUICK)} and memory")
    parser.add_argument("--ways", default=",".join(WAYS), help="comma-separated")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=20, help="of a round")
    parser.add_argument("--json", help="file for the figures")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        result = _measure_memory(arguments) if arguments.one == "memory" else _measure_row(arguments.one, arguments)
        print(json.dumps(result), flush=True)
        return

    import torch
    if not torch.cuda.is_available():
        raise SystemExit("no NVIDIA GPU here")
    rows = arguments.rows.split(",") if arguments.rows else [*(QUICK if arguments.quick else ROWS), "memory"]
    if unknown := set(rows) - {*ROWS, "memory"}:
        parser.error(f"unknown rows {', '.join(sorted(unknown))}")
    directory = tempfile.mkdtemp(prefix="kiln-bench-")
    try:
        report = {"date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
                  "device": torch.cuda.get_device_name(), "torch": torch.__version__,
                  "ways": arguments.ways.split(","), "rounds": arguments.rounds, "steps": arguments.steps,
                  "rows": _run(rows, arguments, directory)}
    finally:
        from cpu import stop_daemons
        stop_daemons(directory)
        shutil.rmtree(directory, ignore_errors=True)
    _markdown(report)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(report, file, indent=1)


if __name__ == "__main__":
    main()
