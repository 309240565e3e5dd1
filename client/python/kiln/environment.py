"""The connection to kilnd: configuration from the environment, the daemon's binary, status."""
from __future__ import annotations

import atexit
import json
import os
import re
import shutil
import subprocess
import threading

from . import _C, programs
from .program_record import Entry

_lock = threading.Lock()
_configured = False
_LAST_WORDS_SECONDS = 0.05  # that the end of a process may take to report what it used


def daemon_binary() -> str:
    """kilnd: KILN_DAEMON, the one in this package, or one on PATH."""
    named = os.environ.get("KILN_DAEMON")
    if named:
        return named
    path = programs.path("kilnd")
    return path if os.access(path, os.X_OK) else shutil.which("kilnd") or ""


def call_binary() -> str:
    """kiln-call, for processes that are forked: the one in this package, which is of one build with it, or beside
    kilnd."""
    places = [programs.path("kiln-call")]
    if daemon := daemon_binary():
        places.append(os.path.join(os.path.dirname(os.path.abspath(daemon)), "kiln-call"))
    return next((path for path in places if os.access(path, os.X_OK)), "")


def _seconds(name: str, otherwise: float) -> float:
    text = os.environ.get(name)
    if not text:
        return otherwise
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise ValueError(f"kiln: {name} takes a positive number of seconds, not {text!r}")
    return value


def _work_class() -> str:
    text = os.environ.get("KILN_CLASS") or "interactive"
    if text not in ("interactive", "background"):
        raise ValueError(f"kiln: KILN_CLASS={text!r}; valid values are interactive, background")
    return text


def configure() -> None:
    """Reads the environment once, before the first compile."""
    global _configured
    with _lock:
        if _configured:
            return
        address = os.environ.get("KILN_ADDRESS", "")
        _C.configure(
            {
                "address": address,
                "upstream": os.environ.get("KILN_UPSTREAM", ""),
                "daemon_binary": "" if address else daemon_binary(),
                "call_binary": call_binary(),
                "runtime_dir": os.environ.get("KILN_RUNTIME_DIR", ""),
                "store_dir": os.environ.get("KILN_STORE", ""),
                "job": os.environ.get("KILN_JOB", ""),
                "trusted_keys": os.environ.get("KILN_TRUSTED_KEYS", ""),
                "class": _work_class(),
                "tls_authority": os.environ.get("KILN_TLS_CA", ""),
                "tls_certificate": os.environ.get("KILN_TLS_CERT", ""),
                "tls_key": os.environ.get("KILN_TLS_KEY", ""),
            },
            _seconds("KILN_CONNECT_TIMEOUT", 5.0),
            _seconds("KILN_COMPILE_TIMEOUT", 300.0),
        )
        atexit.register(_C.report_use, _LAST_WORDS_SECONDS)
        _configured = True


def interpret_list() -> str:
    text = os.environ.get("KILN_DEBUG_INTERPRET", "")
    if text and not re.fullmatch(r"all|\d+(,\d+)*", text):
        raise ValueError(f"kiln: KILN_DEBUG_INTERPRET={text!r}; it takes `all` or kernel numbers such as 0,3")
    return text


def show(key: str) -> Entry | None:
    """What the daemon keeps of the program of this key: manifest, notes, readable loops; None where it is not kept."""
    configure()
    kilnctl = os.path.join(os.path.dirname(daemon_binary()), "kilnctl")
    command = [kilnctl, "--address", _C.address(), "show", key, "--json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise RuntimeError(f"kiln: cannot run {kilnctl}: {error.strerror}") from error
    if done.returncode == 1:  # nothing found
        return None
    if done.returncode != 0:
        raise RuntimeError(f"kiln: {' '.join(command)} failed: {done.stderr.strip()}")
    entry: Entry = json.loads(done.stdout)["entries"][0]
    return entry
