"""Recorded measurements and simulations, for notebooks: load any, see its tail, compare any two.

>>> from netacc_lab import analysis
>>> record = analysis.load("results/echo-spin.json")  # doctest: +SKIP
>>> analysis.percentiles(record["shm"])  # doctest: +SKIP
>>> analysis.compare(record["tcp"], record["shm"]).rate  # doctest: +SKIP
>>> analysis.plot_ccdf([record["tcp"], record["shm"]])  # doctest: +SKIP

Latencies are in nanoseconds, rates per second. `netacc report` is the same for a terminal.
"""

from netacc_lab.analysis.comparison import Comparison, Ratio, compare, compare_records, differences
from netacc_lab.analysis.figures import plot_ccdf, plot_percentiles
from netacc_lab.analysis.intervals import Tail, ccdf, corrected, percentiles
from netacc_lab.analysis.reading import load
from netacc_lab.analysis.record import Record, Run, Series
from netacc_lab.analysis.stages import (
    Stage,
    StageChange,
    decompose_tail,
    plot_stages,
    stage_changes,
    stages,
)
from netacc_lab.analysis.studies import series_of
from netacc_lab.analysis.timeline import Change, changes, plot_timeline, timeline
from netacc_lab.records import RecordError

__all__ = [
    "Change",
    "Comparison",
    "Ratio",
    "Record",
    "RecordError",
    "Run",
    "Series",
    "Stage",
    "StageChange",
    "Tail",
    "ccdf",
    "changes",
    "compare",
    "compare_records",
    "corrected",
    "decompose_tail",
    "differences",
    "load",
    "percentiles",
    "plot_ccdf",
    "plot_percentiles",
    "plot_stages",
    "plot_timeline",
    "series_of",
    "stage_changes",
    "stages",
    "timeline",
]
