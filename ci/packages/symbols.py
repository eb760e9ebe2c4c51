"""What the loader of a system will ask for: shared libraries, and the versions of their symbols."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

Version = tuple[int, ...]


@dataclass(frozen=True)
class System:
    """The newest versions of symbols that a system's C library and libgcc have."""

    name: str
    glibc: Version
    libgcc: Version


# Every libgcc of GCC 7 and later has GCC_7.0.0. The programs need nothing newer anywhere.
OLDEST = System("Enterprise Linux 8", (2, 28), (7, 0, 0))
SYSTEMS = (
    OLDEST,
    System("Debian 11", (2, 31), (7, 0, 0)),
    System("Alibaba Cloud Linux 3", (2, 32), (7, 0, 0)),
    System("Ubuntu 22.04", (2, 35), (7, 0, 0)),
    System("Debian 12", (2, 36), (7, 0, 0)),
    System("Ubuntu 24.04", (2, 39), (7, 0, 0)),
)

# All of them belong to glibc and to GCC, which each of these systems has.
LIBRARIES = re.compile(r"(lib(c|m|pthread|dl|rt|util|gcc_s)|ld-linux-(x86-64|aarch64))\.so\.[0-9]+")
NUMBERED = re.compile(r"(GLIBC|GCC)_(\d+(?:\.\d+)+)")


def read(option: str, file: Path) -> str:
    words = ["readelf", "-W", option, str(file)]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def versions(file: Path) -> set[str]:
    """The names of all versions of symbols that the file needs."""
    _, _, needs = read("--version-info", file).partition("Version needs section")
    return set(re.findall(r"Name: (\S+)", needs))


def number(text: str) -> Version:
    return tuple(int(part) for part in text.split("."))


def unmet(file: Path, system: System) -> list[str]:
    """What the file needs and the system lacks: versions, also those without a number, which stand for
    features; symbols without a version; libraries."""
    newest = {"GLIBC": system.glibc, "GCC": system.libgcc}
    found = []
    for name in versions(file):
        numbered = NUMBERED.fullmatch(name)
        if not numbered or number(numbered[2]) > newest[numbered[1]]:
            found.append(name)
    # Symbols of glibc have versions. One without was in an archive beside it, and the linker left it open.
    open_ones = re.findall(r" GLOBAL +DEFAULT +UND +([^@\s]+)$", read("--dyn-syms", file), re.MULTILINE)
    libraries = re.findall(r"\(NEEDED\)\s+Shared library: \[(\S+)\]", read("--dynamic", file))
    return sorted(found) + open_ones + [name for name in libraries if not LIBRARIES.fullmatch(name)]


def programs(folder: Path) -> list[Path]:
    """The programs and libraries below a folder."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()]
    found = [path for path in files if path.read_bytes()[:4] == b"\x7fELF"]
    if not found:
        raise FileNotFoundError(f"no programs below {folder}")
    return found


def lacking(folder: Path, system: System) -> dict[str, list[str]]:
    """The programs and libraries below a folder that the system cannot load, and what it lacks."""
    wants = {str(path.relative_to(folder)): unmet(path, system) for path in programs(folder)}
    return {name: missing for name, missing in wants.items() if missing}
