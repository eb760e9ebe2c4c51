"""HPCC as a NIC's rate control, in ns-3."""

from __future__ import annotations

import pytest
from netacc_lab.sim import ScenarioError, SerialEngine, resolve, study

from tests.sim.conftest import Write

INCAST = (
    ("clients = 2\nconnections = 4\n", "clients = 4\nconnections = 4\n"),
    ('request = "64B"\nresponse = "1KiB"', 'kind = "verbs"\nrequest = "50kB"\ndepth = 4'),
    ("hosts = 3", "hosts = 5"),
    ('duration = "1ms"', 'duration = "4ms"'),
)
HPCC = 'rate-control = "hpcc"\nhpcc-base-round-trip = "10us"\nhpcc-min = "100Mbit/s"\nack-interval = 1'


@pytest.mark.usefixtures("runs")
def test_telemetry_keeps_the_queue_short(write: Write) -> None:
    """Breaks if switches of ns-3 add no telemetry, or acknowledgements do not bring it back."""
    found = {}
    for name, keys in (("none", ""), ("hpcc", HPCC)):
        ports = ("seeds = [1, 2]", 'seeds = [1]\nports = true\nprogress = "20us"')
        file = write(*INCAST, ports, ('"roce-100g"', f'"roce-100g"\n{keys}'), name=name)
        (point,) = study(file, engine=SerialEngine()).points
        (run,) = point.runs
        rows = [line.split(",") for line in (run.folder / "ports.csv").read_text().splitlines()[1:]]
        # The switch's port to the server, once the first round trips are over.
        queue = [
            int(row[4]) for row in rows if row[2:4] == ["5", "0"] and 1_000_000 < int(row[0]) < 4_000_000
        ]
        found[name] = (sum(queue) / len(queue), point.metrics("get")["bytes_per_s"].value or 0)
    (full, _), (short, rate) = found["none"], found["hpcc"]
    assert full > 500_000 and short < 10_000, found
    # 95 % of 25 Gbit/s, of which the telemetry takes 1 % and other headers 2.4 %.
    assert 0.85 * 3.125e9 < rate < 0.96 * 3.125e9, found


def test_hpcc_needs_switches(write: Write) -> None:
    """Breaks if HPCC is run where nothing adds telemetry, or its keys pass for another control."""
    one = ("clients = 2", "clients = 1")
    direct = ('kind = "star"\nhosts = 3', 'kind = "direct"')
    with pytest.raises(ScenarioError, match="needs the telemetry of switches"):
        resolve.runs(write(one, direct, ('"roce-100g"', f'"roce-100g"\n{HPCC}')))
    with pytest.raises(ScenarioError, match="hpcc-min: has no effect unless rate-control is hpcc"):
        resolve.runs(write(('"roce-100g"', '"roce-100g"\nhpcc-min = "1Gbit/s"')))
