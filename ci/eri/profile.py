"""The profile of a device: what verbs say of it, the outcome of each check of the suite, and its counters.

The first run on an ERI shows whether the emulated device of the lab (models/erdma) is right: `differences`
compares its profile with that of an emulated device.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ci.eri.pair import Failed, Pair
from ci.eri.record import Record

#: An example of backends/verbs, below the folder of this machine's programs.
SUITE = "verbs_conformance"
BUILD = "cargo build --release -p netacc-verbs --examples"
#: The suite waits for time-outs of a device that answers nothing.
SECONDS = 170

#: Name, tab and value of each counter of each port.
COUNTERS = """
for file in /sys/class/infiniband/*/ports/*/hw_counters/* /sys/class/infiniband/*/hw_counters/*
do
    case $file in */lifespan) continue;; esac
    [ ! -r "$file" ] || printf '%s\\t%s\\n' "${file#/sys/class/infiniband/}" "$(cat "$file")"
done
"""
UNPACK = 'mkdir -p "$1" && cat >"$1/$2" && chmod +x "$1/$2"'

#: Attributes of `ibv_devinfo -v` that are a machine's own.
OWN = ("guid", "node_guid", "sys_image_guid", "GID[", "hw_ver", "vendor_part_id", "port_lid")


def profile(pair: Pair, local_binaries: Path, record: Record) -> None:
    """Records both hosts' devices. If the suite is not built here, that is a remark."""
    for host in (1, 2):
        found: dict[str, Any] = {"devinfo": attributes(pair.out(host, "ibv_devinfo", "-v"))}
        record.figures[f"host{host}"] = found
        local = local_binaries / "examples" / SUITE
        if not local.exists():
            record.remarks[SUITE] = f"{local} is missing: {BUILD}"
            continue
        before = counters(pair, host)
        try:
            found[SUITE] = outcome(pair, host, local)
        except Failed as failure:
            # Whether a device reaches its own host is one of the questions.
            record.remarks[f"host {host}, {SUITE}"] = str(failure)
        after = counters(pair, host)
        found["counters"] = {key: after[key] - before.get(key, 0) for key in after}


def outcome(pair: Pair, host: int, program: Path) -> list[dict[str, Any]]:
    """The lines that a program prints, on the host's own address. A failed check is one of them."""
    copied = pair.run(
        host, "sh", "-c", UNPACK, "sh", f"{pair.folder}-probes", program.name, given=program.read_bytes()
    )
    if copied.returncode:
        raise Failed(copied.stderr.strip())
    ran = pair.run(host, f"{pair.folder}-probes/{program.name}", pair.address(host), seconds=SECONDS)
    lines = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise Failed(f"status {ran.returncode}: {ran.stderr.strip()}")
    return lines


def counters(pair: Pair, host: int) -> dict[str, int]:
    """The hardware counters of a host's devices, if its driver has any."""
    lines = pair.out(host, "sh", "-c", COUNTERS).splitlines()
    return {name: int(value) for name, value in (line.split("\t") for line in lines) if value.isdecimal()}


def attributes(printed: str) -> dict[str, str]:
    """The attributes of the first device in the output of `ibv_devinfo -v`."""
    first = printed.partition("hca_id:")[2].partition("hca_id:")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, colon, value in pairs if colon and value.strip()}


def differences(recorded: dict[str, Any], emulated: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What an emulated host's profile has that is not as recorded. Times and counts are not compared."""
    each = {name: (traits(recorded, name), traits(emulated, name)) for name in ("devinfo", SUITE)}
    return {
        f"{part}: {name}": (of.get(name), here.get(name))
        for part, (of, here) in each.items()
        if of
        for name in sorted({*of, *here})
        if of.get(name) != here.get(name)
    }


def traits(host: dict[str, Any], part: str) -> dict[str, Any]:
    """The findings of a part of a host's profile that another machine can have, too."""
    if part == "devinfo":
        found: dict[str, str] = host.get(part, {})
        return {name: value for name, value in found.items() if not name.startswith(OWN)}
    lines: list[dict[str, Any]] = host.get(part, [])
    return {line["check"]: line["outcome"] for line in lines if "check" in line}
