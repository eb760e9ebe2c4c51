"""`python -m ci.eri HOST1 HOST2`: what two machines with RDMA devices can tell, into one folder."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ci.eri import micro
from ci.eri.pair import Failed, Host, Pair, Stack
from ci.eri.programs import DEPLOYMENTS, Comparison, Run, Size, deploy
from ci.eri.report import table

#: Programs that the steps need, on both machines.
NEEDED = (
    *("redis-server", "redis-cli", "redis-benchmark", "memcached", "memcslap", "nginx", "wrk", "curl"),
    *("rstream", "ib_send_lat", "ib_write_lat", "ib_send_bw", "pkill", "setpriv"),
)
ROUNDS = 3
TURNS = 7

Step = Callable[["Kit"], dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Kit:
    """What the steps are given."""

    pair: Pair
    size: Size
    comparison: Comparison
    arguments: argparse.Namespace

    @property
    def netacc(self) -> Stack:
        settings = dict(text.split("=", 1) for text in self.arguments.env)
        return Stack.netacc(self.pair.binaries, **settings)


def preflight(kit: Kit) -> dict[str, Any]:
    """Whether the machines have what is needed. Fails with all that is missing."""
    found: dict[str, Any] = {}
    missing = []
    for number in (1, 2):
        script = 'for p; do command -v "$p" >/dev/null || echo "$p"; done'
        binaries = [
            str(kit.pair.binaries / name) for name in ("netacc", "netacc_run", "netacc_ss", "netacc-exec")
        ]
        lacks = kit.pair.out(number, "sh", "-c", script, "sh", *NEEDED, *binaries).split()
        missing += [f"host {number}: {name}" for name in lacks]
        devices = kit.pair.run(number, "sh", "-c", "ls /sys/class/infiniband").stdout.split()
        if not devices:
            missing.append(f"host {number}: no RDMA device in /sys/class/infiniband")
        memlock = kit.pair.out(number, "sh", "-c", "ulimit -l").strip()
        doctor = kit.pair.run(number, str(kit.pair.binaries / "netacc"), "doctor")
        found[f"host{number}"] = {"devices": devices, "memlock": memlock, "doctor": doctor.stdout.strip()}
    if missing:
        raise Failed("; ".join(missing))
    return found


def redis(kit: Kit) -> dict[str, Any]:
    """The original's comparison, in turns. Its server saved to disk on one side only: here on neither."""
    stacks = (Stack.tcp(), kit.netacc)
    rounds: dict[str, list[dict[str, float]]] = {"tcp": [], "netacc": []}
    shares = []
    for _ in range(ROUNDS):
        for stack in stacks:
            try:
                with kit.pair.watched(1) as watch:
                    rounds[stack.name].append(kit.comparison.run(Run(kit.pair, stack, kit.size)))
                shares += [round(watch.share(), 3)] if stack.name == "netacc" else []
            finally:
                kit.pair.end()
    pairs = zip(rounds["netacc"], rounds["tcp"], strict=True)
    ratios = sorted(ours["set_per_s"] / theirs["set_per_s"] for ours, theirs in pairs)
    return {
        "commands": {stack.name: kit.comparison.commands(kit.pair, stack) for stack in stacks},
        "rounds": rounds,
        "link_share": shares,
        "set_ratio_to_tcp": {"median": ratios[len(ratios) // 2], "all": ratios},
    }


def latency(kit: Kit) -> dict[str, Any]:
    """`ib_write_lat` as in the deployment-set document, and 64 bytes. `--placement` says where they stand."""
    # Of each size up to 8 MiB a thousand, which takes an emulated machine an hour.
    few = ("-n", "5") if kit.arguments.emulated else ()
    command = ["ib_write_lat", "-R", "-a", "-F", *few]
    verbs, failures = micro.verbs(kit.pair, micro.LATENCY)
    try:
        raw = micro.both(kit.pair, command, [*command, kit.pair.address(1)], seconds=300)
    except Failed as failure:
        raw, failures["ib_write_lat -a"] = "", str(failure)
    return {
        "placement": kit.arguments.placement,
        "verbs": verbs,
        "ib_write_lat": raw,
        "failures": failures,
    }


def polled(kit: Kit) -> dict[str, Any]:
    """64 bytes there and back, both ends polling: what the stack adds to the device."""
    return micro.polled(kit.pair, TURNS)


def figures(kit: Kit) -> dict[str, Any]:
    """Every program and rstream on kernel TCP, under rsockets, and ours."""
    paths: dict[str, Any] = {}
    for stack in (Stack.tcp(), Stack.rsockets(), kit.netacc):
        try:
            plain: dict[str, Any] = dict(micro.sockets(kit.pair, stack))
        except Failed as failure:
            plain = {"failure": str(failure)}
        programs = {}
        for name in kit.arguments.programs or DEPLOYMENTS:
            outcome = deploy(name, Run(kit.pair, stack, kit.size))
            print(
                f"{stack.name} {name}: {'works' if outcome.works else outcome.failure[:200]}", file=sys.stderr
            )
            programs[name] = dataclasses.asdict(outcome)
        paths[stack.name] = {"rstream": plain, "programs": programs}
    verbs, failures = micro.verbs(kit.pair, micro.LATENCY + micro.BANDWIDTH)
    paths["verbs"] = {"rstream": verbs, "failures": failures}
    return paths


def properties(kit: Kit) -> dict[str, Any]:
    """Generated programs on both machines: `python -m netacc_lab`."""
    hosts = []
    for host in kit.pair.hosts:
        addresses = ",".join(filter(None, (host.address, host.address6)))
        hosts += ["--host", f"{shlex.join(host.reach)}={addresses}"]
        hosts += ["--host-shell"] * (host.quoted and "--host-shell" not in hosts)
    for setting in ("NACC_PATH_CHOICE=link", *kit.arguments.env):
        hosts += ["--env", setting]
    report = kit.arguments.results / "properties-counts.json"
    report.unlink(missing_ok=True)
    emulated = ("--slowness", "10", "--settle-ms", "15") if kit.arguments.emulated else ()
    command = [sys.executable, "-m", "netacc_lab", "--binaries", str(kit.arguments.local_binaries), *hosts]
    command += ["--host-binaries", str(kit.pair.binaries), *emulated, "run", "--seeds", kit.arguments.seeds]
    ran = subprocess.run([*command, "--json", str(report)], capture_output=True, text=True, check=False)
    if not report.exists():
        raise Failed(f"python -m netacc_lab ended with status {ran.returncode}: {ran.stderr.strip()[-2000:]}")
    return {"status": ran.returncode, "said": ran.stdout.strip(), "counts": json.loads(report.read_text())}


STEPS: dict[str, Step] = {
    "preflight": preflight,
    "redis": redis,
    "latency": latency,
    "polled": polled,
    "properties": properties,
    "figures": figures,
}


def machine(pair: Pair, *, emulated: bool) -> dict[str, Any]:
    def of(host: int, *command: str) -> str:
        return pair.run(host, *command).stdout.strip()

    cpu = of(1, "sh", "-c", "sed -n 's/^model name.*: //p' /proc/cpuinfo | head -1")
    return {
        "cpu": cpu,
        "cores": int(of(1, "nproc") or 0),
        "kernel": of(1, "uname", "-r"),
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "loadavg": [float(n) for n in of(1, "cat", "/proc/loadavg").split()[:3]],
        "hosts": 2,
        "emulated": emulated,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m ci.eri", description=__doc__)
    parser.add_argument("hosts", nargs=2, metavar="HOST", help="names for ssh; with --reach, of any kind")
    parser.add_argument("--ssh", default="ssh -o BatchMode=yes", help="how a host is reached")
    parser.add_argument("--reach", nargs=2, metavar="COMMAND", help="runs the words after it there, unquoted")
    parser.add_argument(
        "--addresses", nargs=2, required=True, metavar="A[,A6]", help="of their RDMA interfaces"
    )
    parser.add_argument("--binaries", type=Path, default=Path("/usr/local/bin"), help="ours, on the hosts")
    parser.add_argument("--local-binaries", type=Path, default=Path("target/release"), help="ours, here")
    parser.add_argument("--results", type=Path, default=Path("results/local/eri"))
    parser.add_argument("--steps", nargs="+", choices=list(STEPS), default=list(STEPS))
    parser.add_argument("--programs", nargs="+", choices=list(DEPLOYMENTS), help="of the step figures")
    parser.add_argument("--placement", default="unknown", help="for the record: low-latency, none ...")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="for netacc_run")
    parser.add_argument("--seeds", default="0..200", help="of the generated programs")
    parser.add_argument("--emulated", action="store_true", help="the machines are slow: ask little")
    arguments = parser.parse_args()
    hosts = []
    for number, (name, addresses) in enumerate(zip(arguments.hosts, arguments.addresses, strict=True)):
        address, _, address6 = addresses.partition(",")
        far = arguments.reach[number] if arguments.reach else f"{arguments.ssh} {name}"
        hosts.append(Host(tuple(shlex.split(far)), address, address6, quoted=not arguments.reach))
    pair = Pair((hosts[0], hosts[1]), arguments.binaries, seconds=40 if arguments.emulated else 30)
    size = Size.small() if arguments.emulated else Size()
    comparison = Comparison.small() if arguments.emulated else Comparison()
    kit = Kit(pair, size, comparison, arguments)
    arguments.results.mkdir(parents=True, exist_ok=True)
    status = 0
    for name in arguments.steps:
        print(f"==> {name}", file=sys.stderr)
        document: dict[str, Any] = {
            "bench": "pair",
            "test": name,
            "params": dataclasses.asdict(size) | {"placement": arguments.placement, "env": arguments.env},
            "machine": machine(pair, emulated=arguments.emulated),
        }
        try:
            document["paths"] = STEPS[name](kit)
            for tool, failure in document["paths"].get("failures", {}).items():
                # They spin on processors that an emulated device needs for itself, and may then not end.
                print(f"{name}: {tool}: {failure}", file=sys.stderr)
                status = status if arguments.emulated else 1
        except Failed as failure:
            document["failure"] = str(failure)
            print(f"{name}: {failure}", file=sys.stderr)
            status = 1
        finally:
            pair.end()
        (arguments.results / f"{name}.json").write_text(json.dumps(document, indent=1) + "\n")
        if name == "figures" and "paths" in document:
            print(table(document))
        if name == "preflight" and status:
            break
    return status


if __name__ == "__main__":
    sys.exit(main())
