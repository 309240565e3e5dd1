"""The programs that the wheel carries, as commands: `kilnd`, `kilnctl`, `kiln-worker`."""
import os
import sys
from typing import NoReturn


def path(name: str) -> str:
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", name)


def _run(name: str) -> NoReturn:
    program = path(name)
    try:
        os.execv(program, [program, *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"kiln: cannot run {program}: {error.strerror}")


def kilnd() -> NoReturn:
    _run("kilnd")


def kilnctl() -> NoReturn:
    _run("kilnctl")


def kiln_worker() -> NoReturn:
    _run("kiln-worker")
