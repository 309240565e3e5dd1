#!/usr/bin/env python3
"""kilnd under load against what gRPC costs by itself, on a unix socket and, in the row of that name, by mutual TLS.

  tests/bench/service.sh [--quick] [--only ROW,…] [--json FILE]

The baseline is service_bare.cc: a callback server without kiln's code that answers by a prebuilt reply of the same
size, the faster of its unary and its generic form. Servers take turns within a round; the load (service_load.cc) is a
process of its own, closed: the next call starts when one is answered. kilnd runs scripted workers
(tests/fault/scripted_worker.cc), so nothing is compiled while it is measured. Prints a table and, as the last line,
JSON; ratios are kilnd's to the baseline's within a round: the median, and the least and the largest.

Time of a server's processor a call says most where other programs use the machine as well.

Where a row has a limit (service_limits.py, and those of attackers, herd and overload), its last column says whether it
holds. Exits with 1 where one does not, unless --report-only.
"""
import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import service_attackers
import service_compiles
import service_limits
from facts import facts
from service_limits import TLS_HIT, said
from service_parts import (
    FETCH,
    LOOKUP,
    ROOT,
    STORE_CONNECTIONS,
    WAITING_CONNECTIONS,
    Bench,
    Failed,
    Server,
    run,
    spread,
)

COMPARED = ("hit", "miss", "objects", "tls", "waiting", "manifests")
ROWS = (*COMPARED, "attackers", "herd", "overload", "workers")
SPIN = "while True: pass"
SPIN_SECONDS, EVICT_SECONDS_MAX = 10, 300


def compare(rounds: dict[str, list[dict[str, Any]]], baseline: str, fields: Sequence[str]) -> dict[str, Any]:
    """rounds: of each server's name, the results in order. Of each field: both, and their ratio within a round."""
    row: dict[str, Any] = {"baseline": baseline}
    for field in fields:
        bare = [result[field] for result in rounds[baseline]]
        kilnd = [result[field] for result in rounds["kilnd"]]
        row[field] = {"bare": spread(bare), "kilnd": spread(kilnd),
                      "ratio": spread([ours / theirs for ours, theirs in zip(kilnd, bare, strict=True) if theirs])}
    return row


def measure_calls(bench: Bench, kilnd: Server, what: str, row_name: str | None = None) -> list[dict[str, Any]]:
    """A row a number of connections, of Lookups that hit or miss."""
    size = bench.replies[what]
    rows = []
    with bench.bare("unary", size, tls=kilnd.tls) as unary, bench.bare("generic", size, tls=kilnd.tls) as generic:
        for connections in bench.options.connections:
            rounds: dict[str, list[dict[str, Any]]] = {"unary": [], "generic": [], "kilnd": []}
            for _ in range(bench.options.rounds):
                for server in (unary, generic, kilnd):
                    rounds[server.name].append(bench.load(server, LOOKUP, what, connections, size))
            rates = {form: statistics.median(result["rate"] for result in rounds[form])
                     for form in ("unary", "generic")}
            row = compare(rounds, max(rates, key=lambda form: rates[form]), ("rate", "p50", "p99", "processor"))
            rows.append(dict(row, row=row_name or what, connections=connections, reply_bytes=size))
            print_row(rows[-1])
    return rows


def measure_objects(bench: Bench, kilnd: Server) -> list[dict[str, Any]]:
    total, messages = bench.replies["objects"], bench.replies["messages"]
    size = total // messages
    rows = []
    with bench.bare("unary", size, messages) as bare:
        for connections in bench.options.connections:
            if connections > 8:
                continue
            rounds: dict[str, list[dict[str, Any]]] = {"unary": [], "kilnd": []}
            for _ in range(bench.options.rounds):
                rounds["unary"].append(bench.load(bare, FETCH, "objects", connections, size * messages, stream=True))
                rounds["kilnd"].append(bench.load(kilnd, FETCH, "objects", connections, total, stream=True))
            row = compare(rounds, "unary", ("bytes_rate", "processor"))
            rows.append(dict(row, row="objects", connections=connections, reply_bytes=total))
            print_row(rows[-1])
    return rows


def measure_waiting(bench: Bench) -> list[dict[str, Any]]:
    """Threads and memory of servers that nobody has asked anything yet, with clients that wait, and after them."""
    row: dict[str, Any] = {"row": "waiting", "clients": bench.options.waiting}
    makers: tuple[Callable[[], contextlib.AbstractContextManager[Server]], ...] = (
        lambda: bench.bare("unary", 32), bench.kilnd)
    for make in makers:
        with make() as server:
            # The first connections cost what later ones do not.
            with bench.waiting(server, WAITING_CONNECTIONS):
                pass
            time.sleep(1)
            idle = server.status()
            with bench.waiting(server, bench.options.waiting):
                time.sleep(1)
                waiting = server.status()
            time.sleep(2)
            row["bare" if server.name == "unary" else "kilnd"] = {
                "threads_idle": idle["threads"], "threads_waiting": waiting["threads"],
                "threads_after": server.status()["threads"],
                "bytes_a_client": (waiting["bytes"] - idle["bytes"]) / bench.options.waiting}
    row["bytes_ratio"] = row["kilnd"]["bytes_a_client"] / row["bare"]["bytes_a_client"]
    print_row(row)
    return [row]


def fill(bench: Bench, manifests: int) -> dict[str, Any]:
    """A store of so many manifests of 2 kB, lists of Lookups of them, and what it holds."""
    place = bench.place("store")
    os.mkdir(place)
    found = json.loads(run([bench.program("service_store"), "--directory", os.path.join(place, "store"), "--namespace",
                            bench.replies["namespace"], "--fingerprint", bench.replies["fingerprint"], "--manifests",
                            str(manifests), "--out", place]))
    return dict(found, place=place, store=os.path.join(place, "store"), budget=max(64 << 20, found["bytes"] * 10 // 6))


def disk_bytes(directory: str) -> int:
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.path.getsize(os.path.join(folder, name))
    return total


def hot_while(bench: Bench, server: Server, found: dict[str, Any], command: list[str],
              seconds_max: float) -> dict[str, Any]:
    """Lookups of the hot set until the command ends: their p99s, its seconds, the most that the disk held."""
    p99, peak = [], 0
    started = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None and time.monotonic() < started + seconds_max:
            p99.append(bench.lookups(server, found, "hot")["p99"])
            peak = max(peak, disk_bytes(found["store"]))
        seconds = time.monotonic() - started
        if process.poll():
            raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
        process.kill()
    return {"p99": spread(p99), "seconds": seconds, "disk_peak": peak / found["budget"]}


def measure_manifests(bench: Bench) -> list[dict[str, Any]]:
    """kilnd over stores of few and of many manifests, in turn; then half of the many are evicted."""
    with contextlib.ExitStack() as stack:
        rows, servers = [], []
        for manifests in bench.options.manifests:
            found = fill(bench, manifests)
            started = time.monotonic()
            server = stack.enter_context(bench.kilnd(
                found["store"], f"store {{ budget_bytes: {found['budget']} }} "
                f"signing {{ key_file: \"{found['place']}/signing.pem\" }}"))
            bench.lookups(server, found, "hot", connections=1, calls=1)
            opened = time.monotonic() - started
            first = bench.lookups(server, found, "cold", connections=1, calls=2000)
            rows.append({"row": "manifests", "manifests": manifests, "open_seconds": opened, "first": first, "hot": []})
            servers.append((server, found))
        for _ in range(bench.options.rounds):
            for (server, found), row in zip(servers, rows, strict=True):
                row["hot"].append(bench.lookups(server, found, "hot"))
        for row in reversed(rows):
            ratios = [many["p99"] / few["p99"] for many, few in zip(row["hot"], rows[0]["hot"], strict=True)]
            row["ratio"] = spread(ratios)
        for row in rows:
            row["hot"] = {field: spread([result[field] for result in row["hot"]]) for field in ("rate", "p50", "p99")}
        server, found = servers[-1]
        spin = [sys.executable, "-c", SPIN]
        evict = [bench.program("kilnctl"), "--address", server.socket, "--timeout", str(EVICT_SECONDS_MAX), "evict",
                 "--to-bytes", str(found["bytes"] // 2)]
        rows[-1]["spinner"] = hot_while(bench, server, found, spin, SPIN_SECONDS)
        rows[-1]["evicting"] = hot_while(bench, server, found, evict, EVICT_SECONDS_MAX)
    for row in rows:
        print_row(row)
    return rows


def text_of(field: str, value: float) -> str:
    if field == "rate":
        return f"{value:,.0f}/s"
    if field == "bytes_rate":
        return f"{value / 1e6:,.0f} MB/s"
    return f"{value:,.0f} µs"


def print_header() -> None:
    print("| row | connections | measured | bare | its spread | kilnd | its spread | ratio | its spread | holds |")
    print("|---|---|---|---|---|---|---|---|---|---|", flush=True)


def print_manifests(row: dict[str, Any]) -> None:
    name = f"{row['manifests']:,} manifests"
    hot, first = row["hot"], row["first"]
    print(f"| {name} | 1 | started, to the first hit | | | {row['open_seconds']:.2f} s | | | | "
          f"{said(row, 'open_seconds')} |")
    print(f"| {name} | 1 | first hits, from disk: p50, p99 | | | {first['p50']:,.0f}, {first['p99']:,.0f} µs | | | | |")
    for field in ("rate", "p50", "p99"):
        values = hot[field]
        ratio = row["ratio"] if field == "p99" else None
        cells = [name, str(STORE_CONNECTIONS), f"hot {field}", "", "", text_of(field, values["median"]),
                 f"{text_of(field, values['least'])} – {text_of(field, values['largest'])}",
                 f"{ratio['median']:.2f}" if ratio else "",
                 f"{ratio['least']:.2f} – {ratio['largest']:.2f}" if ratio else "", said(row, field)]
        print("| " + " | ".join(cells) + " |")
    if "evicting" not in row:
        return
    spinner, evicting = row["spinner"]["p99"]["median"], row["evicting"]["p99"]["median"]
    print(f"| {name}, half evicted in {row['evicting']['seconds']:.0f} s, disk at most "
          f"{row['evicting']['disk_peak']:.2f} of the budget | {STORE_CONNECTIONS} | hot p99, beside a spinner's | "
          f"{spinner:,.0f} µs | | {evicting:,.0f} µs | | {evicting / spinner:.2f} | | "
          f"{said(row, 'evicting')} |", flush=True)


def print_row(row: dict[str, Any]) -> None:
    if row["row"] == "manifests":
        print_manifests(row)
        return
    if row["row"] == "waiting":
        bare, kilnd = row["bare"], row["kilnd"]
        for field, name in (("threads_idle", "threads, idle"), ("threads_waiting", "threads, waiting"),
                            ("threads_after", "threads, after")):
            print(f"| waiting | {row['clients']} clients | {name} | {bare[field]} | | {kilnd[field]} | | | | "
                  f"{said(row, field)} |")
        print(f"| waiting | {row['clients']} clients | memory a client | {bare['bytes_a_client'] / 1024:.1f} KiB | | "
              f"{kilnd['bytes_a_client'] / 1024:.1f} KiB | | {row['bytes_ratio']:.2f} | | "
              f"{said(row, 'bytes_ratio')} |", flush=True)
        return
    for field in ("rate", "bytes_rate", "p50", "p99", "processor"):
        if field not in row:
            continue
        cells = [f"{row['row']}, {row['reply_bytes']:,} B", f"{row['connections']} ({row['baseline']})", field]
        for side in ("bare", "kilnd"):
            values = row[field][side]
            cells.append(text_of(field, values["median"]))
            cells.append(f"{text_of(field, values['least'])} – {text_of(field, values['largest'])}")
        ratio = row[field]["ratio"]
        cells += [f"{ratio['median']:.2f}", f"{ratio['least']:.2f} – {ratio['largest']:.2f}", said(row, field)]
        print("| " + " | ".join(cells) + " |", flush=True)


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    processors = os.cpu_count() or 1

    def numbers(text: str) -> list[int]:
        return [int(word) for word in text.split(",")]
    parser.add_argument("--quick", action="store_true", help="3 rounds of 1 s")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5, help="of each server in a round")
    parser.add_argument("--connections", type=numbers, default=[1, 8, 64, 256], metavar="N,…")
    parser.add_argument("--outstanding", type=int, default=1, help="calls at a time on each connection")
    parser.add_argument("--threads", type=int, default=1, help="of the load; each has connections of its own")
    parser.add_argument("--waiting", type=int, default=1000, help="clients that wait, a multiple of 50")
    parser.add_argument("--manifests", type=numbers, default=[10_000, 1_000_000], metavar="N,…",
                        help="in the store; half of the last are evicted (4 GB of disk for a million)")
    parser.add_argument("--attacks", type=lambda text: text.split(","), default=list(service_attackers.KINDS),
                        metavar="KIND,…", help=", ".join(service_attackers.KINDS))
    parser.add_argument("--attack-seconds", type=float, default=8, help="of one attack")
    parser.add_argument("--attack-rounds", type=int, default=3)
    parser.add_argument("--honest", type=int, default=2, help="connections of the client that is no attacker")
    parser.add_argument("--without-limits", action="store_true",
                        help="attackers once more with kilnd's limits off: what they prevent")
    parser.add_argument("--graphs", metavar="DIRECTORY",
                        help="of the herd: what service_graph.py wrote there; default: it is asked")
    parser.add_argument("--herd-rounds", type=int, default=3)
    parser.add_argument("--workers", type=numbers, default=sorted({1, 2, processors, 2 * processors}),
                        metavar="N,…", help="of the row of workers")
    parser.add_argument("--worker-rounds", type=int, default=3)
    parser.add_argument("--overload-seconds", type=float, default=20)
    parser.add_argument("--overload-factor", type=float, default=10)
    parser.add_argument("--full", action="store_true", help="attacks of 30 s, an overload of 60 s")
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(ROWS), metavar="ROW,…",
                        help=", ".join(ROWS))
    parser.add_argument("--build", default=os.path.join(ROOT, "build"))
    parser.add_argument("--kilnd", help="another kilnd than the build's")
    parser.add_argument("--config", default="", help="text that is added to kilnd's configuration")
    parser.add_argument("--report-only", action="store_true",
                        help="exit with 0 whatever holds: for runs that are too short to judge by")
    parser.add_argument("--json", help="file that gets the JSON as well")
    options = parser.parse_args(arguments)
    if unknown := set(options.only) - set(ROWS):
        parser.error(f"--only: no row {', '.join(sorted(unknown))}; there are {', '.join(ROWS)}")
    if options.waiting < WAITING_CONNECTIONS or options.waiting % WAITING_CONNECTIONS:
        parser.error(f"--waiting: {options.waiting} is no multiple of {WAITING_CONNECTIONS}")
    if unknown := set(options.attacks) - set(service_attackers.KINDS):
        parser.error(f"--attacks: no {', '.join(sorted(unknown))}")
    if options.quick:
        options.rounds, options.seconds = 3, 1
        options.attack_seconds, options.attack_rounds = 4, 1
        options.herd_rounds, options.overload_seconds, options.worker_rounds = 1, 10, 1
    if options.full:
        options.attack_seconds, options.overload_seconds = 30, 60
    return options


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    rows = []
    started = os.getloadavg()[0]
    try:
        with tempfile.TemporaryDirectory(prefix="kiln-bench-", dir="/var/tmp") as directory:
            bench = Bench(options, directory)
            if set(options.only) & set(COMPARED):
                print_header()
                with bench.kilnd() as kilnd:
                    bench.prepare(kilnd)
                    for what in ("hit", "miss"):
                        if what in options.only:
                            rows += measure_calls(bench, kilnd, what)
                    if "objects" in options.only:
                        rows += measure_objects(bench, kilnd)
            if "tls" in options.only:
                with bench.kilnd(tls=bench.certificates()) as kilnd:
                    bench.prepare(kilnd)
                    rows += measure_calls(bench, kilnd, "hit", TLS_HIT)
            if "waiting" in options.only:
                rows += measure_waiting(bench)
            if "manifests" in options.only:
                rows += measure_manifests(bench)
            if "attackers" in options.only:
                rows += service_attackers.measure(bench)
            if "herd" in options.only:
                rows += service_compiles.measure_herd(bench)
            if "overload" in options.only:
                rows += service_compiles.measure_overload(bench)
            if "workers" in options.only:
                rows += service_compiles.measure_workers(bench)
    except Failed as error:
        print(f"service.py: {error}", file=sys.stderr)
        return 1
    of = facts("tests/bench/service.sh", arguments, options.kilnd or bench.program("kilnd"))
    result = json.dumps({"facts": of, "load_before": started, "rounds": options.rounds, "seconds": options.seconds,
                         "outstanding": options.outstanding, "rows": rows})
    print(result)
    if options.json:
        with open(options.json, "w") as file:
            file.write(result + "\n")
    broken = service_limits.broken(rows)
    for line in broken:
        print(f"service.py: does not hold: {line}", file=sys.stderr)
    return 1 if broken and not options.report_only else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
