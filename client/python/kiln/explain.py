"""kiln.explain: what became of a model: graphs, breaks, guards, kernels, library calls, fallbacks."""
import os
from collections.abc import Callable
from typing import Any

import torch

from . import explain_html, records
from .explanation import Explanation
from .profile import profile


def explain(function: Callable[..., Any], *, html: str | os.PathLike[str] | None = None,
            **compile_arguments: Any) -> Callable[..., Explanation]:
    """`kiln.explain(model)(*args)` runs the model through Dynamo and then through kiln, and tells what happened.

    The arguments of torch.compile are taken, but for `backend`; forward and backward run, gradients go nowhere. What it
    gives prints itself. Under `KILN_FALLBACK=error` it raises what torch.compile does.

    html: also write a page to this file, with the graphs drawn, each kernel's time and its listing; the model then
    runs once more, to be timed. Raises ValueError where no such file can be written."""
    if html is not None:
        explain_html.check(html)

    def inner(*args: Any, **kwargs: Any) -> Explanation:
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
            explain_html.write(explanation, measured, html)
        torch._dynamo.reset()
        return explanation

    return inner


def _run_backward(result: object) -> None:
    """Makes the lazily compiled backward graphs exist, without touching anyone's `.grad`."""
    tensors = [t for t in torch.utils._pytree.tree_leaves(result) if isinstance(t, torch.Tensor) and t.requires_grad]
    if tensors:
        total = sum((t.float().sum() for t in tensors[1:]), tensors[0].float().sum())
        leaves = _leaves(total.grad_fn)
        if leaves:
            torch.autograd.grad(total, leaves, allow_unused=True)


def _leaves(function: Any) -> list[torch.Tensor]:
    stack, leaves = [function], []
    seen: set[Any] = set()
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            leaves.append(node.variable)
        stack.extend(parent for parent, _ in node.next_functions)
    return leaves
