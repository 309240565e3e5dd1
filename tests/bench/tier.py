"""When a shared tier pays: starts of a job by a daemon that compiles, by one that takes from the tier of a
neighbour so many milliseconds away, by one that asks a tier which has nothing, and by one that has all itself.

    tier.py [--rounds 5] [--round-trips 0 1 10 50] [--blocks 8] [--json FILE]

Every start is a process of its own with torch's caches empty, every daemon but the last is new. The ways take turns.
"in kiln" is what the process waited for kilnd (look-ups, compiles, fetches); the rest of a start is torch's tracing.
"compiled" is the daemon's count: where it is not 0 by a tier that has all, look-ups took longer than their limit.
"pays from" is the share of programs that the tier has to have for the look-ups to be worth their time.
"""
import argparse
import contextlib
import dataclasses
import json
import multiprocessing
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch._dynamo  # before the processes that use it

import kiln
from facts import facts, said

ROOT = pathlib.Path(__file__).resolve().parents[2]
@dataclasses.dataclass(frozen=True)
class Way:
    name: str
    round_trip: float | None = None  # ms to the tier; none: there is no tier
    filled: bool = True              # whether the tier has the job's programs
    own: bool = False                # whether the daemon has


READING = """\
"in kiln" is what the process waited for kilnd: look-ups, compiles, fetches. "compiled" is the daemon's own count: where
it is not 0 by a tier that has all, look-ups took longer than `tier.lookup_ms_max`. "pays from" is the share of programs
that the tier has to have for its look-ups to be worth their time; the larger a program, the smaller the share."""


def ways(round_trips: list[float]) -> Iterator[Way]:
    yield Way("the daemon has it", own=True)
    yield Way("compiled here, no tier")
    for round_trip in round_trips:
        yield Way(f"from a tier {round_trip:g} ms away", round_trip)
    for round_trip in round_trips:
        yield Way(f"compiled here, nothing in a tier {round_trip:g} ms away", round_trip, filled=False)


class Bench:
    def __init__(self, place: pathlib.Path, options: argparse.Namespace, stack: contextlib.ExitStack) -> None:
        self.place, self.options, self.stack = place, options, stack
        self.binaries = pathlib.Path(kiln.__file__).parent / "bin"
        self.number = 0

    def start(self, *command: str | pathlib.Path, **more: Any) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **more)
        self.stack.callback(stop, process)
        return process

    def redis(self, name: str) -> pathlib.Path:
        path = self.place / f"{name}.sock"
        self.start("redis-server", "--port", "0", "--unixsocket", path, "--save", "", "--appendonly", "no")
        await_path(path)
        return path

    def proxy(self, name: str, server: pathlib.Path, round_trip: float) -> pathlib.Path:
        path = self.place / f"{name}.{round_trip:g}.sock"
        self.start(sys.executable, ROOT / "tests" / "bench" / "delaying_proxy.py", path, server, "--round-trip-ms",
                   str(round_trip), stdin=subprocess.PIPE)
        await_path(path)
        return path

    def daemon(self, tier: pathlib.Path | None) -> tuple[subprocess.Popen[bytes], pathlib.Path]:
        """(its process, its folder): new, with nothing in its store. All sign with one key."""
        self.number += 1
        folder = self.place / str(self.number)
        folder.mkdir(mode=0o700)
        text = (f'listen {{ unix_socket: "{folder}/s/kilnd.sock" tenants {{ name: "bench" uids: {os.geteuid()} }} }}\n'
                f'signing {{ key_file: "{self.place}/signing.pem" }}\nstore {{ directory: "{folder}/store" }}\n')
        if tier:
            text += f'tier {{ addresses: "unix:{tier}" }}\n'
        (folder / "kilnd.textproto").write_text(text)
        process = self.start(self.binaries / "kilnd", "--config", folder / "kilnd.textproto")
        deadline = time.time() + 60
        while not self.is_ready(folder, tier):
            if time.time() > deadline or process.poll() is not None:
                sys.exit(f"tier.py: kilnd does not serve {folder}")
            time.sleep(0.1)
        return process, folder

    def ask(self, folder: pathlib.Path, command: str) -> Any:
        ran = subprocess.run([self.binaries / "kilnctl", "--address", f"unix:{folder}/s/kilnd.sock", "--json", command],
                             text=True, capture_output=True)
        return json.loads(ran.stdout) if ran.returncode == 0 else None

    def is_ready(self, folder: pathlib.Path, tier: pathlib.Path | None) -> bool:
        status = self.ask(folder, "status")
        return status is not None and (not tier or status["tier"]["connected"])

    def job(self, folder: pathlib.Path) -> dict[str, Any]:
        """What a start told: a process of its own, forked, so that torch need not be imported by each."""
        torch_cache = folder / "torch"
        shutil.rmtree(torch_cache, ignore_errors=True)
        context = multiprocessing.get_context("fork")
        here, there = context.Pipe()
        process = context.Process(target=train, args=(there, self.options.blocks, {
            "KILN_ADDRESS": f"unix:{folder}/s/kilnd.sock", "KILN_FALLBACK": "error",
            "TORCHINDUCTOR_CACHE_DIR": str(torch_cache)}))
        before = self.ask(folder, "stats")["compiles"]
        process.start()
        there.close()
        try:
            told = here.recv()
            return {**told, "compiles": self.ask(folder, "stats")["compiles"] - before}
        except EOFError:
            sys.exit("tier.py: the job failed, see above")
        finally:
            process.join()


def train(answer: Connection, blocks: int, environment: dict[str, str]) -> None:
    """The job: each block is two programs, its forward and its backward."""
    os.environ.update(environment)
    torch.manual_seed(0)
    begin = time.perf_counter()
    for number in range(blocks):
        width = 64 + 16 * number
        block = torch.nn.Sequential(torch.nn.Linear(width, 4 * width), torch.nn.GELU(),
                                    torch.nn.Linear(4 * width, width), torch.nn.LayerNorm(width))
        torch.compile(block, backend="kiln")(torch.randn(32, width)).square().mean().backward()
    seconds = time.perf_counter() - begin
    stats = kiln.stats()
    answer.send({"start": seconds, "programs": stats["graphs"],
                 "kiln": sum(stats["seconds"][part] for part in ("lookup", "compile", "fetch"))})


def stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait()


def await_path(path: pathlib.Path) -> None:
    deadline = time.time() + 30
    while not path.exists():
        if time.time() > deadline:
            sys.exit(f"tier.py: nobody listens on {path}")
        time.sleep(0.02)


def measure(bench: Bench, options: argparse.Namespace) -> dict[Way, list[dict[str, Any]]]:
    """{way: its jobs}"""
    filled = bench.redis("filled")
    _, warm = bench.daemon(filled)
    made = bench.job(warm)
    deadline = time.time() + 60
    while bench.ask(warm, "status")["tier"]["writes"] < made["compiles"]:
        if time.time() > deadline:
            sys.exit("tier.py: what was compiled does not come into the tier")
        time.sleep(0.1)
    empty = bench.redis("empty")
    taken: dict[Way, list[dict[str, Any]]] = {way: [] for way in ways(options.round_trips)}
    for _ in range(options.rounds):
        for way, jobs in taken.items():
            if way.own:
                jobs.append(bench.job(warm))
                continue
            tier = None
            if way.round_trip is not None:
                server = filled if way.filled else empty
                tier = bench.proxy(f"proxy{bench.number}", server, way.round_trip)
            subprocess.run(["redis-cli", "-s", empty, "FLUSHALL"], check=True, capture_output=True)
            daemon, folder = bench.daemon(tier)
            jobs.append(bench.job(folder))
            stop(daemon)
            shutil.rmtree(folder)
    return taken


def lines(taken: dict[Way, list[dict[str, Any]]]) -> Iterator[str]:
    """The table, as Markdown."""
    def medians(way: Way, part: str) -> float:
        return float(statistics.median(job[part] for job in taken[way]))

    here = next(way for way in taken if way.round_trip is None and not way.own)
    yield "| start | seconds | in kiln, ms | programs | compiled | pays from |"
    yield "|---|---|---|---|---|---|"
    for way in taken:
        spread = [job["kiln"] * 1e3 for job in taken[way]]
        pays = ""
        if way.round_trip is not None and way.filled:
            miss = next(other for other in taken if other.round_trip == way.round_trip and not other.filled)
            gain = medians(here, "kiln") - medians(way, "kiln")
            cost = max(medians(miss, "kiln") - medians(here, "kiln"), 0.0)
            pays = f"{100 * cost / (gain + cost):.0f} %" if gain > 0 else "never"
        yield (f"| {way.name} | {medians(way, 'start'):.2f} | {medians(way, 'kiln') * 1e3:.0f} "
               f"({min(spread):.0f}–{max(spread):.0f}) | {medians(way, 'programs'):.0f} | "
               f"{medians(way, 'compiles'):.0f} | {pays} |")


def page(reports: list[dict[str, Any]]) -> str:
    """docs/benchmarks/tier.md."""
    parts = ["# When a shared tier pays"]
    for report in reports:
        taken = {way: report["jobs"][way.name] for way in ways(report["round_trips"])}
        told = said(report["facts"], f"load {report['load']:.0f}", f"forward and backward of {report['blocks']} blocks",
                    f"medians of {len(report['jobs'][next(iter(taken)).name])} rounds")
        parts += [told, "\n".join(lines(taken)), READING]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--round-trips", type=float, nargs="+", default=[0, 1, 10, 50], metavar="MS")
    parser.add_argument("--blocks", type=int, default=8, help="each two programs")
    parser.add_argument("--json", type=pathlib.Path, help="file for every start")
    options = parser.parse_args()
    if shutil.which("redis-server") is None:
        sys.exit("tier.py: redis-server is not here: apt-get install redis-server")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended
    with contextlib.ExitStack() as stack:
        place = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kiln-tier-")))
        taken = measure(Bench(place, options, stack), options)
    print("\n".join(lines(taken)))
    if options.json:
        report = {"facts": facts("tests/bench/tier.py", sys.argv[1:]), "load": os.getloadavg()[2],
                  "round_trips": options.round_trips, "blocks": options.blocks,
                  "jobs": {way.name: jobs for way, jobs in taken.items()}}
        options.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
