"""Makes an installed package self-contained: copies the shared libraries that its programs and its extension need
into `lib/`, and points their run paths there. What belongs to the system or to torch is never copied.

Usage: bundle_libraries.py PACKAGE_DIRECTORY. Needs `ldd`, `strip` and `patchelf`.
"""
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator

# libstdc++ and libgomp must be the process's own; the rest is glibc.
NEVER = re.compile(r"^(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util|nsl|anl|stdc\+\+|gcc_s|gomp|dnnl|openblas|"
                   r"python.*))\.so")


def needed(path: str) -> Iterator[tuple[str, str]]:
    """(name, file) of every shared library that `path` loads, directly or not."""
    output = subprocess.run(["ldd", path], check=True, capture_output=True, text=True).stdout
    for line in output.splitlines():
        match = re.match(r"\s*(\S+) => (\S+) \(", line)
        if match and not NEVER.match(match.group(1)):
            yield match.group(1), match.group(2)
        elif "not found" in line:
            raise SystemExit(f"{path}: {line.strip()}")


def set_run_path(path: str, run_path: str) -> None:
    subprocess.run(["patchelf", "--set-rpath", run_path, path], check=True)


def main(package: str) -> None:
    library_directory = os.path.join(package, "lib")
    os.makedirs(library_directory, exist_ok=True)
    extension = os.path.join(package, "_C.abi3.so")
    programs = [os.path.join(package, "bin", name) for name in sorted(os.listdir(os.path.join(package, "bin")))]
    for path in [extension, *programs]:
        subprocess.run(["strip", "--strip-unneeded", path], check=True)
    libraries = dict(pair for path in [extension, *programs] for pair in needed(path))
    for name, source in libraries.items():
        target = os.path.join(library_directory, name)
        if os.path.realpath(source) == os.path.realpath(target):
            continue
        shutil.copyfile(os.path.realpath(source), target)
        os.chmod(target, 0o755)
        set_run_path(target, "$ORIGIN")
    set_run_path(extension, "$ORIGIN/lib")
    for program in programs:
        set_run_path(program, "$ORIGIN/../lib")
    print(f"bundled {len(libraries)} libraries")


if __name__ == "__main__":
    main(sys.argv[1])
