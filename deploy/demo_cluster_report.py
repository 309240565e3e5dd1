"""The table of deploy/demo_cluster.sh, and whether it is as promised: prints, and exits with 0 or 1."""
import argparse
import dataclasses
import json
import pathlib
import re
import statistics
import sys
from typing import Any

# Of kilnctl's stats; the last is the tier's, of kilnctl's status.
COUNTS = {"lookups": "look-ups", "hits": "own hits", "compiles": "compiled", "graphs_uploaded": "uploaded",
          "fetched_objects": "objects sent", "tier_hits": "from the tier"}
FIRST, LATER, KEPT, OTHER, FARM = ("machine-1, first process", "machine-1, later process",
                                   "machine-1, with AOTAutograd's cache", "machine-2, first process",
                                   "machine-2, by the hub's kilnd")
# A start of OTHER by one of LATER: neither has AOTAutograd's cache. Judged by the medians of as many starts.
RATIO_MAX, ROUNDS_MIN = 1.1, 5


@dataclasses.dataclass
class Row:
    """The processes of one kind: the largest of their counts, the median of their starts."""
    name: str
    start_s: float
    starts_s: list[float]
    losses: list[list[float]]
    counts: dict[str, int]


def read_process(folder: pathlib.Path, name: str) -> tuple[dict[str, Any], dict[str, int]]:
    job = json.loads((folder / f"{name}.job").read_text())
    ends = []
    for end in ("before", "after"):
        stats, status = (json.loads((folder / f"{name}.{end}.{what}").read_text()) for what in ("stats", "status"))
        ends.append({**stats, "tier_hits": status.get("tier", {}).get("hits", 0)})
    return job, {count: int(ends[1][count]) - int(ends[0][count]) for count in COUNTS}


def read_rows(folder: pathlib.Path) -> dict[str, Row]:
    kinds: dict[str, list[str]] = {}
    for path in sorted(folder.glob("*.job")):
        kinds.setdefault(re.sub(r", \d+$", "", path.stem), []).append(path.stem)
    rows = {}
    for kind in (FIRST, LATER, KEPT, OTHER, FARM):
        processes = [read_process(folder, name) for name in kinds[kind]]
        starts = [job["first_step_s"] for job, _ in processes]
        counts = {count: max(counted[count] for _, counted in processes) for count in COUNTS}
        rows[kind] = Row(kind, statistics.median(starts), starts, [job["losses"] for job, _ in processes], counts)
    return rows


def print_table(rows: dict[str, Row]) -> None:
    table = [["", "first step, s", *COUNTS.values()]]
    table += [[row.name, f"{row.start_s:.2f}", *(str(row.counts[count]) for count in COUNTS)] for row in rows.values()]
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    print()
    for number, line in enumerate(table):
        cells = "".join("   " + cell.rjust(width) for cell, width in zip(line[1:], widths[1:]))
        print("  " + line[0].ljust(widths[0]) + cells)
        if number == 0:
            print("  " + "-" * (sum(widths) + 3 * (len(widths) - 1)))
    print()


def ratio_of(rows: dict[str, Row]) -> float:
    return rows[OTHER].start_s / rows[LATER].start_s


def problems(rows: dict[str, Row], without_tier: bool) -> list[str]:
    """What is not as promised; without a tier: where the control does not show the harm."""
    found = []
    compiled = rows[FIRST].counts["compiles"]
    if compiled == 0 or rows[FIRST].counts["graphs_uploaded"] != compiled:
        found.append(f"{FIRST}: it compiled {compiled} and uploaded {rows[FIRST].counts['graphs_uploaded']}, so that"
                     " this shows nothing")
    for name in (LATER, KEPT):
        if rows[name].counts["compiles"]:
            found.append(f"{name}: it compiled {rows[name].counts['compiles']} programs again")
    for name in (OTHER, FARM):
        for count in ("compiles", "graphs_uploaded"):
            wanted = compiled if without_tier else 0
            if rows[name].counts[count] != wanted:
                found.append(f"{name}: {COUNTS[count]} {rows[name].counts[count]}, not {wanted}")
    losses = [losses for row in rows.values() for losses in row.losses]
    if any(other != losses[0] for other in losses):
        found.append("the losses of the processes differ")
    rounds = min(len(rows[name].starts_s) for name in (LATER, OTHER))
    if not without_tier and rounds >= ROUNDS_MIN and ratio_of(rows) > RATIO_MAX:
        found.append(f"{OTHER}: its start is {ratio_of(rows):.2f} times that of {LATER}, not {RATIO_MAX} at most")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--without-tier", action="store_true", help="judge as the control")
    parser.add_argument("--json", type=pathlib.Path, help="file for the rows")
    parser.add_argument("folder", type=pathlib.Path, help="what the processes and their daemons said")
    arguments = parser.parse_args()
    rows = read_rows(arguments.folder)
    print_table(rows)
    ratio, rounds = ratio_of(rows), len(rows[OTHER].starts_s)
    judged = f"at most {RATIO_MAX} is promised" if rounds >= ROUNDS_MIN else f"judged from --rounds {ROUNDS_MIN} on"
    print(f"  machine-2's start is {ratio:.2f} times that of a later process on machine-1 without AOTAutograd's cache,"
          f" {rows[OTHER].start_s / rows[KEPT].start_s:.2f} times that of one with it (medians of {rounds}; {judged})")
    found = problems(rows, arguments.without_tier)
    if arguments.json:
        arguments.json.write_text(json.dumps({
            "rows": [dataclasses.asdict(row) for row in rows.values()], "ratio": ratio, "problems": found}, indent=1))
    for problem in found:
        print(f"  PROBLEM: {problem}", file=sys.stderr)
    if not found and arguments.without_tier:
        print("  the control: without a tier every daemon compiled what another had")
    elif not found:
        print("  what machine-1 compiled nobody compiled or uploaded again; all losses are the same, bit for bit")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
