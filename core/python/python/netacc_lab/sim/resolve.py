"""From a scenario to runs: the resolved form, in which nothing is left to choose.

The form is that of `sim/simulator/src/scenario.rs`.

A scenario that the simulator cannot run is refused here, never ignored.
"""

from __future__ import annotations

import copy
import csv
import itertools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from netacc_lab.sim import buffers, collectives, costs, declared, fits, flows, profiles, rate_control
from netacc_lab.sim.errors import ScenarioError, from_validation, refuse
from netacc_lab.sim.model import (
    DeviceValues,
    Fault,
    FaultKind,
    Scenario,
    Sizes,
    Stack,
    StackKind,
    StackValues,
    Workload,
)
from netacc_lab.sim.topology import Graph, build

#: Bytes of IP's and UDP's headers.
UDP_HEADERS = 28

#: Of the resolved form.
FORMAT = 6

Resolved = dict[str, Any]

#: Values of a device that it has because it is a chip behind a bus.
HARDWARE = (
    *("request_fetch", "payload_fetch", "placement"),
    *("context_cache", "region_cache", "context_miss", "region_miss"),
)

_ONE_BYTE = [{"weight": 1, "min_bytes": 1, "max_bytes": 1}]
#: Of groups whose messages have their own lengths and times.
PLANNED: Resolved = {
    "request": _ONE_BYTE,
    "response": _ONE_BYTE,
    "requests_per_connection": None,
    "datagrams": None,
    "verbs": None,
    "start_spread_ns": 0,
    "count": None,
    "service_ns": 0,
    "client_service_ns": 0,
    "client_after_write_ns": 0,
    "round_service_ns": 0,
    "client_round_service_ns": 0,
    "cold_service_ns": 0,
    "client_cold_service_ns": 0,
}


#: Programs' own work beside the server's for a request, which has a default: keys of a workload.
OWN_WORK = (
    *("client_service", "client_after_write", "round_service", "client_round_service"),
    *("cold_service", "client_cold_service"),
)


@dataclass(frozen=True)
class Run:
    """One run: which point of a sweep, which seed, and its resolved scenario."""

    scenario: str
    point: Mapping[str, Any]
    seed: int
    resolved: Resolved
    #: The names of the profiles that it takes, by kind.
    profiles: Mapping[str, str] = field(default_factory=dict)
    #: The kinds of those of its figures that are no predictions, by name: see `fits`.
    kinds: Mapping[str, str] = field(default_factory=dict)


def read(file: Path) -> dict[str, Any]:
    """The tables of a scenario file."""
    try:
        with file.open("rb") as opened:
            return tomllib.load(opened)
    except OSError as error:
        raise refuse(file, "", error.strerror or str(error)) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise refuse(file, "", str(error)) from None


def check(raw: Mapping[str, Any], file: Path) -> Scenario:
    """The scenario, if it obeys the schema."""
    try:
        return Scenario.model_validate(raw)
    except ValidationError as error:
        raise from_validation(file, Scenario, error) from None


def runs(
    file: Path,
    *,
    sweep: Mapping[str, list[Any]] | None = None,
    seeds: list[int] | None = None,
    unset: Sequence[str] = (),
) -> list[Run]:
    """All runs of a scenario: each point of the sweep with each seed. All are checked before any is returned.

    `sweep` is the file's own unless it is given; an empty one is no sweep. Keys of `unset` are left
    out of the file.
    """
    raw = without(read(file), unset, file)
    scenario = check(raw, file)
    axes = scenario.sweep if sweep is None else sweep
    found = []
    for values in itertools.product(*axes.values()):
        point = dict(zip(axes, values, strict=True))
        tables = copy.deepcopy(raw)
        for key, value in point.items():
            _set(tables, key, value, file)
        at_point = check(tables, file)
        resolved = resolve(at_point, file)
        used = seeds or at_point.measure.seeds
        names = {
            "device": at_point.device.profile,
            "host": at_point.host.profile,
            "stack": at_point.stack.profile or str(at_point.stack.kind),
        }
        kinds = fits.kinds(tables, resolved, names, file, lambda other: resolve(check(other, file), file))
        found += [Run(file.stem, point, seed, {**resolved, "seed": seed}, names, kinds) for seed in used]
    return found


def without(tables: dict[str, Any], keys: Sequence[str], file: Path) -> dict[str, Any]:
    """The tables without some dotted keys, and without the sweeps of these."""
    left = copy.deepcopy(tables)
    for key in keys:
        swept = left.get("sweep", {}).pop(key, None) is not None
        at: Any = left
        *parents, last = key.split(".")
        for part in parents:
            if isinstance(at, list):
                at = at[int(part)] if part.isdigit() and int(part) < len(at) else None
            else:
                at = at.get(part) if isinstance(at, dict) else None
        if isinstance(at, dict) and last in at:
            del at[last]
        elif not swept:
            raise refuse(file, key, "cannot be unset: the file does not set it")
    return left


def _set(tables: dict[str, Any], key: str, value: object, file: Path) -> None:
    """Sets a dotted key; a number counts in a list."""
    at: Any = tables
    parts = key.split(".")
    for part in parts[:-1]:
        if isinstance(at, list):
            if not part.isdigit() or int(part) >= len(at):
                raise refuse(file, f"sweep.{key}", f"there is no {part} among {len(at)}")
            at = at[int(part)]
        else:
            at = at.setdefault(part, {})
    at[parts[-1]] = value


def resolve(scenario: Scenario, file: Path) -> Resolved:
    """The resolved form, with seed 0."""
    graph = build(scenario.topology, file)
    parts = _parts(scenario, graph, file)
    device = profiles.device(scenario.device.profile, scenario.device, file)
    stack = _stack(scenario, file)
    resolved_device = _device(device, scenario, file)
    groups = [_group(number, scenario, graph, parts, file) for number in range(len(scenario.workload))]
    buffers.check(scenario, graph, buffers.longest_frame(resolved_device, stack, groups), file)
    measure = scenario.measure
    end = measure.warmup + measure.duration
    return {
        "format": FORMAT,
        "name": file.stem,
        "seed": 0,
        "network": {
            "hosts": graph.hosts,
            "switches": graph.switches,
            "links": [vars(link) for link in graph.links],
            **declared.resolved("switch", scenario.topology.switch),
        },
        "device": resolved_device,
        "stack": stack,
        "processors": _processors(scenario, file),
        "groups": groups,
        "faults": _faults(scenario, graph, parts, file),
        "measure": {
            "warmup_ns": measure.warmup,
            "duration_ns": measure.duration,
            "drain_ns": measure.drain,
            "stall_ns": measure.stall,
            "progress_ns": measure.progress or max(end // 100, 1),
            "samples": measure.samples,
            "stages": measure.stages,
            "ports": measure.ports,
        },
    }


def _parts(scenario: Scenario, graph: Graph, file: Path) -> tuple[list[int], list[int]]:
    """The hosts of servers and of clients."""
    placed = [w for w in scenario.workload if w.kind not in ("flows", "collective")]
    for number, workload in enumerate(scenario.workload):
        if workload.kind != "flows" and workload.clients is None:
            raise refuse(file, f"workload.{number}.clients", f"is missing: {workload.kind} needs it")
    if not placed:
        return [], list(range(graph.hosts))
    servers = max(w.servers for w in placed)
    clients = max(w.clients or 0 for w in placed)
    placement = scenario.topology.placement
    order = graph.in_order(placement)
    if servers + clients > len(order):
        where = f"{placement} has room for {len(order)} hosts"
        raise refuse(file, "workload", f"{servers} servers and {clients} hosts with clients, but {where}")
    return order[:servers], order[servers : servers + clients]


def _device(device: DeviceValues, scenario: Scenario, file: Path) -> Resolved:
    rate_control.check(device, scenario, file)
    _check_engines(device, file)
    return declared.resolved("device", device)


def _check_engines(device: DeviceValues, file: Path) -> None:
    """A device in software copies itself as it takes a packet, and has neither a bus nor a chip's caches."""
    if device.engines == "shared":
        for name in HARDWARE:
            if getattr(device, name):
                text = "must be left out: with engines = shared the device is in software"
                raise refuse(file, f"device.{name.replace('_', '-')}", text)


def _kind(workload: Workload, scenario: Scenario) -> StackKind:
    """The stack of a workload. One by verbs has none, and the scenario's stands for it."""
    return scenario.stack.kind if workload.stack is None else StackKind(workload.stack)


def _is_promoted(workload: Workload, scenario: Scenario) -> bool:
    return workload.kind != "verbs" and _kind(workload, scenario) is StackKind.NETACC


def _check_stacks(scenario: Scenario, file: Path) -> None:
    """Workloads may have other stacks than the scenario's only where these are the same to a host."""
    stack = scenario.stack
    mixed = [n for n, each in enumerate(scenario.workload) if _kind(each, scenario) is not stack.kind]
    if not mixed:
        return
    key = f"workload.{mixed[0]}.stack"
    if stack.kind not in (StackKind.NETACC, StackKind.KERNEL_TCP):
        raise refuse(file, key, f"must be left out: {stack.kind} has all of a host")
    if stack.stack_thread:
        raise refuse(file, key, "must be left out: stack.stack-thread is of a stack that has all of a host")
    if stack.anchor == "memory":
        raise refuse(
            file, "stack.anchor", "must be tcp: workloads on links and on kernel TCP share the network"
        )


def _stack(scenario: Scenario, file: Path) -> Resolved:
    _check_stacks(scenario, file)
    stack = scenario.stack
    promoted = any(_is_promoted(each, scenario) for each in scenario.workload)
    uses_rdma = promoted or any(each.kind == "verbs" for each in scenario.workload)
    in_memory = promoted and stack.anchor == "memory"
    for name, senseless in (
        ("nacc", not promoted),
        ("anchor", not promoted),
        ("tcp_buffer", in_memory),
        ("tcp_mtu", in_memory),
    ):
        if senseless and name in stack.model_fields_set:
            why = "TCP is in memory" if promoted else "nothing is promoted on the stacks of the workloads"
            raise refuse(file, f"stack.{name.replace('_', '-')}", f"has no effect: {why}")
    # TCP's packets take the NICs' times, but none of their other values.
    of_tcp = {each.field for each in declared.TABLES["device"] if each.section == "costs"}
    given = sorted(scenario.device.model_fields_set - {"profile", "interrupt_interval"} - of_tcp)
    if given and not uses_rdma:
        raise refuse(
            file,
            f"device.{given[0].replace('_', '-')}",
            "has no effect: the stacks of the workloads use no RDMA",
        )
    if not 576 <= stack.tcp_mtu <= 65535:
        raise refuse(file, "stack.tcp-mtu", f"{stack.tcp_mtu} bytes: from 576B to 65535B")
    nacc = stack.nacc
    if in_memory and "NACC_PROMOTE_AFTER" in nacc.model_fields_set:
        text = "has no effect: with TCP in memory connections talk on links only"
        raise refuse(file, "stack.nacc.NACC_PROMOTE_AFTER", text)
    if nacc.NACC_SOR_MSG_SIZE * 2 > nacc.NACC_RING_SIZE:
        raise refuse(file, "stack.nacc.NACC_SOR_MSG_SIZE", "is more than half of NACC_RING_SIZE")
    return {
        "tcp_buffer_bytes": 0 if in_memory else stack.tcp_buffer,
        "tcp_mtu_bytes": stack.tcp_mtu,
        "ring_bytes": nacc.NACC_RING_SIZE,
        "message_bytes": nacc.NACC_SOR_MSG_SIZE,
        "streams_per_link": nacc.NACC_SOR_CONN_PER_QP,
        "promote_after": nacc.NACC_PROMOTE_AFTER,
    }


def _processors(scenario: Scenario, file: Path) -> Resolved | None:
    host = profiles.host(scenario.host, file)
    stack, chosen = scenario.stack, scenario.host
    if host.free:
        of_processors = [
            "server_threads",
            "client_threads",
            "server_loop",
            "client_loop",
            "cores",
            "work_factor",
        ]
        for table, fields, given in (
            ("host", of_processors, chosen.model_fields_set),
            ("stack", [*StackValues.model_fields, "profile"], stack.model_fields_set),
        ):
            for name in fields:
                if name in given:
                    text = "has no effect: calls take no time on these processors"
                    raise refuse(file, f"{table}.{name.replace('_', '-')}", text)
        if scenario.stack.kind not in (StackKind.NETACC, StackKind.KERNEL_TCP):
            text = f"{scenario.stack.kind} differs by its costs only: choose processors that take time"
            raise refuse(file, "host.profile", f"{text}; there are {', '.join(profiles.names('host'))}")
        return None
    redis = any(workload.kind == "redis-like" for workload in scenario.workload)
    # Redis reads all that is ready, then answers all. redis-benchmark waits for room before it writes.
    loops = ("batches", "deferred") if redis else ("turns", "turns")
    values = profiles.stack(stack.profile or stack.kind, stack, file)
    return {
        "cores": host.cores,
        "server_threads": chosen.server_threads,
        "client_threads": chosen.client_threads,
        "server_loop": chosen.server_loop or loops[0],
        "client_loop": chosen.client_loop or chosen.server_loop or loops[1],
        **_scaled(values, host.work_factor),
    }


def _scaled(values: StackValues, factor: float) -> Resolved:
    """The costs of a stack, where work takes so many times as long."""
    resolved = declared.resolved("stack", values)
    for each in declared.TABLES["stack"]:
        if each.unit == "distribution":
            section = resolved[each.section]
            section[each.key] = costs.scaled(section[each.key], factor)
    return resolved


def _of_stack(workload: Workload, scenario: Scenario, key: str, file: Path) -> Resolved:
    """The part of a group that follows from its stack: costs only where they are not the hosts'."""
    kind = _kind(workload, scenario)
    found: Resolved = {"promote": _is_promoted(workload, scenario), "costs": None}
    host, stack = profiles.host(scenario.host, file), scenario.stack
    profile, own = workload.costs_profile, workload.costs
    given = [name for name in ("costs_profile", "costs") if name in workload.model_fields_set]
    if host.free or workload.kind == "verbs":
        for name in given:
            text = "has no effect: its calls take no time on these processors"
            raise refuse(file, f"{key}.{name.replace('_', '-')}", text)
    elif kind is not stack.kind or given:
        # The scenario's costs are of its own stack.
        same = kind is stack.kind and profile is None
        base = stack if same else Stack()
        values = profiles.stack(profile or (stack.profile if same else None) or kind, base, file)
        changed = values.model_copy(update={name: of for name, of in own if of is not None})
        found |= {"costs": _scaled(changed, host.work_factor)["costs"]}
    return found


def _group(
    number: int, scenario: Scenario, graph: Graph, parts: tuple[list[int], list[int]], file: Path
) -> Resolved:
    workload = scenario.workload[number]
    key = f"workload.{number}"
    if workload.kind == "flows":
        return _flows(workload, scenario, graph, key, file)
    if workload.kind == "collective":
        return _collective(workload, scenario, graph, key, file)
    if workload.collective is not None:
        raise refuse(file, f"{key}.collective", f"has no effect: the workload is {workload.kind}")
    if workload.flows is not None:
        raise refuse(file, f"{key}.flows", f"has no effect: the workload is {workload.kind}")
    short = workload.kind == "short-connections"
    if workload.requests_per_connection is not None and not short:
        text = f"has no effect: connections of {workload.kind} last"
        raise refuse(file, f"{key}.requests-per-connection", text)
    servers, clients = parts[0][: workload.servers], parts[1][: workload.clients]
    if workload.connections < len(clients):
        raise refuse(
            file, f"{key}.connections", f"{workload.connections} are fewer than {len(clients)} clients"
        )
    pairs: dict[tuple[int, int], int] = {}
    for index in range(workload.connections):
        turn, place = divmod(index, len(clients))
        pair = (clients[place], servers[(turn + place) % len(servers)])
        pairs[pair] = pairs.get(pair, 0) + 1
    request, response = _lengths(workload, key, file)
    datagrams = None
    if workload.kind == "datagrams":
        _fit_datagrams(request + response, scenario, key, file)
        datagrams = "taken" if workload.response is None else "answered"
    incast = workload.kind == "incast"
    measure = scenario.measure
    return {
        "name": workload.name,
        **_of_stack(workload, scenario, key, file),
        "clients": [{"client": c, "server": s, "connections": n} for (c, s), n in pairs.items()],
        "request": request,
        "response": response,
        "requests_per_connection": (workload.requests_per_connection or 1) if short else None,
        "datagrams": datagrams,
        "verbs": _verbs(workload, key, file),
        "arrival": _arrival(workload, key, file),
        "calls": _calls(workload, key, file),
        # All at once for an incast; else apart, as nothing in reality begins at one instant.
        "start_ns": workload.start + (measure.warmup if incast else 0),
        "start_spread_ns": 0 if incast else max(measure.warmup - workload.start, 0) // 2,
        "count": workload.count or (1 if incast else None),
        "service_ns": _service(workload, scenario, key, file),
        **{f"{name}_ns": _own_work(workload, name, scenario, key, file) for name in OWN_WORK},
    }


def _flows(workload: Workload, scenario: Scenario, graph: Graph, key: str, file: Path) -> Resolved:
    for name in sorted(
        workload.model_fields_set - {"name", "kind", "stack", "costs_profile", "costs", "flows"}
    ):
        raise refuse(file, f"{key}.{name.replace('_', '-')}", "has no effect: the file has the flows")
    if workload.flows is None:
        raise refuse(file, f"{key}.flows", "is missing: flows needs it")
    _check_few_requests(workload, scenario, file)
    found = flows.read(file.parent / workload.flows, graph.hosts)
    measure = scenario.measure
    if found[-1].start_ns >= measure.duration:
        text = f"ends before the last flow starts, {found[-1].start_ns}ns after the first"
        raise refuse(file, "measure.duration", text)
    return {
        "name": workload.name,
        **_of_stack(workload, scenario, key, file),
        "clients": [{"client": each.src, "server": each.dst, "connections": 1} for each in found],
        "arrival": {
            "kind": "flows",
            "flows": [(measure.warmup + each.start_ns, each.bytes) for each in found],
        },
        "start_ns": 0,
        **PLANNED,
    }


def _collective(workload: Workload, scenario: Scenario, graph: Graph, key: str, file: Path) -> Resolved:
    for name in sorted(
        workload.model_fields_set
        - {"name", "kind", "stack", "costs_profile", "costs", "collective", "clients", "request"}
    ):
        raise refuse(file, f"{key}.{name.replace('_', '-')}", "has no effect: a collective operation is one")
    if workload.collective is None:
        raise refuse(file, f"{key}.collective", "is missing: a collective operation has a kind")
    order = graph.in_order(scenario.topology.placement)
    count = workload.clients or 0
    if not 2 <= count <= len(order):
        raise refuse(file, f"{key}.clients", f"{count} hosts: from 2 to {len(order)}, which there are")
    bins = workload.request.mix if workload.request else []
    if len(bins) != 1 or bins[0].min != bins[0].max:
        raise refuse(file, f"{key}.request", "must be one length: that of each host's buffer")
    _check_few_requests(workload, scenario, file)
    made = collectives.plan(workload.collective, count, bins[0].max)
    return {
        "name": workload.name,
        **_of_stack(workload, scenario, key, file),
        **collectives.resolved(made, order[:count]),
        "start_ns": scenario.measure.warmup,
        **PLANNED,
    }


def _check_few_requests(workload: Workload, scenario: Scenario, file: Path) -> None:
    if _kind(workload, scenario) is StackKind.NETACC and scenario.stack.anchor != "memory":
        text = "must be memory: connections have so few requests that these would go over TCP"
        raise refuse(file, "stack.anchor", text)


def _fit_datagrams(sizes: list[Resolved], scenario: Scenario, key: str, file: Path) -> None:
    # Fragments are not modelled.
    most = scenario.stack.tcp_mtu - UDP_HEADERS
    longest = max(each["max_bytes"] for each in sizes)
    if longest > most:
        text = f"a datagram of {longest} bytes: at most {most} fit into a packet (stack.tcp-mtu)"
        raise refuse(file, key, text)


def _verbs(workload: Workload, key: str, file: Path) -> Resolved | None:
    if workload.kind != "verbs":
        if workload.verb is not None:
            raise refuse(file, f"{key}.verb", f"has no effect: the workload is {workload.kind}")
        return None
    for name in ("stack", "service", *OWN_WORK):
        if name in workload.model_fields_set:
            text = "has no effect: programs that use verbs themselves poll on cores of their own"
            raise refuse(file, f"{key}.{name.replace('_', '-')}", text)
    return {"verb": workload.verb or "write", "answered": workload.response is not None}


def _service(workload: Workload, scenario: Scenario, key: str, file: Path) -> int:
    host = profiles.host(scenario.host, file)
    if host.free:
        if workload.service:
            raise refuse(file, f"{key}.service", "has no effect: calls on free processors take no time")
        return 0
    # The rest of a SET's 1.3 us with NetACC without its calls and a copy (profile netacc).
    usual = 950 if workload.kind == "redis-like" else 0
    service = usual if workload.service is None else workload.service
    return round(service * host.work_factor)


def _own_work(workload: Workload, name: str, scenario: Scenario, key: str, file: Path) -> int:
    """Nanoseconds of work that a program does itself, if the workload names it."""
    host = profiles.host(scenario.host, file)
    value: int = getattr(workload, name) or 0
    if host.free and value:
        text = "has no effect: calls on free processors take no time"
        raise refuse(file, f"{key}.{name.replace('_', '-')}", text)
    return round(value * host.work_factor)


def _lengths(workload: Workload, key: str, file: Path) -> tuple[list[Resolved], list[Resolved]]:
    request, response = workload.request, workload.response
    one = [{"weight": 1, "min_bytes": 1, "max_bytes": 1}]
    if workload.kind == "trace-replay":
        for name, value in (("request", request), ("response", response)):
            if value is not None:
                raise refuse(file, f"{key}.{name}", "has no effect: the trace has lengths")
        return one, one
    if workload.kind == "redis-like":
        # redis-benchmark's SET with a key of 16 and a value of 512 bytes, and "+OK\r\n".
        return _bins(request, key, file, 556), _bins(response, key, file, 5)
    if request is None:
        raise refuse(file, f"{key}.request", f"is missing: {workload.kind} needs it")
    if response is None and workload.kind in ("request-response", "short-connections"):
        raise refuse(file, f"{key}.response", f"is missing: {workload.kind} needs it")
    return _bins(request, key, file, 1), _bins(response, key, file, 1)


def _bins(sizes: Sizes | None, key: str, file: Path, usual: int) -> list[Resolved]:
    if sizes is None:
        return [{"weight": 1, "min_bytes": usual, "max_bytes": usual}]
    for each in sizes.mix:
        lengths = f"lengths from {each.min} to {each.max} bytes"
        if each.max >= 2**31:
            raise refuse(file, key, f"{lengths}: a message has at most {2**31 - 1} bytes")
        if not 1 <= each.min <= each.max:
            raise refuse(file, key, f"{lengths}: at least 1, and in order")
    if not any(each.share for each in sizes.mix):
        raise refuse(file, key, "no length has a share")
    return [{"weight": each.share, "min_bytes": each.min, "max_bytes": each.max} for each in sizes.mix]


def _arrival(workload: Workload, key: str, file: Path) -> Resolved:
    given = workload.model_fields_set
    trace = workload.kind == "trace-replay"
    short = workload.kind == "short-connections"
    closed = workload.arrival == "closed"
    senseless = {
        "rate": closed or trace,
        "depth": not closed or trace or short or (workload.kind == "datagrams" and workload.response is None),
        "think": not closed or trace,
        "arrival": trace,
        "spacing": trace or (closed and not workload.think),
        "trace": not trace,
    }
    for name, wrong in senseless.items():
        if wrong and name in given:
            raise refuse(file, f"{key}.{name}", "has no effect here")
    exponential = workload.spacing == "exponential"
    if trace:
        return {"kind": "trace", "requests": _trace(workload, key, file)}
    if closed:
        depth = 8 if workload.kind == "streaming" and "depth" not in given else workload.depth
        think = {"mean_ns": workload.think, "exponential": exponential and workload.think > 0}
        return {"kind": "closed", "depth": depth, "think": think}
    if workload.rate is None:
        raise refuse(file, f"{key}.rate", "is missing: open arrivals need it")
    interval = max(workload.connections * 10**12 // workload.rate, 1)
    return {"kind": "open", "interval": {"mean_ns": interval, "exponential": exponential}}


def _calls(workload: Workload, key: str, file: Path) -> str:
    if workload.calls == "single":
        if workload.kind in ("datagrams", "verbs"):
            raise refuse(file, f"{key}.calls", f"has no effect: each message of {workload.kind} has its call")
        several = workload.depth > 1 or workload.arrival == "open"
        if workload.kind == "short-connections" or not (
            several or workload.kind in ("streaming", "trace-replay")
        ):
            text = "has no effect: there is one request at a time on a connection"
            raise refuse(file, f"{key}.calls", text)
    return workload.calls


def _trace(workload: Workload, key: str, file: Path) -> list[tuple[int, int, int]]:
    if workload.trace is None:
        raise refuse(file, f"{key}.trace", "is missing: trace-replay needs it")
    path = file.parent / workload.trace
    try:
        with path.open(newline="") as opened:
            rows = [(int(r["at_ns"]), int(r["request"]), int(r["response"])) for r in csv.DictReader(opened)]
    except OSError as error:
        raise refuse(file, f"{key}.trace", f"{path}: {error.strerror}") from None
    except (KeyError, TypeError, ValueError) as error:
        raise refuse(
            path, "", f"columns at_ns, request, response of whole numbers are needed: {error}"
        ) from None
    if not rows or rows != sorted(rows, key=lambda row: row[0]) or any(min(r[1:]) < 1 for r in rows):
        raise refuse(path, "", "requests are in order of time, and none is empty")
    return rows


def _faults(
    scenario: Scenario, graph: Graph, parts: tuple[list[int], list[int]], file: Path
) -> list[Resolved]:
    found: list[Resolved] = []
    for number, fault in enumerate(scenario.fault):
        key = f"fault.{number}"
        needs = {FaultKind.CUT: set(), FaultKind.LOSS: {"loss"}, FaultKind.SLOW: {"rate"}}[fault.kind]
        for name in ("loss", "rate"):
            given = getattr(fault, name) is not None
            if given != (name in needs):
                text = "has no effect" if given else "is missing"
                raise refuse(file, f"{key}.{name}", f"{text}: the fault is a {fault.kind}")
        if fault.reroute_after is not None and fault.kind is not FaultKind.CUT:
            raise refuse(file, f"{key}.reroute-after", f"has no effect: the fault is a {fault.kind}")
        if fault.until is not None and fault.until <= fault.at:
            raise refuse(file, f"{key}.until", "is not after at")
        found += _fault(fault, _targets(fault, graph, parts, key, file), graph)
    return sorted(found, key=lambda each: each["at_ns"])


def _fault(fault: Fault, links: list[int], graph: Graph) -> list[Resolved]:
    found = []
    for number in links:
        link = graph.links[number]
        whole = {"link": number, "rate_bps": link.rate_bps, "loss_ppm": link.loss_ppm, "reroute": False}
        loss = 10**6 if fault.kind is FaultKind.CUT else fault.loss
        changed = whole | {"rate_bps": fault.rate or link.rate_bps}
        changed |= {"loss_ppm": link.loss_ppm if loss is None else loss}
        found.append(changed | {"at_ns": fault.at})
        if fault.until is not None:
            found.append(whole | {"at_ns": fault.until})
    if fault.reroute_after is not None:
        # The last link carries the change of routes, for all of them.
        last = found[-1:] if fault.until is None else found[-2:]
        found += [each | {"at_ns": each["at_ns"] + fault.reroute_after, "reroute": True} for each in last]
    return found


def _targets(
    fault: Fault, graph: Graph, parts: tuple[list[int], list[int]], key: str, file: Path
) -> list[int]:
    """Numbers of the links that a fault is of."""
    kind, _, text = fault.target.partition(":")
    number = int(text)
    nodes = {
        "host": [*parts[0], *parts[1]],
        "rack": [graph.hosts + rack for rack in range(len(graph.racks))]
        if graph.named_racks and graph.switches
        else [],
        "spine": graph.tops,
        "core": graph.tops,
        "switch": list(range(graph.hosts, graph.hosts + graph.switches)),
        "link": list(range(len(graph.links))),
    }[kind]
    if number >= len(nodes):
        raise refuse(file, f"{key}.target", f"there are {len(nodes)} of {kind}, the first is {kind}:0")
    return [number] if kind == "link" else graph.links_of(nodes[number])


__all__ = ["FORMAT", "Resolved", "Run", "ScenarioError", "check", "read", "resolve", "runs", "without"]
