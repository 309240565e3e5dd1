"""Counts of this process, and the records behind `kiln.explain`."""

from __future__ import annotations

import collections
import threading
from typing import Any

_lock = threading.Lock()
_counts: collections.Counter = collections.Counter()
_fallbacks: collections.Counter = collections.Counter()
_seconds: collections.Counter = collections.Counter()
_graphs: list[dict[str, Any]] = []
_GRAPHS_KEPT = 1000


def count(name: str, by: int = 1) -> None:
    with _lock:
        _counts[name] += by


def count_fallback(reason: str) -> None:
    with _lock:
        _fallbacks[reason] += 1


def add_seconds(phase: str, seconds: float) -> None:
    with _lock:
        _seconds[phase] += seconds


def record_graph(record: dict[str, Any]) -> None:
    with _lock:
        if len(_graphs) < _GRAPHS_KEPT:
            _graphs.append(record)


def graphs_since(position: int) -> list[dict[str, Any]]:
    with _lock:
        return _graphs[position:]


def graph_count() -> int:
    with _lock:
        return len(_graphs)


def stats() -> dict[str, Any]:
    """Counts of this process since it started or since `reset_stats`.

    `compiles` graphs compiled by the service for this process, `hits` graphs taken from its cache,
    `joined` of the compiled those that another process had begun, `not_kept` those that the store refused,
    `contradicted` graphs that were dropped since a library call in them gave something else than its declaration said,
    `recovered` how often a daemon or compiler process had ended and another took over,
    `kernels`, `library_calls` and `python_calls` steps in those graphs, `python` what the last ones took, by their
    reason (`seconds` of the `of_seconds` that the graphs took in which they are), `autograd_cache_bypasses` graphs that
    torch's cache can't keep for what such a call holds, `cuda_graphs` graphs given to torch's trees of
    CUDA graphs, `not_measured` programs of max-autotune that it could not measure (all of), `tuned_plans` kinds of
    products and convolutions that run as measured, `left_out` optimizations of a graph that failed and were left out,
    `fallbacks` graphs that run as torch would
    run them, by reason, `seconds` by phase: `load` is from asking for a program until it can be called, `lookup` and
    `fetch` in it, without connecting and compiling.
    """
    from . import backend

    with _lock:
        result: dict[str, Any] = {
            name: _counts[name]
            for name in (
                "graphs",
                "compiles",
                "hits",
                "joined",
                "not_kept",
                "contradicted",
                "recovered",
                "kernels",
                "library_calls",
                "python_calls",
                "autograd_cache_bypasses",
                "uploaded_bytes",
                "fetched_objects",
                "autograd_cache_loads",
                "cuda_graphs",
                "not_measured",
                "left_out",
            )
        }
        result["fallbacks"] = dict(_fallbacks)
        result["seconds"] = {name: round(value, 6) for name, value in _seconds.items()}
    result.update(backend.run_counts())
    return result


def reset_stats() -> None:
    with _lock:
        _counts.clear()
        _fallbacks.clear()
        _seconds.clear()
        _graphs.clear()
