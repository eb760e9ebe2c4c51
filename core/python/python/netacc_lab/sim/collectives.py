"""Collective operations: messages between all hosts, some of which wait for others.

A host's message is due once the host has received those that it waits for. Reducing takes no time. The
algorithms are those of MPI libraries (Thakur, Rabenseifner and Gropp, Optimization of Collective
Communication Operations in MPICH, 2005):

* `all-to-all`: each host sends a part of its buffer to each other host, all at once.
* `ring`: all-reduce in 2 (n - 1) steps; in each a host sends an n-th of the buffer to the next one.
* `tree`: all-reduce up a binary tree to its root and down again, the whole buffer at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["all-to-all", "ring", "tree"]
#: The number of a connection, and how many of its messages have been received.
After = tuple[int, int]


@dataclass(frozen=True)
class Message:
    """One message of a connection, and those that are to be received before."""

    bytes: int
    after: tuple[After, ...] = ()


@dataclass(frozen=True)
class Connection:
    """From one host to another, by their places among the hosts, with its messages in order."""

    source: int
    target: int
    messages: tuple[Message, ...]


def plan(kind: Kind, hosts: int, size: int) -> list[Connection]:
    """The connections of `hosts` hosts with buffers of `size` bytes."""
    part = max(-(-size // hosts), 1)
    if kind == "all-to-all":
        pairs = [(a, b) for a in range(hosts) for b in range(hosts) if a != b]
        return [Connection(a, b, (Message(part),)) for a, b in pairs]
    if kind == "ring":
        steps = range(2 * (hosts - 1))
        return [
            Connection(
                host,
                (host + 1) % hosts,
                tuple(Message(part, (((host - 1) % hosts, step),) if step else ()) for step in steps),
            )
            for host in range(hosts)
        ]
    # Connection number i - 1 goes up from host i, and number hosts - 1 + i - 1 down to it.
    children = {host: [c for c in (2 * host + 1, 2 * host + 2) if c < hosts] for host in range(hosts)}
    received = {host: tuple((child - 1, 1) for child in children[host]) for host in range(hosts)}
    parents = {child: host for host, of in children.items() for child in of}
    up = [Connection(host, parents[host], (Message(size, received[host]),)) for host in range(1, hosts)]
    down = [
        Connection(
            parents[host],
            host,
            (Message(size, ((hosts - 2 + parents[host], 1),) if parents[host] else received[0]),),
        )
        for host in range(1, hosts)
    ]
    return [*up, *down]


def resolved(connections: Iterable[Connection], hosts: list[int]) -> dict[str, Any]:
    """The part of a group's resolved form that differs from other workloads'."""
    made = list(connections)
    return {
        "clients": [{"client": hosts[c.source], "server": hosts[c.target], "connections": 1} for c in made],
        "arrival": {
            "kind": "after",
            "requests": [[{"bytes": m.bytes, "after": list(m.after)} for m in c.messages] for c in made],
        },
    }
