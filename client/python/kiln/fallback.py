"""What happens to a graph that kiln does not compile: it runs as torch would run it, and that is counted.

KILN_FALLBACK=eager (default) runs the graph operator by operator; KILN_FALLBACK=error raises instead, for people
who would rather know. Each reason is warned of once a process.
"""
import collections
import logging
import os
import threading

from functorch.compile import make_boxed_func

from .errors import Unsupported

log = logging.getLogger("kiln")

_lock = threading.Lock()
_counts = collections.Counter()


def policy():
    """"eager" or "error". Raises ValueError for anything else."""
    value = os.environ.get("KILN_FALLBACK", "eager")
    if value not in ("eager", "error"):
        raise ValueError(f"kiln: KILN_FALLBACK={value!r}; valid values are eager, error")
    return value


def counts():
    """Fallbacks of this process by reason."""
    with _lock:
        return dict(_counts)


def reset():
    with _lock:
        _counts.clear()


def run_without_kiln(module, reason):
    """A boxed callable that interprets the FX graph, counted under `reason`.

    Raises Unsupported under KILN_FALLBACK=error.
    """
    if policy() == "error":
        raise Unsupported(f"kiln did not compile a graph: {reason} (KILN_FALLBACK=error is set)")
    with _lock:
        _counts[reason] += 1
        first = _counts[reason] == 1
    if first:
        log.warning("kiln: a graph runs without kiln: %s. Training goes on, as fast as eager. "
                    "kiln.explain(model)(*args) shows which graph; KILN_FALLBACK=error raises here.", reason)
    return make_boxed_func(module.forward)
