"""Graphs of hosts and switches, and which hosts take part.

Hosts are numbered rack by rack; switches follow: one for each rack first, then those that join them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from netacc_lab.sim.errors import refuse
from netacc_lab.sim.model import Placement, Topology


@dataclass(frozen=True)
class Link:
    """A link between two nodes; numbers as in the resolved form."""

    a: int
    b: int
    rate_bps: int
    delay_ns: int
    loss_ppm: int = 0


@dataclass
class Graph:
    """Hosts `0..hosts`, then `switches` switches."""

    hosts: int
    switches: int
    #: Hosts of each rack; its switch has the number of the rack.
    racks: list[list[int]]
    #: Racks that are close: a pod of a fat tree; all of other topologies.
    pods: list[list[int]]
    #: Switches that join racks: spines of two tiers, cores of a fat tree.
    tops: list[int] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    #: Whether racks have names in a scenario.
    named_racks: bool = True

    def links_of(self, node: int) -> list[int]:
        """Numbers of the links that end there."""
        return [number for number, link in enumerate(self.links) if node in (link.a, link.b)]

    def in_order(self, placement: Placement) -> list[int]:
        """Hosts in the order in which they take part."""
        if placement is Placement.SAME_RACK:
            return self.racks[0]
        # One of each rack of a pod in turn.
        pods = [list(_interleave([self.racks[rack] for rack in pod])) for pod in self.pods]
        # And of each pod in turn: as far apart as there is.
        return pods[0] if placement is Placement.LOW_LATENCY_SET else list(_interleave(pods))


def _interleave(lists: list[list[int]]) -> Iterator[int]:
    for index in range(max(map(len, lists))):
        yield from (each[index] for each in lists if index < len(each))


def build(topology: Topology, file: Path | str) -> Graph:
    """The graph. Raises ScenarioError where a key is missing, or is of another kind of topology."""
    needs = {
        "direct": set(),
        "star": {"hosts"},
        "leaf-spine": {"racks", "hosts_per_rack", "spines"},
        "fat-tree": {"k"},
        "graph": {"hosts", "switches", "link"},
    }
    for name in ("hosts", "racks", "hosts_per_rack", "spines", "k", "switches", "link"):
        key = f"topology.{name.replace('_', '-')}"
        given = getattr(topology, name) is not None
        if given and name not in needs[topology.kind]:
            raise refuse(file, key, f"has no effect on {topology.kind}")
        if not given and name in needs[topology.kind]:
            raise refuse(file, key, f"is missing: {topology.kind} needs it")
    flat = topology.kind in ("direct", "star", "graph")
    for name in ("uplink_rate", "uplink_delay", "oversubscription", "placement"):
        if flat and name in topology.model_fields_set:
            raise refuse(file, f"topology.{name.replace('_', '-')}", f"has no effect on {topology.kind}")
    if topology.kind == "leaf-spine" and topology.placement is Placement.LOW_LATENCY_SET:
        raise refuse(file, "topology.placement", "leaf-spine has no pods; there are same-rack, spread")
    if topology.uplink_rate is not None and "oversubscription" in topology.model_fields_set:
        raise refuse(file, "topology.oversubscription", "uplink-rate sets the same value: leave one out")
    match topology.kind:
        case "direct":
            link = Link(0, 1, topology.rate, topology.delay, topology.loss)
            return Graph(2, 0, [[0, 1]], [[0]], links=[link])
        case "star":
            return _racks(topology, 1, topology.hosts or 0)
        case "leaf-spine":
            return _leaf_spine(topology)
        case "fat-tree":
            if (topology.k or 0) % 2:
                raise refuse(file, "topology.k", f"{topology.k} is not even")
            return _fat_tree(topology)
        case "graph":
            return _graph(topology, file)


def _graph(topology: Topology, file: Path | str) -> Graph:
    """Links as they are given. Hosts take part in the order of their numbers."""
    hosts, switches = topology.hosts or 0, topology.switches or 0
    graph = Graph(hosts, switches, [list(range(hosts))], [[0]], named_racks=False)
    joined: dict[frozenset[int], int] = {}
    for number, link in enumerate(topology.link or []):
        key = f"topology.link.{number}"
        a, b = (_node(end, hosts, switches, key, file) for end in link.ends)
        if a == b:
            raise refuse(file, key, f"joins {link.ends[0]} with itself")
        if max(a, b) < hosts:
            raise refuse(
                file, key, f"joins {link.ends[0]} with {link.ends[1]}: a host's link leads to a switch"
            )
        first = joined.setdefault(frozenset((a, b)), number)
        if first != number:
            raise refuse(file, key, f"joins the same two as topology.link.{first}")
        rate = topology.rate if link.rate is None else link.rate
        delay = topology.delay if link.delay is None else link.delay
        usual = topology.loss if min(a, b) < hosts else 0
        graph.links.append(Link(a, b, rate, delay, usual if link.loss is None else link.loss))
    for host in range(hosts):
        count = len(graph.links_of(host))
        if count != 1:
            raise refuse(file, "topology.link", f"host:{host} has {count} links, and needs one")
    apart = _unreached(graph)
    if apart:
        name = f"host:{apart[0]}" if apart[0] < hosts else f"switch:{apart[0] - hosts}"
        raise refuse(file, "topology.link", f"nothing leads from host:0 to {name}")
    return graph


def _node(end: str, hosts: int, switches: int, key: str, file: Path | str) -> int:
    """The number of an end of a link."""
    kind, _, text = end.partition(":")
    number, count = int(text), hosts if kind == "host" else switches
    if number >= count:
        raise refuse(file, key, f"there is no {end}: the last is {kind}:{count - 1}")
    return number if kind == "host" else hosts + number


def _unreached(graph: Graph) -> list[int]:
    """Nodes that nothing leads to from the first one."""
    neighbours: dict[int, list[int]] = {node: [] for node in range(graph.hosts + graph.switches)}
    for link in graph.links:
        neighbours[link.a].append(link.b)
        neighbours[link.b].append(link.a)
    reached, waiting = {0}, [0]
    while waiting:
        found = set(neighbours[waiting.pop()]) - reached
        reached |= found
        waiting += found
    return [node for node in neighbours if node not in reached]


def _racks(topology: Topology, racks: int, per_rack: int) -> Graph:
    """Racks that nothing joins yet."""
    hosts = racks * per_rack
    graph = Graph(hosts, racks, [list(range(r * per_rack, (r + 1) * per_rack)) for r in range(racks)], [[0]])
    for rack, members in enumerate(graph.racks):
        for host in members:
            graph.links.append(Link(host, hosts + rack, topology.rate, topology.delay, topology.loss))
    return graph


def _uplink(topology: Topology, per_rack: int, uplinks: int) -> tuple[int, int]:
    """Rate and delay of a link between switches."""
    fair = round(topology.rate * per_rack / uplinks / topology.oversubscription)
    delay = topology.delay if topology.uplink_delay is None else topology.uplink_delay
    return topology.uplink_rate or max(fair, 1), delay


def _leaf_spine(topology: Topology) -> Graph:
    racks, per_rack, spines = topology.racks or 0, topology.hosts_per_rack or 0, topology.spines or 0
    graph = _racks(topology, racks, per_rack)
    graph.pods = [list(range(racks))]
    graph.tops = list(range(graph.hosts + racks, graph.hosts + racks + spines))
    graph.switches += spines
    rate, delay = _uplink(topology, per_rack, spines)
    for rack in range(racks):
        graph.links += [Link(graph.hosts + rack, spine, rate, delay) for spine in graph.tops]
    return graph


def _fat_tree(topology: Topology) -> Graph:
    """After Al-Fares et al., "A Scalable, Commodity Data Center Network Architecture", SIGCOMM 2008."""
    k = topology.k or 0
    half = k // 2
    graph = _racks(topology, k * half, half)
    graph.pods = [list(range(pod * half, (pod + 1) * half)) for pod in range(k)]
    first = graph.hosts + k * half
    graph.tops = list(range(first + k * half, first + k * half + half * half))
    graph.switches += k * half + half * half
    rate, delay = _uplink(topology, half, half)
    for pod in range(k):
        middles = [first + pod * half + index for index in range(half)]
        for rack in graph.pods[pod]:
            graph.links += [Link(graph.hosts + rack, middle, rate, delay) for middle in middles]
        for index, middle in enumerate(middles):
            cores = graph.tops[index * half : (index + 1) * half]
            graph.links += [Link(middle, core, rate, delay) for core in cores]
    return graph
