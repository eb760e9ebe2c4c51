"""The steps that can run on two machines."""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm

from ci.eri import micro
from ci.eri.install import install
from ci.eri.pair import ON_LINKS, Failed, Pair, Stack
from ci.eri.preflight import check
from ci.eri.profile import profile
from ci.eri.programs import DEPLOYMENTS, Run, deploy
from ci.eri.record import Record
from ci.eri.scale import Scale

T = TypeVar("T")

#: Of the step `figures`: `verbs` is the device alone.
PROGRAMS = ("rstream", *DEPLOYMENTS, "verbs")


@dataclasses.dataclass(frozen=True)
class Kit:
    """The arguments of the steps."""

    pair: Pair
    scale: Scale
    arguments: argparse.Namespace

    @property
    def settings(self) -> dict[str, str]:
        """The settings of the library."""
        given = dict(text.split("=", 1) for text in self.arguments.env)
        return {**ON_LINKS, **given}

    @property
    def netacc(self) -> Stack:
        return Stack.netacc(self.pair.binaries, **self.settings)


def log(text: str) -> None:
    """Prints a line above the bar of progress."""
    tqdm.write(text, file=sys.stderr)


def steadily(what: str, items: Iterable[T], unit: str) -> Iterator[T]:
    """The items, with a bar of progress on a terminal."""
    return iter(tqdm(list(items), desc=what, unit=unit, disable=None, leave=False, file=sys.stderr))


def redis(kit: Kit, record: Record) -> None:
    """The original's comparison, in turns. Its server saved to disk on one side only: here on neither."""
    stacks = (Stack.tcp(), kit.netacc)
    comparison, count = kit.scale.comparison, kit.scale.redis_rounds
    rounds: list[dict[str, dict[str, float]]] = [{} for _ in range(count)]
    shares: list[float] = []
    record.measured["params"] = dataclasses.asdict(comparison) | {"rounds": count}
    record.figures |= {
        "commands": {stack.name: comparison.commands(kit.pair, stack) for stack in stacks},
        "rounds": rounds,
        "link_share": shares,
    }
    for number, stack in steadily("redis", [(i, s) for i in range(count) for s in stacks], "run"):
        try:
            with kit.pair.watched(1) as watch:
                found = comparison.run(Run(kit.pair, stack, kit.scale.size))
            rounds[number][stack.name] = found
            if stack.name == "netacc":
                shares.append(round(watch.share(), 3))
            log(f"redis, round {number + 1}, {stack.name}: {found['set_per_s']:.0f} SET/s")
        except Failed as failure:
            record.failures[f"round {number + 1}, {stack.name}"] = str(failure)
        finally:
            kit.pair.end()
    whole = [of for of in rounds if len(of) == len(stacks)]
    ratios = sorted(of["netacc"]["set_per_s"] / of["tcp"]["set_per_s"] for of in whole)
    if ratios:
        record.figures["set_ratio_to_tcp"] = {"median": ratios[len(ratios) // 2], "all": ratios}


def latency(kit: Kit, record: Record) -> None:
    """`ib_write_lat` as in the deployment-set document, 64 bytes with perftest, and on all paths of ours."""
    scale = kit.scale
    record.measured["params"] = {
        "sizes": "2 to 8388608",
        "round_trips_of_each_size": scale.all_sizes_round_trips,
        "bytes": 64,
        "perftest_round_trips": scale.perftest_round_trips,
        "round_trips": scale.lat_round_trips,
    }
    # They often have no end on an emulated machine.
    tools = record.remarks if kit.arguments.emulated else record.failures
    parts = steadily("latency", ("all sizes", "perftest", "netacc lat"), "tool")
    for part in parts:
        try:
            if part == "all sizes":
                number = ("-n", str(scale.all_sizes_round_trips))
                found = micro.all_sizes(kit.pair, number, scale.all_sizes_seconds)
                record.figures["ib_write_lat_us"] = found
            elif part == "perftest":
                figures, failures = micro.verbs(kit.pair, micro.latency(scale.perftest_round_trips))
                record.figures["verbs"] = figures
                tools |= failures
            else:
                for path in micro.netacc_lat(kit.pair, micro.PATHS, scale.lat_round_trips):
                    record.latencies(path.name, path.pairs, **path.more)
        except Failed as failure:
            (record.failures if part == "netacc lat" else tools)[part] = str(failure)


def polled(kit: Kit, record: Record) -> None:
    """64 bytes there and back, both ends polling: the stack's addition to the device."""
    count, round_trips = kit.scale.turns, kit.scale.polled_round_trips
    record.measured["params"] = {"bytes": 64, "round_trips": round_trips, "turns": count}
    tools = record.remarks if kit.arguments.emulated else record.failures
    turns = micro.Polled(round_trips)
    for number in steadily("polled", range(count), "turn"):
        try:
            turns.perftest(kit.pair)
        except Failed as failure:
            tools[f"turn {number + 1}, ib_send_lat"] = str(failure)
        try:
            turns.netacc(kit.pair)
        except Failed as failure:
            record.failures[f"turn {number + 1}, netacc lat"] = str(failure)
    record.figures |= turns.figures()
    for name, pairs in turns.pairs.items():
        record.latencies(name, pairs)


def figures(kit: Kit, record: Record) -> None:
    """Every program and rstream on kernel TCP, under rsockets, and ours; and the device alone."""
    size, count = kit.scale.size, kit.scale.rstream_turns
    record.measured["params"] = dataclasses.asdict(size) | {
        "rstream_turns": count,
        "rstream_round_trips": kit.scale.rstream_round_trips,
    }
    stacks = {stack.name: stack for stack in (Stack.tcp(), Stack.rsockets(), kit.netacc)}
    chosen = kit.arguments.programs or PROGRAMS
    record.figures |= {stack: {"rstream": {}, "rstream_turns": [], "programs": {}} for stack in stacks}
    # Stacks that are compared by their ratio take turns.
    turns = [(stack, "rstream") for _ in range(count) for stack in stacks if "rstream" in chosen]
    turns += [(stack, name) for stack in stacks for name in chosen if name not in ("rstream", "verbs")]
    turns += [("verbs", name) for name in chosen if name == "verbs"]
    for stack, name in steadily("figures", turns, "program"):
        # An operation that rsockets cannot do is a finding; with the others it is a failure.
        problems = record.remarks if stack == "rsockets" else record.failures
        if name == "verbs":
            alone, failures = micro.verbs(
                kit.pair, micro.latency(kit.scale.perftest_round_trips) + micro.BANDWIDTH
            )
            record.figures["verbs"] = {"rstream": alone}
            tools = record.remarks if kit.arguments.emulated else record.failures
            tools |= {f"verbs, {tool}": failure for tool, failure in failures.items()}
        elif name == "rstream":
            try:
                found = record.figures[stack]
                turn = micro.sockets(kit.pair, stacks[stack], kit.scale.rstream_round_trips)
                found["rstream_turns"].append(turn)
                found["rstream"] = micro.medians(found["rstream_turns"])
            except Failed as failure:
                problems[f"{stack}, rstream"] = str(failure)
        else:
            outcome = deploy(name, Run(kit.pair, stacks[stack], size))
            record.figures[stack]["programs"][name] = dataclasses.asdict(outcome)
            log(f"{stack} {name}: {'works' if outcome.works else outcome.failure[:200]}")
            if not outcome.works:
                problems[f"{stack}, {name}"] = outcome.failure


def properties(kit: Kit, record: Record) -> None:
    """Generated programs on both machines: `python -m netacc_lab`."""
    record.measured["params"] = {"seeds": kit.arguments.seeds}
    hosts = []
    for host in kit.pair.hosts:
        addresses = ",".join(filter(None, (host.address, host.address6)))
        hosts += ["--host", f"{shlex.join(host.reach)}={addresses}"]
        hosts += ["--host-shell"] * (host.quoted and "--host-shell" not in hosts)
    for name, value in kit.settings.items():
        hosts += ["--env", f"{name}={value}"]
    report = kit.arguments.results / ".properties-counts.json"
    report.unlink(missing_ok=True)
    emulated = ("--slowness", "10", "--settle-ms", "15") if kit.arguments.emulated else ()
    command = [sys.executable, "-m", "netacc_lab", "--binaries", str(kit.arguments.local_binaries), *hosts]
    command += ["--host-binaries", str(kit.pair.binaries), *emulated, "run", "--seeds", kit.arguments.seeds]
    ran = subprocess.run([*command, "--json", str(report)], capture_output=True, text=True, check=False)
    if not report.exists():
        output = ran.stderr.strip()[-2000:]
        raise Failed(f"python -m netacc_lab ended with status {ran.returncode}: {output}")
    record.figures |= {"said": ran.stdout.strip(), "counts": json.loads(report.read_text())}
    report.unlink()
    if ran.returncode:
        record.failures["programs"] = (
            f"some behave differently than on kernel TCP: {ran.stdout.strip()[-2000:]}"
        )


def preflight(kit: Kit, record: Record) -> None:
    """Checks that the machines have the prerequisites and reach each other. Fails with a list of the rest."""
    check(kit.pair, kit.arguments, record)


def profiles(kit: Kit, record: Record) -> None:
    """What verbs say of the devices, and what these do where the contract of verbs leaves a choice."""
    profile(kit.pair, kit.arguments.local_binaries, record)


def installation(kit: Kit, record: Record) -> None:
    """Installs packages and our programs."""
    install(kit.pair, kit.arguments.local_binaries, record, packages=not kit.arguments.no_packages)


#: All steps, in this order. `install` runs only if it is named.
STEPS: dict[str, Callable[[Kit, Record], None]] = {
    "install": installation,
    "preflight": preflight,
    "profile": profiles,
    "redis": redis,
    "latency": latency,
    "polled": polled,
    "properties": properties,
    "figures": figures,
}
