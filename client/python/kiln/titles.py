"""What people call the thing that is being compiled: the module or function that they gave to torch.compile, and lines
of its source."""
import re

import torch
from torch import fx
from torch._dynamo import external_utils
from torch._dynamo.symbolic_convert import InstructionTranslator

_RESUMED = re.compile(r"torch_dynamo_resume_in_(.+)_at_\d+")  # the rest of a function behind a graph break


def compiled_name() -> str:
    """Of the frame that Dynamo compiles on this thread: a module's class, or a function's name; "graph" without one."""
    try:
        frame = InstructionTranslator.current_tx()
    except AttributeError:
        frame = None  # which torch 2.11 gives by itself
    if frame is None:  # as in a graph that did not come from Dynamo
        return "graph"
    code, values = frame.f_code, frame.f_locals
    # A module or function of torch's.
    wrapped = values.get("fn") if code.co_filename == external_utils.__file__ else None
    first = values.get(code.co_varnames[0]) if code.co_argcount else None
    for owner in (wrapped, getattr(wrapped, "__self__", None), first, values.get("self")):
        if isinstance(owner, torch.nn.Module):
            return type(owner).__name__
    resumed = _RESUMED.fullmatch(code.co_name)
    if resumed:
        return resumed.group(1)
    named = code if wrapped is None else wrapped
    return _name(named).rsplit("<locals>.", 1)[-1]


def _name(named: object) -> str:
    for attribute in ("co_qualname", "co_name", "__qualname__", "__name__"):
        if hasattr(named, attribute):
            return str(getattr(named, attribute))
    return type(named).__name__


def source_line(node: fx.Node) -> str:
    """"file.py:12 in forward" of the innermost frame of the user's code."""
    trace = node.meta.get("stack_trace")
    if not trace:
        return ""
    start = trace.rfind('File "')
    if start < 0:
        return ""
    line = trace[start + 6:trace.find("\n", start) if "\n" in trace[start:] else len(trace)]
    path, _, rest = line.partition('", line ')
    number, _, function = rest.partition(", in ")
    return f"{path.rsplit('/', 1)[-1]}:{number} in {function}" if rest else ""
