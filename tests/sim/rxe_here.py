"""SoftRoCE between two micro-VMs, calibrated as `netacc calibrate --peer` does, and other loads predicted.

    python -m tests.sim.rxe_here FOLDER   # the profiles alone

The device is fitted on raw ping-pongs of three sizes and two streams, and the library on ping-pongs of those
sizes through it. Other sizes, and rates of messages of which several are in flight, are predicted. The hosts
are emulated in software: their times are of this machine and of its other work, and of no device elsewhere.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from netacc_lab.calibration import measuring, pairs
from netacc_lab.calibration.__main__ import main as calibrate
from netacc_lab.calibration.devices import Message, is_fitted
from netacc_lab.sim import Point

from tests.apps.lib.paths import binaries
from tests.lab.lib import UpLab, down, line_from, up
from tests.sim.rows import Row, mean, simulate

#: How far a prediction may be off, for rates and half round trips: the aim for those of this machine.
AIM = 0.1
#: Processors that other work keeps busy, at most, for the aim to count. Both are the hosts'.
QUIET = 0.1
#: Messages of each measurement, which take a millisecond each in emulation, and its rounds.
COUNT, ROUNDS = 40, 4
#: Seconds that the whole measurement may take inside.
LONGEST = 560
SERVER = "10.99.0.1"
#: What was measured, in the folder of the check. One that has it already measures nothing.
KEPT = "measured.json"
#: Of `netacc calibrate`, in its folder.
MEASURED = "measurements.json"


@contextmanager
def server(lab: UpLab) -> Iterator[None]:
    """The other end of a calibration, on host 1."""
    serving = lab.start(1, str(binaries() / "netacc"), "lat", "--serve", SERVER, seconds=LONGEST + 60)
    for _ in range(2):
        line_from(serving.stdout)
    yield
    lab.end_commands()


def calibrate_in(lab: UpLab, folder: Path, *more: str) -> int:
    """`netacc calibrate` from here, of the lab's hosts: its exit status."""
    limit = ("--timeout", str(LONGEST))
    via = [str(binaries() / "netacc"), "lab", "exec", "--name", lab.name, *limit, "2"]
    arguments = ["--peer", SERVER, "--device", lab.device, "--via", shlex.join(via), "--output", str(folder)]
    return calibrate([*arguments, "--count", str(COUNT), "--rounds", str(ROUNDS), *more])


def calibrated(folder: Path) -> None:
    """Boots a lab, and leaves the profiles of its hosts in the folder."""
    name = f"calibration-{os.getpid()}"
    lab = up(name, "--hosts", "2", "--accel", "counted")
    try:
        with server(lab):
            if calibrate_in(lab, folder) != 0:
                raise measuring.MeasuringError("the lab's hosts could not be calibrated")
    finally:
        down(name)


def rxe_here(folder: Path) -> list[Row]:
    """SoftRoCE between micro-VMs, from a few messages; bounds count only while nothing else runs here."""
    kept = folder / KEPT
    if not kept.exists():
        others = float(measuring.bench("wake", "--seconds", "0.1")["machine"]["busy_processors"])
        calibrated(folder)
        kept.write_text(json.dumps({"others": others, "calibration": measuring.read(folder / MEASURED)}))
    found = json.loads(kept.read_text())
    pair = pairs.calibrated(found["calibration"])
    for name, text in pairs.files(pair).items():
        (folder / name).write_text(text)
    rows = [Row("processors that other work kept busy before", 0, found["others"], "", None)]
    return rows + predictions(folder, pair, AIM if found["others"] <= QUIET else None)


def predictions(folder: Path, found: pairs.Pair, aim: float | None) -> list[Row]:
    """Measured and simulated, of hosts whose profiles are in the folder."""
    values = found.device.values | found.library.values | found.registration.values
    rows = [Row(f"{name} (calibrated)", value, value, "ns", None) for name, value in values.items()]
    pair = tomllib.loads((folder / "pair.toml").read_text())
    # No workload of raw verbs is a write with an immediate.
    raw = (message for message in pairs.raw(found.costs) if message.path != "message")
    rows += [_row(folder, pair, message, aim) for message in raw]
    rows += [_row(folder, pair, message, aim, through="stack") for message in pairs.stack(found.costs)]
    return rows


def _row(
    folder: Path, pair: dict[str, Any], message: Message, aim: float | None, through: str = "device"
) -> Row:
    point = _simulated(folder, pair, message, through)
    # Of what goes through the library ping-pongs alone are fitted on.
    known = is_fitted(message) and not (message.streamed and through == "stack")
    what = f"{message.what} ({'fitted' if known else 'predicted'})"
    tolerance = None if known else aim
    if message.streamed:
        return Row(what, 1e9 / message.ns, mean(point, "load", "answered_per_s"), "/s", tolerance)
    return Row(what, message.ns / 1000, mean(point, "load", "p50_ns") / 2000, "us", tolerance)


def _simulated(folder: Path, pair: dict[str, Any], message: Message, through: str) -> Point:
    """The same load on the calibrated hosts."""
    workload: dict[str, Any] = {"name": "load", "clients": 1, "connections": 1, "request": f"{message.size}B"}
    if through == "device":
        workload |= {"kind": "verbs", "verb": "send" if message.path == "send" else "write"}
    if not message.streamed or through == "stack":
        workload["response"] = f"{message.size}B"
    if message.streamed:
        workload["depth"] = 16
    if message.streamed and through == "stack":
        # `netacc lat` reads and writes one message with a call, however many there are.
        workload["calls"] = "single"
    tables = {"topology": pair["topology"], "device": pair["device"]}
    if through == "stack":
        tables |= {"host": pair["host"], "stack": pair["stack"]}
    measure = {"warmup": "100ms", "duration": "500ms", "seeds": [1]}
    return simulate(folder, **tables, workload=[workload], measure=measure)


if __name__ == "__main__":
    calibrated(Path(sys.argv[1]))
