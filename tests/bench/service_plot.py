#!/usr/bin/env python3
"""How kilnd grows, as plots: hits against clients, compiles against workers, time to open against entries.

  .venv/bin/python tests/bench/service_plot.py FILE.json… DIRECTORY

The files are what `service.sh --json` wrote. Each plot that they have rows for becomes a PNG in DIRECTORY; both axes
are logarithmic, a vertical line is the spread. Needs matplotlib (pip install matplotlib).
"""
import json
import os
import sys
from typing import Any, TypeAlias

Lines: TypeAlias = dict[str, list[tuple[float, float, float, float]]]  # points by a line's name


def plots(rows: list[dict[str, Any]]) -> tuple[tuple[str, str, str, Lines], ...]:
    """Of each plot: its file, what its axes are, and the points (x, median, least, largest) of each line."""
    def of(name: str) -> list[dict[str, Any]]:
        return [row for row in rows if row["row"] == name]

    def point(x: float, value: dict[str, float]) -> tuple[float, float, float, float]:
        return x, value["median"], value["least"], value["largest"]
    return (
        ("hits", "connections, one call at a time on each", "hits a second",
         {side: [point(row["connections"], row["rate"][side]) for row in of("hit")] for side in ("kilnd", "bare")}),
        ("compiles", "workers", "compiles a second",
         {"kilnd": [point(row["workers"], row["rate"]) for row in of("workers")]}),
        ("open", "manifests in the store", "seconds from the start to the first hit",
         {"kilnd": [(row["manifests"],) + (row["open_seconds"],) * 3 for row in of("manifests")]}),
    )


def draw(path: str, across: str, up: str, lines: Lines) -> None:
    from matplotlib.figure import Figure
    figure = Figure(figsize=(6.4, 4.2))
    axes = figure.subplots()
    for name, points in lines.items():
        xs, medians, least, largest = zip(*points, strict=True)
        below = [median - low for median, low in zip(medians, least, strict=True)]
        above = [high - median for median, high in zip(medians, largest, strict=True)]
        axes.errorbar(xs, medians, yerr=(below, above), label=name, marker="o", capsize=3)
    axes.set(xscale="log", yscale="log", xlabel=across, ylabel=up)
    axes.grid(True, which="both", alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=100, bbox_inches="tight")


def main(sources: list[str], directory: str) -> int:
    rows = []
    for source in sources:
        with open(source) as file:
            rows += json.load(file)["rows"]
    drawn = 0
    for name, across, up, lines in plots(rows):
        if not all(lines.values()):
            continue
        path = os.path.join(directory, f"service-{name}.png")
        draw(path, across, up, lines)
        print(path)
        drawn += 1
    return 0 if drawn else 1


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1:-1], sys.argv[-1]))
