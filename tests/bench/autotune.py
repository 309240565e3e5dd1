"""Starts with mode="max-autotune" on a GPU: TorchInductor and kiln cold, then kiln again with what was measured in its
store, beside its default mode's warm start. Every start is a new process; all of a row's lie in directories of its own.

TorchInductor takes minutes where it has many choices to measure: past the limit it is ended, and the ratio that the
table gives is then the most that it can be.
"""
import os
import shutil
import tempfile

from cell import Cell, Failed
from cpu import mean, number, stop_daemons

MODE = "max-autotune"
# name: (way, mode, directory)
STARTS = {"inductor": ("inductor", MODE, "tuned"), "kiln": ("kiln", MODE, "tuned"), "kiln_warm": ("kiln", MODE, "tuned"),
          "default": ("kiln", "default", "default"), "default_warm": ("kiln", "default", "default")}


class Tuned:
    """One row's starts in seconds by name; `result` holds what worked, `errors` the rest."""

    def __init__(self, name, row, nursery, limit):
        """row: (model of models.py, task, dtype); limit: seconds for one start."""
        self.result = {"row": name, "limit_s": limit}
        self.errors = {}
        self._row, self._nursery, self._limit = row, nursery, limit

    def measure(self):
        model, task, dtype = self._row
        directory = tempfile.mkdtemp(prefix="kiln-bench-")
        try:
            for name, (way, mode, place) in STARTS.items():
                words = [model, task, way, "--dtype", dtype, "--device", "cuda", "--mode", mode]
                try:
                    with Cell(self._nursery, words, os.path.join(directory, place), self._limit) as cell:
                        self.result[name] = cell.start["start_s"]
                        if way == "kiln" and (fallbacks := cell.ask("stats")["fallbacks"]):
                            self.errors[name] = f"fallbacks: {fallbacks}"
                except Failed as error:
                    self.errors[name] = str(error)
        finally:
            stop_daemons(directory)
            shutil.rmtree(directory, ignore_errors=True)
        return self

    def cold_ratio(self):
        mine = self.result.get("kiln")
        return mine / self.result.get("inductor", self._limit) if mine else None

    def warm_ratio(self):
        """Of the tuned warm start to the default mode's."""
        tuned, default = self.result.get("kiln_warm"), self.result.get("default_warm")
        return tuned / default if tuned and default else None

    def line(self):
        inductor = self.result.get("inductor")
        told = number(inductor, 1) if inductor else f"over {self._limit:.0f}"
        cells = [f"{told} / {number(self.result.get('kiln'), 1)}",
                 ("≤ " if not inductor and self.cold_ratio() else "") + number(self.cold_ratio(), 3),
                 f"{number(self.result.get('default_warm'), 2)} / {number(self.result.get('kiln_warm'), 2)}",
                 number(self.warm_ratio(), 2)]
        return f"| {self.result['row']} | {' | '.join(cells)} |"


def table(rows):
    return [f"Starts with `{MODE}`:", "",
            "| row | cold start s: Inductor / kiln | kiln ÷ Inductor | kiln's warm start s: default / tuned | "
            "tuned ÷ default |", "|---|---|---|---|---|", *(row.line() for row in rows), "",
            f"Geometric means: cold kiln ÷ Inductor {mean([row.cold_ratio() for row in rows])}, tuned ÷ default "
            f"{mean([row.warm_ratio() for row in rows])}.", ""]
