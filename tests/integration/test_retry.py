"""Graphs that fell back for want of the service run compiled, without a new call of torch.compile, once it is there."""
import gc
import json
import os
import textwrap
import time
from collections.abc import Callable
from typing import Any, NoReturn

import pytest
import torch
import torch.utils.checkpoint

import kiln
from daemons import Place
from kiln import _C, fallback, retry

# Training and inference through kiln and eager, from the same weights. `step()` compares losses, gradients and
# outputs; `until(what)` goes on with steps for some seconds, and tells whether it came true.
MODEL = textwrap.dedent("""
    import copy, json, os, subprocess, sys, threading, time, warnings
    import torch, kiln
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)  # Dynamo guards on it, and a child that is forked can have no more
    torch.manual_seed(0)
    mine = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 1))
    eager = copy.deepcopy(mine)
    compiled = torch.compile(mine, backend="kiln")

    def step(rows=16):
        x, y = torch.randn(rows, 6), torch.randn(rows, 1)
        losses = []
        for run, module in ((compiled, mine), (eager, eager)):
            module.zero_grad()
            losses.append(torch.nn.functional.mse_loss(run(x), y))
            losses[-1].backward()
        torch.testing.assert_close(*losses)
        for a, b in zip(mine.parameters(), eager.parameters()):
            torch.testing.assert_close(a.grad, b.grad)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), eager(x))

    def until(what, seconds=40, step=step):
        end = time.monotonic() + seconds
        while not what() and time.monotonic() < end:
            step()
            time.sleep(0.02)
        return what()

    def serve():
        os.makedirs(os.environ["KILN_RUNTIME_DIR"], mode=0o700, exist_ok=True)
        subprocess.run([os.environ["KILND"], "--embedded", "--runtime-dir", os.environ["KILN_RUNTIME_DIR"], "--store",
                        os.environ["KILN_STORE"]], check=True, timeout=60)

    def retried(count):
        return lambda: kiln.stats()["retried"] >= count

    def calls():
        return kiln.stats()["calls"]
""")
GRAPHS = 3  # of a step: forward, backward, inference


def retrying(place: Place, code: str, **environment: str) -> Any:
    """The last line of a process whose service is away until it calls serve()."""
    from kiln.environment import daemon_binary

    output, _ = place.run(MODEL + textwrap.dedent(code), timeout=240, **{
        "KILND": daemon_binary(), "KILN_ADDRESS": f"unix:{place.runtime_dir}/kilnd.sock",
        "KILN_CONNECT_TIMEOUT": "0.5", "KILN_RETRY": "0.3", **environment})
    return json.loads(output.strip().splitlines()[-1])


def test_a_service_that_comes_late_is_found(place: Place) -> None:
    told = retrying(place, """
        step()
        before = dict(kiln.stats(), eager=kiln.status()["eager"])
        serve()
        assert until(retried(3))
        at = calls()
        step()
        print(json.dumps({"before": before, "after": kiln.stats(), "eager": kiln.status()["eager"],
                          "calls": calls() - at}))
    """)
    before, after = told["before"], told["after"]
    assert before["fallbacks"] == {"service unavailable": GRAPHS} and not before["graphs"] and not before["calls"]
    assert len(before["eager"]) == GRAPHS and all(graph["seconds"] < 30 for graph in before["eager"])
    assert after["retried"] == GRAPHS and after["graphs"] == GRAPHS and told["eager"] == []
    assert after["fallbacks"] == before["fallbacks"], "none retraced, none failed again"
    assert told["calls"] == GRAPHS, "each runs what the service compiled"


def test_control_without_asking_again_it_stays_eager(place: Place) -> None:
    told = retrying(place, """
        step()
        serve()
        until(retried(1), seconds=8)
        print(json.dumps({"stats": kiln.stats(), "eager": kiln.status()["eager"]}))
    """, KILN_RETRY="off")
    assert not told["stats"]["retried"] and not told["stats"]["calls"] and told["eager"] == []


def test_who_asks_again_does_not_hold_up_a_step(place: Place) -> None:
    """A service that takes the connection and does not answer: the thread waits for it, and no call does."""
    told = retrying(place, """
        import socket
        silent = socket.socket(socket.AF_UNIX)
        step()  # nobody is there
        os.makedirs(os.environ["KILN_RUNTIME_DIR"], mode=0o700)
        silent.bind(os.path.join(os.environ["KILN_RUNTIME_DIR"], "kilnd.sock"))
        silent.listen()
        longest, asked = 0.0, False
        silent.setblocking(False)
        end = time.monotonic() + 20
        while not asked and time.monotonic() < end:
            try:
                silent.accept()
                asked = True
            except BlockingIOError:
                step()
        for _ in range(50):
            began = time.perf_counter()
            step()
            longest = max(longest, time.perf_counter() - began)
            time.sleep(0.01)
        print(json.dumps({"asked": asked, "longest": longest, "retried": kiln.stats()["retried"]}))
    """, KILN_CONNECT_TIMEOUT="10", KILN_COMPILE_TIMEOUT="10")
    assert told["asked"], "else nothing was waited for"
    assert told["longest"] < 5 and told["retried"] == 0


def test_a_process_ends_while_the_service_is_asked(place: Place) -> None:
    """Its end waits for no answer, and nothing of it goes wrong."""
    told = retrying(place, """
        import socket
        silent = socket.socket(socket.AF_UNIX)
        step()  # nobody is there
        os.makedirs(os.environ["KILN_RUNTIME_DIR"], mode=0o700)
        silent.bind(os.path.join(os.environ["KILN_RUNTIME_DIR"], "kilnd.sock"))
        silent.listen()
        silent.settimeout(20)
        step()  # starts the thread
        connection, _ = silent.accept()
        asked = connection.recv(1)
        print(json.dumps({"asked": len(asked), "alive": [t.name for t in threading.enumerate()], "end": time.time()}))
    """, KILN_CONNECT_TIMEOUT="15", KILN_COMPILE_TIMEOUT="15")
    assert told["asked"] == 1 and "kiln-retry" in told["alive"], "else it ended with nothing in flight"
    assert time.time() - told["end"] < 12


def test_threads_call_meanwhile(place: Place) -> None:
    told = retrying(place, """
        def loop(seed):
            try:
                x = torch.randn(16, 6, generator=torch.Generator().manual_seed(seed))
                while not over:
                    other, same = x.clone().requires_grad_(), x.clone().requires_grad_()
                    a, b = compiled(other).sum(), eager(same).sum()
                    torch.testing.assert_close(a, b)
                    torch.testing.assert_close(*(torch.autograd.grad(s, i)[0] for s, i in ((a, other), (b, same))))
                    runs[seed] += 1
            except BaseException as error:
                failed.append(repr(error))

        over, failed, runs = False, [], [0, 0]
        threads = [threading.Thread(target=loop, args=(seed,)) for seed in range(2)]
        for thread in threads:
            thread.start()
        while not all(runs):
            time.sleep(0.05)
        serve()
        done = until(retried(2), seconds=60, step=lambda: None)
        over = True
        for thread in threads:
            thread.join()
        print(json.dumps({"failed": failed, "done": done, "stats": kiln.stats()}))
    """)
    assert not told["failed"] and told["done"], told
    assert told["stats"]["calls"] > 0


def test_a_child_asks_by_itself(place: Place) -> None:
    """Forked while the thread of its parent is at work: the child's graphs come right as well, and so do its
    parent's."""
    told = retrying(place, """
        step()
        assert until(lambda: any(thread.name == "kiln-retry" for thread in threading.enumerate()))
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                done = until(retried(1), step=lambda: compiled(torch.ones(16, 6)).sum())
                with torch.no_grad():
                    torch.testing.assert_close(compiled(torch.ones(16, 6)), eager(torch.ones(16, 6)))
                os.write(write, json.dumps([done, kiln.stats()["fallbacks"]]).encode())
            finally:
                os._exit(0)
        serve()
        os.close(write)
        told = json.loads(os.read(read, 1 << 16) or b"[false]")
        os.waitpid(child, 0)
        print(json.dumps({"child": told[0], "parent": until(retried(3))}))
    """)
    assert told == {"child": True, "parent": True}


def test_what_the_service_refuses_is_not_asked_again() -> None:
    """A control of what is asked again: the same reason comes again."""
    for code, again in (("UNAVAILABLE", True), ("RESOURCE_EXHAUSTED", True), ("DEADLINE_EXCEEDED", True),
                        ("UNIMPLEMENTED", False), ("INVALID_ARGUMENT", False), ("INTERNAL", False)):
        assert retry.is_transient(_C.ServiceError(code, "a reason")) == again, code
    assert not retry.is_transient(_C.NoVerdict("UNAVAILABLE", "a reason"))
    assert not retry.is_transient(ValueError("UNAVAILABLE"))


class Service:
    """Lets the service of this process fail, and has graphs asked for by hand instead of by the thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._get, self._monkeypatch = _C.get, monkeypatch
        monkeypatch.setenv("KILN_RETRY", "600")

    def fail(self, code: str) -> None:
        def failing(*_: object) -> NoReturn:
            raise _C.ServiceError(code, "planted")

        self._monkeypatch.setattr(_C, "get", failing)

    def answer(self) -> None:
        self._monkeypatch.setattr(_C, "get", self._get)


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    return Service(monkeypatch)


def dropped(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.dropout(torch.relu(x @ w) + 0.1, 0.5) * 2


def recomputed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = torch.utils.checkpoint.checkpoint(dropped, x, w, use_reentrant=False)
    return result


@pytest.mark.parametrize("function", [dropped, recomputed])
@pytest.mark.parametrize("half", ["forward", "backward"])
def test_each_half_of_a_graph_changes_by_itself(service: Service, half: str,
                                                function: Callable[..., torch.Tensor]) -> None:
    """The other half is still eager: what a forward saves is what either backward takes, random numbers too."""
    x, w = (torch.randn(64, 64, requires_grad=True) for _ in range(2))
    compiled = torch.compile(function, backend="kiln")

    def check() -> None:
        result = compiled(x, w)
        kept = (result.detach() != 0).float()  # 0.1 and what relu leaves are above zero
        assert 0.3 < kept.mean() < 0.7
        grads = torch.autograd.grad(result.sum(), (x, w))
        other = torch.relu(x @ w) + 0.1
        for mine, eager in zip(grads, torch.autograd.grad((other * kept * 4).sum(), (x, w)), strict=True):
            torch.testing.assert_close(mine, eager, rtol=1e-4, atol=1e-4)

    service.fail("UNAVAILABLE")
    with pytest.warns(RuntimeWarning, match="runs without kiln"):
        fallback.reset()
        check()
    service.answer()
    waits = {one.compiled.title.rsplit(" ", 1)[-1]: one for one in retry._thread.open()}
    assert set(waits) == {"forward", "backward"}
    underway = compiled(x, w)  # of the old forward; its backward runs when the halves have changed
    waits[half].ask()
    check()
    torch.autograd.grad(underway.sum(), (x, w))
    assert kiln.stats()["retried"] == 1 and kiln.stats()["graphs"] == 1
    waits[{"forward": "backward", "backward": "forward"}[half]].ask()
    check()
    assert kiln.stats()["retried"] == 2 and kiln.stats()["graphs"] == 2 and kiln.stats()["calls"] >= 2


def test_what_is_refused_later_is_traced_anew(service: Service) -> None:
    """And what torch may not trace again stays as it is, until it may."""
    x = torch.randn(5, 3)
    compiled = torch.compile(lambda x: x.sin() * 3 - 1, backend="kiln")
    service.fail("RESOURCE_EXHAUSTED")
    compiled(x)
    (waiting,) = retry._thread.open()
    service.fail("UNIMPLEMENTED")
    waiting.ask()
    service.answer()
    with torch.compiler.set_stance("fail_on_recompile"):
        torch.testing.assert_close(compiled(x), x.sin() * 3 - 1)
    assert not kiln.stats()["retried"] and not kiln.stats()["graphs"]
    compiled(x)  # the last one that is eager
    torch.testing.assert_close(compiled(x), x.sin() * 3 - 1)
    assert kiln.stats()["retried"] == 1 and kiln.stats()["graphs"] == 1


def test_pauses_double(service: Service) -> None:
    compiled = torch.compile(lambda x: x.cos() + 7, backend="kiln")
    os.environ["KILN_RETRY"] = "100"
    service.fail("UNAVAILABLE")
    compiled(torch.ones(3))
    (waiting,) = retry._thread.open()
    for pause in (100, 200, 400, 600, 600):
        (told,) = kiln.status()["eager"]
        assert pause - 5 <= told["seconds"] <= 1.25 * pause
        waiting.ask()


def test_a_model_that_is_gone_is_not_asked_for(service: Service) -> None:
    compiled = torch.compile(lambda x: x.tan() + 7, backend="kiln")
    service.fail("UNAVAILABLE")
    compiled(torch.ones(3))
    assert len(retry._thread.open()) == 1
    del compiled
    torch._dynamo.reset()
    gc.collect()
    assert retry._thread.open() == []


def test_a_member_of_a_gang_is_not_asked_again(place: Place) -> None:
    told = retrying(place, """
        step()
        serve()
        until(retried(1), seconds=8)
        print(json.dumps({"stats": kiln.stats(), "eager": kiln.status()["eager"]}))
    """, KILN_GANG_ID="0123456789abcdef" * 2, KILN_GANG_SIZE="2")
    assert not told["stats"]["retried"] and told["eager"] == []


@pytest.mark.parametrize("text", ["0", "-1", "soon", "601", "nan"])
def test_a_pause_that_is_none_is_said(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("KILN_RETRY", text)
    with pytest.raises(ValueError, match="KILN_RETRY"):
        retry.first_pause()
    monkeypatch.setenv("KILN_RETRY", "600")
    assert retry.first_pause() == 600


def test_sizes_that_torch_does_not_know_of_are_traced_anew(place: Place) -> None:
    """A graph of any size comes right as well, at once or by a retrace, and is right at other sizes."""
    told = retrying(place, """
        torch._dynamo.reset()
        compiled = torch.compile(mine, backend="kiln", dynamic=True)
        step(16)
        serve()
        assert until(retried(3))
        for rows in (16, 5, 33, 2):
            step(rows)
        at = calls()
        step(7)
        print(json.dumps({"calls": calls() - at}))
    """)
    assert told["calls"] == GRAPHS


def test_explain_says_when(place: Place) -> None:
    told = retrying(place, """
        print(json.dumps(str(kiln.explain(eager)(torch.ones(3, 6)))))
    """, KILN_RETRY="40")
    assert "eager for now, tried again in 4" in told or "eager for now, tried again in 5" in told, told
