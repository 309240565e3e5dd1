"""Starts with mode="max-autotune" on a GPU: TorchInductor and kiln cold, then kiln again with what was measured in its
store, in turn with its default mode and with reduce-overhead, which records CUDA graphs as max-autotune does. Every
start is a new process; those of a mode lie in a directory of their own.

TorchInductor takes minutes where it has many choices to measure: past the limit it is ended, and the ratio that the
table gives is then the most that it can be.
"""
from __future__ import annotations

import os
import shutil
import statistics
import tempfile
from typing import Any

from cell import Cell, Failed
from cpu import mean, number, stop_daemons
from nursery import Nursery

MODE = "max-autotune"
MODES = ("default", "reduce-overhead", MODE)
WARM_ROUNDS = 3


def measure(name: str, row: tuple[str, str, str], nursery: Nursery, limit: float) -> dict[str, Any]:
    """One row's starts in seconds, and by way and mode what went wrong. row: (model of models.py, task, dtype); limit:
    seconds for one start."""
    errors: dict[str, str] = {}

    def start(way: str, mode: str) -> float | None:
        model, task, dtype = row
        words = [model, task, way, "--dtype", dtype, "--device", "cuda", "--mode", mode]
        try:
            with Cell(nursery, words, os.path.join(directory, mode), limit) as cell:
                if way == "kiln" and (fallbacks := cell.ask("stats")["fallbacks"]):
                    errors[f"{way} {mode}"] = f"fallbacks: {fallbacks}"
                return float(cell.start["start_s"])
        except Failed as error:
            errors[f"{way} {mode}"] = str(error)
            return None

    directory = tempfile.mkdtemp(prefix="kiln-bench-")
    cold: dict[str, float | None] = {}
    starts: dict[str, list[float | None]] = {mode: [] for mode in MODES}
    try:
        cold["inductor"] = start("inductor", MODE)
        for mode in reversed(MODES):
            cold[mode] = start("kiln", mode)
        for _ in range(WARM_ROUNDS):
            for mode in MODES:
                starts[mode].append(start("kiln", mode))
    finally:
        stop_daemons(directory)
        shutil.rmtree(directory, ignore_errors=True)
    warm: dict[str, float | None] = {}
    for mode, seconds in starts.items():
        measured = [one for one in seconds if one is not None]
        warm[mode] = statistics.median(measured) if len(measured) == len(seconds) else None
    return {"row": name, "limit_s": limit, "cold": cold, "warm": warm, "errors": errors}


class Tuned:
    """What `measure` gave, as a row of the table."""

    def __init__(self, result: dict[str, Any]) -> None:
        self._result = result

    def cold_ratio(self) -> float | None:
        mine = self._result["cold"].get(MODE)
        return float(mine / (self._result["cold"].get("inductor") or self._result["limit_s"])) if mine else None

    def warm_ratio(self, mode: str) -> float | None:
        """Of the tuned warm start to that of `mode`."""
        tuned, other = self._result["warm"].get(MODE), self._result["warm"].get(mode)
        return float(tuned / other) if tuned and other else None

    def line(self) -> str:
        cold, warm = self._result["cold"], self._result["warm"]
        told = number(cold["inductor"], 1) if cold.get("inductor") else f"over {self._result['limit_s']:.0f}"
        cells = [f"{told} / {number(cold.get(MODE), 1)}",
                 ("≤ " if not cold.get("inductor") and self.cold_ratio() else "") + number(self.cold_ratio(), 3),
                 " / ".join(number(warm.get(mode), 2) for mode in MODES),
                 number(self.warm_ratio("default"), 2), number(self.warm_ratio("reduce-overhead"), 2)]
        return f"| {self._result['row']} | {' | '.join(cells)} |"


def table(rows: list[Tuned]) -> list[str]:
    warm = ", ".join(f"tuned ÷ {mode} {mean([row.warm_ratio(mode) for row in rows])}" for mode in MODES[:2])
    return [f"Starts with `{MODE}` (warm: medians of {WARM_ROUNDS}):", "",
            f"| row | cold start s: Inductor / kiln | kiln ÷ Inductor | kiln's warm start s: {' / '.join(MODES)} | "
            "tuned ÷ default | tuned ÷ reduce-overhead |", "|---|---|---|---|---|---|", *(row.line() for row in rows),
            "",
            f"Geometric means: cold kiln ÷ Inductor {mean([row.cold_ratio() for row in rows])}, {warm}.", ""]
