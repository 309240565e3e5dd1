"""kiln.status: where this process has its graphs compiled, and which wait for that."""
from typing import Any

from . import _C, environment, fallback, retry


def status() -> dict[str, Any]:
    """`address` of the daemon, `daemon` its program's path, `fallback` the policy, `eager` the graphs that run without
    kiln for want of the service: `title`, and `seconds` until it is asked for them again. Raises ValueError for an
    environment variable that is not valid."""
    environment.configure()
    return {
        "address": _C.address(),
        "daemon": environment.daemon_binary(),
        "fallback": fallback.policy(),
        "eager": retry.waiting(),
    }
