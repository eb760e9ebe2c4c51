"""`netacc calibrate`: measures this machine, and writes profiles that scenarios can name.

Ends with 0 when all is well, 1 if a measurement or a fit failed, 2 for arguments that make no sense, 130 when
interrupted.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tqdm import tqdm

from netacc_lab import __version__
from netacc_lab.calibration import measuring, pairs, writing
from netacc_lab.records import RecordError, converting
from netacc_lab.records.folder import write_into
from netacc_lab.sim.paths import NotFoundError


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if not options.peer and (options.device or options.via):
        parser.error("--device and --via are of a measurement with --peer")
    try:
        return _calibrate(options)
    except (measuring.MeasuringError, NotFoundError, RecordError, OSError) as error:
        print(f"netacc calibrate: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("netacc calibrate: interrupted; nothing was written", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="netacc calibrate",
        description="Measures this machine, and writes a profile for each path, which scenarios name "
        "by its file (--set stack.profile=calibration/tcp.toml). Other work on the machine gets into them.",
    )
    parser.add_argument(
        "--paths",
        type=_paths,
        default=list(measuring.PATHS),
        metavar="LIST",
        help="of tcp, udp, unix, shm; else all",
    )
    parser.add_argument("--seconds", type=_seconds, default=0.5, help="of each measurement; else 0.5")
    parser.add_argument(
        "--rounds", type=_rounds, default=3, help="of each ping-pong; with --peer, of everything; else 3"
    )
    parser.add_argument(
        "--peer",
        metavar="ADDRESS",
        help="measure an RDMA device and links on it, instead of paths within this host: with `netacc lat "
        "--serve ADDRESS` on another host (or on this one, in another process)",
    )
    parser.add_argument("--device", metavar="NAME", help="with --peer: the RDMA device, if there are several")
    parser.add_argument(
        "--via",
        type=shlex.split,
        default=[],
        metavar="COMMAND",
        help="with --peer: what runs a command on the host that measures, as 'ssh HOST'",
    )
    parser.add_argument(
        "--count", type=_count, default=1000, help="with --peer: messages of each measurement; else 1000"
    )
    parser.add_argument(
        "--from",
        dest="kept",
        type=Path,
        metavar="FILE",
        help="fit measurements.json of an earlier calibration again",
    )
    parser.add_argument(
        "--output", type=Path, default=Path("calibration"), metavar="FOLDER", help="else calibration"
    )
    parser.add_argument("--json", action="store_true", help="print the fits as JSON")
    return parser


def _paths(text: str) -> list[str]:
    found = list(dict.fromkeys(part.strip() for part in text.split(",")))
    unknown = [part for part in found if part not in measuring.PATHS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is no path; there are {', '.join(measuring.PATHS)}")
    return found


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not (math.isfinite(seconds) and 0 < seconds <= 60):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds up to 60")
    return seconds


def _rounds(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 100")
    return int(text)


def _count(text: str) -> int:
    if not text.isdigit() or not 10 <= int(text) <= 1_000_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 10 to 1,000,000")
    return int(text)


def _calibrate(options: argparse.Namespace) -> int:
    # Before the measurements, not after them.
    options.output.mkdir(parents=True, exist_ok=True)
    begun = time.time()
    if options.kept:
        measured = measuring.read(options.kept)
    elif options.peer:
        measured = measuring.between_hosts(
            options.peer,
            via=options.via,
            device=options.device,
            count=options.count,
            rounds=options.rounds,
        )
    else:
        with tqdm(total=measuring.steps(options.paths, options.rounds), disable=None, file=sys.stderr) as bar:

            def step(what: str) -> None:
                bar.set_description(what)
                bar.update()

            measured = measuring.measure(
                options.paths, seconds=options.seconds, rounds=options.rounds, progress=step
            )
    files, rows = _pair(measured) if "costs" in measured else _paths_here(options, measured)
    for name, text in files.items():
        (options.output / name).write_text(text)
    if not options.kept:
        _record(options.output, measured, begun)
    _print(options, measured.get("costs", measured), rows)
    return 0


Rows = list[dict[str, Any]]


def _pair(measured: dict[str, Any]) -> tuple[dict[str, str], Rows]:
    """The files of two hosts, and the fits."""
    found = pairs.calibrated(measured)
    return pairs.files(found), pairs.rows(found)


def _paths_here(options: argparse.Namespace, measured: dict[str, Any]) -> tuple[dict[str, str], Rows]:
    """The files of the paths within this host, and the fits."""
    wanted = [path for path in options.paths if path in measured.get("paths", [])]
    if not wanted:
        raise measuring.MeasuringError("the measurements have none of these paths")
    found = [writing.calibrated(measured, path) for path in wanted]
    files = {f"{each.path}.toml": writing.stack(measured, each) for each in found}
    files["host.toml"] = writing.host(measured)
    return files, writing.rows(found)


def _record(output: Path, measured: dict[str, Any], begun: float) -> None:
    """Makes the folder of the profiles a record of their measurements."""
    of = converting.of_pair if "costs" in measured else converting.of_calibration
    contents = of(measured, json.dumps(measured), output)
    header = contents.header
    header.command = ["netacc", "calibrate", *sys.argv[1:]]
    header.began, header.ended = (
        datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") for at in (begun, time.time())
    )
    header.versions = {"netacc_lab": __version__}
    header.configuration = {name: of for name, of in os.environ.items() if name.startswith("NACC_")}
    write_into(output, contents)


def _print(options: argparse.Namespace, measured: dict[str, Any], rows: Rows) -> None:
    if options.json:
        print(json.dumps({"machine": measured["machine"], "paths": rows}))
        return
    print(f"{writing.machine_of(measured)}: profiles in {options.output}")
    for row in rows:
        values = ", ".join(f"{name} {value:,.0f} ns" for name, value in row["values_ns"].items())
        if row["waker_ns"]:
            values += f" (the waker's part of a sleep: {row['waker_ns']['mean']:,.0f} ns)"
        print(f"{row['path']}: {values}; residuals up to {row['worst_residual']:.0%}")
        if row["not_identified"]:
            print(f"  not identified, so take only the sum for true: {', '.join(row['not_identified'])}")
    if "echoes" in measured and "transfer_ns" not in measured:
        text = "the measurements are of several distances of the processors, or do not say of which"
        print(f"netacc calibrate: {text}", file=sys.stderr)
    busy = measured["machine"].get("busy_processors") if isinstance(measured["machine"], dict) else None
    if busy and busy > 0.1:
        print(f"netacc calibrate: other work kept {busy:.1f} processors busy", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
