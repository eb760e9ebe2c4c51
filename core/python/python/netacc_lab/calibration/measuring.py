"""Measurements of this machine, by `netacc bench`: what a calibration is fitted on."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from netacc_lab.calibration.fitting import MOSTLY, SMALL
from netacc_lab.sim import paths as checkout

#: The paths that can be measured.
PATHS = ("tcp", "udp", "unix", "shm")
#: One measurement of one path, as `netacc bench` writes it.
Run = Mapping[str, Any]
#: Of ping-pongs that mostly sleep: the part of the most sleeps with which threads were apart.
ASLEEP = 0.97
#: The paths on which the library polls before it sleeps.
LINKED = ("shm",)
#: Noise by its name in the measurements, and the work of the threads that are watched. Earlier measurements
#: have the first alone.
NOISES = {"noise": "clock", "noise-tcp": "tcp"}


@dataclass(frozen=True)
class Echo:
    """A ping-pong."""

    clients: int
    size: int
    #: The library polls before it sleeps. Else processor time tells what the work takes.
    spin: bool = False
    #: The client watches each connection anew after each message.
    rewatch: bool = False

    @staticmethod
    def of(kept: Mapping[str, Any]) -> Echo:
        """The ping-pong of a measurement that was kept."""
        rest = (bool(kept.get(name)) for name in ("spin", "rewatch"))
        return Echo(int(kept["clients"]), int(kept["size"]), *rest)

    def arguments(self) -> list[str]:
        """Of `netacc bench echo`."""
        options = [(not self.spin, "--no-spin"), (self.rewatch, "--rewatch")]
        chosen = [option for wanted, option in options if wanted]
        size, clients = str(self.size), str(self.clients)
        return ["--mode", "epoll", "--size", size, "--clients", clients, "--histogram", *chosen]


#: The ping-pong that wake-ups are fitted on. Its client watches its connection anew each time, so that the
#: kernel has memory to free soon and keeps the timer's tick also on idle processors, as it does for programs
#: with timers. A processor whose tick is stopped takes longer to sleep and to wake: on a virtual machine 5 us
#: of a sleep, 55 in place of 45 us of a round trip.
ALONE = Echo(1, SMALL, rewatch=True)
#: The ping-pongs.
ECHOES = (
    *(ALONE, Echo(1, 16384, rewatch=True), Echo(1, SMALL, spin=True)),
    *(Echo(clients, SMALL) for clients in (4, 10, 50, 200, 500, 1000)),
    *(Echo(50, 4096), Echo(50, 16384)),
)
#: Bytes of datagrams in flight, at most: more may find a buffer full, and a lost one ends a ping-pong.
MOST_DATAGRAMS = 32 * 1024
#: Of programs on links between hosts: long enough that both ends spin through a round trip in emulation.
POLL_MS = 1000
#: How long a look at the processors takes, and how much slower they may be in a measurement than in the best
#: one so far. The latter is half of what was seen where other machines had the cores, too.
LOOK_SECONDS, SLOWER = 0.01, 1.2
#: The part that round trips of a cache line may differ by while the processors are as far apart as they were.
#: Between hardware threads of a core, cores with a common cache, and others it is 3 to 8 times as much.
APART = 1.5
#: How many times the wanted rounds are made at most until one distance has all measurements.
LONGER = 3
#: Processors that other work may keep busy meanwhile. Arbitrary.
BUSY = 0.2
#: How often a slow measurement is made at most, and how many of a calibration are made again: on a machine
#: that always has other work no attempt helps. Arbitrary.
ATTEMPTS, AGAIN = 4, 30
#: Of the measurements' file.
FORMAT = 1


class MeasuringError(Exception):
    """A measurement that could not be made, or read."""


def program() -> Path:
    """`netacc`: `NETACC_PROGRAM` (set by itself), or of `NETACC_BIN_DIR`, the checkout or PATH."""
    named = os.environ.get("NETACC_PROGRAM")
    if named:
        return Path(named)
    folder = os.environ.get("NETACC_BIN_DIR")
    built = (Path(folder) if folder else checkout.root() / "target/release") / "netacc"
    found = built if built.exists() else shutil.which("netacc")
    if found is None:
        raise MeasuringError("there is no netacc program: `make build` makes it")
    return Path(found)


def bench(*arguments: str) -> dict[str, Any]:
    """The result of one `netacc bench`."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        command = [str(program()), "bench", *arguments, "--json", str(out)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            raise MeasuringError(f"{command[0]}: {error.strerror}") from None
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines() or ["no message"]
            raise MeasuringError(f"netacc bench {arguments[0]}: {lines[-1]}")
        found: dict[str, Any] = json.loads(out.read_text())
        return found


@dataclass(frozen=True)
class Look:
    """The processors at a moment."""

    #: Nanoseconds of a copy within the first cache, on the slowest one.
    copy: float
    #: Nanoseconds of a cache line's round trip, between the two that are furthest apart; 0 of a single one.
    transfer: float

    def is_as_far_apart(self, other: Look) -> bool:
        """The processors are where they were."""
        least, most = sorted((self.transfer, other.transfer))
        return most <= APART * least


class Pace:
    """Measurements while the processors are as fast as ever, without other work, and stay where they are.

    A virtual machine may have one of a core's two hardware threads: while another machine works on the other
    one, everything here takes 1.2 to 1.4 times as long, for seconds to minutes. And its processors move: two
    of them are hardware threads of one core for some minutes, and of distant cores for others. Two
    processes take 1.2 times (TCP) to 2.2 times (shared memory) as long for each other's messages then, so all
    that is compared must be measured at the same distance. Copies and round trips of a cache line tell both,
    and no figure of the operating system does.
    """

    def __init__(self) -> None:
        self._least = math.inf
        self._again = AGAIN

    def _look(self) -> Look:
        processors = bench("noise", "--seconds", str(LOOK_SECONDS), "-q")["processors"]
        copy, transfer = (
            float(max(each[name] or 0.0 for each in processors)) for name in ("copy_ns", "transfer_ns")
        )
        self._least = min(self._least, copy)
        return Look(copy, transfer)

    def hold(self, measurement: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """A measurement at the best pace so far, in which no processor moved, if an attempt is one.

        `pace_ns` is its copy's time; `transfer_ns` of each of its runs that of a cache line's round trip.
        """
        for _ in range(ATTEMPTS):
            before = self._look()
            found = measurement()
            after = self._look()
            found["pace_ns"] = max(before.copy, after.copy)
            others = float(found["machine"]["busy_processors"] or 0.0)
            stayed = before.is_as_far_apart(after)
            if (stayed and found["pace_ns"] <= SLOWER * self._least and others <= BUSY) or self._again == 0:
                break
            self._again -= 1
        for path in found["paths"].values():
            for run in path["runs"]:
                run["transfer_ns"] = after.transfer
        return found


def at_one_distance(loads: Sequence[list[Any]]) -> float | None:
    """A cache line's round trip, in nanoseconds, near to which all loads have runs: of most runs.

    None if there is none. Each load is the list of its runs.
    """
    seen = sorted({run.get("transfer_ns", 0.0) for load in loads for run in load})
    whole = [each for each in seen if all(_near(load, each) for load in loads)]
    return max(whole, key=lambda each: sum(len(_near(load, each)) for load in loads), default=None)


def keep_near(loads: Sequence[list[Any]], transfer_ns: float) -> None:
    """Drops the runs that were measured at another distance."""
    for load in loads:
        load[:] = _near(load, transfer_ns)


def _near(load: Sequence[Any], transfer_ns: float) -> list[Any]:
    wanted = Look(0.0, transfer_ns)
    return [run for run in load if wanted.is_as_far_apart(Look(0.0, run.get("transfer_ns", 0.0)))]


def loads_of(measured: Mapping[str, Any]) -> list[list[Any]]:
    """The lists of runs that a calibration is fitted on."""
    of = [path for echo in measured["echoes"] for path in echo["paths"].values()]
    of += [path for name in ("stream", "wakes") for path in measured.get(name, {}).values()]
    return [path["runs"] for path in of]


def steps(wanted: Sequence[str], rounds: int) -> int:
    """How many measurements there are, if one distance has all of them after so many rounds."""
    return rounds * (_echoes(wanted) + 2 * bool(_streams(wanted))) + 1


def _echoes(wanted: Sequence[str]) -> int:
    return sum(bool(_able(wanted, echo)) for echo in ECHOES)


def measure(
    wanted: Sequence[str],
    *,
    seconds: float,
    rounds: int,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """All measurements at one distance of the processors; `progress` is called after each.

    More rounds are made until each measurement was made at that distance, up to `LONGER` times as many. If
    none has all by then, as on a busy machine, all are kept, and `transfer_ns` is missing.
    """
    pace = Pace()
    found: dict[str, Any] = {}
    distance = None
    for number in range(LONGER * rounds):
        merge(found, measure_once(wanted, seconds=seconds, number=number + 1, progress=progress, pace=pace))
        distance = at_one_distance(loads_of(found))
        if number + 1 >= rounds and distance is not None:
            break
    if distance is not None:
        keep_near(loads_of(found), distance)
        found["transfer_ns"] = distance
    found["wake"] = bench("wake", "--seconds", str(seconds))
    progress("wake-ups")
    return found


def measure_once(
    wanted: Sequence[str], *, seconds: float, number: int, progress: Callable[[str], None], pace: Pace
) -> dict[str, Any]:
    """One round of all measurements but that of wake-ups, which no distance changes; paths interleaved."""
    common = ["--pairs", "1", "--seconds", str(seconds), "-q", "--timeout", str(seconds + 30)]
    found: dict[str, Any] = {"format": FORMAT, "paths": list(wanted), "echoes": []}
    for echo in ECHOES:
        able = _able(wanted, echo)
        if not able:
            continue
        command = ["echo", "--paths", ",".join(able), *common, *echo.arguments()]
        result = pace.hold(lambda: bench(*command))  # noqa: B023 - it is called at once
        merge(found, _kept(echo, result, number))
        _watch(found, seconds)
        progress(f"ping-pong of {echo.size} B on {echo.clients}")
    streams = _streams(wanted)
    if streams:
        common += ["--paths", ",".join(streams), "--no-spin"]
        found["stream"] = pace.hold(lambda: bench("stream", *common, "--size", "64KiB"))["paths"]
        progress("a stream")
        alone = ["--mode", "epoll", "--size", str(SMALL), "--clients", "1", "--wakes"]
        found["wakes"] = pace.hold(lambda: bench("echo", *common, *alone))["paths"]
        progress("the two parts of wake-ups")
    return found


def _kept(echo: Echo, result: dict[str, Any], number: int) -> dict[str, Any]:
    """Measurements with nothing but one round of a ping-pong."""
    for of in result["paths"].values():
        for run in of["runs"]:
            run["round"] = number
    named = {name: result[name] for name in ("machine", "paths")}
    kept = {**asdict(echo), **named, "pace_ns": [result["pace_ns"]]}
    return {"machine": result["machine"], "echoes": [kept]}


def merge(found: dict[str, Any], more: dict[str, Any]) -> None:
    """Adds later measurements to earlier ones, or to none: runs of the same loads, and noise."""
    for name in ("format", "paths"):
        if name in more:
            found.setdefault(name, more[name])
    found.setdefault("echoes", [])
    machine = found.setdefault("machine", dict(more["machine"]))
    others = [each.get("busy_processors") or 0.0 for each in (machine, more["machine"])]
    machine["busy_processors"] = max(others)
    for echo in more["echoes"]:
        of = Echo.of(echo)
        known = next((each for each in found["echoes"] if Echo.of(each) == of), None)
        if known is None:
            found["echoes"].append(echo)
            continue
        known["pace_ns"] += echo["pace_ns"]
        for name, path in echo["paths"].items():
            known["paths"][name]["runs"] += path["runs"]
    for name in ("stream", "wakes"):
        for path, result in more.get(name, {}).items():
            runs = found.setdefault(name, {}).setdefault(path, result)
            if runs is not result:
                runs["runs"] += result["runs"]
    for name in NOISES:
        if name in more:
            noise = found.setdefault(name, {**more[name], "processors": []})
            noise["processors"] += more[name]["processors"]


def counted(runs: Sequence[Run]) -> Run:
    """The round of a ping-pong or load that counts: the fastest one.

    Virtual machines share caches and cores with others, so a round may take up to twice as long as another
    one, whatever runs here. The fastest one tells most about this machine. But where the server sleeps for
    most requests, a round in which it does so less often is one of threads that shared a processor at times.
    """
    sleeps = [float(run["waits"]["server_sleeps"]) for run in runs]
    least = ASLEEP * max(sleeps) if max(sleeps) > MOSTLY else 0.0
    alike = [run for run, count in zip(runs, sleeps, strict=True) if count >= least]
    return max(alike, key=lambda run: float(run["requests_per_s"]))


def _able(wanted: Sequence[str], echo: Echo) -> list[str]:
    """The paths that have such a ping-pong."""
    datagrams = echo.clients * echo.size <= MOST_DATAGRAMS
    return [path for path in wanted if (path != "udp" or datagrams) and (path in LINKED or not echo.spin)]


def _watch(found: dict[str, Any], seconds: float) -> None:
    """Noise, between other measurements: interruptions come and go for seconds, and one look sees either."""
    for name, work in NOISES.items():
        seen = bench("noise", "--work", work, "--seconds", str(seconds / 2), "-q")
        found.setdefault(name, {**seen, "processors": []})["processors"] += seen["processors"]


def _streams(wanted: Sequence[str]) -> list[str]:
    return [path for path in wanted if path != "udp"]


def between_hosts(
    peer: str, *, via: Sequence[str], device: str | None, count: int, rounds: int
) -> dict[str, Any]:
    """The costs of an RDMA device and of the library on it, with a peer that runs `netacc lat --serve`.

    `via` is what runs a command on the host that measures, if that is not this one.
    """
    command = [*via, str(program()), "lat", peer, "--costs", "--count", str(count), "--rounds", str(rounds)]
    command += ["--device", device] if device else []
    environment = dict(os.environ, NACC_POLL_MS=str(POLL_MS))
    if via:
        command[len(via) : len(via)] = ["env", f"NACC_POLL_MS={POLL_MS}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines() or ["no message"]
            raise MeasuringError(lines[-1])
        return {"format": FORMAT, "paths": [], "peer": peer, "costs": json.loads(done.stdout)}
    except OSError as error:
        raise MeasuringError(f"{command[0]}: {error.strerror}") from None
    except json.JSONDecodeError as error:
        raise MeasuringError(f"{' '.join(command)}: no JSON ({error})") from None


def read(file: Path) -> dict[str, Any]:
    """Measurements that were kept."""
    try:
        found = json.loads(file.read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise MeasuringError(f"{file}: {getattr(error, 'strerror', None) or error}") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise MeasuringError(f"{file}: not measurements of netacc calibrate")
    return found
