"""Go programs, built by the compiler that is installed or by one of a version from the Go module proxy."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from tests.apps.lib.paths import PROGRAMS

SOURCE = PROGRAMS / "static/go"


@dataclass(frozen=True)
class Mode:
    """How a program is linked: statically, or dynamically with C or without."""

    cgo: bool = False
    options: tuple[str, ...] = ()
    stripped: bool = False


MODES = {
    "go": Mode(),
    "go-stripped": Mode(stripped=True),
    "go-pie": Mode(options=("-buildmode=pie",)),
    "go-cgo": Mode(cgo=True),
    # The linker is C's, so no section names Go's table of functions.
    "go-cgo-pie": Mode(cgo=True, options=("-buildmode=pie", "-ldflags=-linkmode=external"), stripped=True),
}


def build(program: Path, mode: Mode, *, go: str | Path = "go", source: Path = SOURCE) -> None:
    """Build the program of the folder `source`, which needs no module from elsewhere."""
    words = [str(go), "build", *mode.options, "-o", str(program), "."]
    subprocess.run(words, cwd=source, env=_environment(mode), check=True, timeout=600)
    # Without a package that has C code, a program has none, whatever it may have.
    assert mode.cgo == (b"libc.so.6" in program.read_bytes())
    if mode.stripped:
        subprocess.run(["strip", program], check=True, timeout=60)


def build_tests(program: Path, mode: Mode, package: str) -> None:
    """Build the tests of a package of Go itself."""
    words = ["go", "test", "-c", *mode.options, "-o", str(program), package]
    subprocess.run(words, cwd=program.parent, env=_environment(mode), check=True, timeout=600)


def _environment(mode: Mode) -> dict[str, str]:
    env = os.environ | {
        "CGO_ENABLED": "1" if mode.cgo else "0",
        "GOTOOLCHAIN": "local",
        "GOFLAGS": "-mod=mod",
        "GOPROXY": "off",
    }
    # It would name the compiler that is installed.
    env.pop("GOROOT", None)
    return env


def installed() -> tuple[int, int]:
    """The version of the installed compiler."""
    printed = subprocess.run(["go", "env", "GOVERSION"], capture_output=True, text=True, check=True).stdout
    major, minor = printed.removeprefix("go").strip().split(".")[:2]
    return int(major), int("".join(takewhile(str.isdigit, minor)))


def toolchain(version: str, folder: Path) -> Path:
    """The command `go` of a version, which the proxy has as a module; `folder` is any outside of a module."""
    module = f"golang.org/toolchain@v0.0.1-go{version}.linux-amd64"
    found = subprocess.run(
        ["go", "mod", "download", "-json", module],
        cwd=folder,
        env=os.environ | {"GOTOOLCHAIN": "local", "GOFLAGS": "-mod=mod"},
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    root = Path(json.loads(found.stdout)["Dir"])
    # Files of modules are not executable.
    for tool in [*root.glob("bin/*"), *root.glob("pkg/tool/*/*")]:
        tool.chmod(0o555)
    return root / "bin/go"
