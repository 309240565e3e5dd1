"""kiln.profile: where the time of compiled graphs goes, kernel by kernel and library call by library call.

    with kiln.profile() as profile:
        step()
    print(profile)

Times are wall time inside compiled graphs, on a GPU with the wait for each step's work (a graph that is replayed from
its recording has no steps and is not in them); what runs between graphs (Python, the optimizer) is not in them.
"""
from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from typing import TypeAlias

from . import _C
from .compiled import CompiledGraph, live_programs

StepTime: TypeAlias = tuple[int, int | str, int, int, int]  # as of _C.Artifact.times

_one_at_a_time = threading.Lock()


@dataclasses.dataclass
class Line:
    """The runs of one kernel, library call or call of Python of one graph while the profile ran. Times are seconds, as
    the runtime measures them around each step."""

    graph: str  # its title
    name: str  # of the kernel, or the library call's target
    kernel: int | None  # its number in the graph; None for library calls and for the rest
    operators: tuple[str, ...]
    runs: int
    seconds: float
    least_seconds: float  # the sum over its steps of each one's fastest run: a call's time without disturbance
    bytes: int  # that one call of the graph moves in it, at the sizes it was compiled at; 0 where not known
    key: str = ""  # of the program, as kilnctl names it

    @property
    def gigabytes_per_second(self) -> float:
        """10^9 bytes a second, by the least bytes that a kernel moves and each step's fastest run; 0.0 where the bytes
        are not known, as of library calls and calls of Python."""
        return self.bytes / self.least_seconds / 1e9 if self.least_seconds and self.bytes else 0.0


class Profile:
    """Of the time between entering and leaving. `lines`, longest first, are there once it is left. Entering raises
    RuntimeError while another profile runs."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self._before: dict[CompiledGraph, Sequence[StepTime]] = {}

    def __enter__(self) -> Profile:
        if not _one_at_a_time.acquire(blocking=False):
            raise RuntimeError("kiln.profile: another profile is running, and timing is one switch for the process")
        self._before = {graph: artifact.times() for graph, artifact in live_programs()}
        _C.set_timing(True)
        return self

    def __exit__(self, *_: object) -> None:
        _C.set_timing(False)
        for graph, artifact in live_programs():
            self._add(graph, artifact, self._before.get(graph, ()))
        self._before = {}
        _one_at_a_time.release()
        self.lines.sort(key=lambda line: -line.seconds)

    @property
    def seconds(self) -> float:
        """Of all lines: the time within compiled graphs."""
        return sum(line.seconds for line in self.lines)

    def _add(self, graph: CompiledGraph, artifact: _C.Artifact, before: Sequence[StepTime]) -> None:
        info = artifact.info()
        kernels = info["kernels"]
        earlier = {step: (runs, total) for step, _, runs, total, _ in before}
        names = {call.name: call.title for call in graph.python.calls} if graph.python is not None else {}
        lines: dict[int | str, Line] = {}
        for step, what, runs, total, least in artifact.times():
            runs_before, total_before = earlier.get(step, (0, 0))
            if runs == runs_before:
                continue
            line = lines.get(what)
            if line is None:
                name = names.get(str(what), str(what))
                operators: tuple[str, ...] = ()
                number = what if isinstance(what, int) else None
                if number is not None:
                    name, operators = kernels[number]["name"], tuple(kernels[number]["operators"])
                line = lines[what] = Line(graph.title, name, number, operators, 0, 0.0, 0.0, 0, info["compile_key"])
            line.runs += runs - runs_before
            line.seconds += (total - total_before) / 1e9
            line.least_seconds += least / 1e9
            if line.kernel is not None:
                kernel = kernels[line.kernel]
                line.bytes += kernel["bytes_read"] + kernel["bytes_written"]
        self.lines += lines.values()

    def __str__(self) -> str:
        total = self.seconds or 1.0
        rows = [f"{'ms':>10} {'share':>6} {'runs':>7} {'fastest ms':>10} {'GB/s':>6}  what"]
        for line in self.lines:
            rate = f"{line.gigabytes_per_second:.1f}" if line.bytes else ""
            what = line.name if line.kernel is None else f"kernel {line.kernel}: {', '.join(line.operators)}"
            rows.append(f"{line.seconds * 1e3:10.3f} {line.seconds / total:6.1%} {line.runs:7} "
                        f"{line.least_seconds * 1e3:10.3f} {rate:>6}  {line.graph}: {what}")
        return "\n".join(rows)


def profile() -> Profile:
    """A context manager: see the module. One at a time."""
    return Profile()
