"""The rows of compiles by real workers: a herd that asks for one graph, and more compiles than there are workers for.

herd: clients over 50 connections ask at once for the graph of BERT-base's training (service_graph.py traces it). What
must hold: one compile, one manifest for all, and the last answer at most 1.2 times and half a second after the first;
hits of another key meanwhile have a p99 of at most twice that beside two processes that only burn processors.

workers: compiles of small graphs a second by 1, 2, … workers, in turn within a round.

overload: service_overload.cc. What must hold: what was admitted meets its clients' deadlines, each tenant's seconds of
workers are within a tenth of a fair part, the service recovers within 5 s, and every answer is right.
"""
import contextlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

from service_parts import LOOKUP, ROOT, Bench, Failed, Server, run, spread

CALLERS, CONNECTIONS = 1000, 50
LAST_RATIO, LAST_SECONDS = 1.2, 0.5
RATIO_MAX = 2
WORKERS = 2
HERD_NAMESPACE = "herd"
SHARE_OFF_MAX = 0.1
RECOVERY_SECONDS_MAX = 5
HITS_SECONDS = 1
SPIN = "while True: pass"


def graphs(bench: Bench) -> str:
    """A directory with the requests."""
    if bench.options.graphs:
        return str(bench.options.graphs)
    place = bench.place("graphs")
    os.mkdir(place)
    python = os.path.join(ROOT, ".venv", "bin", "python")
    done = subprocess.run([python, os.path.join(ROOT, "tests", "bench", "service_graph.py"), place],
                          capture_output=True, text=True)
    if done.returncode:
        raise Failed(f"service_graph.py: {done.stderr.strip().splitlines()[-1]}")
    return place


def ask(bench: Bench, server: Server, place: str, name: str, callers: int, connections: int) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(run([
        bench.program("service_herd"), "--socket", server.socket, "--header", os.path.join(place, f"{name}.header"),
        "--graph", os.path.join(place, f"{name}.graph"), "--namespace", HERD_NAMESPACE, "--callers", str(callers),
        "--connections", str(connections)]))
    return told


def compiles(bench: Bench, server: Server) -> int:
    text = run([bench.program("kilnctl"), "--address", server.socket, "stats"])
    found = re.search(r"^compiles +([\d,]+)", text, re.MULTILINE)
    assert found, text
    return int(found[1].replace(",", ""))


def write_lookup(bench: Bench, place: str) -> str:
    """A LookupRequest of the small graph: a namespace and a key, by hand."""
    with open(os.path.join(place, "small.key"), "rb") as file:
        key = file.read()
    space = HERD_NAMESPACE.encode()
    path = bench.place("lookup")
    with open(path, "wb") as file:
        file.write(b"\x0a" + bytes([len(space)]) + space + b"\x12" + bytes([len(key)]) + key)
    return path


def hits(bench: Bench, server: Server, lookup: str, over: Callable[[], bool]) -> list[float]:
    """The p99s of hits until it is over, or once."""
    found = []
    while True:
        found.append(json.loads(run([
            bench.program("service_load"), "calls", "--socket", server.socket, "--method", LOOKUP, "--request", lookup,
            "--connections", "2", "--seconds", str(HITS_SECONDS), "--warm-seconds", "0.1"]))["p99"])
        if over():
            return found


def herd_once(bench: Bench, place: str) -> dict[str, Any]:
    with bench.kilnd(worker="kiln-worker") as server:
        ask(bench, server, place, "small", 1, 1)
        lookup = write_lookup(bench, place)
        before = compiles(bench, server)
        result = {}
        thread = threading.Thread(target=lambda: result.update(ask(bench, server, place, "train", CALLERS,
                                                                   CONNECTIONS)))
        thread.start()
        beside = hits(bench, server, lookup, lambda: not thread.is_alive())
        thread.join()
        result["compiles"] = compiles(bench, server) - before
        with contextlib.ExitStack() as stack:
            for _ in range(WORKERS):
                spinner = stack.enter_context(subprocess.Popen([sys.executable, "-c", SPIN]))
                stack.callback(spinner.kill)
            rounds = iter(range(1, len(beside)))
            control = hits(bench, server, lookup, lambda: next(rounds, None) is None)
    result["p99"] = {"beside": spread(beside), "control": spread(control),
                     "ratio": spread(beside)["median"] / spread(control)["median"]}
    return result


def measure_herd(bench: Bench) -> list[dict[str, Any]]:
    place = graphs(bench)
    rows = []
    print_herd_header()
    for _ in range(bench.options.herd_rounds):
        row = dict(herd_once(bench, place), row="herd")
        row["holds"] = (row.get("served") == CALLERS and row["manifests"] == 1 and row["compiles"] == 1
                        and row["last"] <= LAST_RATIO * row["first"] + LAST_SECONDS
                        and row["p99"]["ratio"] <= RATIO_MAX)
        rows.append(row)
        print_herd(row)
    print()
    return rows


def print_herd_header() -> None:
    print("| herd | served, manifests | compiles | first, last answer | hits meanwhile, p99 | beside spinners | ratio "
          "| holds |")
    print("|---|---|---|---|---|---|---|---|")


def print_herd(row: dict[str, Any]) -> None:
    p99 = row["p99"]
    print(f"| {CALLERS} over {CONNECTIONS} | {row['served']}, {row['manifests']} | {row['compiles']} | "
          f"{row['first']:.2f} s, {row['last']:.2f} s | {p99['beside']['median']:,.0f} µs | "
          f"{p99['control']['median']:,.0f} µs | {p99['ratio']:.2f} | {'yes' if row['holds'] else 'no'} |", flush=True)


def measure_overload(bench: Bench) -> list[dict[str, Any]]:
    with bench.kilnd(worker="kiln-worker", settings="admission { silent_seconds_max: 600 }") as server:
        row = json.loads(run([bench.program("service_overload"), "--socket", server.socket, "--seconds",
                              str(bench.options.overload_seconds), "--factor", str(bench.options.overload_factor)]))
    work = {name: tenant["work"] for name, tenant in row["tenants"].items()}
    fair = sum(work.values()) / len(work)
    row["shares"] = {name: part / fair if fair else 0 for name, part in work.items()}
    row["holds"] = {"deadlines": row["late"] == 0,
                    "shares": all(abs(share - 1) <= SHARE_OFF_MAX for share in row["shares"].values()),
                    "recovery": row["recovery"] <= RECOVERY_SECONDS_MAX,
                    "right": row["wrong"] == 0 and row["failed"] == 0}
    row.update(row="overload", factor=bench.options.overload_factor, seconds=bench.options.overload_seconds)
    print_overload(row)
    print()
    return [row]


def print_overload(row: dict[str, Any]) -> None:
    def said(what: str) -> str:
        return "yes" if row["holds"][what] else "no"
    print(f"| overload, {row['factor']:g} × {row['capacity']:.1f} compiles a second for {row['seconds']:g} s "
          "| measured | holds |")
    print("|---|---|---|")
    print(f"| admitted, of these without an answer at the client's deadline | {row['admitted']:,}, {row['late']:,} | "
          f"{said('deadlines')} |")
    if "given_up" in row:
        print(f"| told to come again, of these after they were admitted | {row['refused']:,}, {row['given_up']:,} | |")
    else:
        print(f"| told to come again | {row['refused']:,} | |")
    for name, tenant in row["tenants"].items():
        print(f"| {name}: clients, served, part of a fair one | {tenant['arrived']:,}, {tenant['served']:,}, "
              f"{row['shares'][name]:.2f} | {said('shares')} |")
    if "without" in row:
        print(f"| clients without a program at the end | {row['without']:,} | |")
    print(f"| a compile takes at most three times as long as before, after | {row['recovery']:.1f} s "
          f"| {said('recovery')} |")
    print(f"| wrong answers, calls that failed otherwise | {row['wrong']}, {row['failed']} | {said('right')} |",
          flush=True)


def measure_workers(bench: Bench) -> list[dict[str, Any]]:
    """Rows of compiles a second, each against one worker's within a round."""
    rates: dict[int, list[float]] = {count: [] for count in bench.options.workers}
    for turn in range(bench.options.worker_rounds):
        for count in rates:
            with bench.kilnd(worker="kiln-worker", workers=count) as server:
                found = json.loads(run([bench.program("service_overload"), "--socket", server.socket, "--seconds", "0",
                                        "--seed", str(turn + 1)]))
                rates[count].append(found["capacity"])
    rows, first = [], rates[bench.options.workers[0]]
    print_workers_header()
    for count, found in rates.items():
        ratio = spread([many / few for many, few in zip(found, first, strict=True)])
        rows.append({"row": "workers", "workers": count, "rate": spread(found), "ratio": ratio})
        print_workers(rows[-1])
    print()
    return rows


def print_workers_header() -> None:
    print("| workers | compiles a second | its spread | against the fewest | its spread |")
    print("|---|---|---|---|---|")


def print_workers(row: dict[str, Any]) -> None:
    rate, ratio = row["rate"], row["ratio"]
    print(f"| {row['workers']} | {rate['median']:.1f} | {rate['least']:.1f} – {rate['largest']:.1f} | "
          f"{ratio['median']:.2f} | {ratio['least']:.2f} – {ratio['largest']:.2f} |", flush=True)
