"""Measurements of this machine, by `netacc bench`: what a calibration is fitted on."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from netacc_lab.sim import paths as checkout

#: The paths that can be measured.
PATHS = ("tcp", "udp", "unix", "shm")
#: The size of the messages that wake-ups are fitted on.
SMALL = 64
#: Connections and sizes of the ping-pongs.
ECHOES = (
    *((1, SMALL), (4, SMALL), (10, SMALL), (50, SMALL), (1, 16384), (50, 4096), (50, 16384)),
    *((200, SMALL), (500, SMALL), (1000, SMALL)),
)
#: Bytes of datagrams in flight, at most: more may find a buffer full, and a lost one ends a ping-pong.
MOST_DATAGRAMS = 32 * 1024
#: Of programs on links between hosts: long enough that both ends spin through a round trip in emulation.
POLL_MS = 1000
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


def steps(wanted: Sequence[str]) -> int:
    """How many measurements there are."""
    return len(ECHOES) + 2 + 2 * bool(_streams(wanted))


def measure(
    wanted: Sequence[str], *, seconds: float, rounds: int, progress: Callable[[str], None]
) -> dict[str, Any]:
    """All measurements, paths interleaved; `progress` is called after each."""
    common = ["--paths", ",".join(wanted), "--pairs", str(rounds), "--seconds", str(seconds)]
    common += ["--no-spin", "-q", "--timeout", str(seconds + 30)]
    found: dict[str, Any] = {"format": FORMAT, "paths": list(wanted), "echoes": []}
    for clients, size in ECHOES:
        fitting = [path for path in wanted if path != "udp" or clients * size <= MOST_DATAGRAMS]
        if not fitting:
            continue
        common[1] = ",".join(fitting)
        arguments = ["--mode", "epoll", "--size", str(size), "--clients", str(clients), "--histogram"]
        result = bench("echo", *common, *arguments)
        found.setdefault("machine", result["machine"])
        echo = {"clients": clients, "size": size, "machine": result["machine"], "paths": result["paths"]}
        found["echoes"].append(echo)
        progress(f"ping-pong of {size} B on {clients}")
    streams = _streams(wanted)
    if streams:
        common[1] = ",".join(streams)
        found["stream"] = bench("stream", *common, "--size", "64KiB")["paths"]
        progress("a stream")
        alone = ["--mode", "epoll", "--size", str(SMALL), "--clients", "1", "--wakes"]
        found["wakes"] = bench("echo", *common, *alone)["paths"]
        progress("the two parts of wake-ups")
    found["noise"] = bench("noise", "--seconds", str(seconds), "-q")
    progress("noise")
    found["wake"] = bench("wake", "--seconds", str(seconds))
    progress("wake-ups")
    return found


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
