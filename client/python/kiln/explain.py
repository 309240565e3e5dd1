"""kiln.explain: what became of a model: graphs, breaks, guards, kernels, library calls, fallbacks."""
import dataclasses

import torch

from . import records


@dataclasses.dataclass
class Explanation:
    """Of one call. `graphs` are kiln's records, one a compiled graph; `dynamo` is torch._dynamo.explain's output."""

    graphs: list
    breaks: list
    guards: list
    dynamo: object

    @property
    def kernels(self):
        return [kernel for graph in self.graphs for kernel in graph.get("kernels", ())]

    @property
    def library_calls(self):
        calls = {}
        for graph in self.graphs:
            for target in graph.get("library_calls", ()):
                calls[target] = calls.get(target, 0) + 1
        return calls

    @property
    def fallbacks(self):
        return [(graph["title"], graph["message"]) for graph in self.graphs if "fallback" in graph]

    def __str__(self):
        lines = [f"{len(self.graphs)} graphs, {len(self.breaks)} graph breaks, {len(self.kernels)} kernels, "
                 f"{sum(self.library_calls.values())} library calls, {len(self.fallbacks)} fallbacks"]
        lines += [f"graph break: {reason}" for reason in self.breaks]
        for graph in self.graphs:
            if "fallback" in graph:
                lines.append(f"\n{graph['title']}: falls back: {graph['message']}")
                continue
            lines.append(f"\n{graph['title']}  key {graph['compile_key'][:16]}  "
                         f"{'from the cache' if graph['hit'] else 'compiled'}")
            runs = {}
            for kernel in graph["launches"]:
                runs[kernel] = runs.get(kernel, 0) + 1
            for number, kernel in enumerate(graph["kernels"]):
                lines.append(f"  kernel {number} {kernel['name']} ×{runs.get(number, 0)}: "
                             f"{', '.join(kernel['operators'])}")
            calls = {}
            for target in graph["library_calls"]:
                calls[target] = calls.get(target, 0) + 1
            for target, count in sorted(calls.items()):
                reason = graph["library_reasons"].get(target, "")
                lines.append(f"  library {target} ×{count}{' (' + reason + ')' if reason else ''}")
        if self.guards:
            lines.append("\nguards:")
            lines += [f"  {guard}" for guard in self.guards]
        return "\n".join(lines)


def explain(function, **compile_arguments):
    """`kiln.explain(model)(*args)` runs the model once through kiln and tells what happened."""

    def inner(*args, **kwargs):
        from torch._dynamo import explain as dynamo_explain

        described = dynamo_explain(function)(*args, **kwargs)
        torch._dynamo.reset()
        start = records.graph_count()
        result = torch.compile(function, backend="kiln", **compile_arguments)(*args, **kwargs)
        _run_backward(result)
        graphs = records.graphs_since(start)
        breaks = [str(reason.reason) for reason in described.break_reasons]
        guards = [str(guard) for guard in described.out_guards or ()]
        torch._dynamo.reset()
        return Explanation(graphs, breaks, guards, described)

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
