"""The NICs' messages beside the HPCC authors' simulator: speed, memory, completion times, losses.

    python -m tests.sim.hpcc TREE            # a built tree of alibaba-edu/High-Precision-Congestion-Control
    python -m tests.sim.hpcc TREE star loss  # only these

The same flows on the same network in both, one process each, in turns. That simulator replays flows and has
neither sockets nor hosts' costs; so what runs here are bare messages (`rnic-incast`), not the core. What
differs all the same is in `BOTH`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAYLOAD = 1000
#: Their frame: payload, PPP 14, IP 20, UDP 8, sequence and priority 6. Ours is all that a link carries, and
#: has a RETH in the first one.
THEIR_FRAME, OUR_FRAME, OUR_RETH = PAYLOAD + 48, PAYLOAD + 82, 16
THEIR_ACK = 60
RATE_BPS, DELAY_NS = 100_000_000_000, 500
MOST_SECONDS = 600

BOTH = f"""\
100 Gbit/s and 500 ns a link, {PAYLOAD} bytes of payload a packet, each acknowledged. Theirs is ns-3.17 with
`ns3::Packet`, a frame of {THEIR_FRAME} bytes and pause thresholds of a shared buffer; ours {OUR_FRAME} bytes
({OUR_FRAME + OUR_RETH} with a write's address), thresholds fixed where theirs are when all senders wait.
Packets are those of payload, once each. A flow ends there when its last acknowledgement is back, here when
its last byte is in memory."""


@dataclass(frozen=True)
class Load:
    """Flows that begin together, and their network."""

    name: str
    what: str
    senders: int
    bytes: int
    #: Of each sender.
    flows: int = 1
    #: Leaves and as many spines; 0 for a star. With leaves each node sends to the one half the network away.
    leaves: int = 0
    loss_ppm: int = 0
    dcqcn: bool = False

    @property
    def count(self) -> int:
        """Flows."""
        return self.senders * self.flows

    @property
    def packets(self) -> int:
        """Of payload, if nothing is sent twice."""
        return self.count * -(-self.bytes // PAYLOAD)

    @property
    def nodes(self) -> int:
        """Hosts: the senders, and a receiver where there is one for all."""
        return self.senders if self.leaves else self.senders + 1

    def pairs(self) -> list[tuple[int, int]]:
        """Sender and receiver of each flow."""
        half = self.nodes // 2
        each = [(i, (i + half) % self.nodes if self.leaves else self.senders) for i in range(self.senders)]
        return [pair for pair in each for _ in range(self.flows)]


LOADS = [
    Load("one", "one sender, 20 MB", 1, 20_000_000),
    Load("star", "16 senders, one receiver, 2 MB each", 16, 2_000_000),
    Load("leaves", "64 hosts, 8 leaves and 8 spines, each 1 MB to another leaf", 64, 1_000_000, leaves=8),
    Load("dcqcn", "16 senders, one receiver, 4 MB each, DCQCN", 16, 4_000_000, dcqcn=True),
    Load(
        "loss",
        "16 senders, 320 times 10 kB each, 0.1 % lost on each link",
        16,
        10_000,
        flows=320,
        loss_ppm=1000,
    ),
]


@dataclass(frozen=True)
class Run:
    """Time and memory of one process, and the ends of its flows."""

    processor_s: float
    wall_s: float
    peak_kib: int
    #: Nanoseconds, sorted; only of those that ended.
    ends: tuple[int, ...]


def _measured(command: list[str], ok: tuple[int, ...], **environment: str) -> tuple[str, float, float, int]:
    """Output, seconds of the processor and of the clock, peak memory."""
    with tempfile.TemporaryFile("w+") as out:
        begun = time.monotonic()
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, env=os.environ | environment
        )
        timer = threading.Timer(MOST_SECONDS, process.kill)
        timer.start()
        # Not `wait`: only this reports the time of the process itself.
        _, status, usage = os.wait4(process.pid, 0)
        timer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        wall = time.monotonic() - begun
        out.seek(0)
        text = out.read()
    if process.returncode not in ok:
        raise SystemExit(f"{command[0]} ended with {process.returncode} after {wall:.0f} s:\n{text[-2000:]}")
    return text, usage.ru_utime + usage.ru_stime, wall, usage.ru_maxrss


def write_inputs(load: Load, folder: Path) -> Path:
    """The inputs of their program: network, flows, and a configuration that names both."""
    switch = load.nodes
    if load.leaves:
        each = load.nodes // load.leaves
        links = [(switch + i // each, i) for i in range(load.nodes)]
        spines = range(switch + load.leaves, switch + 2 * load.leaves)
        links += [(switch + leaf, spine) for leaf in range(load.leaves) for spine in spines]
    else:
        links = [(switch, i) for i in range(load.nodes)]
    switches = range(switch, switch + max(1, 2 * load.leaves))
    lines = [f"{a} {b} {RATE_BPS}bps {DELAY_NS / 1e6}ms {load.loss_ppm / 1e6}" for a, b in links]
    head = [f"{load.nodes + len(switches)} {len(switches)} {len(links)}", " ".join(map(str, switches))]
    (folder / "topology.txt").write_text("\n".join([*head, *lines, ""]))
    flows = [f"{a} {b} 3 {number % 50000 + 100} {load.bytes} 2" for number, (a, b) in enumerate(load.pairs())]
    (folder / "flows.txt").write_text("\n".join([str(load.count), *flows, ""]))
    (folder / "trace.txt").write_text("0\n")
    values = {
        "ENABLE_QCN": int(load.dcqcn),
        "USE_DYNAMIC_PFC_THRESHOLD": 1,
        "PACKET_PAYLOAD_SIZE": PAYLOAD,
        "TOPOLOGY_FILE": folder / "topology.txt",
        "FLOW_FILE": folder / "flows.txt",
        "TRACE_FILE": folder / "trace.txt",
        "TRACE_OUTPUT_FILE": folder / "trace.out",
        "FCT_OUTPUT_FILE": folder / "ends.txt",
        "PFC_OUTPUT_FILE": folder / "pauses.txt",
        # Flows begin at 2 s.
        "SIMULATOR_STOP_TIME": 4.0,
        # 0 is none; 1 is DCQCN, as their run.py sets it up for 100 Gbit/s.
        "CC_MODE": int(load.dcqcn),
        "ALPHA_RESUME_INTERVAL": 1,
        "RATE_DECREASE_INTERVAL": 4,
        "CLAMP_TARGET_RATE": 0,
        "RP_TIMER": 300,
        "EWMA_GAIN": 0.00390625,
        "FAST_RECOVERY_TIMES": 1,
        "RATE_AI": "20Mb/s",
        "RATE_HAI": "200Mb/s",
        "MIN_RATE": "100Mb/s",
        "ERROR_RATE_PER_LINK": 0,
        "L2_CHUNK_SIZE": 4000,
        "L2_ACK_INTERVAL": 1,
        "L2_BACK_TO_ZERO": 0,
        "HAS_WIN": 0,
        "VAR_WIN": 0,
        "RATE_BOUND": 1,
        "ACK_HIGH_PRIO": 1,
        "LINK_DOWN": "0 0 0",
        "ENABLE_TRACE": 0,
        "KMAX_MAP": f"1 {RATE_BPS} 1600",
        "KMIN_MAP": f"1 {RATE_BPS} 400",
        "PMAX_MAP": f"1 {RATE_BPS} 0.2",
        # MiB: so little that senders are paused; with DCQCN so much that it is left to that.
        "BUFFER_SIZE": 32 if load.dcqcn else 2,
        "QLEN_MON_FILE": folder / "queues.txt",
        "QLEN_MON_START": 2_000_000_000,
        "QLEN_MON_END": 2_000_000_001,
    }
    config = folder / "config.txt"
    config.write_text("".join(f"{key} {value}\n" for key, value in values.items()))
    return config


def read_ends(text: str) -> tuple[int, ...]:
    """How long flows took, from their program's table: addresses, ports, bytes, start, and then that."""
    return tuple(sorted(int(line.split()[6]) for line in text.splitlines()))


def theirs(load: Load, tree: Path) -> Run:
    """One run of their program."""
    build = tree / "build"
    with tempfile.TemporaryDirectory() as name:
        config = write_inputs(load, Path(name))
        command = [str(build / "scratch/third"), str(config)]
        _, processor, wall, peak = _measured(command, (0,), LD_LIBRARY_PATH=str(build))
        return Run(processor, wall, peak, read_ends((Path(name) / "ends.txt").read_text()))


def ours(load: Load) -> Run:
    """One run of `rnic-incast`."""
    command = [
        str(ROOT / "target/ns3/rnic-incast"),
        f"--senders={load.senders}",
        f"--flows={load.flows}",
        f"--bytes={load.bytes}",
        f"--mtu={PAYLOAD}",
        "--acks=1",
        "--ends=1",
        "--pfc=1",
        "--buffer=33554432",
        f"--loss={load.loss_ppm}",
    ]
    if load.leaves:
        command += ["--permutation=1", f"--leaves={load.leaves}", f"--spines={load.leaves}"]
    if load.dcqcn:
        switch = {"EcnMinBytes": 400_000, "EcnMaxBytes": 1_600_000, "EcnProbabilityPpm": 200_000}
        switch["PfcXoffBytes"] = 1 << 22
        # Their senders cut their rates at most once in 4 us, however often they are notified.
        command += ["--rate=dcqcn-hpcc", "--ecn=1", "--ns3::RnicFleet::NotificationInterval=4us"]
    else:
        # An eighth of the bytes that 16 such leave free of 2 MiB less headroom: their threshold.
        switch = {"PfcXoffBytes": 71_000, "PfcXonBytes": 68_000}
    command += [f"--ns3::RnicSwitch::{name}={value}" for name, value in switch.items()]
    # 1: not all flows were delivered, which the table shows.
    text, processor, wall, peak = _measured(command, (0, 1))
    return Run(processor, wall, peak, tuple(sorted(end for end in json.loads(text)["ends_ns"] if end > 0)))


def closed_form_ns(load: Load) -> tuple[float, float] | None:
    """When the last flow ends, theirs and ours, where that is known: one queue that never runs empty."""
    if load.leaves or load.dcqcn or load.loss_ppm:
        return None
    byte_ns = 8e9 / RATE_BPS
    # To the switch, through the queue, and back to the sender.
    their = (load.packets + 1) * THEIR_FRAME * byte_ns + 2 * THEIR_ACK * byte_ns + 4 * DELAY_NS
    our = (load.packets * OUR_FRAME + load.count * OUR_RETH + OUR_FRAME + OUR_RETH) * byte_ns + 2 * DELAY_NS
    return their, our


def _spread(values: list[float], form: str) -> str:
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def row(load: Load, who: str, runs: list[Run], expected_ns: float | None) -> str:
    """A line of the table."""
    ends = runs[0].ends
    last = f"{ends[-1] / 1000:,.1f} us" if ends else "-"
    peaks = [run.peak_kib / 1024 for run in runs]
    # The kernel counts the memory that a process had before it became another program: this one's.
    floor_mib = math.ceil(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    known = "-" if expected_ns is None else f"{expected_ns / 1000:,.1f} us"
    cells = [
        load.what,
        who,
        _spread([load.packets / run.processor_s / 1000 for run in runs], ".0f"),
        _spread([load.packets / run.wall_s / 1000 for run in runs], ".0f"),
        f"under {floor_mib:.0f}" if max(peaks) <= floor_mib else _spread(peaks, ".0f"),
        f"{len(ends):,} of {load.count:,}",
        f"{statistics.median(ends) / 1000:,.1f} us" if ends else "-",
        last,
        known,
        "yes" if all(run.ends == ends for run in runs) else "NO",
    ]
    return "| " + " | ".join(cells) + " |"


def main(arguments: list[str]) -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim.hpcc")
    parser.add_argument("tree", type=Path, help="a built tree: it has build/scratch/third")
    parser.add_argument("loads", nargs="*", help=f"only these of {', '.join(load.name for load in LOADS)}")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each, in turns")
    options = parser.parse_intermixed_args(arguments)
    trees = [
        tree
        for tree in (options.tree, options.tree / "simulation")
        if (tree / "build/scratch/third").exists()
    ]
    if not trees:
        parser.error(f"{options.tree} has no build/scratch/third: it is to be built first")
    unknown = set(options.loads) - {load.name for load in LOADS}
    if unknown or options.rounds < 1:
        parser.error(f"no such load: {', '.join(sorted(unknown))}" if unknown else "at least one round")
    loads = [load for load in LOADS if not options.loads or load.name in options.loads]
    sides: dict[str, Callable[[Load], Run]] = {"theirs": lambda load: theirs(load, trees[0]), "ours": ours}
    runs: dict[tuple[str, str], list[Run]] = {(load.name, who): [] for load in loads for who in sides}
    for turn in range(options.rounds):
        for load in loads:
            print(f"round {turn + 1}: {load.what}", file=sys.stderr, flush=True)
            for who, run in sides.items():
                runs[load.name, who].append(run(load))
    print(BOTH)
    print(
        "\n| flows | who | thousand packets a processor second | a second | peak MiB | ended | half by "
        "| last | known | same each time |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for load in loads:
        expected = closed_form_ns(load) or (None, None)
        for who, known in zip(sides, expected, strict=True):
            print(row(load, who, runs[load.name, who], known))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
