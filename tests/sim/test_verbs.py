"""Workloads by verbs, without the library."""

from __future__ import annotations

import pytest
from netacc_lab.sim import ScenarioError, SerialEngine, estimate, resolve, study

from tests.sim.conftest import Write

LAT = 'name = "get"\nkind = "verbs"'
ONE = [
    ("clients = 2\nconnections = 4\n", ""),
    ('request = "64B"\nresponse = "1KiB"', 'clients = 1\nrequest = "64B"'),
]


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize("verb", ["write", "send"])
def test_a_round_trip_is_the_sum_of_its_parts(write: Write, verb: str) -> None:
    """Breaks if verbs have another network or device than the library, or its costs."""
    lat = (*ONE[:1], (ONE[1][0], f'{ONE[1][1]}\nresponse = "64B"\nverb = "{verb}"'))
    (point,) = study(write(('name = "get"', LAT), *lat), seeds=[1], engine=SerialEngine()).points
    (run,) = point.runs
    costs = run.meta["scenario"]["device"]["costs"]
    parts = ["doorbell", "request_fetch", "transmit_packet", "receive_packet", "placement"]
    parts += ["completion"] if verb == "send" else []
    nics = sum(costs[f"{part}_ns"] for part in parts)
    # Two links of 25 Gbit/s, and the switch stores and forwards.
    packet = (64 + 82 + (16 if verb == "write" else 0)) * 8 / 25
    assert point.metrics("get")["p50_ns"].value == pytest.approx(2 * (nics + 2 * (1_000 + packet)), abs=20)
    assert point.metrics("get")["link_share"].value == 1
    assert (run.meta["linked"], run.meta["connections_left"], run.status) == (0, 0, "complete")


@pytest.mark.usefixtures("runs")
def test_writes_fill_a_link(write: Write) -> None:
    """Breaks if writes wait for answers that nobody sends, or for each other."""
    file = write(('name = "get"', LAT), *ONE[:1], (ONE[1][0], 'clients = 1\nrequest = "64KiB"\ndepth = 16'))
    (point,) = study(file, seeds=[1], engine=SerialEngine()).points
    rate = point.metrics("get")["bytes_per_s"].value
    assert rate is not None and 0.95 * 3.125e9 < rate < 3.125e9
    (found, *_) = resolve.runs(file)
    assert 0.3 < estimate.events(found.resolved) / point.runs[0].meta["events"] < 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('name = "get"', f'{LAT}\nstack = "netacc"'), "workload.0.stack: has no effect"),
        (('name = "get"', 'name = "get"\nverb = "send"'), "workload.0.verb: has no effect"),
        (("[measure]", "[stack.nacc]\nNACC_PROMOTE_AFTER = 3\n[measure]"), "stack.nacc: has no effect"),
    ],
)
def test_keys_without_effect_are_refused(write: Write, change: tuple[str, str], message: str) -> None:
    """Breaks if a key of connections is ignored without a word."""
    file = write(change) if "verb" in change[1] else write(('name = "get"', LAT), change)
    with pytest.raises(ScenarioError, match=message):
        resolve.runs(file)
