"""What programs need of the C library: the newest version of glibc among the versions of their symbols."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

Version = tuple[int, ...]

# That of Enterprise Linux 8. Alibaba Cloud Linux 3 has 2.32, Debian 11 has 2.31.
OLDEST: Version = (2, 28)

VERSION = re.compile(r"\bGLIBC_(\d+(?:\.\d+)+)\b")


def needed(file: Path) -> Version:
    """The newest version of glibc that the loader will ask for; empty if the file needs none."""
    shown = subprocess.run(
        ["readelf", "-W", "--version-info", str(file)], check=True, capture_output=True, text=True
    )
    versions = [tuple(int(part) for part in found.split(".")) for found in VERSION.findall(shown.stdout)]
    return max(versions, default=())


def too_new(folder: Path) -> dict[str, Version]:
    """The programs and libraries below a folder that need a glibc newer than OLDEST, and which."""
    files = [
        path for path in sorted(folder.rglob("*")) if path.is_file() and path.read_bytes()[:4] == b"\x7fELF"
    ]
    if not files:
        raise FileNotFoundError(f"no programs below {folder}")
    versions = {str(path.relative_to(folder)): needed(path) for path in files}
    return {name: version for name, version in versions.items() if version > OLDEST}
