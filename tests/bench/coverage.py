"""Which operators kiln compiles: shares of native kernels, library calls, Python and what Dynamo did not capture.

    coverage.py                        op_db and module_db in float32, static sizes, two samples an operator
    coverage.py --opdb FILE            what a campaign of tests/campaign/opdb.py has found
    coverage.py --architectures 32     instead: each 32nd small model of transformers, inference and gradients

What a node is, and when it counts as what: tests/campaign/nodes.py. An operator of the database that Dynamo captured no
graph of counts once a sample.
"""
import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any, TypeAlias

_TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [os.path.join(_TESTS, "campaign"), os.path.join(_TESTS, "integration")]
import nodes  # noqa: E402
import opdb  # noqa: E402

Counts: TypeAlias = dict[str, list[int]]  # by operator, as of _WAYS
_WAYS = ("native", "library", "Python", "not captured")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--opdb", metavar="FILE", help="JSON lines of a campaign")
    parser.add_argument("--ops", metavar="REGEX", help="only these entries of the database")
    parser.add_argument("--dtypes", help="only these, with commas; default: float32, of a file all")
    parser.add_argument("--samples", type=int, default=2, help="an operator, where none are given in a file (2)")
    parser.add_argument("--architectures", type=int, metavar="N", help="each N-th architecture of transformers")
    parser.add_argument("--all", action="store_true", help="print operators that are wholly native, too")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--markdown", metavar="FILE", help="the table also into this file")
    options = parser.parse_args()
    counts = of_architectures(options.architectures) if options.architectures else of_database(options)
    text = table(counts, options.all)
    print(text)
    if options.markdown:
        with open(options.markdown, "w") as file:
            file.write(text + "\n")
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"total": dict(zip(_WAYS, total(counts))), "operators": counts}, file, indent=1)


def of_database(options: argparse.Namespace) -> Counts:
    """{operator: [native, library, Python, not captured]}."""
    with tempfile.TemporaryDirectory() as directory:
        path = options.opdb
        if path is None:
            path = os.path.join(directory, "opdb.jsonl")
            arguments = ["--json", path, "--dtypes", options.dtypes or "float32", "--ways", "static", "--samples",
                         str(options.samples), *(["--ops", options.ops] if options.ops else [])]
            opdb.Campaign(opdb.parse(arguments)).run()
        with open(path) as lines:
            _, *records = map(json.loads, lines)
    wanted = options.dtypes.split(",") if options.dtypes else None
    counts: Counts = {}
    for record in records:
        if wanted and record["dtype"] not in wanted:
            continue
        for target, numbers in record["nodes"].items():
            _add(counts, target, [*numbers, 0])
        missed = sum(sample["verdict"] == "not captured" for sample in record["samples"])
        if missed:
            _add(counts, record["operator"], [0, 0, 0, missed])
    return counts


def of_architectures(step: int) -> Counts:
    """The same over small models, by a daemon of their own."""
    with opdb.place() as environment:
        os.environ.update(environment)
        import torch

        from architectures import ARCHITECTURES, inputs, make

        counted = nodes.NodeCounts()
        counts: Counts = {}
        for name, mapping in ARCHITECTURES[::step]:
            torch._dynamo.reset()
            model = make(name, mapping)
            given = inputs(model)
            compiled: Callable[..., Any] = torch.compile(model, backend="kiln")
            results = torch.utils._pytree.tree_leaves(dict(compiled(**given)))
            sum((value.float().mean() for value in results
                 if isinstance(value, torch.Tensor) and value.requires_grad), torch.zeros(())).backward()
            with torch.no_grad():
                compiled = torch.compile(model, backend="kiln")
                compiled(**given)
            for target, numbers in counted.take().items():
                _add(counts, target, [*numbers, 0])
        return counts


def total(counts: Counts) -> list[int]:
    return [sum(column) for column in zip(*counts.values())] or [0] * len(_WAYS)


def table(counts: Counts, everything: bool = False) -> str:
    """Markdown: all together, then operators with the most nodes that are not native first."""

    def row(name: str, numbers: list[int]) -> str:
        nodes = sum(numbers)
        shares = " | ".join(f"{100 * number / max(nodes, 1):.1f} %" if number else "–" for number in numbers)
        return f"| {name} | {nodes} | {shares} |"

    lines = ["| operator | nodes | " + " | ".join(_WAYS) + " |", "|---" * (2 + len(_WAYS)) + "|",
             row("all", total(counts))]
    ordered = sorted(counts.items(), key=lambda item: (item[1][0] - sum(item[1]), item[0]))
    return "\n".join(lines + [row(name, numbers) for name, numbers in ordered
                              if everything or numbers[0] < sum(numbers)])


def _add(counts: Counts, target: str, numbers: list[int]) -> None:
    counts[target] = [a + b for a, b in zip(counts.get(target, [0] * len(_WAYS)), numbers)]


if __name__ == "__main__":
    main()
