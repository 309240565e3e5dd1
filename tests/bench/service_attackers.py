"""The row of attackers: what service_attack.cc does to kilnd, and how an honest client fares meanwhile.

Attackers run at nice 19. As root they are a tenant of their own and the honest client another; otherwise all are one
user. The honest client makes a failed call again, three times at most. The control is the same client beside processes
at nice 19 that only burn what the attackers burned, in turn within a round. What must hold: every honest call succeeds;
its p99 is at most twice the control's; kilnd grows by no more than what gRPC may take (listen.memory_bytes) and 64 MiB;
its descriptors return to what they were.
"""
from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from typing import Any

from service_parts import LOOKUP, Bench, Server, spread

# Arguments of service_attack.
KINDS = {
    "messages": ["--connections", "8", "--bytes", str(256 << 20)],
    "silent": ["--connections", "2000"],
    "dribble": ["--connections", "2000"],
    "resets": ["--connections", "8", "--rate", "5000"],
    "pings": ["--connections", "8", "--rate", "5000"],
}
HONEST, ATTACKER = 61001, 61002
HANDSHAKE_SECONDS = 3
MEMORY_BYTES = 192 << 20
GROWTH_BESIDE = 64 << 20
RATIO_MAX = 2
SETTLE_SECONDS = 15
# Burns a part of one processor, in slices of 20 ms.
BURN = """
import sys, time
part = float(sys.argv[1])
while True:
    end = time.perf_counter() + 0.02 * part
    while time.perf_counter() < end: pass
    time.sleep(0.02 * (1 - part))
"""
NICE = ["nice", "-n", "19"]


class Watch(threading.Thread):
    """The most memory and descriptors of a server while it runs."""

    def __init__(self, server: Server) -> None:
        super().__init__(daemon=True)
        self.server, self.bytes, self.descriptors = server, 0, 0
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(0.05):
            self.bytes = max(self.bytes, self.server.status()["bytes"])
            self.descriptors = max(self.descriptors, self.server.descriptors())

    def __enter__(self) -> Watch:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self.join()


def settings(limits: bool) -> str:
    listen = f"handshake_seconds_max: {HANDSHAKE_SECONDS} memory_bytes: {MEMORY_BYTES} " if limits else (
        "handshake_seconds_max: 3600 memory_bytes: 64000000000 connections_max: 100000 tenant_connections_max: 100000 "
        "streams_max: 100000 ")
    if os.geteuid() == 0:
        listen += (f'tenants {{ name: "honest" uids: 0 uids: {HONEST} }} '
                   f'tenants {{ name: "attackers" uids: {ATTACKER} }}')
    return f"listen {{ {listen} }}"


def other_user(uid: int) -> dict[str, Any]:
    return {"user": uid, "group": uid, "extra_groups": []} if os.geteuid() == 0 else {}


def honest_load(bench: Bench, server: Server) -> dict[str, Any]:
    command = [bench.program("service_load"), "calls", "--socket", server.socket, "--method", LOOKUP, "--request",
               os.path.join(bench.directory, "hit"), "--connections", str(bench.options.honest), "--seconds",
               str(bench.options.attack_seconds), "--retries", "3", "--reply-bytes", str(bench.replies["hit"])]
    done = subprocess.run(command, capture_output=True, text=True, **other_user(HONEST))
    sys.stderr.write(done.stderr)
    return json.loads(done.stdout) if done.stdout else {"calls": 0, "rate": 0, "p99": float("inf"), "failed": 1,
                                                        "retried": 0}


def attacked(bench: Bench, server: Server, kind: str) -> dict[str, Any]:
    """The honest client beside an attack: its numbers, the attack's, and the most that kilnd took."""
    length = bench.options.attack_seconds + 1.5
    command = [*NICE, bench.program("service_attack"), kind, "--socket", server.socket, "--seconds", str(length)]
    before = server.status()["bytes"]
    with Watch(server) as watch, subprocess.Popen(command + KINDS[kind], stdout=subprocess.PIPE, text=True,
                                                  **other_user(ATTACKER)) as attack:
        time.sleep(0.5)
        honest = honest_load(bench, server)
        done = json.loads(attack.communicate()[0])
    return {"honest": honest, "attack": dict(done, share=done["processor"] / length),
            "growth": max(0, watch.bytes - before), "descriptors": watch.descriptors}


def controlled(bench: Bench, server: Server, share: float) -> dict[str, Any]:
    """The honest client beside what burns so much of a processor."""
    count = max(1, round(share + 0.5))
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            command = [*NICE, sys.executable, "-c", BURN, str(min(1, share / count))]
            burner = stack.enter_context(subprocess.Popen(command))
            stack.callback(burner.kill)
        time.sleep(0.5)
        return honest_load(bench, server)


def settle(server: Server, base: int) -> int:
    """Descriptors beyond those before, once they are back or there was time enough."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while server.descriptors() > base and time.monotonic() < deadline:
        time.sleep(0.1)
    return server.descriptors() - base


def measure_kind(bench: Bench, server: Server, kind: str) -> dict[str, Any]:
    row: dict[str, Any] = {"row": "attackers", "kind": kind, "failed": 0, "retried": 0, "calls": 0, "growth": 0,
                           "descriptors": 0}
    pairs: list[tuple[dict[str, Any], dict[str, Any]]] = []
    base = server.descriptors()
    for _ in range(bench.options.attack_rounds):
        one = attacked(bench, server, kind)
        row["left"] = settle(server, base)
        pairs.append((one, controlled(bench, server, one["attack"]["share"])))
        for field in ("failed", "retried", "calls"):
            row[field] += one["honest"][field]
        for field in ("growth", "descriptors"):
            row[field] = max(row[field], one[field])
    seconds = bench.options.attack_seconds + 1.5
    row["attack"] = {"done": spread([one["attack"]["done"] / seconds for one, _ in pairs]),
                     "closed": sum(one["attack"]["closed"] for one, _ in pairs),
                     "refused": sum(one["attack"]["refused"] for one, _ in pairs),
                     "share": spread([one["attack"]["share"] for one, _ in pairs])}
    row["p99"] = {"attacked": spread([one["honest"]["p99"] for one, _ in pairs]),
                  "control": spread([control["p99"] for _, control in pairs]),
                  "ratio": spread([one["honest"]["p99"] / control["p99"] for one, control in pairs])}
    row["holds"] = (row["failed"] == 0 and row["p99"]["ratio"]["median"] <= RATIO_MAX and row["left"] <= 0
                    and row["growth"] <= MEMORY_BYTES + GROWTH_BESIDE)
    return row


def measure(bench: Bench) -> list[dict[str, Any]]:
    rows = []
    os.chmod(bench.directory, 0o755)
    print_header()
    for limits in (True, False) if bench.options.without_limits else (True,):
        for kind in bench.options.attacks:
            with bench.kilnd(settings=settings(limits), open_to_all=True) as server:
                bench.prepare(server)
                honest_load(bench, server)  # what the first calls cost
                rows.append(dict(measure_kind(bench, server, kind), limits=limits))
                print_row(rows[-1])
    print()
    return rows


def print_header() -> None:
    print("| attack | done a second, closed | honest calls, failed, again | p99 attacked | control | ratio | its "
          "spread | "
          "kilnd grew by | descriptors at most, left | holds |")
    print("|---|---|---|---|---|---|---|---|---|---|")


def print_row(row: dict[str, Any]) -> None:
    ratio, p99, attack = row["p99"]["ratio"], row["p99"], row["attack"]
    cells = [row["kind"] + ("" if row["limits"] else ", without limits"),
             f"{attack['done']['median']:,.0f}, {attack['closed']:,}",
             f"{row['calls']:,}, {row['failed']:,}, {row['retried']:,}", f"{p99['attacked']['median']:,.0f} µs",
             f"{p99['control']['median']:,.0f} µs", f"{ratio['median']:.2f}",
             f"{ratio['least']:.2f} – {ratio['largest']:.2f}", f"{row['growth'] / 2**20:,.0f} MiB",
             f"{row['descriptors']:,}, {row['left']}", "yes" if row["holds"] else "no"]
    print("| " + " | ".join(cells) + " |", flush=True)
