"""What a table is of: date, machine, versions and command. Every command whose table is kept puts `facts` into its
JSON, and the page says them above the table (pages.py)."""
from __future__ import annotations

import datetime
import importlib.metadata
import importlib.util
import os
import subprocess
import textwrap
from typing import Any

PLACES = ("--json", "--graphs", "--build", "--kilnd", "--plot")  # say where files are, not how it ran
COLUMNS = 120


def processor() -> str:
    with open("/proc/cpuinfo") as file:
        return next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), "unknown")


def package() -> str:
    """kiln's folder; raises ValueError where it is not installed."""
    found = importlib.util.find_spec("kiln")
    if found is None or not found.submodule_search_locations:
        raise ValueError("no module named kiln: run deploy/quickstart.sh first")
    return found.submodule_search_locations[0]


def daemon() -> str:
    """As kiln.environment finds it, which would import torch: a table needs it not."""
    return os.environ.get("KILN_DAEMON") or os.path.join(package(), "bin", "kilnd")


def facts(command: str, arguments: list[str], kilnd: str | None = None, device: str | None = None) -> dict[str, Any]:
    """Of a run of `command` with `arguments`, now. `kilnd`: its path, the installed one's by default; `device`: the
    GPU's name. Raises OSError or ValueError where there is no kilnd."""
    version = subprocess.run([kilnd or daemon(), "--version"], capture_output=True, text=True, check=True)
    known = {"date": datetime.date.today().isoformat(), "processor": processor(),
             "processors": len(os.sched_getaffinity(0)), "kiln": version.stdout.strip(),
             "torch": importlib.metadata.version("torch"), "command": " ".join([command, *without_places(arguments)])}
    return known if device is None else {**known, "device": device}


def without_places(arguments: list[str]) -> list[str]:
    """What says how it was measured, and not where files are."""
    kept = list(arguments)
    for place in PLACES:
        while place in kept:
            del kept[kept.index(place):kept.index(place) + 2]
    return kept


def said(of: dict[str, Any], *more: str) -> str:
    """A paragraph: `of` what `facts` gave, and `more` that a reader has to know of the run."""
    host = f"{of['processors']} processors of {of['processor']}"
    parts = [of["date"], f"{of['device']}, host of {host}" if "device" in of else host, f"torch {of['torch']}",
             of["kiln"], f"`{of['command']}`", *more]
    return wrapped("; ".join(parts) + ".")


def wrapped(text: str) -> str:
    return textwrap.fill(text, COLUMNS, break_long_words=False, break_on_hyphens=False)
