"""kiln.explain's page: one HTML file that needs nothing else.

Per program: the graph with its fused groups drawn, then every kernel's operators, bytes, time and listing. All text
that comes from a model is escaped. Programs and listings fold, drawings scroll: large graphs stay readable.
"""
from __future__ import annotations

import os
from collections.abc import Sequence
from html import escape

from . import dataflow, environment
from .explanation import Explanation
from .profile import Line, Profile
from .program_record import Entry, GraphRecord, ProgramRecord

_STYLE = """
body { font: 14px/1.4 system-ui, sans-serif; margin: 2em auto; max-width: 1200px; padding: 0 1em; color: #222; }
h1 { font-size: 1.4em } h2 { font-size: 1.1em; display: inline }
summary { cursor: pointer; margin: .6em 0 }
table { border-collapse: collapse; width: 100%; margin: 1em 0 }
th, td { text-align: left; vertical-align: top; padding: .3em .8em .3em 0; border-top: 1px solid #ddd }
td.number, th.number { text-align: right; white-space: nowrap }
tr:target { background: #fff3c4 }
pre { background: #f6f6f6; padding: .8em; overflow: auto; max-height: 40em; font-size: 12px; margin: .3em 0 }
.drawing { overflow: auto; max-height: 75vh; border: 1px solid #ccc; margin: 1em 0 }
.warning { color: #a40000 }
.source { color: #666 }
svg text { font: 11px ui-monospace, monospace; fill: #222 } svg .name { font-weight: bold }
svg rect { stroke: #666; fill: #dcebfb } svg .library rect { fill: #f3e3c8 }
svg .giving rect { stroke: #111; stroke-width: 2.5 }
svg path { fill: none; stroke: #999 }
"""


def check(path: str | os.PathLike[str]) -> None:
    """Raises ValueError where no file can be written at `path`, before anything is compiled."""
    directory = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(directory):
        raise ValueError(f"kiln: html={os.fspath(path)!r}: there is no directory {directory!r}")
    if os.path.isdir(path) or not os.access(path if os.path.exists(path) else directory, os.W_OK):
        raise ValueError(f"kiln: html={os.fspath(path)!r}: no file can be written there")


def write(explanation: Explanation, profile: Profile, path: str | os.PathLike[str]) -> None:
    """profile: of one call after the first, a kiln.profile.Profile."""
    parts = [_head(explanation)]
    for number, program in enumerate(explanation.programs):
        parts.append(_program(number, program, profile))
    if explanation.guards:
        guards = "\n".join(map(escape, explanation.guards))
        parts.append(f"<details><summary><h2>Guards of Dynamo ({len(explanation.guards)})</h2></summary>"
                     f"<pre>{guards}</pre></details>")
    text = ('<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>kiln.explain</title>'
            f"<style>{_STYLE}</style></head>\n<body>\n" + "\n".join(parts) + "\n</body></html>\n")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def _head(explanation: Explanation) -> str:
    calls = sum(explanation.library_calls.values())
    parts = [f"<h1>{explanation.graph_count} graphs, {explanation.graph_break_count} graph breaks, "
             f"{len(explanation.programs)} programs: {len(explanation.kernels)} kernels, {calls} library calls, "
             f"{len(explanation.fallbacks)} fallbacks</h1>"]
    parts += [f'<p class="warning">graph break: {escape(reason)}</p>' for reason in explanation.breaks]
    parts.append("<p>Blue: kernels, each with the operators fused into it; sand: library calls; thick: writes a result "
                 "of the graph. A click on a kernel leads to its row. Times are of one call after the first.</p>")
    return "\n".join(parts)


def _program(number: int, program: GraphRecord, profile: Profile) -> str:
    if "fallback" in program:
        return (f'<p class="warning"><b>{escape(program["title"])}</b> falls back: {escape(program["message"])}</p>')
    key = program["compile_key"]
    entry = environment.show(key)
    lines = [line for line in profile.lines if line.key == key]
    seconds = sum(line.seconds for line in lines)
    head = (f"<summary><h2>{escape(program['title'])}</h2> key {key[:16]}, "
            f"{'from the cache' if program['hit'] else 'compiled'}, {len(program['launches'])} launches, "
            f"{len(program['library_calls'])} library calls{f', {_milliseconds(seconds)}' if lines else ''}</summary>")
    if entry is None:
        body = '<p class="warning">The store has not kept this program: there is no drawing and no listing.</p>'
    else:
        drawing = dataflow.draw(dataflow.steps_of(entry), lambda kernel: _row_id(number, kernel))
        body = f'<div class="drawing">{drawing}</div>'
    return (f"<details{' open' if number == 0 else ''}>{head}\n{body}\n"
            f"{_kernel_table(number, program, entry, lines)}\n{_call_table(program, lines)}\n</details>")


def _row_id(number: int, kernel: int) -> str:
    return f"p{number}k{kernel}"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms"


def _megabytes(count: float) -> str:
    return f"{count / 1e6:.2f} MB" if count >= 1e5 else f"{count / 1e3:.2f} kB"


def _kernel_table(number: int, program: ProgramRecord, entry: Entry | None, lines: Sequence[Line]) -> str:
    times = {line.kernel: line for line in lines if line.kernel is not None}
    listings = [kernel["loop_ir"] for kernel in entry["kernels"]] if entry else []
    rows = ['<table><tr><th>kernel</th><th class="number">launches</th><th class="number">reads</th>'
            '<th class="number">writes</th><th class="number">time</th><th class="number">GB/s</th>'
            "<th>operators and source</th></tr>"]
    for position, kernel in enumerate(program["kernels"]):
        line = times.get(position)
        listing = (f"<details><summary>listing</summary><pre>{escape(listings[position])}</pre></details>"
                   if listings else "")
        rows.append(
            f'<tr id="{_row_id(number, position)}"><td>{position}: {escape(kernel["name"])}</td>'
            f'<td class="number">{program["launches"].count(position)}</td>'
            f'<td class="number">{_megabytes(kernel["bytes_read"])}</td>'
            f'<td class="number">{_megabytes(kernel["bytes_written"])}</td>'
            f'<td class="number">{_milliseconds(line.seconds) if line else "–"}</td>'
            f'<td class="number">{f"{line.gigabytes_per_second:.1f}" if line else "–"}</td>'
            f'<td>{escape(", ".join(map(dataflow.short, kernel["operators"])))}'
            f'<div class="source">{"<br>".join(map(escape, kernel["sources"]))}</div>{listing}</td></tr>')
    return "\n".join([*rows, "</table>"])


def _call_table(program: ProgramRecord, lines: Sequence[Line]) -> str:
    in_python = program.get("python_calls", ())
    if not program["library_calls"] and not in_python:
        return ""
    times = {line.name: line.seconds for line in lines if line.kernel is None}
    rows = ['<table><tr><th>library call</th><th class="number">calls</th><th class="number">time</th>'
            "<th>why</th></tr>"]
    for target in sorted(set(program["library_calls"])):
        took = _milliseconds(times[target]) if target in times else "–"
        rows.append(f'<tr><td>{escape(target)}</td><td class="number">{program["library_calls"].count(target)}</td>'
                    f'<td class="number">{took}</td><td>{escape(program["library_reasons"].get(target, ""))}</td></tr>')
    for call in in_python:
        took = _milliseconds(times[call["name"]]) if call["name"] in times else "–"
        rows.append(f'<tr><td>{escape(call["name"])}</td><td class="number">1</td><td class="number">{took}</td>'
                    f'<td>{escape(call["reason"])}</td></tr>')
    return "\n".join([*rows, "</table>"])
