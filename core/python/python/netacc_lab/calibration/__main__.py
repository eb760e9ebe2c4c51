"""`netacc calibrate`: measures this machine, and writes profiles that scenarios can name.

Ends with 0 when all is well, 1 if a measurement or a fit failed, 2 for arguments that make no sense, 130 when
interrupted.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tqdm import tqdm

from netacc_lab import __version__
from netacc_lab.calibration import measuring, writing
from netacc_lab.records import RecordError, converting
from netacc_lab.records.folder import write_into
from netacc_lab.sim.paths import NotFoundError


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    options = _parser().parse_args(arguments)
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
    parser.add_argument("--rounds", type=_rounds, default=3, help="of each ping-pong; else 3")
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


def _calibrate(options: argparse.Namespace) -> int:
    # Before the measurements, not after them.
    options.output.mkdir(parents=True, exist_ok=True)
    begun = time.time()
    if options.kept:
        measured = measuring.read(options.kept)
    else:
        with tqdm(total=measuring.steps(options.paths), disable=None, file=sys.stderr) as bar:

            def step(what: str) -> None:
                bar.set_description(what)
                bar.update()

            measured = measuring.measure(
                options.paths, seconds=options.seconds, rounds=options.rounds, progress=step
            )
    wanted = [path for path in options.paths if path in measured.get("paths", [])]
    if not wanted:
        raise measuring.MeasuringError("the measurements have none of these paths")
    found = [writing.calibrated(measured, path) for path in wanted]
    interruptions = writing.noise(measured)
    files = {f"{each.path}.toml": writing.stack(measured, each, interruptions) for each in found}
    files["host.toml"] = writing.host(measured)
    for name, text in files.items():
        (options.output / name).write_text(text)
    if not options.kept:
        _record(options.output, measured, begun)
    _print(options, measured, found)
    return 0


def _record(output: Path, measured: dict[str, Any], begun: float) -> None:
    """Makes the folder of the profiles a record of their measurements."""
    contents = converting.of_calibration(measured, json.dumps(measured), output)
    header = contents.header
    header.command = ["netacc", "calibrate", *sys.argv[1:]]
    header.began, header.ended = (
        datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") for at in (begun, time.time())
    )
    header.versions = {"netacc_lab": __version__}
    header.configuration = {name: of for name, of in os.environ.items() if name.startswith("NACC_")}
    write_into(output, contents)


def _print(options: argparse.Namespace, measured: dict[str, object], found: list[writing.Calibrated]) -> None:
    if options.json:
        print(json.dumps({"machine": measured["machine"], "paths": writing.rows(found)}))
        return
    print(f"{writing.machine_of(measured)}: profiles in {options.output}")
    for row in writing.rows(found):
        values = ", ".join(f"{name} {value:,.0f} ns" for name, value in row["values_ns"].items())
        print(f"{row['path']}: {values}; residuals up to {row['worst_residual']:.0%}")
        if row["not_identified"]:
            print(f"  not identified, so take only the sum for true: {', '.join(row['not_identified'])}")
    busy = measured["machine"].get("busy_processors") if isinstance(measured["machine"], dict) else None
    if busy and busy > 0.1:
        print(f"netacc calibrate: other work kept {busy:.1f} processors busy", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
