"""PyTorch's operator and module databases through kiln: what is wrong, crashes, hangs, raises, falls back.

    opdb.py --json opdb.jsonl --resume                  all of it, going on where the file ends
    opdb.py --shard 1/4 --dtypes float32 --ways static  a quarter of float32, fixed sizes
    opdb.py --ops '^nn.functional.pad' --show           some operators, each verdict as it is found

A unit is an operator (or module), a dtype and a way (static or dynamic sizes); its samples run in a process that tells
of each before and after, so that one that dies or hangs is known, and the next begins behind it. The file has a line a
unit, after one that says what it is of; README.md says what the verdicts are. Exits 1 if anything is bad.
"""
import argparse
import collections
import concurrent.futures
import contextlib
import hashlib
import json
import os
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any, TypeAlias

from verdicts import ALL, BAD, CRASH, ERROR, HANG, SKIPPED

Unit: TypeAlias = tuple[str, str, str]  # operator, dtype, way

_HERE = os.path.dirname(os.path.abspath(__file__))
_WAYS = ("static", "dynamic")
_START_SECONDS = 120  # that a process has to import torch and its databases
_IDLE = 5  # a process that does nothing, or gets no processor, may take so many times as long
_MEMORY_MOST = {"cpu": 3 << 30, "cuda": 16 << 30}  # bytes a process may have before another takes over


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", metavar="REGEX", help="only operators and modules (nn.Linear) whose name has it")
    parser.add_argument("--dtypes", help="names with commas, `errors` for error inputs; default: all")
    parser.add_argument("--ways", default="static,dynamic", help="static, dynamic or both (default)")
    parser.add_argument("--samples", type=int, default=6, help="an operator, dtype and way, drawn by --seed (6)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--capture", choices=("on", "off"), default="off",
                        help="Dynamo's capture_scalar_outputs and capture_dynamic_output_shape_ops")
    parser.add_argument("--device", default="cpu", help="cpu (default) or cuda, without error inputs")
    parser.add_argument("--backend", default="kiln", help="of torch.compile")
    parser.add_argument("--shard", default="0/1", metavar="I/N", help="each N-th unit from the I-th")
    parser.add_argument("--part", type=float, default=1.0, help="share of the units, drawn by --seed")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--sample-seconds", type=float, default=300.0,
                        help="of the processor's time; above them a sample hangs (300; torch's symbolic shapes alone "
                        "take 85 of some)")
    parser.add_argument("--limit-seconds", type=float, help="no unit begins later")
    parser.add_argument("--json", metavar="FILE", help="JSON lines; default: none")
    parser.add_argument("--resume", action="store_true", help="what the file has, of the same kiln, is not run again")
    parser.add_argument("--show", action="store_true", help="print what is not ok at once")
    parser.add_argument("--process", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    if options.process:
        return _serve(options)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # its daemon and directories go with it
    campaign = Campaign(options)
    if options.json and options.resume and os.path.exists(options.json) and not campaign.load():
        print(f"{options.json} is of other options or of another kiln", file=sys.stderr)
        return 2
    campaign.run()
    print(report(campaign.records))
    return 1 if any(sample["verdict"] in BAD for record in campaign.records for sample in record["samples"]) else 0


# ---- the process that runs samples ----


def _serve(options: argparse.Namespace) -> int:
    """Answers units on the standard input, a JSON line each, by lines on the standard output as it was."""
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what operators print is no reply

    def reply(**fields: Any) -> None:
        replies.write(json.dumps(fields) + "\n")

    import faulthandler
    import logging

    faulthandler.enable()
    import torch

    import subjects
    import trial
    from nodes import NodeCounts

    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    torch._dynamo.config.capture_scalar_outputs = options.capture == "on"
    torch._dynamo.config.capture_dynamic_output_shape_ops = options.capture == "on"
    nodes = NodeCounts() if options.backend == "kiln" else None
    found = subjects.subjects(options.device)
    reply(units=[[name, dtype] for name, subject in found.items() for dtype in subject.dtypes()
                 if options.device == "cpu" or dtype != subjects.ERRORS])  # an assertion on a GPU ends the process
    for line in sys.stdin:
        name, dtype, way, first = json.loads(line)
        try:
            cases = found[name].cases(dtype, options.samples, options.seed)
        except Exception as error:  # the database cannot make them
            cases = []
            reply(end=-1, verdict=SKIPPED, detail=f"no samples: {type(error).__name__}: {str(error)[:200]}")
        samples = trial.Trial(found[name], dtype, way == "dynamic", options.backend)
        for number, case in cases:
            if number < first:
                continue
            start = time.perf_counter()
            reply(begin=number, sample=str(case)[:400])
            try:
                verdict = samples.verdict(case)
            except Exception as error:  # of the campaign itself
                verdict = trial.Verdict(ERROR, f"not judged: {type(error).__name__}: {str(error)[:200]}")
            _end_with_device(options.device)
            reply(end=number, verdict=verdict.verdict, detail=verdict.detail, seconds=time.perf_counter() - start)
        torch._dynamo.reset()
        reply(done=nodes.take() if nodes else {})
    return 0


def _end_with_device(device: str) -> None:
    """Ends the process where a kernel has failed: its CUDA context is lost, and nothing runs in it any more. The
    sample that is in flight is the one that crashed."""
    if device == "cpu":
        return
    import torch

    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        print(f"Error: {error}".splitlines()[0], file=sys.stderr, flush=True)
        os._exit(1)


def command(options: argparse.Namespace) -> list[str]:
    """Starts the process above."""
    return [sys.executable, "-W", "ignore", os.path.join(_HERE, "opdb.py"), "--process", "--samples",
            str(options.samples), "--seed", str(options.seed), "--capture", options.capture, "--backend",
            options.backend, "--device", options.device]


class Process:
    """The process above, seen from outside."""

    def __init__(self, options: argparse.Namespace, environment: dict[str, str]) -> None:
        self._options = options
        self._errors = tempfile.TemporaryFile(mode="w+", errors="replace")  # noqa: SIM115 - the process's
        self._process = subprocess.Popen(command(options), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                         stderr=self._errors, env=environment)
        assert self._process.stdin and self._process.stdout
        self._input, self._output = self._process.stdin, self._process.stdout
        self._pending = b""
        self.units = [tuple(unit) for unit in self.reply(_START_SECONDS)["units"]]

    def ask(self, name: str, dtype: str, way: str, first: int) -> None:
        self._input.write((json.dumps([name, dtype, way, first]) + "\n").encode())
        self._input.flush()

    def reply(self, seconds: float) -> dict[str, Any]:
        """The next line; raises Died, or Died of a hang after so many seconds of its processor's time, or _IDLE as
        many."""
        begin, used = time.monotonic(), self._processor_seconds()
        output = self._output
        while b"\n" not in self._pending:
            if not select.select([output], [], [], seconds / _IDLE)[0]:
                past = time.monotonic() - begin
                if self._processor_seconds() - used < seconds and past < _IDLE * seconds:
                    continue
                self.kill()
                raise Died(HANG, f"more than {past:.0f} s")
            read = os.read(output.fileno(), 65536)
            if not read:
                raise Died(CRASH, self._last_words())
            self._pending += read
        line, _, self._pending = self._pending.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _processor_seconds(self) -> float:
        with open(f"/proc/{self._process.pid}/stat") as numbers:
            return sum(map(int, numbers.read().rpartition(")")[2].split()[11:13])) / os.sysconf("SC_CLK_TCK")

    def too_large(self) -> bool:
        with open(f"/proc/{self._process.pid}/statm") as pages:
            return int(pages.read().split()[1]) * os.sysconf("SC_PAGESIZE") > _MEMORY_MOST[self._options.device]

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def _last_words(self) -> str:
        code = self._process.wait()
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors.read().splitlines() if line.strip()]
        named = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        told = next((line for line in lines if re.match("Fatal|terminate|.*[Aa]ssert|.*Error", line)), "")
        current = next((place for place, line in enumerate(lines) if line.startswith("Current thread")), len(lines))
        frames = [re.sub(r'File "(?:.*/)?([^/]*)", line', r"\1", line) for line in lines[current + 1:current + 6]]
        return f"{named} {told} {'; '.join(frames)}".strip()[:500]


class Died(Exception):
    """args: verdict, detail."""


# ---- the campaign ----


class Campaign:
    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._lock = threading.Lock()
        self.records: list[dict[str, Any]] = []

    def subject(self) -> dict[str, Any]:
        """What a file is of."""
        import torch

        import kiln

        with open(kiln._C.__file__, "rb") as extension:
            build = hashlib.sha256(extension.read()).hexdigest()[:16]
        options = self._options
        return {"kiln": build, "worker": _digest_of_worker(), "commit": _commit(), "torch": torch.__version__,
                "samples": options.samples, "seed": options.seed, "capture": options.capture,
                "device": options.device,
                "backend": options.backend}

    def load(self) -> bool:
        """Takes the records of the file; whether they are of this kiln and these options."""
        with open(self._options.json) as lines:
            of, *records = [json.loads(line) for line in lines if line.endswith("\n")]
        mine = self.subject()
        if any(of.get(key) != mine[key] for key in mine if key != "commit"):
            return False
        self.records = records
        return True

    def run(self) -> None:
        options = self._options
        with place() as environment:
            first = Process(options, environment)
            known = {(record["operator"], record["dtype"], record["way"]) for record in self.records}
            units = [unit for unit in self._units(first.units) if unit not in known]
            if options.json and not self.records:
                with open(options.json, "w") as file:
                    file.write(json.dumps(self.subject()) + "\n")
            queue = collections.deque(units)
            deadline = time.monotonic() + (options.limit_seconds or float("inf"))
            with concurrent.futures.ThreadPoolExecutor(options.processes) as pool:
                started = [pool.submit(self._work, queue, environment, deadline, first if number == 0 else None)
                           for number in range(min(options.processes, max(len(units), 1)))]
                try:
                    for future in started:
                        future.result()
                finally:
                    queue.clear()

    def _units(self, pairs: list[tuple[str, str]]) -> list[Unit]:
        options = self._options
        wanted = re.compile(options.ops) if options.ops else None
        dtypes = options.dtypes.split(",") if options.dtypes else None
        units = [(name, dtype, way) for way in _WAYS for name, dtype in pairs
                 if way in options.ways.split(",") and (not dtypes or dtype in dtypes)
                 and (not wanted or wanted.search(name))]
        if dtypes:  # in the order they were named
            units.sort(key=lambda unit: dtypes.index(unit[1]))
        if options.part < 1:
            draw = random.Random(f"part {options.seed}")
            units = [unit for unit in units if draw.random() < options.part]
        index, count = map(int, options.shard.split("/"))
        return units[index % count::count]

    def _work(self, queue: collections.deque[Unit], environment: dict[str, str], deadline: float,
              process: Process | None) -> None:
        try:
            while time.monotonic() < deadline:
                try:
                    unit = queue.popleft()
                except IndexError:
                    return
                samples, nodes, process = self._run_unit(unit, process, environment)
                self._keep(dict(zip(("operator", "dtype", "way"), unit), samples=samples, nodes=nodes))
                if process is not None and process.too_large():
                    process.kill()
                    process = None
        finally:
            if process is not None:
                process.kill()

    def _run_unit(self, unit: Unit, process: Process | None,
                  environment: dict[str, str]) -> tuple[list[dict[str, Any]], dict[str, list[int]], Process | None]:
        """(samples, counts of nodes, a process that is still good or None)."""
        samples: list[dict[str, Any]] = []
        first, begun = 0, None
        while True:
            try:
                if process is None:
                    process = Process(self._options, environment)
                process.ask(*unit, first)
                while True:
                    reply = process.reply(self._options.sample_seconds)
                    if "begin" in reply:
                        begun = reply
                    elif "end" in reply:
                        shown = {"sample": begun["sample"]} if reply["verdict"] != "ok" and begun else {}
                        samples.append({"number": reply["end"], **_without_end(reply), **shown})
                        begun = None
                    else:
                        return samples, reply["done"], process
            except Died as died:
                process = None
                verdict, detail = died.args
                number, sample = (begun["begin"], begun["sample"]) if begun else (-1, "")
                samples.append({"number": number, "verdict": verdict, "detail": detail, "sample": sample})
                if begun is None:
                    return samples, {}, None
                first, begun = number + 1, None

    def _keep(self, record: dict[str, Any]) -> None:
        with self._lock:
            self.records.append(record)
            if self._options.json:
                with open(self._options.json, "a") as file:
                    file.write(json.dumps(record) + "\n")
            if self._options.show:
                for sample in record["samples"]:
                    if sample["verdict"] != "ok":
                        print(line(record, sample), flush=True)


def _without_end(reply: dict[str, Any]) -> dict[str, Any]:
    return {key: round(value, 3) if key == "seconds" else value for key, value in reply.items() if key != "end"}


def line(record: dict[str, Any], sample: dict[str, Any]) -> str:
    return (f"{sample['verdict']}: {record['operator']} {record['dtype']} {record['way']} #{sample['number']} "
            f"({sample.get('sample', '')}) {sample.get('detail', '')}")


def _commit() -> str:
    done = subprocess.run(["git", "-C", _HERE, "rev-parse", "HEAD"], capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def _digest_of_worker() -> str:
    from kiln.environment import daemon_binary

    worker = os.path.join(os.path.dirname(daemon_binary()), "kiln-worker")
    with open(worker, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()[:16]


@contextlib.contextmanager
def place() -> Iterator[dict[str, str]]:
    """Environment with a daemon, a store and torch caches of the campaign's own."""
    sys.path.insert(0, os.path.join(os.path.dirname(_HERE), "integration"))
    from daemons import stop_daemon

    root = tempfile.mkdtemp(prefix="kiln-opdb-")
    environment = {**os.environ, "KILN_RUNTIME_DIR": os.path.join(root, "run"),
                   "KILN_STORE": os.path.join(root, "store"), "TORCHINDUCTOR_CACHE_DIR": os.path.join(root, "torch"),
                   "OMP_NUM_THREADS": "1"}
    for name in ("KILN_ADDRESS", "KILN_FALLBACK", "KILN_DEBUG"):
        environment.pop(name, None)
    try:
        yield environment
    finally:
        stop_daemon(environment["KILN_RUNTIME_DIR"])
        shutil.rmtree(root, ignore_errors=True)


def report(records: list[dict[str, Any]]) -> str:
    """Markdown: verdicts by dtype and way, then each bad sample's reason with how often, most frequent first."""
    counts: dict[tuple[str, str], collections.Counter[str]] = collections.defaultdict(collections.Counter)
    seconds = 0.0
    reasons: dict[tuple[str, str], list[tuple[dict[str, Any], dict[str, Any]]]] = collections.defaultdict(list)
    for record in records:
        for sample in record["samples"]:
            counts[record["dtype"], record["way"]][sample["verdict"]] += 1
            seconds += sample.get("seconds", 0.0)
            if sample["verdict"] in BAD:
                reasons[sample["verdict"], record["operator"]].append((record, sample))
    lines = ["| dtype, sizes | " + " | ".join(ALL) + " |", "|---|" + "---|" * len(ALL)]
    lines += [f"| {dtype}, {way} | " + " | ".join(str(count[verdict]) for verdict in ALL) + " |"
              for (dtype, way), count in counts.items()]
    total: collections.Counter[str] = sum(counts.values(), collections.Counter())
    lines += ["| all | " + " | ".join(str(total[verdict]) for verdict in ALL) + " |", ""]
    for (verdict, operator), found in sorted(reasons.items(), key=lambda item: (item[0][0], -len(item[1]))):
        record, sample = found[0]
        lines.append(f"- {verdict} ×{len(found)}: {operator}: {line(record, sample)}")
    lines += ["", f"{sum(total.values())} samples of {len(records)} units, {seconds:.0f} s in them"]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
