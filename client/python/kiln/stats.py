"""kiln.stats: what this process has counted, and what the programs that are alive count themselves."""
from typing import Any

from . import _C, records
from .compiled import live_programs

_COUNTS = (
    "graphs", "compiles", "hits", "joined", "not_kept", "contradicted", "recovered", "kernels", "library_calls",
    "python_calls", "autograd_cache_bypasses", "uploaded_bytes", "fetched_objects", "autograd_cache_loads",
    "cuda_graphs", "not_measured", "left_out", "refused", "retried")


def stats() -> dict[str, Any]:
    """Counts of this process since it started or since `reset_stats`; times are in seconds.

    `compiles` graphs compiled by the service for this process, `hits` graphs taken from its cache,
    `joined` of the compiled those that another process had begun, `not_kept` those that the store refused,
    `contradicted` graphs that were dropped since a library call in them gave something else than its declaration said,
    `recovered` how often a daemon or compiler process had ended and another took over,
    `refused` answers whose signature or digest did not hold before one that was taken,
    `kernels`, `library_calls` and `python_calls` steps in those graphs, `python` what the last ones took, by their
    reason (`seconds` of the `of_seconds` that the graphs took in which they are), `autograd_cache_bypasses` graphs that
    torch's cache can't keep for what such a call holds, `cuda_graphs` graphs given to torch's trees of
    CUDA graphs, `not_measured` programs of max-autotune that it could not measure (all of), `tuned_plans` kinds of
    gemms and convolutions that run as measured, `left_out` optimizations of a graph that failed and were left out,
    `calls`, `kernel_launches`, `library_call_runs` and `stride_copies` what programs that are alive have run,
    `uploaded_bytes` and `fetched_objects` the traffic, `fallbacks` graphs that run as torch would run them, by reason,
    `retried` those of them that are compiled by now, as the service came to answer, `seconds` by phase: `load` is from
    asking for a program until it can be called, `lookup` and `fetch` in it, without connecting and compiling.
    """
    counts, fallbacks, seconds = records.snapshot()
    result: dict[str, Any] = {name: counts.get(name, 0) for name in _COUNTS}
    result["fallbacks"] = fallbacks
    result["seconds"] = {name: round(value, 6) for name, value in seconds.items()}
    result.update(_run_counts())
    return result


def _run_counts() -> dict[str, Any]:
    """Sums over the programs that are alive."""
    total: dict[str, Any] = {"calls": 0, "kernel_launches": 0, "library_call_runs": 0, "stride_copies": 0,
             "tuned_plans": _C.tuned_plans()}
    for _, artifact in live_programs():
        counts = artifact.counts()
        total["calls"] += counts["calls"]
        total["kernel_launches"] += counts["launches"]
        total["library_call_runs"] += counts["library_calls"]
        total["stride_copies"] += counts["stride_copies"]
    total["python"] = _python_counts()
    return total


def _python_counts() -> dict[str, dict[str, float]]:
    """{reason: counts} of the calls of Python in the programs that are alive."""
    counts: dict[str, dict[str, float]] = {}
    for graph, _ in live_programs():
        if graph.python is None:
            continue
        for call in graph.python.calls:
            one = counts.setdefault(call.reason, {"calls": 0, "runs": 0, "seconds": 0.0, "of_seconds": 0.0})
            one["calls"] += 1
            one["runs"] += call.runs
            one["seconds"] += call.seconds
            one["of_seconds"] += graph.python.seconds
    return counts
