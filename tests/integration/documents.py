"""The Markdown of the checkout: its code blocks, links and headings; how a block is run. Imports nothing of kiln."""
import dataclasses
import os
import pathlib
import re
import subprocess
import sys

from daemons import Place

ROOT = pathlib.Path(__file__).resolve().parents[2]
_FOLDERS = ("cache", "client", "compiler", "docs", "server", "tests")
LANGUAGES = ("cpp", "mermaid", "python", "sh", "text")

# What a reader's blocks speak of. Each document's Python blocks are one script.
PRELUDE = """
import torch, kiln
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.LayerNorm(8))
inputs = (torch.randn(4, 8),)
"""


@dataclasses.dataclass
class Block:
    line: int  # of its first line, from 1
    language: str
    code: str


def paths() -> list[str]:
    """Every document, relative to the root."""
    found = [*ROOT.glob("*.md"), *(path for top in _FOLDERS for path in (ROOT / top).rglob("*.md"))]
    return sorted(str(path.relative_to(ROOT)) for path in found)


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def blocks(text: str) -> list[Block]:
    return [Block(text.count("\n", 0, match.start(2)) + 1, match[1], match[2])
            for match in re.finditer(r"^```(.*)\n((?:.*\n)*?)^```$", text, re.MULTILINE)]


def prose(text: str) -> str:
    return re.sub(r"^```.*\n(?:.*\n)*?^```$", "", text, flags=re.MULTILINE)


def script(text: str) -> str:
    """All Python of a document; "" where there is none."""
    parts = [block.code for block in blocks(text) if block.language == "python"]
    return PRELUDE + "\n".join(parts) if parts else ""


def anchors(text: str) -> set[str]:
    """As GitHub makes them of headings."""
    heads = re.findall(r"^#+ (.*)$", prose(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def links(text: str) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", prose(text))


def is_listed(block: Block) -> bool:
    """Whether the block's commands are those of the set-up and the tests, which are not run from here."""
    words = [line.split()[0] for line in block.code.splitlines() if line.strip() and not line.startswith("#")]
    return all(re.match(r"(deploy|tests)/|(ninja|cmake|ctest)$", word) for word in words)


def listed_faults(block: Block) -> list[str]:
    """What is wrong with commands that are not run: a program that is not there, an option that it does not know."""
    found = []
    for line in block.code.splitlines():
        words = line.split("#")[0].split()
        if not words or "/" not in words[0]:
            continue
        program = ROOT / words[0]
        if not os.access(program, os.X_OK):
            found.append(f"{words[0]} is no program")
            continue
        source = program.read_text(encoding="utf-8")
        found += [f"{words[0]} does not know {word}" for word in words[1:]
                  if word.startswith("--") and word not in source]
    return found


def run_shell(block: Block, place: Place, programs: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Runs a block in a directory of its own, with python, kilnd and kilnctl on PATH and the checkout's deploy/ beside
    it; fails if a command fails."""
    folder = pathlib.Path(place.root, "bin")
    folder.mkdir(exist_ok=True)
    for name, program in {"python": sys.executable, **programs}.items():
        wrapper = folder / name
        wrapper.write_text(f'#!/bin/sh\nexec "{program}" "$@"\n')
        wrapper.chmod(0o755)
    deploy = pathlib.Path(place.root, "deploy")
    if not deploy.exists():
        deploy.symlink_to(ROOT / "deploy")
    environment = {**os.environ, **place.environment, "TMPDIR": place.root, "KILN_FALLBACK": "error",
                   "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(["bash", "-euo", "pipefail", "-c", block.code], cwd=place.root, env=environment, text=True,
                          capture_output=True, timeout=240, check=False)
