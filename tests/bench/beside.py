"""Two builds of kiln side by side, before a change and after it: steps and starts of the models of models.py.

    deploy/bundle.sh before.tar.gz                      of the commit before; unpack it into before/
    tests/bench/beside.py --before before/kiln          against the kiln that is installed

Each build is a process a row with caches and a daemon of its own. Cold starts: an empty store. Warm ones: the same
store, a new process. Steps are timed in turn, the first of a round by turns; a ratio is after ÷ before within a round.
Prints a Markdown table: seconds, milliseconds, the median of the ratios, and their least and largest as spread.
"""
import argparse
import contextlib
import json
import os
import shutil
import statistics
import tempfile
from typing import Any, NoReturn

import models
from cell import Cell, Failed
from cpu import geometric_mean, stop_daemons
from nursery import Nursery

BUILDS = ("before", "after")


def main() -> NoReturn:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", required=True, metavar="DIRECTORY", help="where the package kiln of before lies")
    parser.add_argument("--after", metavar="DIRECTORY", help="likewise (default: the kiln that is installed)")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--mode", help="of torch.compile")
    parser.add_argument("--models", default=",".join(models.MODELS), help="comma-separated")
    parser.add_argument("--tasks", default="infer,train")
    parser.add_argument("--rounds", type=int, default=8, help="of steps")
    parser.add_argument("--seconds", type=float, default=0.5, help="of steps a build and round, about")
    parser.add_argument("--cores", type=int, help="of the first ones alone")
    parser.add_argument("--json", metavar="FILE", help="a line a row, written when it is measured")
    arguments = parser.parse_args()
    for name in BUILDS:
        directory = getattr(arguments, name)
        if directory and not os.path.exists(os.path.join(directory, "kiln", "__init__.py")):
            parser.error(f"--{name}: {directory} has no package kiln")
    unknown = set(arguments.models.split(",")) - set(models.GPU_MODELS)
    if unknown:
        parser.error(f"--models: no {', '.join(sorted(unknown))}; there are {', '.join(sorted(models.GPU_MODELS))}")
    cores = set(range(arguments.cores)) if arguments.cores else None
    nurseries = {name: Nursery(cores, getattr(arguments, name) and os.path.abspath(getattr(arguments, name)))
                 for name in BUILDS}
    print("| row | cold start: before / after | ÷ | warm start: before / after | ÷ | step: before / after | ÷ | spread "
          "|\n"
          "|---|---|---|---|---|---|---|---|", flush=True)
    rows = [_measured(nurseries, model, task, arguments) for model in arguments.models.split(",")
            for task in arguments.tasks.split(",")]
    means = [f"{geometric_mean([row[what] for row in rows if row]):.3f}" for what in ("cold", "warm", "step")]
    print(f"| geometric mean | | {means[0]} | | {means[1]} | | {means[2]} | |")
    raise SystemExit(None in rows)


def _measured(nurseries: dict[str, Nursery], model: str, task: str,
              arguments: argparse.Namespace) -> dict[str, Any] | None:
    directories = {name: tempfile.mkdtemp(prefix="kiln-bench-") for name in BUILDS}
    try:
        row = _row(nurseries, directories, model, task, arguments)
    except Failed as error:
        print(f"| {model}, {task} | {error} | | | | | | |", flush=True)
        return None
    finally:
        for directory in directories.values():
            stop_daemons(directory)
            shutil.rmtree(directory, ignore_errors=True)
    if arguments.json:
        with open(arguments.json, "a") as file:
            print(json.dumps(row), file=file)
    return row


def _row(nurseries: dict[str, Nursery], directories: dict[str, str], model: str, task: str,
         arguments: argparse.Namespace) -> dict[str, Any]:
    words = [model, task, "kiln", "--dtype", arguments.dtype, "--device", arguments.device]
    words += ["--mode", arguments.mode] if arguments.mode else []

    def start(name: str) -> Cell:
        return Cell(nurseries[name], words, directories[name])
    cold = {}
    for name in BUILDS:
        with start(name) as cell:
            cold[name] = cell.start["start_s"]
    with contextlib.ExitStack() as stack:
        cells = {name: stack.enter_context(start(name)) for name in BUILDS}
        warm = {name: cell.start["start_s"] for name, cell in cells.items()}
        counts = {name: max(1, round(arguments.seconds * 1e3 / cell.start["step_ms"])) for name, cell in cells.items()}
        rounds = []
        for number in range(arguments.rounds):
            order = BUILDS if number % 2 == 0 else BUILDS[::-1]
            rounds.append({name: cells[name].ask(f"steps {counts[name]}") for name in order})
    ratios = sorted(each["after"] / each["before"] for each in rounds)
    row = {"row": f"{model}, {task}", "cold": cold["after"] / cold["before"], "warm": warm["after"] / warm["before"],
           "step": statistics.median(ratios), "rounds": rounds}
    step = {name: statistics.median(each[name] for each in rounds) for name in BUILDS}
    print(f"| {row['row']} | {cold['before']:.2f} / {cold['after']:.2f} | {row['cold']:.2f} | "
          f"{warm['before']:.2f} / {warm['after']:.2f} | {row['warm']:.2f} | {step['before']:.2f} / "
          f"{step['after']:.2f} | "
          f"{row['step']:.3f} | {ratios[0]:.3f} to {ratios[-1]:.3f} |", flush=True)
    return row


if __name__ == "__main__":
    main()
