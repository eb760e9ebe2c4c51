"""Installs the prerequisites of the steps: packages of the distribution, and our programs."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

from ci.eri.pair import Failed, Pair
from ci.eri.preflight import OURS
from ci.eri.record import Record

#: By their installers: Debian and Ubuntu; Alibaba Cloud Linux, Red Hat and their like (wrk is in EPEL).
PACKAGES = {
    "apt-get": "redis memcached libmemcached-tools nginx wrk curl postgresql perftest "
    "librdmacm1 rdmacm-utils ibverbs-providers ibverbs-utils iproute2 procps util-linux",
    "dnf": "redis memcached libmemcached nginx wrk curl postgresql-server postgresql-contrib perftest "
    "librdmacm librdmacm-utils libibverbs libibverbs-utils iproute procps-ng util-linux",
}
INSTALL = """
set -e
sudo=
if [ "$(id -u)" != 0 ]; then sudo='sudo -n'; fi
if command -v apt-get >/dev/null
then
    $sudo apt-get update -qq
    DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends $1
elif command -v dnf >/dev/null
then $sudo dnf install -y -q $2
else echo 'neither apt-get nor dnf is there: install the packages by hand' >&2; exit 1
fi
"""
UNPACK = """
sudo=
if [ "$(id -u)" != 0 ]; then sudo='sudo -n'; fi
$sudo mkdir -p "$1" && $sudo tar -xf - -C "$1" && "$1/netacc" --version
"""
#: A distribution's mirror may be slow.
SECONDS = 900


def install(pair: Pair, binaries: Path, record: Record, *, packages: bool) -> None:
    """Fails with the packages that could not be installed. `binaries`: the local folder of our programs."""
    missing = [str(binaries / name) for name in OURS if not (binaries / name).exists()]
    if missing:
        raise Failed(f"not built here: {', '.join(missing)}: `ci/run.sh build` makes them")
    archive = packed(binaries)
    for host in (1, 2):
        if packages:
            pair.out(host, "sh", "-c", INSTALL, "sh", PACKAGES["apt-get"], PACKAGES["dnf"], seconds=SECONDS)
        ran = pair.run(host, "sh", "-c", UNPACK, "sh", str(pair.binaries), seconds=SECONDS, given=archive)
        if ran.returncode:
            # Programs need the C library that they were built with, or a later one.
            raise Failed(f"host {host}: {ran.stderr.strip()}")
        record.figures[f"host{host}"] = ran.stdout.strip()


def packed(binaries: Path) -> bytes:
    """Our programs, in an archive."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name in OURS:
            archive.add(binaries / name, name)
    return out.getvalue()
