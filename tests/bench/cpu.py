"""Eager, TorchInductor and kiln side by side on this machine; prints a Markdown table as it is measured.

Every cell is a process of its own (tests/bench/measure.py). Cold: empty caches and a fresh daemon; warm: the same
caches, a new process. Ways alternate within a row, so that drift of the machine hits all of them.
"""
import argparse
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)


def measure(directory, model, task, way, arguments):
    environment = dict(os.environ,
                       TORCHINDUCTOR_CACHE_DIR=os.path.join(directory, "inductor"),
                       KILN_STORE=os.path.join(directory, "kiln"),
                       KILN_RUNTIME_DIR=os.path.join(directory, "run"),
                       TOKENIZERS_PARALLELISM="false")
    command = [sys.executable, os.path.join(HERE, "measure.py"), model, task, way,
               "--dtype", arguments.dtype, "--seconds", str(arguments.seconds)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=arguments.timeout)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return {"error": reason[:200]}
    return json.loads(done.stdout.strip().splitlines()[-1])


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


def cell(row, key, digits):
    return f"{row[key]:.{digits}f}" if key in row else "failed"


def main():
    import models
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(models.MODELS), help="comma-separated")
    parser.add_argument("--tasks", default="infer,train")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--seconds", type=float, default=6.0, help="of timed steps a cell, about")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds a cell may take")
    parser.add_argument("--json", help="also write the raw rows to this file")
    arguments = parser.parse_args()

    rows, ratios_step, ratios_cold, ratios_warm = [], [], [], []
    print("| model, task | step ms eager / Inductor / kiln | kiln ÷ Inductor | start cold s Inductor / kiln | "
          "start warm s Inductor / kiln | peak MB eager / Inductor / kiln | kiln native kernels / library calls / "
          "fallbacks |")
    print("|---|---|---|---|---|---|---|", flush=True)
    for model in arguments.models.split(","):
        for task in arguments.tasks.split(","):
            directory = tempfile.mkdtemp(prefix="kiln-bench-")
            try:
                eager = measure(directory, model, task, "eager", arguments)
                cold = {way: measure(directory, model, task, way, arguments) for way in ("inductor", "kiln")}
                warm = {way: measure(directory, model, task, way, arguments) for way in ("kiln", "inductor")}
            finally:
                stop_daemons(directory)
                shutil.rmtree(directory, ignore_errors=True)
            rows.append({"model": model, "task": task, "eager": eager, "cold": cold, "warm": warm})
            inductor, kiln = warm["inductor"], warm["kiln"]
            ratio = "–"
            if "step_ms" in inductor and "step_ms" in kiln:
                ratios_step.append(kiln["step_ms"] / inductor["step_ms"])
                ratio = f"{ratios_step[-1]:.2f}"
            for ratios, part in ((ratios_cold, cold), (ratios_warm, warm)):
                if "start_s" in part["inductor"] and "start_s" in part["kiln"]:
                    ratios.append(part["kiln"]["start_s"] / part["inductor"]["start_s"])
            stats = kiln.get("kiln", {})
            fallbacks = sum(stats.get("fallbacks", {}).values())
            print(f"| {model}, {task} | {cell(eager, 'step_ms', 1)} / {cell(inductor, 'step_ms', 1)} / "
                  f"{cell(kiln, 'step_ms', 1)} | {ratio} | {cell(cold['inductor'], 'start_s', 1)} / "
                  f"{cell(cold['kiln'], 'start_s', 1)} | {cell(inductor, 'start_s', 1)} / {cell(kiln, 'start_s', 1)} | "
                  f"{cell(eager, 'peak_mb', 0)} / {cell(inductor, 'peak_mb', 0)} / {cell(kiln, 'peak_mb', 0)} | "
                  f"{stats.get('kernels', '–')} / {stats.get('library_calls', '–')} / {fallbacks} |", flush=True)
            for name, result in (("eager", eager), *((f"cold {w}", r) for w, r in cold.items()),
                                 *((f"warm {w}", r) for w, r in warm.items())):
                if "error" in result:
                    print(f"  {model} {task} {name}: {result['error']}", file=sys.stderr, flush=True)
    print(f"\nGeometric means, kiln ÷ Inductor: step {geometric_mean(ratios_step):.3f}, "
          f"start cold {geometric_mean(ratios_cold):.3f}, start warm {geometric_mean(ratios_warm):.3f}")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
