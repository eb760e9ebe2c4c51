"""Results as Parquet: a row for each run and group, its histogram kept whole. `SCHEMA` explains columns."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from netacc_lab.sim.store import Recorded
from netacc_lab.sim.study import Point


def _column(name: str, kind: pa.DataType, what: str) -> pa.Field:
    return pa.field(name, kind, metadata={"description": what})


SCHEMA = pa.schema(
    [
        _column("run", pa.string(), "name of the run's folder: a hash of scenario and code"),
        _column("scenario", pa.string(), "name of the scenario"),
        _column("seed", pa.uint64(), "seed of the run"),
        _column("status", pa.string(), "complete, unfinished, stalled or broken"),
        _column("code_version", pa.string(), "hash of the simulator program and its ns-3"),
        _column("ns3_version", pa.string(), "version of ns-3"),
        _column("trace_hash", pa.string(), "hash over every delivered packet and its time"),
        _column("simulated_ns", pa.uint64(), "when the run ended, in nanoseconds of simulated time"),
        _column("wall_s", pa.float64(), "how long it took, in seconds"),
        _column("events", pa.uint64(), "events of ns-3"),
        _column("lost", pa.uint64(), "packets lost on links"),
        _column("dropped", pa.uint64(), "packets that found no room in a switch"),
        _column("marked", pa.uint64(), "packets that a switch has marked"),
        _column("pauses", pa.uint64(), "pauses that switches have sent"),
        _column("repeated", pa.uint64(), "packets that NICs have sent again"),
        _column("links_made", pa.uint64(), "links connected: a queue pair and its rings at both ends"),
        _column("links_reused", pa.uint64(), "times a connection took a link that another one had left"),
        _column("group", pa.string(), "name of the workload's group"),
        _column(
            "connections", pa.uint64(), "connections of the group; of short ones, the clients that make them"
        ),
        _column("samples", pa.uint64(), "requests in the histogram"),
        _column("requests_per_s", pa.float64(), "answers within the measured span, a second"),
        _column("bytes_per_s", pa.float64(), "bytes of those requests and responses, a second"),
        _column("mean_ns", pa.float64(), "mean latency, in nanoseconds"),
        _column("p50_ns", pa.uint64(), "latency, in nanoseconds"),
        _column("p95_ns", pa.uint64(), "latency, in nanoseconds"),
        _column("p99_ns", pa.uint64(), "latency, in nanoseconds"),
        _column("max_ns", pa.uint64(), "latency, in nanoseconds"),
        _column("latency", pa.binary(), "all latencies, in nanoseconds: HdrHistogram V2, compressed"),
        _column("datagrams_lost", pa.uint64(), "datagrams lost on the network, or before their program"),
        _column("link_share", pa.float64(), "of the bytes read in the whole run, those that came on links"),
        *(
            _column(f"short_{name}", kind, f"short connections begun within the measured span: {what}")
            for name, kind, what in (
                ("made", pa.uint64(), "those that were used and closed"),
                ("failed", pa.uint64(), "those that could not be made, or broke"),
                ("promoted", pa.uint64(), "those that have been on a link"),
                ("connect_mean_ns", pa.float64(), "mean time until they could be used, in nanoseconds"),
                ("whole_mean_ns", pa.float64(), "mean time until their last answer, in nanoseconds"),
                ("connect", pa.binary(), "times until they could be used: HdrHistogram V2, compressed"),
                ("whole", pa.binary(), "times until their last answer: HdrHistogram V2, compressed"),
            )
        ),
        _column("config", pa.string(), "the resolved scenario, as JSON"),
    ]
)


def rows(run: Recorded) -> Iterable[dict[str, Any]]:
    """A row for each group."""
    meta = run.meta
    for group in meta["groups"]:
        yield {
            "run": run.folder.name,
            "scenario": meta["scenario"]["name"],
            "seed": meta["scenario"]["seed"],
            **{name: meta[name] for name in ("status", "code_version", "ns3_version", "trace_hash")},
            **{name: meta[name] for name in ("simulated_ns", "wall_s", "events")},
            **{name: meta["network"][name] for name in ("lost", "dropped", "marked", "pauses")},
            "repeated": meta["nics"]["data_repeated"],
            "links_made": meta["links"]["made"],
            "links_reused": meta["links"]["reused"],
            "group": group["name"],
            "requests_per_s": group["answered_per_s"],
            **{name: group[name] for name in ("connections", "samples", "bytes_per_s")},
            **{name: group[name] for name in ("mean_ns", "p50_ns", "p95_ns", "p99_ns", "max_ns")},
            "datagrams_lost": group["lost"],
            "link_share": group["link_share"],
            **_short(run, group),
            "latency": (run.folder / f"latency-{group['name']}.hdr").read_bytes(),
            "config": json.dumps(meta["scenario"], sort_keys=True),
        }


def _short(run: Recorded, group: dict[str, Any]) -> dict[str, Any]:
    """The columns of short connections; empty where connections last."""
    short = group["short"]
    if short is None:
        return {}
    found = {name: short[name] for name in ("made", "failed", "promoted")}
    for what in ("connect", "whole"):
        found[f"{what}_mean_ns"] = short[what]["mean_ns"]
        found[what] = (run.folder / f"{what}-{group['name']}.hdr").read_bytes()
    return {f"short_{name}": value for name, value in found.items()}


def write(runs: Iterable[Recorded], path: Path) -> int:
    """Writes all of them into one file; how many rows."""
    return _write([row for run in runs for row in rows(run)], SCHEMA, path)


def write_points(points: Sequence[Point], path: Path) -> int:
    """As `write`, of a sweep: its keys are columns, before the others."""
    keys = list(points[0].values) if points else []
    kinds = {key: _kind([point.values[key] for point in points]) for key in keys}
    swept = [_column(key, kind, f"swept: {key}") for key, kind in kinds.items()]
    found = [
        {key: _cell(value, kinds[key]) for key, value in point.values.items()} | row
        for point in points
        for run in point.runs
        for row in rows(run)
    ]
    return _write(found, pa.schema([*swept, *SCHEMA]), path)


def _kind(values: Sequence[Any]) -> pa.DataType:
    """The type of the column of these values: plain ones keep theirs, others are JSON."""
    for kind, made in ((bool, pa.bool_()), (int, pa.int64()), (float, pa.float64())):
        if all(type(value) is kind for value in values):
            return made
    return pa.string()


def _cell(value: object, kind: pa.DataType) -> object:
    return value if kind != pa.string() or isinstance(value, str) else json.dumps(value)


def _write(found: list[dict[str, Any]], schema: pa.Schema, path: Path) -> int:
    table = pa.Table.from_pylist(found, schema=schema)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, compression="zstd")
    return int(table.num_rows)
