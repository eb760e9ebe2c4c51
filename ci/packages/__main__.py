"""Makes the packages: python -m ci.packages BUILT FOLDER; prints their paths."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import tempfile
import tomllib
from pathlib import Path

from ci.packages import formats, symbols
from ci.packages.layout import MACHINES, REPO, Layout, Machine, stage

# An archive of the sources has no commit, and so no time of its own.
WITHOUT_HISTORY = 1


def version() -> str:
    with (REPO / "Cargo.toml").open("rb") as file:
        return str(tomllib.load(file)["workspace"]["package"]["version"])


def epoch() -> int:
    """The time of all files: SOURCE_DATE_EPOCH, or that of the commit."""
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(given)
    git = ["git", "-C", str(REPO), "log", "-1", "--format=%ct"]
    done = subprocess.run(git, capture_output=True, text=True)
    return int(done.stdout) if done.returncode == 0 else WITHOUT_HISTORY


def make(built: Path, folder: Path, number: str, when: int, machine: Machine) -> list[Path]:
    """The packages of the programs in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="netacc-packages-") as name:
        work = Path(name)
        debian = Layout(machine, work / "deb", machine.multiarch)
        redhat = Layout(machine, work / "rpm", "usr/lib64")
        alone = Layout(machine, work / f"{formats.NAME}-{number}-{machine.name}", "lib", prefix="")
        for layout in (debian, redhat, alone):
            stage(layout, built)
        if missing := symbols.lacking(debian.root, symbols.OLDEST):
            raise SystemExit(f"{symbols.OLDEST.name} cannot load these: {missing}")
        made = [
            formats.deb(debian, work, number, when),
            formats.rpm(redhat, work, number, when),
            formats.tarball(alone, work, when),
        ]
        return [Path(shutil.move(path, folder / path.name)) for path in made]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m ci.packages", description=__doc__)
    parser.add_argument("built", type=Path, help="the folder of the programs, such as target/release")
    parser.add_argument("folder", type=Path, help="gets the packages")
    parser.add_argument(
        "--version", default=version(), help="another version than that of Cargo.toml, for tests"
    )
    parser.add_argument("--machine", choices=MACHINES, default="x86_64", help="the programs' processor")
    arguments = parser.parse_args()
    machine = MACHINES[arguments.machine]
    for path in make(arguments.built, arguments.folder, arguments.version, epoch(), machine):
        print(path)


if __name__ == "__main__":
    main()
