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


class Tuned:
    """One row's starts in seconds; `result` holds what worked, `errors` the rest, by way and mode."""

    def __init__(self, name: str, row: tuple[str, str, str], nursery: Nursery, limit: float) -> None:
        """row: (model of models.py, task, dtype); limit: seconds for one start."""
        self.result: dict[str, Any] = {"row": name, "limit_s": limit, "cold": {}, "warm": {}}
        self.errors: dict[str, str] = {}
        self._row, self._nursery, self._limit = row, nursery, limit

    def measure(self) -> Tuned:
        directory = tempfile.mkdtemp(prefix="kiln-bench-")
        cold = self.result["cold"]
        warm: dict[str, list[float | None]] = {mode: [] for mode in MODES}
        try:
            cold["inductor"] = self._start("inductor", MODE, directory)
            for mode in reversed(MODES):
                cold[mode] = self._start("kiln", mode, directory)
            for _ in range(WARM_ROUNDS):
                for mode in MODES:
                    warm[mode].append(self._start("kiln", mode, directory))
        finally:
            stop_daemons(directory)
            shutil.rmtree(directory, ignore_errors=True)
        for mode, seconds in warm.items():
            measured = [one for one in seconds if one is not None]
            self.result["warm"][mode] = statistics.median(measured) if len(measured) == len(seconds) else None
        return self

    def _start(self, way: str, mode: str, directory: str) -> float | None:
        """Seconds, or None and an error."""
        model, task, dtype = self._row
        words = [model, task, way, "--dtype", dtype, "--device", "cuda", "--mode", mode]
        name = f"{way} {mode}"
        try:
            with Cell(self._nursery, words, os.path.join(directory, mode), self._limit) as cell:
                if way == "kiln" and (fallbacks := cell.ask("stats")["fallbacks"]):
                    self.errors[name] = f"fallbacks: {fallbacks}"
                return float(cell.start["start_s"])
        except Failed as error:
            self.errors[name] = str(error)
            return None

    def cold_ratio(self) -> float | None:
        mine = self.result["cold"].get(MODE)
        return float(mine / (self.result["cold"].get("inductor") or self._limit)) if mine else None

    def warm_ratio(self, mode: str) -> float | None:
        """Of the tuned warm start to that of `mode`."""
        tuned, other = self.result["warm"].get(MODE), self.result["warm"].get(mode)
        return float(tuned / other) if tuned and other else None

    def line(self) -> str:
        inductor = self.result["cold"].get("inductor")
        told = number(inductor, 1) if inductor else f"over {self._limit:.0f}"
        cells = [f"{told} / {number(self.result['cold'].get(MODE), 1)}",
                 ("≤ " if not inductor and self.cold_ratio() else "") + number(self.cold_ratio(), 3),
                 " / ".join(number(self.result["warm"].get(mode), 2) for mode in MODES),
                 number(self.warm_ratio("default"), 2), number(self.warm_ratio("reduce-overhead"), 2)]
        return f"| {self.result['row']} | {' | '.join(cells)} |"


def table(rows: list[Tuned]) -> list[str]:
    warm = ", ".join(f"tuned ÷ {mode} {mean([row.warm_ratio(mode) for row in rows])}" for mode in MODES[:2])
    return [f"Starts with `{MODE}` (warm: medians of {WARM_ROUNDS}):", "",
            f"| row | cold start s: Inductor / kiln | kiln ÷ Inductor | kiln's warm start s: {' / '.join(MODES)} | "
            "tuned ÷ default | tuned ÷ reduce-overhead |", "|---|---|---|---|---|---|", *(row.line() for row in rows),
            "",
            f"Geometric means: cold kiln ÷ Inductor {mean([row.cold_ratio() for row in rows])}, {warm}.", ""]
