"""Reads what the project's tools write.

| written by | what |
| --- | --- |
| `netacc bench ... --json` | a series for each path, a run for each interleaved round |
| `netacc lat --json` | a series for each path and size, one run |
| `netacc sim` | the folder of a run: a series for each group; several seeds are several records |
| the kit for two machines | the folder of a run: a series for each histogram |

Bad input costs one RecordError, whose text is one line.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hdrh.histogram import HdrHistogram

from netacc_lab.analysis.record import Record, Run, Series

#: Of `netacc lat`, and of the kit.
LAT_VERSION = KIT_FORMAT = 1
#: More of a machine's processors busy with other work than this, and the record says so. As `netacc bench`.
BUSY = 0.2


class RecordError(Exception):
    """Something that is no record, or cannot be used."""


def load(path: str | Path) -> Record:
    """The record in a file or folder.

    Raises RecordError if there is none, or it is cut short, or of a format that this version does not know.
    """
    path = Path(path)
    file = path / "meta.json" if path.is_dir() else path
    try:
        found = json.loads(file.read_text())
    except FileNotFoundError:
        raise RecordError(f"{path}: there is no such record") from None
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror}") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise RecordError(f"{path}: no JSON, or cut short: {error}") from None
    try:
        return _read(path, found)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise RecordError(f"{path}: not as its tool writes it: {type(error).__name__} {error}") from None


def _read(path: Path, found: Any) -> Record:  # noqa: ANN401 (any JSON)
    if not isinstance(found, Mapping):
        raise RecordError(f"{path}: JSON, but no record")
    if path.is_dir():
        if "scenario" in found:
            return _sim(path, found)
        if "measured" in found:
            return _kit(path, found)
    elif "bench" in found and "paths" in found:
        return _bench(path, found)
    elif "version" in found and ("paths" in found or "sizes" in found):
        return _lat(path, found)
    raise RecordError(
        f"{path}: not written by netacc bench, netacc lat, netacc sim or the kit for two machines"
    )


def _machine(machine: Mapping[str, Any]) -> tuple[str, str, tuple[str, ...]]:
    """In words, with the date and warnings."""
    words = f"{machine['cores']} cores of {machine['cpu']}, Linux {machine['kernel']}"
    busy = float(machine.get("busy_processors") or 0)
    warning = f"other work kept {busy:.1f} of {machine['cores']} processors busy"
    return words, str(machine["date"]), (warning,) if busy > BUSY else ()


def _pairs(pairs: list[list[int]]) -> HdrHistogram:
    histogram = HdrHistogram(1, 3_600_000_000_000, 3)
    for value, count in pairs:
        if value < 0 or count < 0:
            raise ValueError(f"{count} latencies of {value} ns")
        histogram.record_value(value, count)
    return histogram


#: The names of percentiles in the JSON of `netacc bench` and `netacc lat`.
PERCENTILES = {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "p999": 99.9, "max": 100.0}


def _summary(latency: Mapping[str, Any], unit: float) -> dict[float, float]:
    return {PERCENTILES[name]: float(of) * unit for name, of in latency.items() if name in PERCENTILES}


def _bench(path: Path, found: Mapping[str, Any]) -> Record:
    words, date, warnings = _machine(found["machine"])
    series = {}
    for name, of in found["paths"].items():
        runs = [
            Run(
                float(run["requests_per_s"]),
                _pairs(run["histogram_ns"]) if run.get("histogram_ns") else None,
                _summary(run["latency_us"], 1000),
            )
            for run in of["runs"]
        ]
        series[name] = Series(name, tuple(runs), of.get("link_share"), path.stem, paired=True)
    test = found.get("test")
    title = f"netacc bench {found['bench']}" + (f" {test}" if test and test != found["bench"] else "")
    others = tuple(f"{each}" for each in found.get("warnings") or ())
    closed = (
        "a closed loop: the next request waits for the answer, so a stall counts once for each connection"
    )
    extra = (*others, closed) if found["bench"] in ("redis", "echo", "many") else others
    return Record(
        path, "bench", title, series, words, date, warnings=(*warnings, *extra), parameters=found["params"]
    )


def _lat(path: Path, found: Mapping[str, Any]) -> Record:
    if found["version"] != LAT_VERSION:
        raise RecordError(
            f"{path}: version {found['version']} of netacc lat's output; known is {LAT_VERSION}"
        )
    sizes = found["sizes"] if "sizes" in found else [{"size": found["size"], "paths": found["paths"]}]
    series = {}
    for of in sizes:
        for each in of["paths"]:
            if each.get("latency_ns"):
                name = each["path"] if len(sizes) == 1 else f"{each['path']}, {of['size']} B"
                run = Run(None, None, _summary(each["latency_ns"], 1))
                series[name] = Series(name, (run,), each.get("link_share"), path.stem)
    return Record(path, "lat", "netacc lat: half round trips", series, parameters={"count": found["count"]})


def _stored(folder: Path, group: str) -> HdrHistogram:
    file = folder / f"latency-{group}.hdr"
    if file.parent.resolve() != folder.resolve():
        raise RecordError(f"{folder}: a group is named {group!r}")
    try:
        found = HdrHistogram.decode(base64.b64encode(file.read_bytes()))
    except OSError as error:
        raise RecordError(f"{file}: {error.strerror}") from None
    except Exception as error:  # hdrh raises zlib's, those of struct, and its own
        raise RecordError(f"{file}: no histogram, or cut short: {error}") from None
    return found


def _sim(path: Path, found: Mapping[str, Any]) -> Record:
    scenario = found["scenario"]
    series = {
        group["name"]: Series(
            group["name"],
            (Run(float(group["answered_per_s"]), _stored(path, group["name"])),),
            group["link_share"],
            f"{scenario['name']}, seed {scenario['seed']}",
        )
        for group in found["groups"]
    }
    warnings = () if found["status"] == "complete" else (f"the run is {found['status']}",)
    title = f"netacc sim {scenario['name']}, seed {scenario['seed']}"
    return Record(
        path, "sim", title, series, "simulated", simulated=True, warnings=warnings, parameters=scenario
    )


def _kit(path: Path, found: Mapping[str, Any]) -> Record:
    if found["format"] != KIT_FORMAT:
        raise RecordError(f"{path}: format {found['format']} of the kit; known is {KIT_FORMAT}")
    measured = found["measured"]
    series = {
        group["name"]: Series(group["name"], (Run(None, _stored(path, group["name"])),), None, path.name)
        for group in found["groups"]
    }
    hosts = [f"{host['cores']} cores of {host['cpu']}, Linux {host['kernel']}" for host in measured["hosts"]]
    emulated = ("machines in software emulation: only ratios mean anything",) if measured["emulated"] else ()
    title = f"kit for two machines, {measured['placement']}: {measured['step']}"
    machine = "; ".join(dict.fromkeys(hosts))
    return Record(path, "kit", title, series, machine, str(measured["date"]), warnings=emulated)
