"""Dynamo's guards as text for people: one line each, the graph's arguments first."""
import torch
from torch._guards import Guard

# A graph of many modules has thousands; `kilnctl show` is for reading.
_LINES_MAX = 200


def text_of(guard: Guard) -> str:
    """The condition, where torch has written it down and it says more than the guard's kind and place."""
    conditions = [code for code in guard.code_list or () if not code.startswith(("hasattr(", "___check_"))]
    return " and ".join(conditions) or _kind_and_place(guard)


def _kind_and_place(guard: Guard) -> str:
    return f"{guard.create_fn_name()} {guard.name}".rstrip()


def texts() -> list[str]:
    """Of the graph that is being compiled, in an order that depends on nothing but the guards."""
    context = torch._guards.TracingContext.try_get()
    if context is None:
        return []
    ordered = sorted({(not guard.name.startswith("L["), _kind_and_place(guard))
                      for guard in context.guards_context.dynamo_guards.inner})
    lines = [text for _, text in ordered[:_LINES_MAX]]
    if len(ordered) > _LINES_MAX:
        lines.append(f"and {len(ordered) - _LINES_MAX} more")
    return lines
