"""What was measured or simulated: records, their series, and the runs of a series.

Invariants:

* Latencies are nanoseconds, rates are per second.
* The names of a record's series differ.
* If a record is `paired`, the runs of its series with the same index were made in the same round.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from hdrh.histogram import HdrHistogram

from netacc_lab.records.folder import Contents, read_table


@dataclass(frozen=True)
class Run:
    """One measurement of a series."""

    #: Answers (echo: round trips, streams: writes) a second; None if only latencies were measured.
    rate_per_s: float | None
    #: All latencies; None if only `summary` was recorded.
    latency: HdrHistogram | None
    #: Latencies by percentile, where there is no histogram.
    summary: Mapping[float, float] = field(default_factory=dict)
    #: Other times of the same requests, by what was timed: parts of the latency, or the time to connect.
    parts: Mapping[str, HdrHistogram] = field(default_factory=dict)
    #: Further figures; their names end with their units.
    figures: Mapping[str, float] = field(default_factory=dict)

    def percentile(self, percent: float) -> float | None:
        """The latency that so many percent of the requests do not exceed; None if it is not known."""
        if self.latency is None:
            return self.summary.get(percent)
        return (
            float(self.latency.get_value_at_percentile(percent)) if self.latency.get_total_count() else None
        )


@dataclass(frozen=True)
class Series:
    """Measurements of the same thing: a path, a stack, a point of a sweep."""

    name: str
    runs: tuple[Run, ...]
    #: The share of the bytes that went over links; None if that has no meaning.
    link_share: float | None = None
    #: The record that it is of.
    record: str = ""
    #: Its runs were made in turns with those of the record's other series.
    paired: bool = False
    #: The test or size, where a record has several.
    of: str = ""

    @property
    def label(self) -> str:
        """For a legend."""
        return f"{self.record}: {self.name}" if self.record else self.name

    def histograms(self) -> list[HdrHistogram]:
        """Those of its runs that have one."""
        return [run.latency for run in self.runs if run.latency is not None]


@dataclass(frozen=True)
class Record:
    """A file or folder that has been read."""

    path: Path
    #: The tool: bench, lat, ss, trace, calibrate, kit or sim.
    kind: str
    #: What was done, in a few words.
    title: str
    series: Mapping[str, Series]
    machine: str = ""
    date: str = ""
    #: Simulated, not measured.
    simulated: bool = False
    #: Facts without which the figures could be taken for others than they are.
    warnings: tuple[str, ...] = ()
    #: As recorded.
    parameters: Mapping[str, Any] = field(default_factory=dict)
    #: As it is on disk, or would be.
    contents: Contents | None = None

    @property
    def tables(self) -> list[str]:
        """The names of its tables and time series."""
        return [table.name for table in self.contents.header.tables] if self.contents else []

    def table(self, name: str) -> pa.Table:
        """A table or time series (`.to_pandas()` makes a data frame of it).

        Raises KeyError with the names that there are, and RecordError if it is cut short.
        """
        for table in self.contents.header.tables if self.contents else ():
            if self.contents and table.name == name:
                made = self.contents.tables.get(table.file)
                return read_table(self.path, table) if made is None else made
        raise KeyError(f"{self.path}: no table {name!r}; there are {', '.join(self.tables) or 'none'}")

    def __getitem__(self, name: str) -> Series:
        """The series of that name. Raises KeyError with the names that there are."""
        if name not in self.series:
            raise KeyError(f"{self.path}: no series {name!r}; there are {', '.join(self.series)}")
        return self.series[name]

    def __iter__(self) -> Iterator[Series]:
        return iter(self.series.values())
