"""Every session of these tests has a daemon, a socket, a store and torch caches of its own, never the user's.

They need kiln installed (or on PYTHONPATH, with KILN_DAEMON naming a kilnd) and torch; models need transformers.
"""
import os
import shutil
import signal
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from daemons import Place, stop_daemon

_ROOT = tempfile.mkdtemp(prefix="kiln-test-")
os.environ.update({
    "KILN_RUNTIME_DIR": os.path.join(_ROOT, "run"),
    "KILN_STORE": os.path.join(_ROOT, "store"),
    "TORCHINDUCTOR_CACHE_DIR": os.path.join(_ROOT, "torch"),
})
os.environ.pop("KILN_ADDRESS", None)
os.environ.pop("KILN_FALLBACK", None)


@pytest.fixture
def place() -> Iterator[Place]:
    """A daemon of the test's own; in /tmp because a socket's path is short."""
    root = tempfile.mkdtemp(prefix="kiln-test-")
    place = Place(root)
    yield place
    for process in place.processes:  # of a test that failed
        process.kill()
        process.wait()
    place.stop(signal.SIGKILL)
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture(autouse=True)
def fresh(request: pytest.FixtureRequest) -> Iterator[None]:
    """No compiled code and no counts of the test before."""
    if "torch" in sys.modules or "no_torch" not in request.keywords:
        import torch

        import kiln

        torch._dynamo.reset()
        kiln.reset_stats()
        torch.manual_seed(0)
    yield


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Counts the recordings and replays of CUDA graphs."""
    import torch

    counts = {"recorded": 0, "replayed": 0}

    def counted(name: str, what: str) -> None:
        original = getattr(torch.cuda.CUDAGraph, name)

        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            counts[what] += 1
            return original(self, *args, **kwargs)

        monkeypatch.setattr(torch.cuda.CUDAGraph, name, call)

    counted("capture_end", "recorded")
    counted("replay", "replayed")
    return counts


@pytest.fixture
def allow_tf32() -> Iterator[Callable[[bool], None]]:
    """Sets whether gemms and convolutions of float32 on a GPU may round to TF32, for one test. torch's settings are
    no plain attributes, so that monkeypatch can't put them back."""
    import torch

    settings: tuple[Any, Any] = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [setting.allow_tf32 for setting in settings]

    def allow(allowed: bool) -> None:
        for setting in settings:
            setting.allow_tf32 = allowed

    yield allow
    for setting, allowed in zip(settings, before):
        setting.allow_tf32 = allowed


@pytest.fixture
def skips() -> Callable[[], int]:
    """How many graphs torch skipped since the test began."""
    from torch._dynamo.utils import counters

    before = counters["inductor"]["cudagraph_skips"]
    return lambda: counters["inductor"]["cudagraph_skips"] - before


@pytest.fixture
def no_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KILN_FALLBACK", "error")


@pytest.fixture
def no_counted_fallback() -> Iterator[None]:
    """Fails, at its end, a test in which a graph fell back."""
    import kiln

    before = sum(kiln.stats()["fallbacks"].values())
    yield
    assert sum(kiln.stats()["fallbacks"].values()) == before


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "full: long; only with --full")
    config.addinivalue_line("markers", "part(n): one in n of its parameters, by their names; with --full all")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="every model at every setting")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--full"):
        skip = pytest.mark.skip(reason="only with --full")
        for item in items:
            part = item.get_closest_marker("part")
            if "full" in item.keywords or (part and zlib.crc32(item.name.encode()) % part.args[0]):
                item.add_marker(skip)


def pytest_sessionfinish(session: object) -> None:
    stop_daemon(os.environ["KILN_RUNTIME_DIR"], signal.SIGKILL)
    shutil.rmtree(_ROOT, ignore_errors=True)
