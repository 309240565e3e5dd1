"""Writes what pip would have written of kiln's metadata beside an unpacked package: by its entry point torch finds the
back-end's name without an import of kiln.

Usage: bundle_metadata.py PYPROJECT DIRECTORY. Makes DIRECTORY/kiln-VERSION.dist-info. Python 3.11 and later.
"""
import os
import sys

import tomllib


def main(pyproject: str, directory: str) -> None:
    with open(pyproject, "rb") as file:
        project = tomllib.load(file)["project"]
    folder = os.path.join(directory, f"{project['name']}-{project['version']}.dist-info")
    os.mkdir(folder)
    with open(os.path.join(folder, "METADATA"), "w") as file:
        file.write(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
                   f"Summary: {project['description']}\nRequires-Python: {project['requires-python']}\n")
        file.writelines(f"Requires-Dist: {requirement}\n" for requirement in project["dependencies"])
    groups = {**project["entry-points"], "console_scripts": project["scripts"]}
    with open(os.path.join(folder, "entry_points.txt"), "w") as file:
        for group, entries in groups.items():
            file.write(f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items()) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
