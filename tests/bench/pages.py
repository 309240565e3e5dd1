#!/usr/bin/env python3
"""The pages of docs/benchmarks from what their commands measured:

  tests/bench/pages.py [--check] [PAGE…]

Of the page NAME.md each file of docs/benchmarks/data/NAME is what one run of a command wrote with --json; the command
says how it is shown. To print a page again, put its command's JSON there and run this; where a page is of several runs,
all of them are of one build. --check writes nothing, and ends with 1 where a page is not what its files give.
"""
from __future__ import annotations

import argparse
import glob
import json
import os
import sys
from collections.abc import Callable
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cpu
import h200
import kernels
import scale
import service_document
import tier

DOCUMENTS = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "docs",
                         "benchmarks")
# What a page shows of its results, in the order of their files' names.
PAGES: dict[str, Callable[[list[dict[str, Any]]], str]] = {
    "compile-time": scale.page, "cpu": cpu.page, "cpu-kernels": kernels.page, "gpu": h200.page,
    "service": service_document.page, "tier": tier.page}


def kept(documents: str) -> list[str]:
    """Pages whose files are there."""
    return [name for name in PAGES if os.path.isdir(os.path.join(documents, "data", name))]


def results(name: str, documents: str) -> list[dict[str, Any]]:
    """Raises ValueError where there is none."""
    read = []
    for path in sorted(glob.glob(os.path.join(documents, "data", name, "*.json"))):
        with open(path) as file:
            read.append(json.load(file))
    if not read:
        raise ValueError(f"{documents}/data/{name} has no JSON: what its command writes with --json goes there")
    return read


def stale(names: list[str], documents: str) -> list[str]:
    """Of `names` those whose page is not what its files give."""
    found = []
    for name in names:
        with open(os.path.join(documents, f"{name}.md")) as file:
            if file.read() != PAGES[name](results(name, documents)):
                found.append(name)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--documents", default=DOCUMENTS, help=argparse.SUPPRESS)
    parser.add_argument("pages", nargs="*", metavar="PAGE", help=f"of {', '.join(PAGES)}; default: all that have files")
    options = parser.parse_args()
    names = options.pages or kept(options.documents)
    if unknown := set(names) - set(PAGES):
        parser.error(f"no page {', '.join(sorted(unknown))}; there are {', '.join(PAGES)}")
    try:
        if options.check:
            found = stale(names, options.documents)
            for name in found:
                print(f"{name}.md is not what its files give: run tests/bench/pages.py {name}", file=sys.stderr)
            return 1 if found else 0
        for name in names:
            text = PAGES[name](results(name, options.documents))
            with open(os.path.join(options.documents, f"{name}.md"), "w") as file:
                file.write(text)
    except (OSError, ValueError) as error:
        print(f"pages.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
