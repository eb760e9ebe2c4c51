"""What a scenario file says: the schema. `Scenario.model_json_schema()` publishes it (`netacc sim schema`).

A scenario says *what is asked*; `resolve` makes runs of it. Unknown keys are errors everywhere.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

from netacc_lab import _native
from netacc_lab.sim.units import Duration, Frequency, Rate, Share, Size

Count = Annotated[int, Field(ge=1, strict=True)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$")]


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
    """Which hosts take part: of one rack, of the racks of one pod in turn, of all pods in turn."""

    SAME_RACK = "same-rack"
    LOW_LATENCY_SET = "low-latency-set"
    SPREAD = "spread"


class Switches(Strict):
    """Every switch."""

    port_buffer: Size = 1 << 20
    shared_buffer: Size = 0
    alpha: float = Field(default=1.0, ge=0, description="Share of what is free that a port gets")
    ecn: bool = False
    ecn_min: Size = 5_000
    ecn_max: Size = 200_000
    ecn_probability: Share = 10_000
    pfc: bool = False
    pfc_xoff: Size = 100_000
    pfc_xon: Size = 80_000


class Topology(Strict):
    """Hosts, switches and links."""

    kind: Literal["direct", "star", "leaf-spine", "fat-tree"]
    hosts: Count | None = Field(default=None, description="star: hosts around the switch")
    racks: Count | None = Field(default=None, description="leaf-spine: racks, each with one switch")
    hosts_per_rack: Count | None = Field(default=None, description="leaf-spine")
    spines: Count | None = Field(default=None, description="leaf-spine")
    k: Count | None = Field(default=None, description="fat-tree: ports of a switch; even")
    rate: Rate = 100 * 10**9
    delay: Duration = 500
    loss: Share = Field(default=0, description="packets lost on each host's link, each way")
    uplink_rate: Rate | None = Field(
        default=None, description="between switches; else as oversubscription says"
    )
    uplink_delay: Duration | None = Field(default=None, description="between switches; else delay")
    oversubscription: float = Field(
        default=1.0, gt=0, description="of a rack's uplinks: hosts' rate over theirs"
    )
    placement: Placement = Placement.SAME_RACK
    switch: Switches = Switches()


class RateControl(StrEnum):
    """What keeps queue pairs from sending too fast."""

    NONE = "none"
    FIXED_WINDOW = "fixed-window"
    DCQCN_PAPER = "dcqcn-paper"
    DCQCN_HPCC = "dcqcn-hpcc"


class Recovery(StrEnum):
    """How lost packets are sent again."""

    GO_BACK_N = "go-back-n"
    SELECTIVE_REPEAT = "selective-repeat"


class DeviceValues(Strict):
    """A NIC. In a scenario what is not said is the profile's; every value of a profile has its source."""

    mtu: Size | None = None
    recovery: Recovery | None = None
    ack_interval: Count | None = None
    retry_timeout: Duration | None = None
    retry_count: Annotated[int, Field(ge=0, le=255, strict=True)] | None = None
    rnr_pause: Duration | None = None
    no_receive_is_fatal: bool | None = None
    report_flushes: bool | None = None
    rebind: bool | None = None
    max_in_flight: Count | None = None
    rate_control: RateControl | None = None
    window: Size | None = None
    notification_interval: Duration | None = None
    max_queue_pairs: Count | None = None
    send_depth: Count | None = None
    receive_depth: Count | None = None
    max_inline: Size | None = None
    context_cache: Annotated[int, Field(ge=0, strict=True)] | None = None
    region_cache: Annotated[int, Field(ge=0, strict=True)] | None = None
    receive_buffer_packets: Count | None = None
    memory_limit: Size | None = None
    doorbell: Duration | None = None
    request_fetch: Duration | None = None
    payload_fetch: Duration | None = None
    transmit_packet: Duration | None = None
    receive_packet: Duration | None = None
    context_miss: Duration | None = None
    region_miss: Duration | None = None
    placement: Duration | None = None
    completion: Duration | None = None
    interrupt: Duration | None = None
    create_queue_pair: Duration | None = None
    connect_queue_pair: Duration | None = None
    destroy_queue_pair: Duration | None = None
    register_memory: Duration | None = None
    register_per_mib: Duration | None = None
    deregister_memory: Duration | None = None


class Device(DeviceValues):
    """A NIC: a profile of `models/profiles`, and what differs from it."""

    profile: Name = "ideal"


class HostChoice(Strict):
    """The hosts' processors: a profile of `models/profiles`. Calls on `free` ones take no time."""

    profile: Name = "free"
    server_threads: Count = Field(default=1, description="of the process on a host that is asked")
    client_threads: Count = Field(default=4, description="of the process on any other")


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
    """What carries the bytes."""

    NETACC = "netacc"
    KERNEL_TCP = "kernel-tcp"
    GAZELLE_LIKE = "gazelle-like"
    UDPDK_LIKE = "udpdk-like"


class Stack(Strict):
    """The stack under test."""

    kind: StackKind = StackKind.NETACC
    nacc: Nacc = Nacc()
    anchor: Literal["tcp", "memory"] = Field(
        default="tcp",
        description="netacc: what is under links; memory takes no time, and connections talk on links only",
    )
    tcp_buffer: Size = Field(default=262_144, description="of a TCP socket")
    tcp_mtu: Size = Field(default=1500, description="of a TCP packet, with its headers")


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
        "request-response", "redis-like", "incast", "streaming", "short-connections", "trace-replay"
    ] = "request-response"
    servers: Count = 1
    clients: Count = Field(description="hosts with clients")
    connections: Count = Field(
        default=1,
        description="in all, spread evenly over the clients' hosts; short-connections: who makes them",
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
        description="requests of each at most; short-connections: connections of each who makes them",
    )
    trace: str | None = Field(default=None, description="trace-replay: a CSV file beside the scenario")
    start: Duration = 0
    service: Duration | None = Field(default=None, description="the server's own work for a request")


class FaultKind(StrEnum):
    """What goes wrong."""

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
    rate: Rate | None = Field(default=None, description="slow: what is left")
    reroute_after: Duration | None = Field(default=None, description="until switches go around what is cut")


class Measure(Strict):
    """What counts, and when a run ends."""

    warmup: Duration = 1_000_000
    duration: Duration
    drain: Duration = Field(default=10**10, description="for the last answers")
    stall: Duration = Field(default=5 * 10**9, description="no progress for so long is a failed run")
    progress: Duration | None = Field(
        default=None, description="how often progress is told; else a hundredth"
    )
    samples: bool = Field(default=True, description="write down each request")
    seeds: Annotated[list[Annotated[int, Field(ge=0, strict=True)]], Field(min_length=1)] = [1, 2, 3]


class Scenario(Strict):
    """One file of `sim/scenarios`."""

    question: Annotated[str, Field(min_length=10, description="what a user would ask")]
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
