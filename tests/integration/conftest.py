"""A daemon, socket and store of the test run's own, never the user's.

KILN_BUILD names the build folder (build/ otherwise). The installed wheel is used where there is one.
"""
import os
import pathlib
import sys
import tempfile

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_BUILD = pathlib.Path(os.environ.get("KILN_BUILD", _ROOT / "build"))
_own = tempfile.TemporaryDirectory(prefix="kiln-test-")


def pytest_configure(config):
    own = pathlib.Path(_own.name)
    for name in ("run", "store", "torch"):
        (own / name).mkdir(mode=0o700)
    os.environ["KILN_RUNTIME_DIR"] = str(own / "run")
    os.environ["KILN_STORE"] = str(own / "store")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(own / "torch")  # AOTAutograd's cache lives there
    os.environ.setdefault("KILN_DAEMON", str(_BUILD / "bin" / "kilnd"))
    os.environ.setdefault("KILN_FALLBACK", "error")
    try:
        import kiln  # noqa: F401: the wheel, or PYTHONPATH
    except ModuleNotFoundError:
        sys.path.insert(0, str(_ROOT / "client" / "python"))
