"""Collective operations: every message comes after those that it depends on, in the time that it takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from netacc_lab.sim import ScenarioError, SerialEngine, columns, report, runs, study
from netacc_lab.sim.cli import main
from netacc_lab.sim.collectives import Connection, Kind, plan
from netacc_lab.sim.completion import completions

from tests.sim.conftest import Write

RATE = 25e9


def operation(write: Write, kind: str, *changes: tuple[str, str]) -> Path:
    old = 'clients = 2\nconnections = 4\nrequest = "64B"\nresponse = "1KiB"'
    new = f'kind = "collective"\ncollective = "{kind}"\nclients = 4\nrequest = "1MiB"'
    memory = ("[measure]", '[stack]\nanchor = "memory"\n\n[measure]')
    return write(
        (old, new),
        ("hosts = 3", "hosts = 4"),
        ('duration = "1ms"\nseeds = [1, 2]', 'duration = "50ms"\nseeds = [1]'),
        memory,
        *changes,
    )


def order(connections: list[Connection], first: int) -> list[tuple[int, int]]:
    """Messages in an order that their dependencies allow: connection, and number.

    Of the connections that may send one always does, until it has to wait: the first one from `first` on.
    """
    received = [0] * len(connections)
    found: list[tuple[int, int]] = []
    numbers = [(first + number) % len(connections) for number in range(len(connections))]

    def may_send(number: int) -> bool:
        messages, sent = connections[number].messages, received[number]
        return sent < len(messages) and all(received[on] >= least for on, least in messages[sent].after)

    while (number := next(filter(may_send, numbers), None)) is not None:
        found.append((number, received[number]))
        received[number] += 1
    return found


@pytest.mark.parametrize("hosts", [2, 3, 8, 13])
@pytest.mark.parametrize("kind", ["ring", "tree"])
def test_an_all_reduce_brings_everything_to_everyone(kind: Kind, hosts: int) -> None:
    """Breaks if a step went too early, or was left out: some host would lack a part of the sum."""
    connections = plan(kind, hosts, 1000)
    parts = hosts if kind == "ring" else 1
    for first in range(len(connections)):
        has = [[{host} for _ in range(parts)] for host in range(hosts)]
        sent = order(connections, first)
        assert len(sent) == sum(len(each.messages) for each in connections)
        for number, message in sent:
            source, target = connections[number].source, connections[number].target
            # In a ring a host passes on the part that it got in the step before.
            part = (source - message) % hosts if kind == "ring" else 0
            has[target][part] = has[target][part] | has[source][part]
        assert all(part == set(range(hosts)) for of in has for part in of), first


def test_every_pair_has_its_part_of_an_all_to_all() -> None:
    connections = plan("all-to-all", 5, 1001)
    assert {(each.source, each.target) for each in connections} == {
        (a, b) for a in range(5) for b in range(5) if a != b
    }
    assert {each.messages[0].bytes for each in connections} == {201}
    assert len(order(connections, 0)) == 20


@pytest.mark.parametrize(("kind", "rounds", "part"), [("all-to-all", 3, 2**18), ("ring", 6, 2**18)])
def test_an_operation_takes_what_its_bytes_take(
    kind: str, rounds: int, part: int, write: Write, runs: Path
) -> None:
    """Breaks if steps overlapped that depend on each other, or waited for answers."""
    del runs
    (point,) = study(operation(write, kind), engine=SerialEngine()).points
    (took,) = completions(point.runs)
    wire = rounds * part * 8e9 / RATE
    assert took.hosts == 4
    assert 1.02 * wire < took.nanoseconds < 1.25 * wire + rounds * 10_000, (took, wire)
    assert took.bits_per_s == pytest.approx(rounds * part * 8e9 / took.nanoseconds)


@pytest.mark.usefixtures("runs")
def test_an_operation_is_reported(write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = operation(write, "tree")
    assert main(["run", str(file), "--json"]) == 0
    (shown,) = json.loads(capsys.readouterr().out)["collectives"]
    found = study(file, engine=SerialEngine())
    (took,) = completions(found.points[0].runs)
    assert shown["nanoseconds"] == took.nanoseconds
    assert f"{took.bits_per_s / 1e9:.2f}" in columns.table(found).splitlines()[-1]
    report.write(found, tmp_path / "page.html")
    assert "Collective operations" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (('collective = "tree"', 'collective = "star"'), "workload.0.collective"),
        (('collective = "tree"\n', ""), "workload.0.collective"),
        (("clients = 4", "clients = 5"), "workload.0.clients"),
        (("clients = 4", "clients = 1"), "workload.0.clients"),
        (('request = "1MiB"\n', ""), "workload.0.request"),
        (("clients = 4", "clients = 4\ndepth = 2"), "workload.0.depth"),
        (
            ('kind = "collective"\ncollective = "tree"\nclients = 4', 'collective = "tree"\nclients = 3'),
            "workload.0.collective",
        ),
        (('anchor = "memory"', 'anchor = "tcp"'), "stack.anchor"),
    ],
)
def test_what_makes_no_operation_is_refused(write: Write, change: tuple[str, str], key: str) -> None:
    with pytest.raises(ScenarioError, match=key):
        runs(operation(write, "tree", change))
