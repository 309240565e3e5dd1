"""What rows of calls, waiting clients and manifests have to hold, and whether a row does.

A ratio is kilnd's to the bare server's, or that of many manifests to that of few.
"""
from typing import Any

TLS_HIT = "hit by TLS"  # the row's name
RATE_MIN = 0.85
P50_MAX = 1.15
P99_MAX, P99_CONNECTIONS = 1.5, 256
THREADS_MORE_MAX = 4
WAITING_BYTES_MAX = 1.3
MANY_P99_MAX = 1.2
OPEN_SECONDS_MAX = 2
EVICTING_P99_MAX, EVICTING_SECONDS_MAX, EVICTING_DISK_MAX = 2, 120, 1.1


def _of_calls(row: dict[str, Any]) -> dict[str, bool]:
    """Hits and misses: a miss costs no more than a hit."""
    found = {"rate": row["rate"]["ratio"]["median"] >= RATE_MIN, "p50": row["p50"]["ratio"]["median"] <= P50_MAX}
    if row["connections"] == P99_CONNECTIONS:
        found["p99"] = row["p99"]["ratio"]["median"] <= P99_MAX
    return found


def _of_objects(row: dict[str, Any]) -> dict[str, bool]:
    return {"bytes_rate": row["bytes_rate"]["ratio"]["median"] >= RATE_MIN}


def _of_waiting(row: dict[str, Any]) -> dict[str, bool]:
    kilnd = row["kilnd"]
    return {"threads_waiting": kilnd["threads_waiting"] <= kilnd["threads_idle"] + THREADS_MORE_MAX,
            "bytes_ratio": row["bytes_ratio"] <= WAITING_BYTES_MAX}


def _of_manifests(row: dict[str, Any]) -> dict[str, bool]:
    found = {"open_seconds": row["open_seconds"] <= OPEN_SECONDS_MAX, "p99": row["ratio"]["median"] <= MANY_P99_MAX}
    if "evicting" in row:
        evicting = row["evicting"]
        found["evicting"] = (evicting["p99"]["median"] <= EVICTING_P99_MAX * row["spinner"]["p99"]["median"]
                             and evicting["seconds"] <= EVICTING_SECONDS_MAX
                             and evicting["disk_peak"] <= EVICTING_DISK_MAX)
    return found


_VERDICTS = {"hit": _of_calls, "miss": _of_calls, TLS_HIT: _of_calls, "objects": _of_objects,
             "waiting": _of_waiting, "manifests": _of_manifests}


def verdicts(row: dict[str, Any]) -> dict[str, bool]:
    """{what was measured: whether it holds}; of what has no limit nothing."""
    if row["row"] in _VERDICTS:
        return _VERDICTS[row["row"]](row)
    holds = row.get("holds", {})
    return holds if isinstance(holds, dict) else {"holds": holds}


def said(row: dict[str, Any], what: str) -> str:
    """The cell of a table: yes, no, or nothing where there is no limit."""
    return {True: "yes", False: "no", None: ""}[verdicts(row).get(what)]


def broken(rows: list[dict[str, Any]]) -> list[str]:
    """A line for each limit that a row does not hold."""
    return [f"{row['row']}{f', {place}' if (place := _place(row)) else ''}: {what}"
            for row in rows for what, holds in verdicts(row).items() if not holds]


def _place(row: dict[str, Any]) -> str:
    for field in ("connections", "clients", "manifests", "kind"):
        if row["row"] != "herd" and field in row:
            return f"{row[field]} {field}" if field != "kind" else row[field]
    return ""
