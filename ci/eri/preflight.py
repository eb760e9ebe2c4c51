"""Checks that two machines have the prerequisites of the steps."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ci.eri import micro
from ci.eri.pair import Failed, Pair, Stack
from ci.eri.programs import POSTGRESQL
from ci.eri.record import Record

#: Programs of other projects, on both machines.
PROGRAMS = (
    *("redis-server", "redis-cli", "redis-benchmark", "memcached", "memcslap", "memcstat", "nginx", "wrk"),
    *("curl", "rstream", "ib_send_lat", "ib_write_lat", "ib_send_bw", "pkill", "setpriv", "timeout"),
    "ibv_devinfo",
)
#: This project's programs, in one folder of both machines.
OURS = ("netacc", "netacc_run", "netacc_ss", "netacc-exec", "libnetacc-preload.so")
#: Bytes that a process has to be able to lock: rings and slabs of some hundred connections.
LEAST_MEMLOCK = 64 << 20


def check(pair: Pair, arguments: argparse.Namespace, record: Record) -> None:
    """Fails with a list of everything that is missing, on this machine and the others."""
    missing = missing_here(arguments.local_binaries, arguments.steps)
    for host in (1, 2):
        missing += [f"host {host}: {what}" for what in missing_there(pair, host, record)]
    if not missing:
        # Both ways through a firewall: TCP, and the device's own connections.
        for path, what in (("tcp", "TCP connections"), ("write", "links of the RDMA devices")):
            try:
                micro.netacc_lat(pair, (path,), 10)
            except Failed as failure:
                missing.append(f"no {what} from host 2 to host 1 ({pair.address(1)}): {failure}")
    if missing:
        raise Failed("; ".join(missing))


def missing_here(binaries: Path, steps: list[str]) -> list[str]:
    needed = ("netacc-exec", "netacc_run") if "properties" in steps else ()
    return [
        f"here: {binaries / name}, for the step properties"
        for name in needed
        if not (binaries / name).exists()
    ]


def missing_there(pair: Pair, host: int, record: Record) -> list[str]:
    """The missing prerequisites of a host. Those that it has are recorded."""
    netacc = pair.binaries / "netacc"
    script = 'for p; do command -v "$p" >/dev/null || echo "$p"; done'
    missing = pair.out(host, "sh", "-c", script, "sh", *PROGRAMS).split()
    script = 'for p; do [ -e "$p" ] || echo "$p"; done'
    ours = [str(pair.binaries / name) for name in OURS]
    missing += pair.out(host, "sh", "-c", script, "sh", *ours).split()
    for command in (("sh", "-c", POSTGRESQL), Stack.rsockets().of("true")):
        ran = pair.run(host, *command)
        missing += [ran.stderr.strip()] * (ran.returncode != 0)
    devices = pair.run(host, "sh", "-c", "ls /sys/class/infiniband").stdout.split()
    if not devices:
        missing.append("an RDMA device in /sys/class/infiniband (of an ERI: the eRDMA driver is not loaded)")
    memlock = pair.out(host, "sh", "-c", "ulimit -l").strip()
    # A user who may exceed it, root usually, is not limited by it.
    root = pair.out(host, "id", "-u").strip() == "0"
    if memlock != "unlimited" and int(memlock) << 10 < LEAST_MEMLOCK and not root:
        missing.append(f"memlock: {memlock} KiB; `* - memlock unlimited` in /etc/security/limits.conf")
    found: dict[str, object] = {"devices": devices, "memlock": memlock}
    if str(netacc) not in missing:
        ran = pair.run(host, str(netacc), "doctor", "--json")
        try:
            found["doctor"] = json.loads(ran.stdout)
        except ValueError:
            missing.append(f"{netacc} does not run there: {(ran.stderr or ran.stdout).strip()[:300]}")
    record.figures[f"host{host}"] = found
    return missing
