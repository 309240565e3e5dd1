"""KILN_DEBUG=dir: every stage of a compile as text, a directory a graph.

The graphs are compiled anew, by a flight of their own; the service sends the stages along with the program.
"""
import os
import re


def wanted():
    return bool(os.environ.get("KILN_DEBUG"))


def write(title, request_key, artifact):
    files = artifact.debug_files()
    if not files:
        return
    name = re.sub(r"[^A-Za-z0-9]+", "_", title)
    directory = os.path.join(os.environ["KILN_DEBUG"], f"{name}_{request_key.hex()[:12]}")
    for path, text in files:
        # The service names files by a closed set of characters; believe it only after a look.
        parts = path.split("/")
        if not all(re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*", part) for part in parts):
            continue
        target = os.path.join(directory, *parts)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "w", encoding="utf-8") as file:
            file.write(text)
