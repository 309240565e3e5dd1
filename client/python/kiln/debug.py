"""KILN_DEBUG=dir: every stage of a compile, a directory a graph: texts, and an ELF object a kernel.

The graphs are recompiled, by a flight of their own; the service sends the stages along with the program.
"""
import os
import re

from . import _C


def wanted() -> bool:
    return bool(os.environ.get("KILN_DEBUG"))


def check() -> None:
    """Raises ValueError where KILN_DEBUG names no directory that can be written, before anything is compiled."""
    if not wanted():
        return
    directory = os.environ["KILN_DEBUG"]
    try:
        os.makedirs(directory, exist_ok=True)
        if not os.access(directory, os.W_OK):
            raise PermissionError("it cannot be written")
    except OSError as error:
        raise ValueError(f"kiln: KILN_DEBUG={directory!r} is no directory for files: {error}") from error


def write(title: str, request_key: bytes, artifact: _C.Artifact) -> None:
    files = artifact.debug_files()
    if not files:
        return
    name = re.sub(r"[^A-Za-z0-9]+", "_", title)
    directory = os.path.join(os.environ["KILN_DEBUG"], f"{name}_{request_key.hex()[:12]}")
    for path, contents in files:
        # The service names files by a closed set of characters; believe it only after a look.
        parts = path.split("/")
        if not all(re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*", part) for part in parts):
            continue
        target = os.path.join(directory, *parts)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "wb") as file:
            file.write(contents)
