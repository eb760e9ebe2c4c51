"""The records of steps on two machines.

`record.json` is what all records have; `meta.json` has the step's own findings besides, in the form of a
run of `netacc sim`, so that `netacc_lab.sim.store.Recorded` reads both. `latency-GROUP.hdr` is a histogram of
nanoseconds there and back.
"""

from __future__ import annotations

import base64
import json
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hdrh.histogram import HdrHistogram
from netacc_lab.records import Contents, converting
from netacc_lab.records.folder import write_into

#: The version of `meta.json`: the same as for simulated runs, whose `groups` have the same form.
FORMAT = 1
#: Bounds and digits of the simulator's histograms: a nanosecond to an hour.
BOUNDS = (1, 3_600_000_000_000, 3)
PERCENTILES = {"p50_ns": 50, "p90_ns": 90, "p99_ns": 99, "p999_ns": 99.9}


@dataclass
class Record:
    """The findings of a step. The step gets it empty; it is kept also when the step fails."""

    #: The arguments of the step, and the machines.
    measured: dict[str, Any]
    #: Latencies, by carrier.
    groups: list[dict[str, Any]] = field(default_factory=list)
    #: All other findings, in a form that each step chooses.
    figures: dict[str, Any] = field(default_factory=dict)
    #: Operations that did not work, with their errors; the run has failed.
    failures: dict[str, str] = field(default_factory=dict)
    #: Operations that did not work and that this project does not provide.
    remarks: dict[str, str] = field(default_factory=dict)
    _histograms: dict[str, HdrHistogram] = field(default_factory=dict)

    def latencies(self, group: str, pairs: Iterable[tuple[int, int]], **more: object) -> None:
        """A group from round trips in nanoseconds, and the count of each value."""
        histogram = HdrHistogram(*BOUNDS)
        for value, count in pairs:
            histogram.record_value(min(max(value, BOUNDS[0]), BOUNDS[1]), count)
        percentiles = {
            name: histogram.get_value_at_percentile(percent) for name, percent in PERCENTILES.items()
        }
        least, most = histogram.get_min_value(), histogram.get_max_value()
        percentiles |= {"mean_ns": histogram.get_mean_value(), "min_ns": least, "max_ns": most}
        self.groups.append({"name": group, "samples": histogram.get_total_count(), **percentiles, **more})
        self._histograms[group] = histogram

    def write(self, folder: Path) -> None:
        """Writes the folder of the run. Replaces an earlier one of the same step."""
        partial = folder.with_name(f".{folder.name}")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for group, histogram in self._histograms.items():
            (partial / f"latency-{group}.hdr").write_bytes(base64.b64decode(histogram.encode()))
        meta = {
            "format": FORMAT,
            "status": "unfinished" if self.failures else "complete",
            "measured": self.measured,
            "groups": self.groups,
            "figures": self.figures,
            "failures": self.failures,
            "remarks": self.remarks,
        }
        (partial / "meta.json").write_text(json.dumps(meta, indent=1) + "\n")
        header = converting.of_kit(partial, meta).header
        header.command = ["python", "-m", "ci.eri", *sys.argv[1:]]
        write_into(partial, Contents(header))
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)
