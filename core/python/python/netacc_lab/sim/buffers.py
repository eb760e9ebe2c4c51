"""Checks of switches: buffers that can take a frame, marking that is in order, and PFC that loses nothing."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from netacc_lab.sim.errors import refuse
from netacc_lab.sim.model import Scenario, Switches
from netacc_lab.sim.topology import Graph, Link

#: Bytes of a frame beside its payload at most: preamble, gap and Ethernet 38, IP and UDP 28, BTH and ICRC 16,
#: RETH 16 and an immediate 4.
HEADER_BYTES = 102
#: Ethernet beside an IP packet.
ETHERNET_BYTES = 38
#: A pause frame, with preamble and gap.
PAUSE_BYTES = 84

_SWITCH = "topology.switch"


def longest_frame(device: dict[str, Any], stack: dict[str, Any], groups: list[dict[str, Any]]) -> int:
    """Bytes of the longest frame of a run on the wire, from the resolved device, stack and groups."""
    of_rdma = any(group["promote"] or group["verbs"] for group in groups)
    of_nic = device["nic"]["mtu_bytes"] + HEADER_BYTES if of_rdma else 0
    of_tcp = stack["tcp_mtu_bytes"] + ETHERNET_BYTES if stack["tcp_buffer_bytes"] else 0
    return int(max(of_nic, of_tcp))


def check(scenario: Scenario, graph: Graph, frame: int, file: Path) -> None:
    """Raises ScenarioError for switches that cannot do what their keys promise."""
    if graph.switches == 0:
        return
    switch = scenario.topology.switch
    if switch.ecn_min > switch.ecn_max:
        text = f"{switch.ecn_min} bytes are more than ecn-max, {switch.ecn_max}"
        raise refuse(file, f"{_SWITCH}.ecn-min", text)
    if switch.pfc_xon > switch.pfc_xoff:
        text = f"{switch.pfc_xon} bytes are more than pfc-xoff, {switch.pfc_xoff}"
        raise refuse(file, f"{_SWITCH}.pfc-xon", text)
    for name, room in (
        ("port-buffer", switch.port_buffer),
        ("shared-buffer", _usable(switch) if switch.shared_buffer else None),
    ):
        if room is not None and room < frame:
            text = f"a port gets {room} bytes, but a frame has up to {frame}: nothing would ever wait there"
            raise refuse(file, f"{_SWITCH}.{name}", text)
    if switch.pfc:
        _check_lossless(switch, graph, frame, file)


def _usable(switch: Switches) -> int:
    """Bytes of the shared buffer that one port gets if no other has any: alpha times the free ones."""
    return int(switch.shared_buffer * switch.alpha / (1 + switch.alpha))


def _check_lossless(switch: Switches, graph: Graph, frame: int, file: Path) -> None:
    """All but one port may send to that one, each until its pause has arrived."""
    most = 0
    for number in range(graph.hosts, graph.hosts + graph.switches):
        links = [link for link in graph.links if number in (link.a, link.b)]
        needs = sorted(switch.pfc_xoff + _headroom(link, frame) for link in links)
        most = max(most, sum(itertools.islice(reversed(needs), len(needs) - 1)))
    for name, room in (
        ("port-buffer", switch.port_buffer),
        ("shared-buffer", _usable(switch) if switch.shared_buffer else most),
    ):
        if room < most:
            text = (
                f"a port gets {room} bytes, but with pfc up to {most} may wait for one: pfc-xoff and what "
                "arrives until a pause works, of each other port. Frames would be dropped"
            )
            raise refuse(file, f"{_SWITCH}.{name}", text)


def _headroom(link: Link, frame: int) -> int:
    """Bytes that arrive on a link between the frame that exceeds pfc-xoff and the effect of the pause."""
    flying = 2 * link.delay_ns * link.rate_bps // (8 * 10**9)
    # The frame that exceeds the limit, and one that the peer has begun.
    return flying + PAUSE_BYTES + 2 * frame
