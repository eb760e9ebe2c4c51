"""Root file systems of other systems, and programs inside them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
CACHE = REPO / "target/roots"
MIRROR = "http://deb.debian.org/debian"
INSTALLED = "redis-server,redis-tools"

# Own processes, mounts, network and shared memory. All of them end with the first process.
ALONE = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--net", "--ipc"]
PREPARE = (
    "ip link set lo up && mount -t proc proc $0/proc && mount -t tmpfs tmpfs $0/dev/shm && "
    "exec chroot $0 sh -eu $1"
)


def suites() -> list[str]:
    """From the oldest C library that Debian's mirrors have on."""
    return os.environ.get("NETACC_SUITES", "bullseye bookworm trixie").split()


def archive(suite: str, architecture: str = "amd64") -> Path:
    """The system's files with Redis, made once; those for another processor are unpacked and not set up."""
    own = architecture == "amd64"
    path = CACHE / (f"{suite}.tar" if own else f"{suite}-{architecture}.tar")
    if not path.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f"{path.stem}.new.tar")
        words = ["mmdebstrap", "--quiet", f"--variant={'minbase' if own else 'extract'}"]
        words += [f"--architectures={architecture}", f"--include={INSTALLED}", suite, str(new), MIRROR]
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        new.rename(path)
    return path


def unpack(suite: str, folder: Path, architecture: str = "amd64") -> Path:
    root = folder / suite
    root.mkdir()
    subprocess.run(["tar", "-C", str(root), "-xf", str(archive(suite, architecture))], check=True)
    return root


def run(root: Path, script: str) -> str:
    """The output of a shell script inside; it has to succeed."""
    (root / "script").write_text(script)
    words = [*ALONE, "sh", "-c", PREPARE, str(root), "/script"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
    return done.stdout


if __name__ == "__main__":
    for wanted in suites():
        print(archive(wanted))
