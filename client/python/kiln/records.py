"""Counts of this process, and the records behind `kiln.explain`."""
from __future__ import annotations

import collections
import threading

from .program_record import GraphRecord

_lock = threading.Lock()
_counts: collections.Counter[str] = collections.Counter()
_fallbacks: collections.Counter[str] = collections.Counter()
_seconds: collections.defaultdict[str, float] = collections.defaultdict(float)
_graphs: list[GraphRecord] = []
_GRAPHS_KEPT = 1000


def count(name: str, by: int = 1) -> None:
    """Adds to the count `name` of `kiln.stats`."""
    with _lock:
        _counts[name] += by


def count_fallback(reason: str) -> None:
    """One more graph that runs without kiln."""
    with _lock:
        _fallbacks[reason] += 1


def add_seconds(phase: str, seconds: float) -> None:
    """Adds to the seconds of a phase (`export`, `lookup`, …)."""
    with _lock:
        _seconds[phase] += seconds


def record_graph(record: GraphRecord) -> None:
    """Keeps the record for `kiln.explain`; of a process the first 1,000."""
    with _lock:
        if len(_graphs) < _GRAPHS_KEPT:
            _graphs.append(record)


def graphs_since(position: int) -> list[GraphRecord]:
    """The records from a `graph_count` on."""
    with _lock:
        return _graphs[position:]


def graph_count() -> int:
    """How many records there are."""
    with _lock:
        return len(_graphs)


def snapshot() -> tuple[dict[str, int], dict[str, int], dict[str, float]]:
    """(counts by name, fallbacks by reason, seconds by phase) so far."""
    with _lock:
        return dict(_counts), dict(_fallbacks), dict(_seconds)


def reset_stats() -> None:
    """Counts from zero again, but for what the programs that are alive count, and forgets the records."""
    with _lock:
        _counts.clear()
        _fallbacks.clear()
        _seconds.clear()
        _graphs.clear()
