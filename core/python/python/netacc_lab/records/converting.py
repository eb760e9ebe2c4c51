"""Makes records of what tools print as JSON, and of results from before there were records.

| form | of |
| --- | --- |
| an object with `bench` | `netacc bench ... --json`, `netacc bench noise`, `netacc bench wake` |
| an object with `version` and `paths` or `sizes` | `netacc lat --json` |
| an object with `version` and `pid` | `netacc_ss --json` |
| an object with `echoes` | `measurements.json` of `netacc calibrate` |
| an object with `costs` | `measurements.json` of `netacc calibrate --peer` |
| a folder whose `meta.json` has `scenario` | a run of `netacc sim` |
| a folder whose `meta.json` has `measured` | a run of the kit for two machines |
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from hdrh.histogram import HdrHistogram

from netacc_lab.records import model
from netacc_lab.records.folder import BOUNDS, Contents, RecordError, decoded, file_of
from netacc_lab.records.model import Header, Kind, Run, Series, Status

#: Of `netacc lat` and `netacc_ss`, of the kit, and of the measurements of `netacc calibrate`.
LAT_VERSION = SS_VERSION = KIT_FORMAT = CALIBRATE_FORMAT = 1
#: More of a machine's processors busy with other work than this, and the record says so. As `netacc bench`.
BUSY = 0.2
#: The names of percentiles in the JSON of `netacc bench` and `netacc lat`.
PERCENTILES = {"p50": "50", "p90": "90", "p95": "95", "p99": "99", "p999": "99.9", "max": "100"}
CLOSED = "a closed loop: the next request waits for the answer, so a stall counts once for each connection"
EMULATED = "machines in software emulation: only ratios mean anything"


def convert(path: Path) -> Contents:
    """The record of a result. Raises RecordError if it is none, or cut short, or of a later version."""
    file = path / "meta.json" if path.is_dir() else path
    try:
        text = file.read_text()
        found = json.loads(text)
    except FileNotFoundError:
        raise RecordError(f"{path}: there is no such record") from None
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise RecordError(f"{path}: no JSON, or cut short: {error}") from None
    try:
        return _of(path, found, text)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        reason = " ".join(str(error).split())
        raise RecordError(f"{path}: not as its tool writes it: {type(error).__name__} {reason}") from None


def _of(path: Path, found: Any, text: str) -> Contents:  # noqa: ANN401 (any JSON)
    if not isinstance(found, Mapping):
        raise RecordError(f"{path}: JSON, but no record")
    if path.is_dir():
        if "scenario" in found:
            return of_simulation(path, found)
        if "measured" in found:
            return of_kit(path, found)
    elif "echoes" in found:
        return of_calibration(found, text, path)
    elif "costs" in found:
        return of_pair(found, text, path)
    elif "bench" in found and "paths" in found:
        return of_bench(found, text)
    elif found.get("bench") == "datagrams":
        return of_datagrams(found, text)
    elif found.get("bench") in ("noise", "wake"):
        return of_processors(found, text)
    elif "version" in found and ("paths" in found or "sizes" in found):
        return of_lat(found, text, path)
    elif "version" in found and "pid" in found:
        return of_snapshot(found, text, path)
    raise RecordError(f"{path}: neither a record nor a result of one of the tools")


class _Histograms:
    """Histograms by the names of their files."""

    def __init__(self) -> None:
        self.found: dict[str, HdrHistogram] = {}

    def add(self, series: str, run: int, pairs: Iterable[list[int]]) -> dict[str, str]:
        """Of one run, by what was timed."""
        histogram = HdrHistogram(*BOUNDS)
        for value, count in pairs:
            if value < 0 or count < 0:
                raise ValueError(f"{count} latencies of {value} ns")
            histogram.record_value(value, count)
        stem = re.sub(r"[^A-Za-z0-9]+", "-", series).strip("-")
        name = f"latency-{stem}-{run}.hdr"
        if name in self.found:
            name = f"latency-{stem}-{run}-{len(self.found)}.hdr"
        self.found[name] = histogram
        return {"latency": name}


def _machine(found: Mapping[str, Any]) -> tuple[model.Machine, model.Load, list[str]]:
    """With the load before, and a warning if that is more than a little."""
    machine = model.Machine(cpu=found["cpu"], cores=found["cores"], kernel=found["kernel"])
    busy = found.get("busy_processors")
    before = model.Before(loadavg=found.get("loadavg") or [], busy_processors=busy)
    warning = f"other work kept {busy or 0:.1f} of {machine.cores} processors busy"
    return machine, model.Load(before=before), [warning] if (busy or 0) > BUSY else []


def _summary(latency: Mapping[str, Any], unit: float) -> dict[str, float]:
    return {PERCENTILES[name]: float(of) * unit for name, of in latency.items() if name in PERCENTILES}


#: Figures of a run of `netacc bench` that are numbers and kept as they are.
FIGURES = (
    "requests",
    "seconds",
    "bytes_per_s",
    "bytes_link",
    "bytes_tcp",
    "bytes_expected",
    "other_processors",
    "transfer_ns",
)


def _during(series: Iterable[Series]) -> model.During | None:
    """The load by others in all runs; None if it is not known of one."""
    found = [run.figures.get("other_processors") for each in series for run in each.runs]
    known = [busy for busy in found if busy is not None]
    if not known or len(known) < len(found):
        return None
    return model.During(busy_processors=sum(known) / len(known), most_busy_processors=max(known))


def _bench_run(run: Mapping[str, Any], series: str, number: int, histograms: _Histograms) -> Run:
    kept = {name: float(run[name]) for name in FIGURES if run.get(name) is not None}
    for end in ("server", "client"):
        if "requests" in run and f"{end}_cpu_s" in run:
            kept[f"{end}_cpu_per_request_ns"] = run[f"{end}_cpu_s"] * 1e9 / max(run["requests"], 1)
    for part in ("crowd", "waits"):
        kept |= {name: float(of) for name, of in (run.get(part) or {}).items() if of is not None}
    pairs = run.get("histogram_ns")
    return Run(
        rate_per_s=run["requests_per_s"],
        histograms=histograms.add(series, number, pairs) if pairs else {},
        percentiles_ns=_summary(run["latency_us"], 1000),
        figures=kept,
    )


def of_bench(found: Mapping[str, Any], text: str) -> Contents:
    """Of `netacc bench ... --json`: a series for each path, a run for each interleaved round."""
    machine, load, warnings = _machine(found["machine"])
    histograms = _Histograms()
    tests = found.get("tests") or {found.get("test") or found["bench"]: found["paths"]}
    series = []
    for test, paths in tests.items():
        for path, of in paths.items():
            name = path if len(tests) == 1 else f"{test}: {path}"
            runs = [_bench_run(run, name, number, histograms) for number, run in enumerate(of["runs"], 1)]
            share = of.get("link_share")
            series.append(Series(name=name, of=test if len(tests) > 1 else "", link_share=share, runs=runs))
    load.during = _during(series)
    skipped = [f"{path} was not measured: {why}" for path, why in (found.get("skipped") or {}).items()]
    closed = [CLOSED] if found["bench"] in ("redis", "memcached", "echo", "many") else []
    said = found.get("warnings") or ()
    # Since it also watches others during the runs, the tool says itself what they did before.
    if load.during:
        warnings = []
    test = found.get("test")
    title = f"netacc bench {found['bench']}" + (f" {test}" if test and test != found["bench"] else "")
    header = Header(
        kind=Kind.BENCH,
        title=title,
        began=found["machine"]["date"],
        parameters=found["params"],
        machines=[machine],
        load=load,
        paired=True,
        warnings=[*warnings, *(f"{each}" for each in said), *skipped, *closed],
        series=series,
        details="result.json",
    )
    return Contents(header, histograms.found, details=text)


def of_datagrams(found: Mapping[str, Any], text: str) -> Contents:
    """Of `netacc bench datagrams`: a series for each size and path, a run for each interleaved round.

    The rate of a run is of datagrams that arrived in one direction. Its latencies are of round trips, which
    were measured after that.
    """
    machine, load, warnings = _machine(found["machine"])
    series = []
    for of in found["sizes"]:
        size = f"{of['size']} B"
        for name, path in (("udp", "udp"), ("shm", "library")):
            rounds = of[path]["rounds"]
            shares = [each["on_link"] for each in rounds if each["on_link"] is not None]
            share = sum(shares) / len(shares) if shares else None
            runs = [_datagrams_run(each) for each in rounds]
            series.append(Series(name=f"{size}: {name}", of=size, link_share=share, runs=runs))
    load.during = _during(series)
    header = Header(
        kind=Kind.BENCH,
        title="netacc bench datagrams",
        began=found["machine"]["date"],
        parameters={name: found[name] for name in ("flows", "batch", "seconds", "busy") if name in found},
        machines=[machine],
        load=load,
        paired=True,
        warnings=[*([] if load.during else warnings), *(f"{each}" for each in found["warnings"])],
        series=series,
        details="result.json",
    )
    return Contents(header, details=text)


def _datagrams_run(measured: Mapping[str, Any]) -> Run:
    trips = measured["round_trip_us"]
    names = ("lost", "other_processors")
    kept = {name: float(measured[name]) for name in names if measured[name] is not None}
    kept |= {f"round_trip_{name}_ns": trips[name] * 1e3 for name in ("mean", "deviation")}
    return Run(rate_per_s=measured["packets_per_s"], percentiles_ns=_summary(trips, 1000), figures=kept)


def of_processors(found: Mapping[str, Any], text: str) -> Contents:
    """Of `netacc bench wake`: a series; of `netacc bench noise`: a table of detours."""
    machine, load, warnings = _machine(found["machine"])
    contents = Contents(
        Header(
            kind=Kind.BENCH,
            title=f"netacc bench {found['bench']}",
            began=found["machine"]["date"],
            parameters=found["params"],
            machines=[machine],
            load=load,
            warnings=warnings,
            details="result.json",
        ),
        details=text,
    )
    if found["bench"] == "wake":
        add_wake(contents, found)
    else:
        add_noise(contents, found)
    return contents


def add_wake(contents: Contents, found: Mapping[str, Any]) -> None:
    """Adds the times until sleeping threads ran."""
    histograms = _Histograms()
    run = Run(histograms=histograms.add("wake", 1, found["histogram_ns"]))
    contents.header.series.append(Series(name="wake", of="wake", runs=[run]))
    contents.histograms |= histograms.found


def add_noise(contents: Contents, found: Mapping[str, Any], name: str = "detours") -> None:
    """Adds what kept the processors from the threads on them."""
    rows = [
        {"processor": of["processor"], "at_ns": at_ns, "length_ns": length_ns}
        for of in found["processors"]
        for at_ns, length_ns in of["detours_ns"]
    ]
    columns = ("processor", "at_ns", "length_ns")
    schema = pa.schema([(name, pa.int64()) for name in columns])
    what = "when each processor was taken from the thread on it, and for how long"
    table = model.Table(name=name, file=f"{name}.parquet", form="parquet", rows=len(rows), what=what)
    contents.header.tables.append(table)
    contents.tables[table.file] = pa.Table.from_pylist(rows, schema=schema)


def of_lat(found: Mapping[str, Any], text: str, path: Path) -> Contents:
    """Of `netacc lat --json`: a series for each path and size, one run."""
    _check("netacc lat's output", path, found["version"], LAT_VERSION)
    many = "sizes" in found
    sizes = found["sizes"] if many else [{"size": found["size"], "paths": found["paths"]}]
    histograms, series, warnings = _Histograms(), [], []
    for of in sizes:
        size = f"{of['size']} B"
        for each in of["paths"]:
            name = each["path"] if len(sizes) == 1 else f"{each['path']}, {size}"
            if not each.get("latency_ns"):
                warnings.append(f"{name} was not measured: {each.get('error')}")
                continue
            pairs = each.get("histogram")
            run = Run(
                histograms=histograms.add(name, 1, pairs) if pairs else {},
                percentiles_ns=_summary(each["latency_ns"], 1),
            )
            share = each.get("link_share")
            of_size = size if len(sizes) > 1 else ""
            series.append(Series(name=name, of=of_size, link_share=share, runs=[run]))
    header = Header(
        kind=Kind.LAT,
        title="netacc lat: half round trips",
        status=Status.UNFINISHED if warnings else Status.COMPLETE,
        parameters={"count": found["count"], "sizes": [of["size"] for of in sizes]},
        warnings=warnings,
        series=series,
        details="result.json",
    )
    return Contents(header, histograms.found, details=text)


def of_snapshot(found: Mapping[str, Any], text: str, path: Path) -> Contents:
    """Of `netacc_ss --json`: a table with one row of counters."""
    _check("netacc_ss's output", path, found["version"], SS_VERSION)
    counters = {"at_ns": 0} | dict(found.get("cnt") or {})
    table = model.Table(name="counters", file="counters.parquet", form="parquet", rows=1, what="counters")
    header = Header(
        kind=Kind.SS,
        title=f"netacc_ss: {found.get('program', '')}",
        configuration=dict(found.get("cfg") or {}),
        parameters={"pid": found["pid"], "backend": found.get("backend", "")},
        tables=[table],
        details="result.json",
    )
    return Contents(header, tables={table.file: pa.Table.from_pylist([counters])}, details=text)


def of_calibration(found: Mapping[str, Any], text: str, path: Path) -> Contents:
    """Of `measurements.json` of `netacc calibrate`: a series for each ping-pong and path."""
    _check("measurements of netacc calibrate", path, found["format"], CALIBRATE_FORMAT)
    machine, load, warnings = _machine(found["machine"])
    histograms, series = _Histograms(), []
    for echo in found["echoes"]:
        what = f"{echo['clients']} x {echo['size']} B" + (", polling" if echo.get("spin") else "")
        for name, of in echo["paths"].items():
            whole = f"{name}, {what}"
            runs = [_bench_run(run, whole, number, histograms) for number, run in enumerate(of["runs"], 1)]
            series.append(Series(name=whole, of=what, link_share=of.get("link_share"), runs=runs))
    load.during = _during(series)
    header = Header(
        kind=Kind.CALIBRATE,
        title="netacc calibrate",
        began=found["machine"]["date"],
        parameters={"paths": found["paths"]},
        machines=[machine],
        load=load,
        paired=True,
        warnings=warnings,
        series=series,
        details="measurements.json",
    )
    contents = Contents(header, histograms.found, details=text)
    if "wake" in found:
        add_wake(contents, found["wake"])
    for name, detours in (("noise", "detours"), ("noise-tcp", "detours-tcp")):
        if name in found:
            add_noise(contents, found[name], detours)
    return contents


def of_pair(found: Mapping[str, Any], text: str, path: Path) -> Contents:
    """Of `measurements.json` of `netacc calibrate --peer`: a series for each path and size."""
    _check("measurements of netacc calibrate", path, found["format"], CALIBRATE_FORMAT)
    costs = found["costs"]
    machine, load, warnings = _machine(costs["machine"])
    histograms, series = _Histograms(), []
    for echo in costs["echoes"]:
        name = f"{echo['path']}, {echo['size']} B"
        runs = [
            Run(histograms=histograms.add(name, number, each["half_ns"]))
            for number, each in enumerate(echo["rounds"], 1)
        ]
        shares = [each["link_share"] for each in echo["rounds"] if each.get("link_share") is not None]
        share = sum(shares) / len(shares) if shares else None
        series.append(Series(name=name, of=f"{echo['size']} B", link_share=share, runs=runs))
    for rate in costs["rates"]:
        name = f"{rate['depth']} in flight, {rate['path']}, {rate['size']} B"
        runs = [Run(rate_per_s=each["messages"] / each["seconds"]) for each in rate["rounds"]]
        series.append(Series(name=name, of=f"{rate['size']} B", runs=runs))
    if costs.get("others") is not None:
        load.during = model.During(busy_processors=costs["others"], most_busy_processors=costs["others"])
    header = Header(
        kind=Kind.CALIBRATE,
        title="netacc calibrate, two hosts",
        began=costs["machine"]["date"],
        parameters={"device": costs["device"]["name"], "peer": found["peer"]},
        machines=[machine],
        load=load,
        warnings=warnings,
        series=series,
        details="measurements.json",
    )
    return Contents(header, histograms.found, details=text)


def of_simulation(folder: Path, found: Mapping[str, Any]) -> Contents:
    """Of a run of `netacc sim`: a series for each group."""
    scenario = found["scenario"]
    groups, histograms = _groups(folder, found["groups"], ("latency", "connect", "whole"))
    tables = [
        model.Table(name=file.stem, file=file.name, form="csv", what="by the simulator, in nanoseconds")
        for file in sorted(folder.glob("*.csv"))
    ]
    header = Header(
        kind=Kind.SIM,
        title=f"netacc sim {scenario['name']}, seed {scenario['seed']}",
        status=Status(found["status"]),
        simulated=True,
        seed=scenario["seed"],
        versions={
            name: str(found[f"{name}_version"]) for name in ("code", "ns3") if f"{name}_version" in found
        },
        parameters=scenario,
        warnings=[] if found["status"] == "complete" else [f"the run is {found['status']}"],
        series=groups,
        tables=tables,
        details="meta.json",
    )
    return Contents(header, histograms)


def of_kit(folder: Path, found: Mapping[str, Any]) -> Contents:
    """Of a step of the kit for two machines: a series for each histogram."""
    _check("the kit", folder, found["format"], KIT_FORMAT)
    measured = found["measured"]
    groups, histograms = _groups(folder, found["groups"], ("latency",))
    hosts = measured.get("hosts", ())
    versions = {f"netacc, {host['name']}": host["netacc"] for host in hosts if host.get("netacc")}
    failures = [f"{what}: {' '.join(how.split())[:200]}" for what, how in found.get("failures", {}).items()]
    header = Header(
        kind=Kind.KIT,
        title=f"kit for two machines: {measured['step']}",
        status=Status(found.get("status", "complete")),
        began=str(measured["date"]),
        versions=versions,
        configuration=dict(measured.get("settings") or {}),
        parameters={name: value for name, value in measured.items() if name not in ("hosts", "date")},
        machines=[
            model.Machine(
                cpu=host["cpu"], cores=host["cores"], kernel=host["kernel"], name=host.get("name", "")
            )
            for host in hosts
        ],
        load=model.Load(before=model.Before(loadavg=hosts[0].get("loadavg") or []))
        if hosts
        else model.Load(),
        warnings=[*([EMULATED] if measured["emulated"] else []), *failures],
        series=[*groups, *_perftest(found.get("figures", {}))],
        details="meta.json",
    )
    return Contents(header, histograms)


def _perftest(figures: Mapping[str, Any]) -> list[Series]:
    """A series for each size of `ib_write_lat`, there and back: perftest reports one way, in microseconds."""
    return [
        Series(
            name=f"ib_write_lat {row['bytes']:.0f} B",
            of="ib_write_lat",
            runs=[Run(percentiles_ns={"50": 2000 * row["typical"], "99": 2000 * row["p99"]})],
        )
        for row in figures.get("ib_write_lat_us", ())
    ]


def _groups(
    folder: Path, groups: Iterable[Mapping[str, Any]], parts: Iterable[str]
) -> tuple[list[Series], dict[str, HdrHistogram]]:
    """Groups whose histograms are in the folder already."""
    series: list[Series] = []
    histograms: dict[str, HdrHistogram] = {}
    for group in groups:
        files = {}
        for part in parts:
            name = f"{part}-{group['name']}.hdr"
            file = file_of(folder, name)
            if part != "latency" and not file.exists():
                continue
            try:
                histograms[name] = decoded(file.read_bytes(), file)
            except OSError as error:
                raise RecordError(f"{file}: {error.strerror}") from None
            files[part] = name
        rate = group.get("answered_per_s")
        run = Run(rate_per_s=None if rate is None else float(rate), histograms=files)
        series.append(Series(name=group["name"], link_share=group.get("link_share"), runs=[run]))
    return series, histograms


def _check(what: str, path: Path, version: object, known: int) -> None:
    if version != known:
        raise RecordError(f"{path}: version {version} of {what}; known is {known}")
