"""The schema of scenario files. `Scenario.model_json_schema()` publishes it (`netacc sim schema`).

A scenario is a question; `resolve` makes runs of it. Unknown keys are errors everywhere.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

from netacc_lab import _native
from netacc_lab.sim import declared
from netacc_lab.sim.units import Duration, Frequency, Rate, Share, Size, Span

Count = Annotated[int, Field(ge=1, strict=True)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$")]
#: A profile: its name, or its file.
Profile = Annotated[str, Field(pattern=r"^[A-Za-z0-9_./-]+$")]


class Strict(BaseModel):
    """Keys are written with dashes; unknown ones are errors."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        alias_generator=lambda name: name.replace("_", "-"),
        validate_by_name=False,
        validate_by_alias=True,
    )


class Placement(StrEnum):
    """The hosts that take part: of one rack, of the racks of one pod in turn, of all pods in turn."""

    SAME_RACK = "same-rack"
    LOW_LATENCY_SET = "low-latency-set"
    SPREAD = "spread"


# The models declare most parameters, so the bases of these classes are made when this module is imported.
class Switches(declared.model("switch", Strict)):  # type: ignore[misc]
    """Every switch."""


End = Annotated[str, Field(pattern=r"^(host|switch):\d+$")]


class GraphLink(Strict):
    """A link of a graph."""

    ends: Annotated[list[End], Field(min_length=2, max_length=2)] = Field(description="host:N and switch:N")
    rate: Rate | None = Field(default=None, description="else the topology's")
    delay: Duration | None = Field(default=None, description="else the topology's")
    loss: Share | None = Field(
        default=None, description="each way; else the topology's at a host, none between switches"
    )


class Topology(Strict):
    """Hosts, switches and links."""

    kind: Literal["direct", "star", "leaf-spine", "fat-tree", "graph"]
    hosts: Count | None = Field(default=None, description="star: hosts around the switch; graph: hosts")
    switches: Count | None = Field(default=None, description="graph")
    link: list[GraphLink] | None = Field(default=None, description="graph: each host has one, to a switch")
    racks: Count | None = Field(default=None, description="leaf-spine: racks, each with one switch")
    hosts_per_rack: Count | None = Field(default=None, description="leaf-spine")
    spines: Count | None = Field(default=None, description="leaf-spine")
    k: Count | None = Field(default=None, description="fat-tree: ports of a switch; even")
    rate: Rate = 100 * 10**9
    delay: Duration = 500
    loss: Share = Field(default=0, description="packets lost on each host's link, each way")
    uplink_rate: Rate | None = Field(default=None, description="between switches; else by oversubscription")
    uplink_delay: Duration | None = Field(default=None, description="between switches; else delay")
    oversubscription: float = Field(
        default=1.0, gt=0, description="of a rack's uplinks: hosts' rate over theirs"
    )
    placement: Placement = Placement.SAME_RACK
    switch: Switches = Switches()


class DeviceValues(declared.model("device", Strict, optional=True)):  # type: ignore[misc]
    """A NIC. A scenario takes the values that it does not give from a profile."""


class Device(DeviceValues):
    """A NIC: a profile of `models/profiles`, and values that differ from it."""

    profile: Profile = Field(default="ideal", description="by name; or a file, by its path from the scenario")


LoopKind = Literal["turns", "rounds", "batches", "deferred"]


class StackValues(declared.model("stack", Strict)):  # type: ignore[misc]
    """Costs of a stack on a processor."""


class HostChoice(Strict):
    """The hosts' processors: a profile of `models/profiles`. Calls on `free` ones take no time."""

    profile: Profile = Field(default="free", description="by name; or a file, by its path from the scenario")
    free: bool | None = Field(default=None, description="calls take no time; else the profile's")
    cores: Annotated[int, Field(ge=0, strict=True)] | None = Field(
        default=None, description="0 for one each thread; else the profile's"
    )
    work_factor: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="how many times as long calls and the program's own work take as on the machine on "
        "which the stack's costs were fitted; else the profile's",
    )
    server_threads: Count = Field(default=1, description="of the process on a host that is asked")
    client_threads: Count = Field(default=4, description="of the process on any other")
    server_loop: LoopKind | None = Field(
        default=None,
        description="turns: a thread asks, reads and answers for one connection after the other; rounds: it "
        "asks for all that are ready, then reads and answers one after the other, as memcached and nginx do; "
        "batches: it reads all that are ready, then answers all, as Redis does; deferred: it reads from "
        "those that are ready, and writes to them when it has asked again, as redis-benchmark does; else "
        "batches where a workload is redis-like",
    )
    client_loop: LoopKind | None = Field(
        default=None,
        description="of any other process; else as server-loop if that is given, or deferred where a "
        "workload is redis-like",
    )


def _key(name: str) -> int:
    """A field for a key of netacc.conf: its bounds and its default are those of the library."""
    least, greatest, default = _native.key_range(name)
    field: int = Field(default=default, ge=least, le=greatest, strict=True)
    return field


class Nacc(Strict):
    """NACC_* values with an effect in simulation; the defaults are netacc.conf's."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=None)

    NACC_SOR_CONN_PER_QP: int = _key("NACC_SOR_CONN_PER_QP")
    NACC_SOR_MSG_SIZE: int = _key("NACC_SOR_MSG_SIZE")
    NACC_RING_SIZE: int = _key("NACC_RING_SIZE")
    NACC_PROMOTE_AFTER: int = _key("NACC_PROMOTE_AFTER")

    @field_validator("*")
    @classmethod
    def _as_the_library(cls, value: int, info: ValidationInfo) -> int:
        accepted, allowed = _native.key_accepts(str(info.field_name), str(value))
        if not accepted:
            raise ValueError(f"not allowed; allowed: {allowed}")
        return value


class StackKind(StrEnum):
    """The carrier of the bytes."""

    NETACC = "netacc"
    KERNEL_TCP = "kernel-tcp"
    GAZELLE_LIKE = "gazelle-like"
    UDPDK_LIKE = "udpdk-like"


class Stack(declared.model("stack", Strict, optional=True)):  # type: ignore[misc]
    """The stack under test: its kind, a profile of its costs, and costs that differ from it."""

    kind: StackKind = StackKind.NETACC
    profile: Profile | None = Field(
        default=None, description="by name; or a file, by its path from the scenario; else that of the kind"
    )
    nacc: Nacc = Nacc()
    anchor: Literal["tcp", "memory"] = Field(
        default="tcp",
        description="netacc: TCP under links; in memory it takes no time, and connections use links only",
    )
    tcp_buffer: Size = Field(default=262_144, description="of a TCP socket")
    tcp_mtu: Size = Field(default=1500, description="of a TCP packet, with its headers")


#: Costs that a host's process pays whatever stack a workload is on.
OF_A_HOST = (
    *("spin", "wake-up", "sleep", "waker", "link", "promotion", "stack-thread", "datagram-queue"),
    *("tick-interval", "tick", "noise-interval", "noise"),
    *("save-interval", "fork", "save", "save-slice"),
)


class Costs(declared.model("stack", Strict, optional=True, without=OF_A_HOST)):  # type: ignore[misc]
    """Costs of a workload's calls that differ from those of its stack's profile."""


class SizeShare(Strict):
    """Some of the messages."""

    share: Annotated[int, Field(ge=0, le=10**6, strict=True)] = Field(description="relative to the others")
    min: Size
    max: Size


class Sizes(Strict):
    """Lengths of messages, by share."""

    mix: Annotated[list[SizeShare], Field(min_length=1)]


def _sizes(value: object) -> object:
    """ "64B" stands for messages of that length."""
    if isinstance(value, str):
        return {"mix": [{"share": 1, "min": value, "max": value}]}
    return value


SizesOrOne = Annotated[
    Sizes,
    BeforeValidator(_sizes, json_schema_input_type=Size | Sizes),
]


class Workload(Strict):
    """Connections that do the same."""

    name: Name
    kind: Literal[
        "request-response",
        "redis-like",
        "incast",
        "streaming",
        "short-connections",
        "trace-replay",
        "flows",
        "collective",
        "datagrams",
        "verbs",
    ] = Field(
        default="request-response",
        description="flows: each line of a file is a message between two hosts; collective: one operation "
        "of all hosts with clients, as MPI has it; datagrams: UDP, "
        "one datagram for a request; answered if there is a response, else a "
        "closed loop sends the next when the call is over that has sent the one before; verbs: queue pairs "
        "without the library, one message for a request; answered by the same verb if there is a response, "
        "(ib_write_lat, ib_send_lat), else complete when its sender polls the completion (ib_write_bw)",
    )
    stack: Literal["netacc", "kernel-tcp"] | None = Field(
        default=None,
        description="its stack, with the costs of that stack's profile; else the scenario's. Workloads on "
        "links and on kernel TCP share hosts and network",
    )
    costs_profile: Profile | None = Field(
        default=None,
        description="of its stack's costs: by name; or a file, by its path from the scenario; else the "
        "scenario's, or on another stack than the scenario's that of its kind",
    )
    costs: Costs = Costs()
    servers: Count = 1
    clients: Count | None = Field(default=None, description="hosts with clients; flows: their file has them")
    connections: Count = Field(
        default=1,
        description="in all, spread evenly over the clients' hosts; short-connections: clients",
    )
    requests_per_connection: Count | None = Field(
        default=None,
        description="short-connections: requests of each, one after the other; then it is closed; else 1",
    )
    request: SizesOrOne | None = None
    response: SizesOrOne | None = None
    arrival: Literal["closed", "open"] = Field(
        default="closed", description="of requests; short-connections: of connections"
    )
    depth: Count = Field(default=1, description="closed: requests unanswered at a time")
    calls: Literal["joined", "single"] = Field(
        default="joined",
        description="what a call moves where several requests are unanswered: joined, all that wait at an "
        "end (redis-benchmark with a pipeline); single, one message (`netacc lat`)",
    )
    think: Duration = Field(
        default=0, description="closed: mean pause after an answer; short-connections: after a close"
    )
    rate: Frequency | None = Field(
        default=None,
        description="open: requests a second, of all; short-connections: connections a second",
    )
    spacing: Literal["exponential", "fixed"] = "exponential"
    count: Count | None = Field(
        default=None,
        description="requests of each at most; short-connections: connections of each client",
    )
    collective: Literal["all-to-all", "ring", "tree"] | None = Field(
        default=None,
        description="collective: all-to-all, or an all-reduce in a ring or up and down a tree; `request` is "
        "the buffer of each host",
    )
    verb: Literal["write", "send"] | None = Field(
        default=None,
        description="verbs: RDMA writes, whose receiver polls memory, or SENDs, whose receiver polls a "
        "completion queue; else writes",
    )
    trace: str | None = Field(default=None, description="trace-replay: a CSV file beside the scenario")
    flows: str | None = Field(
        default=None, description="flows: a file beside the scenario, as HPCC's flow.txt"
    )
    start: Duration = 0
    service: Duration | None = Field(default=None, description="the server's own work for a request")
    client_service: Duration | None = Field(default=None, description="the client's own work for an answer")
    client_after_write: Duration | None = Field(
        default=None, description="the client's own work after it has written: it delays nothing written"
    )
    round_service: Duration | None = Field(
        default=None,
        description="the server's own work of each round of its event loop, when it asks for what is ready",
    )
    client_round_service: Duration | None = Field(default=None, description="the same of the client's")
    cold_service: Duration | None = Field(
        default=None,
        description="more of the server's own work, for a turn that finds its connection's state displaced "
        "from the caches by those of others (stack.warm-connections)",
    )
    client_cold_service: Duration | None = Field(default=None, description="the same of the client's")


class FaultKind(StrEnum):
    """The kind of a fault."""

    CUT = "cut"
    LOSS = "loss"
    SLOW = "slow"


class Fault(Strict):
    """Something goes wrong, and may be repaired."""

    kind: FaultKind
    at: Duration
    until: Duration | None = None
    target: Annotated[str, Field(pattern=r"^(host|switch|rack|spine|core|link):\d+$")] = Field(
        description="host:N (by its part: servers first), rack:N and spine:N (their switch), switch:N, link:N"
    )
    loss: Share | None = Field(default=None, description="loss: packets lost, each way")
    rate: Rate | None = Field(default=None, description="slow: the remaining rate")
    reroute_after: Duration | None = Field(default=None, description="until switches route around the cut")


class Measure(Strict):
    """The measured span, and the end of a run."""

    warmup: Duration = 1_000_000
    duration: Span
    drain: Duration = Field(default=10**10, description="for the last answers")
    stall: Span = Field(default=5 * 10**9, description="no progress for so long is a failed run")
    progress: Span | None = Field(default=None, description="time between progress reports; else a hundredth")
    samples: bool = Field(default=True, description="write down each request")
    stages: bool = Field(default=False, description="write down the stages of each message")
    ports: bool = Field(
        default=False,
        description="write down queue, sent bytes and pauses of each port with each progress report",
    )
    seeds: Annotated[list[Annotated[int, Field(ge=0, strict=True)]], Field(min_length=1)] = [1, 2, 3]


class Scenario(Strict):
    """One file of `sim/scenarios`."""

    question: Annotated[str, Field(min_length=10, description="the user's question")]
    topology: Topology
    device: Device = Device()
    host: HostChoice = HostChoice()
    stack: Stack = Stack()
    workload: Annotated[list[Workload], Field(min_length=1)]
    fault: list[Fault] = []
    measure: Measure
    sweep: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field(
        default={},
        description="dotted key of this file to its values; `netacc sim sweep` runs all combinations",
    )
