"""A service that goes away, is slow or cannot write: training completes, right, and says once what is wrong."""
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from typing import Any

import pytest
import torch

from daemons import Place, daemon_pid, kilnctl, start_daemon, worker_pids
from kiln import fallback

# Five steps of SGD through kiln and eager, from the same weights; the same losses and weights at the end.
TRAINING = textwrap.dedent("""
    import copy, json, os, sys, warnings
    import torch, kiln
    torch.manual_seed(0)
    mine = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 1))
    eager = copy.deepcopy(mine)
    x, y = torch.randn(16, 6), torch.randn(16, 1)
    between = {between}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(5):
            losses = []
            for run, module in ((torch.compile(mine, backend="kiln"), mine), (eager, eager)):
                loss = torch.nn.functional.mse_loss(run(x), y)
                module.zero_grad()
                loss.backward()
                with torch.no_grad():
                    for parameter in module.parameters():
                        parameter -= 0.1 * parameter.grad
                losses.append(loss)
            torch.testing.assert_close(*losses)
            if step == 1:
                exec(between)
    for a, b in zip(mine.parameters(), eager.parameters()):
        torch.testing.assert_close(a, b)
    ours = [str(w.message) for w in caught if "kiln" in str(w.message)]
    print(json.dumps({{"stats": kiln.stats(), "warnings": ours}}))
""")


def training(between: str = "") -> str:
    return TRAINING.format(between=repr(textwrap.dedent(between)))


def finished(output: tuple[str, str]) -> tuple[dict[str, Any], list[str]]:
    """(stats, warnings) of a training process; `output` as from Place.run."""
    result = json.loads(output[0].strip().splitlines()[-1])
    return result["stats"], result["warnings"]


def fell_back_with_one_warning(output: tuple[str, str]) -> None:
    stats, warnings = finished(output)
    assert sum(stats["fallbacks"].values()) == 2 and stats["graphs"] == 0
    assert len(warnings) == 1 and "runs without kiln" in warnings[0], warnings


def compiled_with(warning: str | None, output: tuple[str, str]) -> dict[str, Any]:
    """All graphs through kiln, and one warning with that text (None: no warning)."""
    stats, warnings = finished(output)
    assert stats["graphs"] == 2 and not stats["fallbacks"]
    assert len(warnings) == (warning is not None) and all((warning or "") in text for text in warnings), warnings
    return stats


def test_no_daemon_to_start(place: Place) -> None:
    fell_back_with_one_warning(place.run(training(), KILN_DAEMON="/nonexistent/kilnd"))


def test_socket_missing(place: Place) -> None:
    fell_back_with_one_warning(
        place.run(training(), KILN_ADDRESS=f"unix:{place.root}/nobody.sock", KILN_CONNECT_TIMEOUT="0.5"))


def test_daemon_slower_than_the_deadline(place: Place) -> None:
    daemon = start_daemon(place)
    os.kill(daemon, signal.SIGSTOP)
    try:
        fell_back_with_one_warning(place.run(training(), KILN_COMPILE_TIMEOUT="2", KILN_CONNECT_TIMEOUT="1"))
    finally:
        os.kill(daemon, signal.SIGCONT)


def test_daemon_killed_after_a_compile_and_before_the_next(place: Place) -> None:
    """The programs are in the process, which needs no daemon; a later one starts another, which finds them in its
    store, and says so."""
    compiled_with(None, place.run(training("""
        import signal
        from daemons import daemon_pid, stop_daemon
        assert stop_daemon(os.environ["KILN_RUNTIME_DIR"], signal.SIGKILL)
    """)))
    assert daemon_pid(place.runtime_dir) is None
    assert os.path.exists(os.path.join(place.runtime_dir, "kilnd.sock"))  # nobody behind it
    stats = compiled_with("was killed", place.run(training()))
    assert stats["hits"] == 2 and stats["recovered"] == 1
    # One that ended by itself, or was told to end, left no socket: nobody has to be told.
    assert place.stop(signal.SIGTERM)
    compiled_with(None, place.run(training()))


def start_and_wait_for_a_job(place: Place, first: str = "") -> tuple[subprocess.Popen[str], list[int]]:
    """A training process whose first graph a stopped worker holds; returns it and the workers."""
    stopped = worker_pids(start_daemon(place))
    assert stopped
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    process = place.start(first + training())
    deadline = time.time() + 60
    while not json.loads(kilnctl(place, "jobs", "--json").stdout)["jobs"]:
        assert time.time() < deadline and process.poll() is None
        time.sleep(0.05)
    return process, stopped


def test_ctrl_c_during_a_compile(place: Place) -> None:
    # What a shell starts in the background ignores the signal, and so do its children.
    process, _ = start_and_wait_for_a_job(place,
                                          "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=10)
    assert process.returncode != 0 and errors.strip().splitlines()[-1] == "KeyboardInterrupt", errors[-3000:]
    deadline = time.time() + 10
    while json.loads(kilnctl(place, "jobs", "--json").stdout)["jobs"]:  # nobody waits for it
        assert time.time() < deadline
        time.sleep(0.05)


def test_daemon_killed_during_a_compile(place: Place) -> None:
    process, _ = start_and_wait_for_a_job(place)
    place.stop(signal.SIGKILL)  # its workers go with it
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors[-3000:]
    stats = compiled_with("went away during a compile", (output, errors))
    assert stats["recovered"] == 1


def test_worker_killed_during_a_compile(place: Place) -> None:
    """Another worker takes the job over; the daemon counts it, and the job says so once."""
    process, stopped = start_and_wait_for_a_job(place)
    for pid in stopped:
        os.kill(pid, signal.SIGKILL)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors[-3000:]
    assert compiled_with(" ended during a compile", (output, errors))["recovered"] == 1
    assert json.loads(kilnctl(place, "stats", "--json").stdout)["worker_crashes"] >= 1
    assert "worker crashes" in kilnctl(place, "doctor").stdout


def test_compiler_out_of_memory(place: Place) -> None:
    workers = worker_pids(start_daemon(place))
    assert workers
    for worker in workers:
        resource.prlimit(worker, resource.RLIMIT_AS, (1 << 20, 1 << 20))  # they get no more than they have
    stats, warnings = finished(place.run("""if True:
        import json, warnings
        import torch, kiln
        def f(x):
            for i in range(40):
                x = torch.softmax(x * (i + 2), -1).sin()
            return x
        x = torch.randn(3, 4)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.testing.assert_close(torch.compile(f, backend="kiln")(x), f(x))
        ours = [str(w.message) for w in caught if "kiln" in str(w.message)]
        print(json.dumps({"stats": kiln.stats(), "warnings": ours}))
    """))
    assert len(warnings) == 1
    # One refusal: a second try would have met the worker that replaced the first, and no limit.
    (reason, count), = stats["fallbacks"].items()
    assert count == 1 and "ran out of its memory" in reason and "workers.memory_bytes" in reason


def test_refusal_of_the_compiler_is_told_and_remembered(place: Place) -> None:
    code = """if True:
        import json, warnings
        import torch, kiln
        library = torch.library.Library("kiln_test", "DEF")
        library.define("double(Tensor x, str[] why) -> Tensor")
        library.impl("double", lambda x, why: x * 2, "CompositeExplicitAutograd")
        library.impl("double", lambda x, why: torch.empty_like(x), "Meta")
        warnings.simplefilter("ignore")
        x = torch.randn(3)
        call = torch.compile(lambda x: torch.ops.kiln_test.double(x, ["no", "reason"]), backend="kiln")
        torch.testing.assert_close(call(x), x * 2)
        print(json.dumps({"stats": kiln.stats(), "warnings": []}))
    """
    for _ in range(2):
        stats, _ = finished(place.run(code))
        assert list(stats["python"]) == ["a list of strings"] and stats["graphs"] == 1 and not stats["fallbacks"]
    with open(os.path.join(place.runtime_dir, "kilnd.log")) as log:
        assert log.read().count("failed: UNIMPLEMENTED") == 1


def test_store_not_writable(place: Place) -> None:
    with open(os.path.join(place.root, "file"), "w") as file:
        file.write("not a directory")
    place.environment["KILN_STORE"] = os.path.join(place.root, "file", "store")
    stats = compiled_with("are not kept", place.run(training()))
    assert stats["not_kept"] == 2
    assert re.search(r"store writable +FAILED", kilnctl(place, "doctor").stdout)


FULL_DISK = """
    import os, subprocess, sys, time
    import torch, kiln
    torch.compile(lambda x: x + 1, backend="kiln")(torch.ones(2))  # the daemon opens its store
    assert kiln.stats()["not_kept"] == 0
    kiln.reset_stats()
    filler = os.path.join(os.environ["KILN_STORE"], "filler")
    with open(filler, "wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError as error:
            assert error.errno == 28, error
"""


def run_with_a_disk_of_its_own(place: Place, code: str) -> tuple[str, str]:
    """(output, errors) of `code` in a file system of its own for the store, of 32 MB."""
    namespace = ["unshare", "--user", "--map-root-user", "--mount"]
    if shutil.which("unshare") is None or subprocess.run([*namespace, "true"], capture_output=True).returncode != 0:
        pytest.skip("no user namespaces here")
    os.makedirs(place.store_dir, mode=0o700)
    script = 'mount -t tmpfs -o size=32m,mode=0700 kiln "$KILN_STORE" && exec "$0" -c "$1"'
    process = subprocess.Popen([*namespace, "sh", "-c", script, sys.executable, code], text=True,
                               env={**os.environ, **place.environment}, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors[-3000:]
    return output, errors


def test_disk_full(place: Place) -> None:
    output = run_with_a_disk_of_its_own(place, textwrap.dedent(FULL_DISK) + training())
    stats = compiled_with("are not kept", output)
    assert stats["not_kept"] >= 1


def test_what_a_full_disk_refused_goes_along_later(place: Place) -> None:
    """Memory keeps its kernel. The next graph with the same kernel is acknowledged only with it on disk."""
    function = """
        def function(x, w):
            return torch.relu(x - 1) @ w
    """
    code = """
        x = torch.ones(64, 64)
        torch.compile(function, backend="kiln", dynamic=False)(x, torch.ones(64, 8))
        assert kiln.stats()["not_kept"] == 1
        os.remove(filler)
        columns, deadline = 8, time.time() + 60
        while kiln.stats()["not_kept"] != 0:  # until the store writes again
            assert time.time() < deadline
            time.sleep(0.2)
            kiln.reset_stats()
            torch._dynamo.reset()
            columns += 1
            torch.compile(function, backend="kiln", dynamic=False)(x, torch.ones(64, columns))
        sys.path.insert(0, FOLDER)
        from daemons import stop_daemon
        stop_daemon(os.environ["KILN_RUNTIME_DIR"])
        kiln.reset_stats()
        torch._dynamo.reset()
        torch.compile(function, backend="kiln", dynamic=False)(x, torch.ones(64, columns))
        assert kiln.stats()["compiles"] == 0, kiln.stats()
    """.replace("FOLDER", repr(os.path.dirname(os.path.abspath(__file__))))
    run_with_a_disk_of_its_own(place, "".join(textwrap.dedent(part) for part in (FULL_DISK, function, code)))


def test_strides_that_torch_did_not_trace_run_without_kiln() -> None:
    graph = torch.fx.Graph()
    graph.output(graph.call_function(torch.ops.aten.view.default, (graph.placeholder("x"), [6])))
    module = torch.fx.GraphModule({}, graph)
    x = torch.arange(6).view(2, 3).t()
    with pytest.raises(RuntimeError, match="view size is not compatible"):
        module(x)
    torch.testing.assert_close(fallback.boxed(module)([x]), x.reshape(6))


def test_error_mode_raises(place: Place) -> None:
    process = place.start(training(), KILN_DAEMON="/nonexistent/kilnd", KILN_FALLBACK="error")
    _, errors = process.communicate(timeout=120)
    assert process.returncode != 0 and "KILN_FALLBACK=error" in errors
