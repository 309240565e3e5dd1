"""kiln.status: where this process has its graphs compiled, and which wait for that."""
from typing import Any

from . import _C, fallback, retry, service


def status() -> dict[str, Any]:
    """`address` of the daemon, `daemon` its program's path, `fallback` the policy, `eager` the graphs that run without
    kiln for want of the service: `title`, and `seconds` until it is asked for them again. Raises ValueError for an
    environment variable that is not valid."""
    service.configure()
    return {
        "address": _C.address(),
        "daemon": service.daemon_binary(),
        "fallback": fallback.policy(),
        "eager": retry.waiting(),
    }
