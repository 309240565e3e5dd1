"""What kiln.explain gives: what became of a model, as fields and as text."""
import dataclasses
import time
from collections.abc import Sequence

from torch._dynamo.backends.debugging import ExplainOutput

from .guards import text_of
from .program_record import (
    FallbackRecord,
    GraphRecord,
    ImagesRecord,
    KernelRecord,
    ProgramRecord,
    PythonCallRecord,
    ScheduleRecord,
    TuningRecord,
)


@dataclasses.dataclass
class Explanation(ExplainOutput):
    """torch._dynamo.explain's output (graphs, break_reasons, out_guards, …), and what kiln made of the graphs."""

    # One a compiled graph or fallback, backward graphs too.
    programs: list[GraphRecord] = dataclasses.field(default_factory=list)

    @property
    def breaks(self) -> list[str]:
        """Why Dynamo ended a graph and began another, one a break; of `torch._dynamo.explain`."""
        return [str(reason.reason) for reason in self.break_reasons]

    @property
    def guards(self) -> list[str]:
        """The conditions under which Dynamo runs what was compiled, as text; of `torch._dynamo.explain`."""
        return [text_of(guard) for guard in self.out_guards or ()]

    @property
    def compiled(self) -> list[ProgramRecord]:
        """The programs but the fallbacks."""
        return [program for program in self.programs if "fallback" not in program]

    @property
    def kernels(self) -> list[KernelRecord]:
        """The native kernels of all compiled graphs, each graph's by number. Bytes are of one launch, at the sizes that
        the graph was compiled at."""
        return [kernel for program in self.compiled for kernel in program["kernels"]]

    @property
    def library_calls(self) -> dict[str, int]:
        """How many steps call a library, by target (`aten.addmm.default`); a program's `library_reasons` say why."""
        calls: dict[str, int] = {}
        for program in self.compiled:
            for target in program["library_calls"]:
                calls[target] = calls.get(target, 0) + 1
        return calls

    @property
    def python_calls(self) -> list[PythonCallRecord]:
        """The steps that run in Python between kernels, with the reason and the share (0 to 1) of the time that their
        graph's runs took so far."""
        return [call for program in self.compiled for call in program.get("python_calls", ())]

    @property
    def fallbacks(self) -> list[tuple[str, str]]:
        """(title, message) of each graph that runs without kiln."""
        return [(program["title"], program["message"]) for program in self.programs if "fallback" in program]

    def __str__(self) -> str:
        lines = [f"{self.graph_count} graphs, {self.graph_break_count} graph breaks, {len(self.programs)} programs: "
                 f"{len(self.kernels)} kernels, {sum(self.library_calls.values())} library calls, "
                 f"{len(self.python_calls)} calls of Python, {len(self.fallbacks)} fallbacks"]
        lines += [f"graph break: {reason}" for reason in self.breaks]
        for program in self.programs:
            lines += _program_lines(program)
        if self.guards:
            lines.append("\nguards:")
            lines += [f"  {guard}" for guard in self.guards]
        return "\n".join(lines)


def _program_lines(program: GraphRecord) -> list[str]:
    if "fallback" in program:
        return [f"\n{program['title']}: falls back: {program['message']}{_when_again(program)}"]
    lines = [f"\n{program['title']}  key {program['compile_key'][:16]}  "
             f"{'from the cache' if program['hit'] else 'compiled'}"]
    if "cuda_graph" in program:
        lines.append(f"  CUDA graph: {program['cuda_graph']}")
    lines += _tuning_lines(program.get("tuning"))
    for number, kernel in enumerate(program["kernels"]):
        lines.append(f"  kernel {number} {kernel['name']} ×{program['launches'].count(number)}: "
                     f"{', '.join(kernel['operators'])}")
    for target in sorted(set(program["library_calls"])):
        reason = program["library_reasons"].get(target, "")
        lines.append(f"  library {target} ×{program['library_calls'].count(target)}{f' ({reason})' if reason else ''}")
    lines += [f"  {call['name']} ({call['reason']}), {call['share']:.0%} of the time"
              for call in program.get("python_calls", ())]
    return lines


def _when_again(record: FallbackRecord) -> str:
    if "due" not in record:
        return ""
    return f" (eager for now, tried again in {max(0.0, record['due'] - time.monotonic()):.0f} s)"


def _tuning_lines(tuning: TuningRecord | None) -> list[str]:
    if tuning is None:
        return []
    gemms, convolutions = tuning["gemms"], tuning["convolutions"]
    lines = [f"  measured {len(gemms)} gemms{' on ' if tuning['gpu'] else ''}{tuning['gpu']}, "
             f"{sum(gemm['changed'] for gemm in gemms)} run by another algorithm than cuBLASLt's first, "
             f"{sum(bool(gemm['kernel']) for gemm in gemms)} of them by a native kernel"]
    if convolutions:
        lines.append(f"  and {len(convolutions)} convolutions, {sum(one['changed'] for one in convolutions)} run by "
                     "another plan than cuDNN's first")
    if tuning["without"]:
        lines.append(f"  not measured: {tuning['without']}")
    for gemm in gemms:
        if gemm["changed"]:
            batch, rows, depth, columns = gemm["sizes"]
            lines.append(f"    {f'{batch}×' if batch > 1 else ''}{rows}×{depth}×{columns}: "
                         f"{gemm['default_microseconds']:.1f} µs, now {gemm['microseconds']:.1f} µs"
                         f"{f' by a native kernel ({kernel})' if (kernel := gemm['kernel']) else ''}")
    for one in convolutions:
        if one["changed"]:
            sizes = " by ".join("×".join(map(str, one[name])) for name in ("input", "weight"))
            lines.append(f"    {one['of'].lower().replace('_', ' ')} {sizes}: "
                         f"{one['default_microseconds']:.1f} µs, now {one['microseconds']:.1f} µs")
    return lines + _layout_lines(tuning.get("images")) + _schedule_lines(tuning["kernels"])


def _layout_lines(images: ImagesRecord | None) -> list[str]:
    if images is None:
        return []
    if images["without"]:
        return [f"  images are channels-last, as their layouts were not measured: {images['without']}"]
    return [f"  images are {'as traced' if images['as_traced'] else 'channels-last'}, measured: "
            f"{images['channels_last_microseconds']:.1f} µs channels-last, "
            f"{'at least ' if images['at_least'] else ''}{images['as_traced_microseconds']:.1f} µs as traced "
            "(convolutions, and kernels by their launches and bytes)"]


def _schedule_lines(kernels: Sequence[ScheduleRecord]) -> list[str]:
    if not kernels:
        return []
    lines = [f"  measured other schedules of {len(kernels)} kernels, "
             f"{sum(kernel['changed'] for kernel in kernels)} run by one of them"]
    for kernel in kernels:
        if kernel["changed"]:
            # A daemon of another build may have listed them in a form of its own.
            instead = f" instead of {kernel['schedules'][0]}" if kernel["schedules"] else ""
            lines.append(f"    {kernel['name']}, {kernel['schedule']}{instead}: "
                         f"{kernel['default_microseconds']:.1f} µs, now {kernel['microseconds']:.1f} µs")
    return lines
