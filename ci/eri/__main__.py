"""`python -m ci.eri HOST1 HOST2`: measurements of two machines with RDMA devices, as recorded runs."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ci.eri.pair import Failed, Host, Pair
from ci.eri.record import Record
from ci.eri.report import table
from ci.eri.scale import Scale
from ci.eri.steps import PROGRAMS, STEPS, Kit, log

#: Prints the addresses of the interface of a host's first RDMA device, IPv4 first.
ADDRESSES = """
dev=$(rdma link show | sed -n 's/.* netdev \\([^ ]*\\).*/\\1/p' | head -n 1)
ip -o addr show dev "$dev" scope global | sed -n 's/.* inet6\\{0,1\\} \\([^ /]*\\).*/\\1/p'
"""


def addresses(host: Host, number: int) -> tuple[str, str]:
    """The addresses of a host's RDMA interface: IPv4, and IPv6 or nothing."""
    alone = Pair((host, host), Path(), seconds=30)
    found = alone.run(1, "sh", "-c", ADDRESSES).stdout.split()
    ipv4 = [one for one in found if ":" not in one]
    if not ipv4:
        raise Failed(f"host {number} ({host.name}): no RDMA device with an IPv4 address; set --addresses")
    return ipv4[0], next((one for one in found if ":" in one), "")


def machine(pair: Pair, host: int) -> dict[str, Any]:
    def of(*command: str) -> str:
        return pair.run(host, *command).stdout.strip()

    return {
        "name": pair.hosts[host - 1].name,
        "address": pair.address(host),
        "cpu": of("sh", "-c", "sed -n 's/^model name.*: //p' /proc/cpuinfo | head -n 1"),
        "cores": int(of("nproc") or 0),
        "kernel": of("uname", "-r"),
        "loadavg": [float(n) for n in of("cat", "/proc/loadavg").split()[:3]],
        "devices": of("ls", "/sys/class/infiniband").split(),
        "netacc": of(str(pair.binaries / "netacc"), "--version"),
    }


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m ci.eri",
        description=__doc__,
        epilog="Exit status: 0 if all steps were done; 1 if something failed, which is printed; "
        "2 for wrong arguments. `python -m ci.eri.report RESULTS` prints tables, `--plot FILE` draws.",
    )
    parser.add_argument("hosts", nargs=2, metavar="HOST", help="host names for ssh; with --reach, any names")
    parser.add_argument(
        "--ssh",
        default="ssh -o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=15",
        help="the command that connects to a host (%(default)s)",
    )
    parser.add_argument(
        "--reach",
        nargs=2,
        metavar="COMMAND",
        help="command prefixes that run the following words on each host, unquoted",
    )
    parser.add_argument(
        "--addresses",
        nargs=2,
        metavar="A[,A6]",
        help="addresses of their RDMA interfaces (default: of each host's first RDMA device)",
    )
    parser.add_argument(
        "--binaries",
        type=Path,
        default=Path("/opt/netacc-lab"),
        help="this project's programs, on the hosts (%(default)s)",
    )
    parser.add_argument(
        "--local-binaries",
        type=Path,
        default=Path("target/release"),
        help="this project's programs, on this machine (%(default)s)",
    )
    parser.add_argument(
        "--results",
        type=Path,
        default=Path("results/local/eri"),
        help="a folder for each placement, and in that one for each step (%(default)s)",
    )
    usual = [name for name in STEPS if name != "install"]
    parser.add_argument(
        "--steps",
        nargs="+",
        choices=list(STEPS),
        default=usual,
        metavar="STEP",
        help=f"the steps to run: {', '.join(STEPS)} (default: all but install)",
    )
    parser.add_argument(
        "--programs", nargs="+", choices=PROGRAMS, help="programs of the step figures (default: all)"
    )
    parser.add_argument(
        "--placement",
        default="unknown",
        type=placement,
        metavar="NAME",
        help="the placement of the hosts, such as low-latency or none: a folder of the results (%(default)s)",
    )
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        type=setting,
        metavar="NAME=VALUE",
        help="a variable for netacc_run",
    )
    parser.add_argument("--seeds", default="0..200", help="seeds of the generated programs (%(default)s)")
    parser.add_argument(
        "--emulated", action="store_true", help="the machines are slow: measure less; records have the counts"
    )
    parser.add_argument("--no-packages", action="store_true", help="install: only our own programs")
    parser.add_argument("--json", action="store_true", help="print the outcome of each step as JSON")
    return parser.parse_args()


def placement(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not made of letters, digits, - and _")
    return text


def setting(text: str) -> str:
    if "=" not in text:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return text


def hosts_of(arguments: argparse.Namespace) -> tuple[Host, Host]:
    hosts = []
    for number, name in enumerate(arguments.hosts):
        far = arguments.reach[number] if arguments.reach else f"{arguments.ssh} {name}"
        host = Host(tuple(shlex.split(far)), "", quoted=not arguments.reach, name=name)
        if arguments.addresses:
            address, _, address6 = arguments.addresses[number].partition(",")
        else:
            address, address6 = addresses(host, number + 1)
        hosts.append(Host(host.reach, address, address6, quoted=host.quoted, name=name))
    return hosts[0], hosts[1]


def run_step(kit: Kit, name: str) -> Record:
    """Runs a step, and keeps its findings, also when it fails."""
    arguments = kit.arguments
    begun = time.monotonic()
    measured = {
        "step": name,
        "placement": arguments.placement,
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "emulated": arguments.emulated,
        "settings": kit.settings,
    }
    record = Record(measured)
    try:
        measured["hosts"] = [machine(kit.pair, host) for host in (1, 2)]
        STEPS[name](kit, record)
    except Failed as failure:
        record.failures[name] = str(failure)
    finally:
        kit.pair.end()
        measured["seconds"] = round(time.monotonic() - begun, 1)
        record.write(arguments.results / arguments.placement / name)
    return record


def main() -> int:
    arguments = parsed()
    try:
        hosts = hosts_of(arguments)
    except Failed as failure:
        print(f"python -m ci.eri: {failure}", file=sys.stderr)
        return 1
    scale = Scale.emulated() if arguments.emulated else Scale()
    seconds = 40 if arguments.emulated else 30
    pair = Pair(hosts, arguments.binaries, seconds=seconds, watch_seconds=scale.watch_seconds)
    kit = Kit(pair, scale, arguments)
    ended = {}
    for name in arguments.steps:
        log(f"==> {name}")
        record = run_step(kit, name)
        # They spin on processors that an emulated device needs itself, and then may not end.
        for what, how in (record.remarks | record.failures).items():
            log(f"{name}: {how}" if what == name else f"{name}: {what}: {how}")
        if name == "figures" and not arguments.json:
            print(table(record.measured, record.figures))
        folder = arguments.results / arguments.placement / name
        ended[name] = {"folder": str(folder), "failures": record.failures, "remarks": record.remarks}
        if record.failures and name in ("install", "preflight"):
            break
    if arguments.json:
        print(json.dumps({"version": 1, "placement": arguments.placement, "steps": ended}))
    return 1 if any(step["failures"] for step in ended.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
