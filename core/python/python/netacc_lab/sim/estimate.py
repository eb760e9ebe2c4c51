"""How many events a run will take, before it is made: for `--dry-run`."""

from __future__ import annotations

from netacc_lab.sim.costs import mean_ns
from netacc_lab.sim.resolve import Resolved

#: Of a packet on one link: end of serialisation and arrival. Of one at a NIC: timers of engines, completions.
EVENTS_A_HOP, EVENTS_A_PACKET = 2, 6
#: The same of a packet of kernel TCP, or of a datagram.
EVENTS_A_PLAIN_PACKET = 1
#: Packets that make and close a TCP connection.
CONNECTION_PACKETS = 7
#: Costs of a request on a processor.
COSTS = ("library_call_ns", "post_ns", "system_call_ns", "segment_ns", "connection_ns", "copy_per_kib_ns")
#: Events a second of one processor. Measured on two shared virtual cores: 300,000 and 450,000 on links
#: (`incast`, `stacks`), 83,000 to 102,000 on kernel TCP (4,000 connections; `stacks`).
EVENTS_A_SECOND, EVENTS_A_SECOND_OF_TCP = 400_000, 90_000


def seconds(resolved: Resolved) -> float:
    """Processor time of a run. An order of magnitude."""
    groups = resolved["groups"]
    found = 0.0
    for group in groups:
        a_second = EVENTS_A_SECOND if group["promote"] or group["verbs"] else EVENTS_A_SECOND_OF_TCP
        found += events({**resolved, "groups": [group]}) / a_second
    return found


def events(resolved: Resolved) -> int:
    """Right within a factor of a few: an unloaded network, and no more than the servers' links carry."""
    network, device, measure = resolved["network"], resolved["device"], resolved["measure"]
    hops = 1 if network["switches"] == 0 else 2 if network["switches"] == 1 else 4
    rate = min(link["rate_bps"] for link in network["links"])
    delay = max(link["delay_ns"] for link in network["links"])
    span = measure["warmup_ns"] + measure["duration_ns"]
    total = 0.0
    for group in resolved["groups"]:
        connections = sum(client["connections"] for client in group["clients"])
        sizes = [_mean(group["request"]), _mean(group["response"])]
        arrival, each = group["arrival"], group["requests_per_connection"] or 1
        packets = sum(-(-size // device["nic"]["mtu_bytes"]) + 1 for size in sizes)
        serial = max(sizes) * 8e9 / rate
        if arrival["kind"] == "trace":
            requests = float(len(arrival["requests"]) * connections)
        elif arrival["kind"] == "flows":
            requests = float(connections)
            packets = (
                sum(-(-size // device["nic"]["mtu_bytes"]) + 1 for _, size in arrival["flows"]) / connections
            )
        elif arrival["kind"] == "after":
            lengths = [message["bytes"] for messages in arrival["requests"] for message in messages]
            requests = float(len(lengths))
            packets = sum(-(-size // device["nic"]["mtu_bytes"]) + 1 for size in lengths) / requests
        elif arrival["kind"] == "open":
            requests = each * connections * span / arrival["interval"]["mean_ns"]
        else:
            costs = sum(device["costs"].values())
            alone = 2 * (hops * delay + costs) + serial * hops + arrival["think"]["mean_ns"] / each
            if group["requests_per_connection"]:
                # Connecting takes another way there and back.
                alone += 2 * hops * delay / each
            processors = None if group["verbs"] else resolved["processors"]
            if processors:
                # Both ends work, and are woken unless they poll.
                alone += 2 * _work(resolved, group, sum(sizes)) * processors["server_threads"]
                sleeps = processors["costs"]["spin_ns"] < alone
                woken = sum(mean_ns(processors["costs"][name]) for name in ("wake_up_ns", "sleep_ns"))
                alone += 2 * woken * sleeps
            if group["datagrams"] == "taken":
                # Nothing is waited for.
                alone = serial
            servers = len({client["server"] for client in group["clients"]})
            requests = min(
                connections * arrival["depth"] * span / max(alone, 1), servers * span / max(serial, 1)
            )
            if processors:
                requests = min(requests, servers * span / _work(resolved, group, sum(sizes)))
        if group["count"] is not None:
            requests = min(requests, each * group["count"] * connections)
        plain = group["datagrams"] or not (group["promote"] or group["verbs"])
        of_packet = EVENTS_A_PLAIN_PACKET if plain else EVENTS_A_PACKET
        total += requests * packets * (hops * EVENTS_A_HOP + of_packet)
        if group["requests_per_connection"]:
            total += requests / each * CONNECTION_PACKETS * hops * EVENTS_A_HOP
    return int(total)


def _work(resolved: Resolved, group: Resolved, size: float) -> float:
    """Nanoseconds of one server's threads for a request."""
    processors = resolved["processors"]
    costs = group["costs"] or processors["costs"]
    mean = {name: mean_ns(costs[name]) for name in COSTS}
    calls = 3 * mean["library_call_ns"] + mean["post_ns"]
    if not group["promote"]:
        segments = -(-size // costs["segment_size_bytes"])
        calls = 3 * mean["system_call_ns"] + mean["segment_ns"] * segments
    if group["requests_per_connection"]:
        calls += mean["connection_ns"] / group["requests_per_connection"]
    work = group["service_ns"] + calls + size * mean["copy_per_kib_ns"] / 1024
    return float(max(work / processors["server_threads"], 1))


def _mean(bins: list[Resolved]) -> float:
    weight = sum(each["weight"] for each in bins)
    return float(sum(each["weight"] * (each["min_bytes"] + each["max_bytes"]) / 2 for each in bins) / weight)
