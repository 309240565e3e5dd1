"""The steps of a program as a drawing: boxes of kernels and library calls in layers, lines where data goes.

`steps_of` reads what `kilnctl show --json` says of an entry; `draw` gives an SVG with no reference to anything
outside. A box's layer is the longest way from the inputs, so that lines go down; within a layer, boxes stand below
what they read from.
"""
from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from html import escape

from .program_record import Entry

_WIDTH, _GAP_X, _GAP_Y, _LINE, _PAD = 190, 18, 34, 14, 6
_LINES_MOST = 5  # of operators in a box
_LETTERS_MOST = 26


@dataclasses.dataclass
class Box:
    """One step. `reads` and `writes`: storages, numbered by the program's buffers."""

    kernel: int | None  # its number, or None for a library call
    title: str
    lines: list[str]
    reads: set[int]
    writes: set[int]
    result: str = ""  # dtype and shape of what it writes first
    giving: bool = False  # writes an output of the graph
    before: list[int] = dataclasses.field(default_factory=list)  # positions of the boxes that it reads from


def short(target: str) -> str:
    """"aten.native_layer_norm.default" → "native_layer_norm"."""
    parts = target.split(".")
    return parts[1] if len(parts) == 3 else target


def kernel_title(number: int, kernel: Entry) -> str:
    return f"{number}: {kernel['notes']['name']}"


def _accesses(loop_ir: str) -> list[str]:
    """"read", "write" or "read-write" by position of the kernel's buffers, from the head of its readable loops."""
    return re.findall(r"^ +\S+: \w+\[.*\] (read-write|read|write)$", loop_ir, re.M)


def _size(value: Entry) -> str:
    return str(value["value"]) if "value" in value else "s"


def _tensors(argument: Entry) -> list[int]:
    """Buffers of an argument's value."""
    if "as_tensor" in argument:
        return [argument["as_tensor"]]
    return [int(value) for key in ("as_tensors", "as_optional_tensors")
            for value in argument.get(key, {}).get("values", ()) if int(value) >= 0]


class _Reader:
    def __init__(self, entry: Entry) -> None:
        self._program = entry["manifest"]["program"]
        self._kernels = entry["manifest"]["kernels"]
        self._loops = [kernel["loop_ir"] for kernel in entry["kernels"]]

    def boxes(self) -> list[Box]:
        outputs = {self._storage(output["buffer"]) for output in self._program["outputs"] if "buffer" in output}
        boxes: list[Box] = []
        writers: dict[int, list[int]] = {}
        for step in self._program["steps"]:
            if "launch" in step:
                box = self._launch(step["launch"])
            elif "call" in step:
                box = self._call(step["call"])
            else:
                continue
            box.giving = bool(box.writes & outputs)
            box.before = sorted({writer for storage in box.reads for writer in writers.get(storage, ())})
            for storage in box.writes:
                kept = [] if storage in box.reads else writers.get(storage, [])
                writers[storage] = [*kept, len(boxes)]
            boxes.append(box)
        return boxes

    def _storage(self, number: int) -> int:
        buffer = self._program["buffers"][number]
        while buffer["kind"] == "VIEW":
            number = buffer["base"]
            buffer = self._program["buffers"][number]
        return number

    def _shape(self, number: int) -> str:
        buffer = self._program["buffers"][number]
        return f"{buffer['dtype'].lower()}[{', '.join(map(_size, buffer['sizes']))}]"

    def _launch(self, launch: Entry) -> Box:
        number = launch["kernel"]
        kernel = self._kernels[number]
        accesses, buffers = _accesses(self._loops[number]), launch["buffers"]
        if len(accesses) != len(buffers):
            raise ValueError(f"kernel {number} has {len(buffers)} buffers, its loops tell of {len(accesses)}")
        writes = [buffer for buffer, access in zip(buffers, accesses) if "write" in access]
        reads = {self._storage(buffer) for buffer, access in zip(buffers, accesses) if "read" in access}
        operators = [short(operator) for operator in kernel["notes"].get("operators", ())]
        return Box(number, kernel_title(number, kernel), operators, reads, {self._storage(buffer) for buffer in writes},
                   self._shape(writes[0]) if writes else "")

    def _call(self, call: Entry) -> Box:
        results = [int(result) for result in call["results"] if int(result) >= 0]
        reads = {self._storage(buffer) for argument in call["args"] for buffer in _tensors(argument["value"])}
        return Box(None, short(call["target"]), ["library call"], reads, {self._storage(result) for result in results},
                   self._shape(results[0]) if results else "")


def steps_of(entry: Entry) -> list[Box]:
    """The Boxes of an entry, in the order in which they run. Raises ValueError where its loops cannot be read."""
    return _Reader(entry).boxes()


def _layers(boxes: Sequence[Box]) -> list[list[int]]:
    layer_of: list[int] = []
    layers: list[list[int]] = []
    for position, box in enumerate(boxes):
        layer = max((layer_of[before] + 1 for before in box.before), default=0)
        layer_of.append(layer)
        if layer == len(layers):
            layers.append([])
        layers[layer].append(position)
    return layers


def _place(boxes: Sequence[Box], layers: Sequence[Sequence[int]]) -> dict[int, float]:
    """Left edge of each box."""
    left: dict[int, float] = {}
    for layer in layers:
        wish = {}
        for position in layer:
            above = [left[before] for before in boxes[position].before]
            wish[position] = sum(above) / len(above) if above else 0.0
        edge = 0.0
        for position in sorted(layer, key=lambda position: (wish[position], position)):
            left[position] = max(wish[position], edge)
            edge = left[position] + _WIDTH + _GAP_X
    return left


def _cut(text: str) -> str:
    return text if len(text) <= _LETTERS_MOST else text[:_LETTERS_MOST - 1] + "…"


def _lines(box: Box) -> list[str]:
    lines = box.lines[:_LINES_MOST]
    if len(box.lines) > _LINES_MOST:
        lines = [*lines[:-1], f"… {len(box.lines) - _LINES_MOST + 1} more"]
    return [_cut(line) for line in [*lines, *([box.result] if box.result else [])]]


def _box(box: Box, x: float, y: float, height: int, link: Callable[[int], str]) -> str:
    kind = "library" if box.kernel is None else "kernel"
    parts = [f'<g class="{kind}{" giving" if box.giving else ""}"><title>{escape(box.title)}\n'
             f'{escape(", ".join(box.lines))}\n{escape(box.result)}</title>'
             f'<rect x="{x:.0f}" y="{y:.0f}" width="{_WIDTH}" height="{height}" rx="4"/>'
             f'<text class="name" x="{x + _PAD:.0f}" y="{y + _LINE:.0f}">{escape(_cut(box.title))}</text>']
    for row, line in enumerate(_lines(box), 2):
        parts.append(f'<text x="{x + _PAD:.0f}" y="{y + row * _LINE:.0f}">{escape(line)}</text>')
    parts.append("</g>")
    text = "".join(parts)
    return f'<a href="#{escape(link(box.kernel))}">{text}</a>' if box.kernel is not None else text


def draw(boxes: Sequence[Box], link: Callable[[int], str]) -> str:
    """The SVG. `link(kernel number)` is the id of the place that its box leads to."""
    layers = _layers(boxes)
    left = _place(boxes, layers)
    top: dict[int, float] = {}
    heights: dict[int, int] = {}
    edge = float(_PAD)
    for layer in layers:
        for position in layer:
            top[position] = edge
            heights[position] = (len(_lines(boxes[position])) + 1) * _LINE + _PAD
        edge += max(heights[position] for position in layer) + _GAP_Y
    width = max(left.values(), default=0) + _WIDTH + 2 * _PAD
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{edge:.0f}">']
    for position, box in enumerate(boxes):
        for before in box.before:
            x0, y0 = left[before] + _WIDTH / 2, top[before] + heights[before]
            x1, y1 = left[position] + _WIDTH / 2, top[position]
            bend = min(_GAP_Y, (y1 - y0) / 2)
            parts.append(f'<path d="M{x0:.0f} {y0:.0f}C{x0:.0f} {y0 + bend:.0f} {x1:.0f} {y1 - bend:.0f} '
                         f'{x1:.0f} {y1:.0f}"/>')
    parts += [_box(box, left[position], top[position], heights[position], link) for position, box in enumerate(boxes)]
    return "\n".join([*parts, "</svg>"])
