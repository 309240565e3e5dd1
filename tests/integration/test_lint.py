"""tests/lint.sh's judges of Python see what goes against pyproject.toml."""
import importlib.util
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
RUFF = ("ruff", "check", "--no-cache", "--config", os.path.join(ROOT, "pyproject.toml"))
MYPY = ("mypy", "--config-file", os.path.join(ROOT, "pyproject.toml"), "--cache-dir", os.devnull)

RIGHT = "def double(number: int) -> int:\n    return 2 * number\n"


def judged(command: tuple[str, ...], text: str, folder: pathlib.Path) -> subprocess.CompletedProcess[str]:
    if importlib.util.find_spec(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed (deploy/setup.sh --tests)")
    path = folder / "judged.py"
    path.write_text(text)
    return subprocess.run([sys.executable, "-m", *command, str(path)], cwd=folder, capture_output=True, text=True,
                          timeout=300)


@pytest.mark.parametrize("command", [RUFF, MYPY], ids=lambda command: command[0])
def test_what_is_right_passes(tmp_path: pathlib.Path, command: tuple[str, ...]) -> None:
    done = judged(command, RIGHT, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("command, text, said", [
    (RUFF, "import os\n\n\n" + RIGHT, "F401"),
    (RUFF, RIGHT + f"\n\nLONG = '{'x' * 120}'\n", "E501"),
    (MYPY, RIGHT.replace(": int", ""), "no-untyped-def"),
    (MYPY, RIGHT.replace("2 * number", "str(number)"), "return-value"),
    (MYPY, RIGHT + "\n\nmany: list = []\n", "type-arg"),
], ids=lambda value: value if isinstance(value, str) and len(value) < 20 else "")
def test_a_planted_fault_fails(tmp_path: pathlib.Path, command: tuple[str, ...], text: str, said: str) -> None:
    done = judged(command, text, tmp_path)
    assert done.returncode == 1 and said in done.stdout, done.stdout + done.stderr
