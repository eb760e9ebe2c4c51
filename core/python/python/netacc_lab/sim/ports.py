"""Ports over time: queues, rates and pauses (`ports.csv` of a run with `measure.ports`)."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

from netacc_lab.sim.store import Recorded
from netacc_lab.sim.study import Point

#: Columns, and what they are.
COLUMNS = {
    "at_ns": "time, in nanoseconds",
    "link": "number of the link, in the order of the resolved scenario",
    "node": "the port's node: hosts come first, then switches",
    "peer": "the node at the other end",
    "queue_bytes": "bytes that wait at the port of a switch; 0 at a host",
    "sent_bytes": "bytes of all frames so far, as they occupy the link",
    "paused": "1 while the peer has paused the port",
    "pauses": "pauses by the peer so far",
}


def read(run: Recorded) -> pa.Table | None:
    """The table of a run; None if it was not written down."""
    path = run.folder / "ports.csv"
    return pc.read_csv(path) if path.exists() else None


def write_points(points: list[Point], path: Path) -> bool:
    """Writes the ports of all runs into one Parquet file; whether there were any."""
    tables = []
    for run in (run for point in points for run in point.runs):
        table = read(run)
        if table is not None:
            names = pa.array([run.folder.name] * table.num_rows, pa.string())
            tables.append(table.append_column("run", names))
    if not tables:
        return False
    found = pa.concat_tables(tables)
    what = COLUMNS | {"run": "name of the run's folder"}
    fields = [field.with_metadata({"description": what[field.name]}) for field in found.schema]
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(found.cast(pa.schema(fields)), path, compression="zstd")
    return True
