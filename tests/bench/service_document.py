#!/usr/bin/env python3
"""The page of the service's tables, as docs/benchmarks/service.md is:

  tests/bench/service_document.py [--partial] FILE.json… > docs/benchmarks/service.md

The files are what `service.sh --json` wrote, in one run or in several on one machine; service_plot.py draws the plots
that the page names. A row whose file comes later is beside the earlier ones. Attackers are shown all or not at all, so
that none that kilnd fares badly beside is left out unseen; --partial shows those that there are.
"""
import argparse
import contextlib
import io
import json
import sys
from typing import Any

import service
import service_attackers
import service_compiles
from service_limits import TLS_HIT

# Of each table: its title, its rows, and what prints its head and a row of it.
TABLES = (
    ("Calls beside a bare gRPC server", ("hit", "miss", TLS_HIT, "objects", "waiting", "manifests"),
     service.print_header, service.print_row),
    ("Attackers", ("attackers",), service_attackers.print_header, service_attackers.print_row),
    ("A thousand callers of one program", ("herd",), service_compiles.print_herd_header, service_compiles.print_herd),
    ("More work than there are workers for", ("overload",), lambda: None, service_compiles.print_overload),
    ("Workers", ("workers",), service_compiles.print_workers_header, service_compiles.print_workers),
)
PLOTS = (("hits", "hits a second against connections"), ("compiles", "compiles a second against workers"),
         ("open", "seconds to the first hit against manifests"))


def missing_attackers(rows: list[dict[str, Any]]) -> list[str]:
    """Kinds that the rows have not, where they have some."""
    kinds = {row["kind"] for row in rows if row["row"] == "attackers" and row["limits"]}
    return [kind for kind in service_attackers.KINDS if kind not in kinds] if kinds else []


def page(results: list[dict[str, Any]], partial: bool = False) -> str:
    """docs/benchmarks/service.md; raises ValueError where the results make none."""
    of = results[0]["facts"]
    if any(result["facts"]["kiln"] != of["kiln"] for result in results):
        raise ValueError("the files are of several builds of kilnd")
    rows = [row for result in results for row in result["rows"]]
    if (missing := missing_attackers(rows)) and not partial:
        raise ValueError(f"attackers of these kinds were not measured: {', '.join(missing)}; --partial makes the page "
                         "without them")
    with contextlib.redirect_stdout(io.StringIO()) as text:
        print("# kilnd under load\n")
        print(f"Printed on {of['date']}: {of['processors']} processors of {of['processor']}, unix socket but where a "
              f"row says TLS, {of['kiln']}, by\n")
        for command in dict.fromkeys(result["facts"]["command"] for result in results):
            print(f"- `{command}`")
        print("\n`bare` is a server of gRPC's callbacks alone, with kilnd's limits of channels, that sends bytes of "
              "the\nsame size, the faster of its unary and generic forms; a ratio is taken within a round.")
        for title, names, print_head, print_row in TABLES:
            found = [row for name in names for row in rows if row["row"] == name]
            if found:
                print(f"\n## {title}\n")
                print_head()
                for row in found:
                    print_row(row)
        print("\n## Growth\n")
        for name, words in PLOTS:
            print(f"![{words}](service-{name}.png)")
    return text.getvalue()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partial", action="store_true", help="a page without all kinds of attackers")
    parser.add_argument("files", nargs="+", metavar="FILE.json")
    options = parser.parse_args(arguments)
    results = []
    for path in options.files:
        with open(path) as file:
            results.append(json.load(file))
    try:
        print(page(results, options.partial), end="")
    except ValueError as error:
        print(f"service_document.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
