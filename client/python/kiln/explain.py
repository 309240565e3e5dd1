"""kiln.explain: what became of a model: graphs, breaks, guards, kernels, library calls, fallbacks."""
import dataclasses

import torch
from torch._dynamo.backends.debugging import ExplainOutput

from . import page, records
from .guards import text_of
from .profile import profile


@dataclasses.dataclass
class Explanation(ExplainOutput):
    """torch._dynamo.explain's output (graphs, break_reasons, out_guards, …), and what kiln made of the graphs."""

    programs: list = dataclasses.field(default_factory=list)  # one a compiled graph or fallback, backward graphs too

    @property
    def breaks(self):
        return [str(reason.reason) for reason in self.break_reasons]

    @property
    def guards(self):
        return [text_of(guard) for guard in self.out_guards or ()]

    @property
    def kernels(self):
        return [kernel for program in self.programs for kernel in program.get("kernels", ())]

    @property
    def library_calls(self):
        calls = {}
        for program in self.programs:
            for target in program.get("library_calls", ()):
                calls[target] = calls.get(target, 0) + 1
        return calls

    @property
    def python_calls(self):
        return [call for program in self.programs for call in program.get("python_calls", ())]

    @property
    def fallbacks(self):
        return [(program["title"], program["message"]) for program in self.programs if "fallback" in program]

    def __str__(self):
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


def _program_lines(program):
    if "fallback" in program:
        return [f"\n{program['title']}: falls back: {program['message']}"]
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


def _tuning_lines(tuning):
    if tuning is None:
        return []
    products, convolutions = tuning["products"], tuning["convolutions"]
    lines = [f"  measured {len(products)} matrix products{' on ' if tuning['gpu'] else ''}{tuning['gpu']}, "
             f"{sum(product['changed'] for product in products)} run by another algorithm than cuBLASLt's first, "
             f"{sum(bool(product['kernel']) for product in products)} of them by a native kernel"]
    if convolutions:
        lines.append(f"  and {len(convolutions)} convolutions, {sum(one['changed'] for one in convolutions)} run by "
                     "another plan than cuDNN's first")
    if tuning["without"]:
        lines.append(f"  not measured: {tuning['without']}")
    for product in products:
        if product["changed"]:
            batch, rows, depth, columns = product["sizes"]
            lines.append(f"    {f'{batch}×' if batch > 1 else ''}{rows}×{depth}×{columns}: "
                         f"{product['default_microseconds']:.1f} µs, now {product['microseconds']:.1f} µs"
                         f"{f' by a native kernel ({kernel})' if (kernel := product['kernel']) else ''}")
    for one in convolutions:
        if one["changed"]:
            sizes = " by ".join("×".join(map(str, one[name])) for name in ("input", "weight"))
            lines.append(f"    {one['of'].lower().replace('_', ' ')} {sizes}: "
                         f"{one['default_microseconds']:.1f} µs, now {one['microseconds']:.1f} µs")
    return lines + _layout_lines(tuning.get("images")) + _schedule_lines(tuning["kernels"])


def _layout_lines(images):
    if images is None:
        return []
    if images["without"]:
        return [f"  images lie by points, as their layouts were not measured: {images['without']}"]
    return [f"  images lie {'as traced' if images['as_traced'] else 'by points'}, measured: "
            f"{images['by_points_microseconds']:.1f} µs by points, "
            f"{'at least ' if images['at_least'] else ''}{images['as_traced_microseconds']:.1f} µs as traced "
            "(convolutions, and kernels by their launches and bytes)"]


def _schedule_lines(kernels):
    if not kernels:
        return []
    lines = [f"  measured other schedules of {len(kernels)} kernels, "
             f"{sum(kernel['changed'] for kernel in kernels)} run by one of them"]
    for kernel in kernels:
        if kernel["changed"]:
            lines.append(f"    {kernel['name']}, {kernel['schedule']} instead of {kernel['schedules'][0]}: "
                         f"{kernel['default_microseconds']:.1f} µs, now {kernel['microseconds']:.1f} µs")
    return lines


def explain(function, *, html=None, **compile_arguments):
    """`kiln.explain(model)(*args)` runs the model through Dynamo and then through kiln, and tells what happened.

    html: also write a page to this file, with the graphs drawn, each kernel's time and its listing; the model then
    runs once more, to be timed."""
    if html is not None:
        page.check(html)

    def inner(*args, **kwargs):
        from torch._dynamo import explain as dynamo_explain

        described = dynamo_explain(function)(*args, **kwargs)
        torch._dynamo.reset()
        start = records.graph_count()
        compiled = torch.compile(function, backend="kiln", **compile_arguments)
        _run_backward(compiled(*args, **kwargs))
        explanation = Explanation(**vars(described), programs=records.graphs_since(start))
        if html is not None:
            with profile() as measured:
                _run_backward(compiled(*args, **kwargs))
            page.write(explanation, measured, html)
        torch._dynamo.reset()
        return explanation

    return inner


def _run_backward(result):
    """Makes the lazily compiled backward graphs exist, without touching anyone's `.grad`."""
    tensors = [t for t in torch.utils._pytree.tree_leaves(result) if isinstance(t, torch.Tensor) and t.requires_grad]
    if tensors:
        total = sum(t.float().sum() for t in tensors)
        leaves = _leaves(total.grad_fn)
        if leaves:
            torch.autograd.grad(total, leaves, allow_unused=True)


def _leaves(function):
    seen, stack, leaves = set(), [function], []
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            leaves.append(node.variable)
        stack.extend(parent for parent, _ in node.next_functions)
    return leaves
