#!/usr/bin/env python3
"""How kilnd grows, as plots: hits against clients, compiles against workers, time to open against entries.

  tests/bench/service_plot.py FILE.json DIRECTORY

FILE is what `service.sh --json` wrote. Each plot that it has rows for becomes an SVG in DIRECTORY; both axes are
logarithmic, a vertical line is the spread.
"""
import json
import math
import os
import sys

WIDTH, HEIGHT, MARGIN = 640, 420, 60
COLOURS = {"kilnd": "#c33", "bare": "#36c"}


def plots(rows):
    """Of each plot: its file, what its axes are, and the points (x, median, least, largest) of each line."""
    of = lambda name: [row for row in rows if row["row"] == name]
    point = lambda x, value: (x, value["median"], value["least"], value["largest"])
    return (
        ("hits", "connections, one call at a time on each", "hits a second",
         {side: [point(row["connections"], row["rate"][side]) for row in of("hit")] for side in ("kilnd", "bare")}),
        ("compiles", "workers", "compiles a second",
         {"kilnd": [point(row["workers"], row["rate"]) for row in of("workers")]}),
        ("open", "manifests in the store", "seconds from the start to the first hit",
         {"kilnd": [(row["manifests"],) + (row["open_seconds"],) * 3 for row in of("manifests")]}),
    )


def ticks(low, high):
    """1, 2 and 5 times powers of ten that hold all between."""
    steps = [step * 10.0 ** power for power in range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
             for step in (1, 2, 5)]
    first = max((step for step in steps if step <= low), default=low)
    last = min((step for step in steps if step >= high), default=high)
    return [step for step in steps if first <= step <= max(last, first * 2)]


def draw(across_name, up_name, lines):
    points = [point for line in lines.values() for point in line]
    xs, ys = ticks(*(f(p[0] for p in points) for f in (min, max))), ticks(min(p[2] for p in points),
                                                                       max(p[3] for p in points))
    share = lambda value, axis: math.log(value / axis[0]) / math.log(axis[-1] / axis[0])
    place = lambda value, axis, length: share(value, axis) * (length - 2 * MARGIN)
    across = lambda x: MARGIN + place(x, xs, WIDTH)
    up = lambda y: HEIGHT - MARGIN - place(y, ys, HEIGHT)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" '
             'font-size="12"><rect width="100%" height="100%" fill="white"/>']
    for x in xs:
        parts.append(f'<line x1="{across(x):.1f}" x2="{across(x):.1f}" y1="{MARGIN}" y2="{HEIGHT - MARGIN}" '
                     f'stroke="#ddd"/><text x="{across(x):.1f}" y="{HEIGHT - MARGIN + 16}" '
                     f'text-anchor="middle">{x:,g}</text>')
    for y in ys:
        parts.append(f'<line x1="{MARGIN}" x2="{WIDTH - MARGIN}" y1="{up(y):.1f}" y2="{up(y):.1f}" stroke="#ddd"/>'
                     f'<text x="{MARGIN - 6}" y="{up(y) + 4:.1f}" text-anchor="end">{y:,g}</text>')
    for index, (name, line) in enumerate(lines.items()):
        colour = COLOURS[name]
        path = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y, _, _ in line)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}"/>')
        for x, y, least, largest in line:
            parts.append(f'<line x1="{across(x):.1f}" x2="{across(x):.1f}" y1="{up(least):.1f}" y2="{up(largest):.1f}" '
                         f'stroke="{colour}"/><circle cx="{across(x):.1f}" cy="{up(y):.1f}" r="3" fill="{colour}"/>')
        parts.append(f'<text x="{WIDTH - MARGIN}" y="{MARGIN - 30 + 14 * index}" text-anchor="end" fill="{colour}">'
                     f'{name}</text>')
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 16}" text-anchor="middle">{across_name}</text>'
                 f'<text x="{MARGIN}" y="{MARGIN - 16}">{up_name}</text></svg>')
    return "\n".join(parts) + "\n"


def main(source, directory):
    with open(source) as file:
        rows = json.load(file)["rows"]
    drawn = 0
    for name, across_name, up_name, lines in plots(rows):
        if not all(lines.values()):
            continue
        path = os.path.join(directory, f"service-{name}.svg")
        with open(path, "w") as file:
            file.write(draw(across_name, up_name, lines))
        print(path)
        drawn += 1
    if not drawn:
        print(f"service_plot.py: {source} has no row of hits, workers or manifests", file=sys.stderr)
    return 0 if drawn else 1


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
