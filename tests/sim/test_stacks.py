"""Workloads of several stacks in one network."""

from __future__ import annotations

from pathlib import Path

import pytest
from netacc_lab.sim import Point, ScenarioError, SerialEngine, estimate, resolve, study
from netacc_lab.sim.store import Store

from tests.sim.conftest import Write

#: Requests on links, now and then, beside a workload on kernel TCP.
LINKS = 'name = "get"\nthink = "50us"'
BESIDE = """[[workload]]
name = "other"
stack = "kernel-tcp"
clients = 2
connections = 2
request = "64B"
response = "1KiB"
think = "50us"

"""
COSTS = '[host]\nprofile = "two-cores"\n\n'
GET = ('name = "get"', LINKS)
TCP_ALONE = ('name = "get"', f'{LINKS}\nstack = "kernel-tcp"')
LONG = ('duration = "1ms"', 'duration = "4ms"')


def run(file: Path) -> Point:
    (point,) = study(file, sweep={}, seeds=[1], engine=SerialEngine()).points
    assert point.status == "complete"
    return point


def figure(point: Point, group: str, name: str) -> float:
    value = point.metrics(group)[name].value
    assert value is not None
    return value


def test_each_stack_is_as_alone_where_there_is_room(write: Write, runs: Path) -> None:
    """Breaks if a stack changes what another one takes, carries its bytes, or is left out of the network."""
    links = run(write(GET, LONG))
    tcp = run(write(TCP_ALONE, LONG, ("connections = 4", "connections = 2")))
    both = run(write(GET, LONG, ("[measure]", f"{BESIDE}[measure]")))
    shares = {group: figure(both, group, "link_share") for group in both.groups()}
    assert shares["other"] == 0 < 0.9 < shares["get"]
    assert both.runs[0].meta["linked"] == 4
    for group, alone in (("get", links), ("other", tcp)):
        # Of some requests a packet waits behind one of the other stack.
        assert figure(both, group, "p50_ns") == pytest.approx(figure(alone, "get", "p50_ns"), rel=0.02)
        assert figure(both, group, "mean_ns") >= 0.99 * figure(alone, "get", "mean_ns")
    assert figure(links, "get", "p50_ns") != figure(tcp, "get", "p50_ns")
    assert len(Store(runs).all()) == 3


@pytest.mark.usefixtures("runs")
def test_stacks_share_a_link(write: Write) -> None:
    """Breaks if bytes of one stack do not take the other one's place on a link."""
    stream = ('request = "64B"\nresponse = "1KiB"\n', 'kind = "streaming"\nrequest = "64KiB"\n')
    bulk = BESIDE.replace(
        'request = "64B"\nresponse = "1KiB"\nthink = "50us"', 'kind = "streaming"\nrequest = "64KiB"'
    )
    alone = figure(run(write(stream, LONG)), "get", "bytes_per_s")
    both = run(write(stream, LONG, ("[measure]", f"{bulk}[measure]")))
    rates = [figure(both, group, "bytes_per_s") for group in ("get", "other")]
    # 25 Gbit/s, of which headers take up to 6 %.
    assert 0.85 * 3.125e9 < sum(rates) < 3.125e9, rates
    assert min(rates) > 0.05 * alone and rates[0] < 0.95 * alone, (alone, rates)


def test_each_stack_has_the_costs_of_its_profile(write: Write) -> None:
    """Breaks if a workload on another stack has the scenario's costs, or changes what that one's takes."""
    costs = ("[measure]", f'{COSTS}[stack]\nsystem-call = "5us"\n\n{BESIDE}[measure]')
    (found, *_) = resolve.runs(write(GET, costs))
    get, other = found.resolved["groups"]
    assert (get["promote"], get["costs"], other["promote"]) == (True, None, False)
    assert found.resolved["processors"]["costs"]["system_call_ns"] == 5_000
    (tcp, *_) = resolve.runs(
        write(("[measure]", f'{COSTS}[stack]\nkind = "kernel-tcp"\n[measure]'), name="tcp")
    )
    assert other["costs"] == tcp.resolved["processors"]["costs"]
    assert estimate.events(found.resolved) > estimate.events({**found.resolved, "groups": [get]})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ('[stack]\nanchor = "memory"\n', "stack.anchor: must be tcp"),
        ('[stack]\nkind = "gazelle-like"\n[host]\nprofile = "two-cores"\n', "gazelle-like has all of a host"),
        (
            '[stack]\nstack-thread = true\n[host]\nprofile = "two-cores"\n',
            "workload.1.stack: must be left out",
        ),
    ],
)
def test_stacks_that_cannot_share_are_refused(write: Write, change: str, message: str) -> None:
    """Breaks if a scenario is run whose stacks would take each other's hosts or network."""
    with pytest.raises(ScenarioError, match=message):
        resolve.runs(write(("[measure]", f"{BESIDE}{change}[measure]")))
