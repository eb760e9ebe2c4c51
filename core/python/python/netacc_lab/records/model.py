"""The schema of `record.json`. `netacc record schema` prints it; `schema.json` is that.

Invariants:

* A field that is added, or whose meaning changes, raises `VERSION`: a reader refuses later versions and
  unknown fields, so it never takes a record for something else.
* Times are nanoseconds, rates are per second, dates are UTC in RFC 3339.
* The names of series differ. If a record is `paired`, runs with the same index were made in the same round.

The programs in Rust write the same form (`core/cli/src/record.rs`); a test holds them to this schema.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

#: Of this schema.
VERSION = 1
#: The file that makes a folder a record.
HEADER = "record.json"


class Kind(StrEnum):
    """The tool that made a record."""

    BENCH = "bench"
    LAT = "lat"
    SS = "ss"
    TRACE = "trace"
    CALIBRATE = "calibrate"
    KIT = "kit"
    SIM = "sim"


class Status(StrEnum):
    """How the measurement or simulation ended."""

    COMPLETE = "complete"
    UNFINISHED = "unfinished"
    STALLED = "stalled"
    BROKEN = "broken"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class Machine(_Part):
    """A machine that took part."""

    cpu: str
    """Model of its first processor."""
    cores: int = Field(ge=0)
    """Processors that the tool could use."""
    kernel: str
    """Release of the kernel."""
    name: str = ""
    """Its name, where several took part."""


class Before(_Part):
    """The machine's load just before."""

    loadavg: list[float] = Field(default_factory=list)
    """Load averages of 1, 5 and 15 minutes."""
    busy_processors: float | None = None
    """Processors that other work kept busy; null if that was not measured."""


class During(_Part):
    """The load by other work while runs were measured."""

    busy_processors: float
    """Processors that other work kept busy, on average over the runs."""
    most_busy_processors: float
    """The same in the run where that was most."""


class Load(_Part):
    """Load by other work."""

    before: Before = Field(default_factory=Before)
    """Just before the first run."""
    during: During | None = None
    """While runs were measured; null if that was not measured."""


class Run(_Part):
    """One measurement of a series."""

    rate_per_s: float | None = None
    """Requests (round trips, writes, connections) a second; null if only latencies were measured."""
    histograms: dict[str, str] = Field(default_factory=dict)
    """Files with whole distributions in nanoseconds (HdrHistogram V2, compressed), by what was timed:
    `latency` is of requests; others are parts of it or other times."""
    percentiles_ns: dict[str, float] = Field(default_factory=dict)
    """Latencies by percentile (`"99.9"`; `"100"` is the slowest), where there is no histogram."""
    figures: dict[str, float] = Field(default_factory=dict)
    """Further figures by name; the name ends with the unit."""


class Series(_Part):
    """Runs of the same thing: a path, a stack, a group of a workload."""

    name: str
    """Its name, which no other series of the record has."""
    of: str = ""
    """The test or size, where a record has several: only series of the same are compared within a record."""
    link_share: float | None = None
    """Share of the bytes that went over links; null where that has no meaning."""
    runs: list[Run]
    """Its measurements, in their order."""


class Table(_Part):
    """A table or time series in a file beside `record.json`."""

    name: str
    """Its name, which no other table of the record has."""
    file: str
    """The file."""
    form: Literal["parquet", "jsonl", "csv"]
    """Parquet, an object of JSON on each line, or comma-separated values."""
    rows: int | None = None
    """How many rows there are; null while they are still written."""
    what: str = ""
    """Its content, in a sentence."""


class Header(_Part):
    """A record of a measurement or a simulation."""

    version: Literal[1] = 1
    """Of this schema."""
    kind: Kind
    """The tool that made it."""
    title: str
    """What was done, in a few words; records with other titles are not compared."""
    status: Status = Status.COMPLETE
    """How it ended."""
    simulated: bool = False
    """Simulated, not measured."""
    began: str = ""
    """When it began; empty if that is not known."""
    ended: str = ""
    """When it ended; empty if that is not known, or it has not."""
    command: list[str] = Field(default_factory=list)
    """The command line."""
    seed: int | None = None
    """Of the generator, where there is one."""
    versions: dict[str, str] = Field(default_factory=dict)
    """Of the programs that took part."""
    configuration: dict[str, Any] = Field(default_factory=dict)
    """Keys of NetACC's configuration (`NACC_...`) and their values in force."""
    parameters: dict[str, Any] = Field(default_factory=dict)
    """Settings of the measurement or the scenario."""
    machines: list[Machine] = Field(default_factory=list)
    """The machines that took part; none in a simulation."""
    load: Load = Field(default_factory=Load)
    """Load by other work."""
    paired: bool = False
    """Runs of different series with the same index were made in the same round."""
    warnings: list[str] = Field(default_factory=list)
    """Facts without which the figures could be taken for others than they are."""
    series: list[Series] = Field(default_factory=list)
    """What was measured."""
    tables: list[Table] = Field(default_factory=list)
    """Tables and time series."""
    details: str | None = None
    """A file with the tool's own result, in its own form."""
