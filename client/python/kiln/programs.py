"""The programs that the wheel carries, as commands: `kilnd`, `kilnctl`, `kiln-worker`."""
import os
import sys


def path(name):
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", name)


def _run(name):
    program = path(name)
    try:
        os.execv(program, [program, *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"kiln: cannot run {program}: {error.strerror}")


def kilnd():
    _run("kilnd")


def kilnctl():
    _run("kilnctl")


def kiln_worker():
    _run("kiln-worker")
