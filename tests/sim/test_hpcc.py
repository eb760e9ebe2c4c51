"""The comparison with the HPCC authors' simulator: its inputs and outputs, and our half of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sim.hpcc import LOADS, Load, closed_form_ns, ours, read_ends, write_inputs


@pytest.mark.parametrize("load", LOADS, ids=lambda load: load.name)
def test_both_are_given_the_same(load: Load, tmp_path: Path) -> None:
    """Breaks if a file of theirs does not match its head, or a node has no link."""
    config = dict(line.split(" ", 1) for line in write_inputs(load, tmp_path).read_text().splitlines())
    head, switches, *links = (tmp_path / "topology.txt").read_text().splitlines()
    nodes, switch_count, link_count = map(int, head.split())
    assert (len(switches.split()), len(links)) == (switch_count, link_count)
    joined = {int(end) for link in links for end in link.split()[:2]}
    assert joined == set(range(nodes))
    count, *flows = Path(config["FLOW_FILE"]).read_text().splitlines()
    assert int(count) == len(flows) == load.count
    for flow in flows:
        source, destination, *_ = map(int, flow.split())
        assert source != destination and max(source, destination) < nodes - switch_count


def test_their_table_is_read() -> None:
    """Breaks if another column than the time of a flow is taken, or they are not in order."""
    text = "0b000001 0b001001 10000 100 500 2000000000 85091 86000\n0b000101 0b001001 1 1 500 20 900 1\n"
    assert read_ends(text) == (900, 85091)


def test_ours_ends_when_the_queue_does() -> None:
    """Breaks if the last byte is not in memory when the receiver's link has carried all of them."""
    load = Load("small", "", 4, 100_000)
    run = ours(load)
    known = closed_form_ns(load)
    assert known is not None
    assert len(run.ends) == load.count
    assert run.ends[-1] == pytest.approx(known[1], abs=2)
