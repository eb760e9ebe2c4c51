"""Simulated studies stand beside measurements."""

from __future__ import annotations

from pathlib import Path

from netacc_lab import analysis
from netacc_lab.sim import SerialEngine, study

from tests.sim.conftest import Write


def test_a_study_is_a_series_for_each_point_and_group(write: Write, runs: Path) -> None:
    """Breaks if a seed were lost, or latencies of one point given to another."""
    del runs
    far = study(write(), sweep={"topology.delay": ["1us", "20us"]}, engine=SerialEngine())
    near, distant = analysis.series_of(far)
    assert [each.name for each in (near, distant)] == ["delay=1us: get", "delay=20us: get"]
    for series, point in zip((near, distant), far.points, strict=True):
        metrics = point.metrics("get")
        assert len(series.runs) == 2 and series.link_share == metrics["link_share"].value
        (median,) = analysis.percentiles(series, at=[50])
        expected = metrics["p50_ns"]
        assert (median.value, median.low, median.high) == (expected.value, expected.low, expected.high)
    found = analysis.compare(near, distant)
    # Two links of the star, there and back, 19 us longer each; some requests went over TCP.
    assert found.moved_ns is not None and 0.9 < found.moved_ns / (4 * 19_000) < 1.1
    assert found.rate is not None and found.rate.value < 1
