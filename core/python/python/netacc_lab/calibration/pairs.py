"""Profiles of two hosts with RDMA devices, from `netacc lat --costs`: device, library, wire.

A measurement is the median of its quietest round: other work only adds, comes and goes, and is not what a
profile is of. Between hosts that are emulated it is the least: there any message may wait for a processor of
the machine that emulates them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from netacc_lab.calibration import devices, writing
from netacc_lab.calibration.devices import FITTED_SIZES, HEADERS, Message
from netacc_lab.calibration.fitting import Fit, UnfitError
from netacc_lab.calibration.measuring import MeasuringError

#: Of devices in software.
SOFTWARE = ("rxe", "siw")
#: Packets of a message after which SoftRoCE wants an acknowledgement, beside the one at its end.
ACKNOWLEDGED = 64
#: Packets of 16 messages of 64 KiB, at an MTU of 1024 bytes.
IN_FLIGHT = 1024
#: A wire whose bytes take no time that could be seen, in bits a second.
FASTEST = 1_000_000_000_000
#: The share of a connection's bytes on its link from which on a measurement is of links. Arbitrary.
LINKED = 0.9
#: The default of devices that do not say their packets' size: the least of all.
LEAST_MTU = 1024


@dataclass(frozen=True)
class Times:
    """Medians that no fit is needed for, in nanoseconds."""

    post: float
    create: float
    destroy: float
    deregister: float
    #: A whole connection.
    connect: float


@dataclass(frozen=True)
class Pair:
    """What was measured between two hosts, and fitted."""

    costs: Mapping[str, Any]
    times: Times
    #: Why its stages share a processor, of a device in software.
    in_software: str | None
    device: Fit
    library: Fit
    registration: Fit

    @property
    def mtu(self) -> int:
        """Payload bytes of a full packet."""
        return int(self.costs["device"].get("mtu") or LEAST_MTU)

    @property
    def rate_bps(self) -> int:
        """Of the wire."""
        return min(round(8e9 / max(self.device.values["byte"], 1e-6)), FASTEST)


def calibrated(measured: Mapping[str, Any]) -> Pair:
    """The fits."""
    try:
        costs = measured["costs"]
        mtu = int(costs["device"].get("mtu") or LEAST_MTU)
        times, in_software = _times(costs), _in_software(costs)
        messages = [message for message in raw(costs) if devices.is_fitted(message)]
        if in_software:
            messages.append(_post(costs))
        device = devices.device(messages, mtu, engines(in_software))
        echoes = [
            message for message in stack(costs) if message.size in FITTED_SIZES and not message.streamed
        ]
        library = devices.library(echoes, mtu, device.values, engines(in_software))
        registration = devices.registration(costs["commands"]["register"])
        return Pair(costs, times, in_software, device, library, registration)
    except (KeyError, IndexError, TypeError) as error:
        raise MeasuringError(f"measurements of two hosts: incomplete ({error!r})") from None
    except UnfitError as error:
        raise MeasuringError(f"measurements of two hosts: {error}") from None


def engines(in_software: str | None) -> devices.Engines:
    """As `device.engines` of a scenario."""
    return "shared" if in_software else "separate"


def _in_software(costs: Mapping[str, Any]) -> str | None:
    """Why the parts of a device cannot work side by side, if they cannot."""
    name = str(costs["device"]["name"])
    if name.startswith(SOFTWARE):
        return f"{name} is a driver that works on the host's processor"
    smallest = FITTED_SIZES[0]
    alone = next((m for m in _echoes(costs, ["write"]) if m.size == smallest), None)
    streamed = next((m for m in _rates(costs, "write", "write") if m.size == smallest), None)
    if alone is None or streamed is None or streamed.ns <= alone.ns:
        return None
    return (
        f"a write of {smallest} B takes {streamed.ns:,.0f} ns of a stream, and {alone.ns:,.0f} ns of half a "
        "round trip: parts that work side by side are never slower in a stream"
    )


def _post(costs: Mapping[str, Any]) -> Message:
    of = least if _is_emulated(costs) else middle
    return Message("a call that posts", devices.POST, FITTED_SIZES[0], streamed=False, ns=of(costs["post"]))


def _times(costs: Mapping[str, Any]) -> Times:
    commands = costs["commands"]
    return Times(
        post=middle(costs["post"]),
        create=median(commands["create_queue_pair"]),
        destroy=median(commands["destroy_queue_pair"]),
        deregister=median(ns for _, ns in commands["deregister"]),
        connect=middle(commands["connect"]),
    )


def raw(costs: Mapping[str, Any]) -> list[Message]:
    """Messages without the library: those that the device is fitted on, and others."""
    return [*_echoes(costs, HEADERS), *_rates(costs, "write", "write")]


def stack(costs: Mapping[str, Any]) -> list[Message]:
    """Messages through the library that came on a link."""
    return [*_echoes(costs, ["stack"]), *_rates(costs, "stack", "message")]


def _echoes(costs: Mapping[str, Any], paths: Collection[str]) -> list[Message]:
    found = []
    for echo in costs["echoes"]:
        of_round = least if _is_emulated(costs) else middle
        halves = [of_round(each["half_ns"]) for each in echo["rounds"] if _is_whole(each, echo["path"])]
        if echo["path"] in paths and halves:
            sent_as = "message" if echo["path"] == "stack" else echo["path"]
            what = f"{echo['path']} of {echo['size']} B, half of a round trip"
            found.append(Message(what, sent_as, echo["size"], streamed=False, ns=min(halves)))
    return found


def _rates(costs: Mapping[str, Any], path: str, sent_as: str) -> list[Message]:
    found = []
    for rate in costs["rates"]:
        whole = [each for each in rate["rounds"] if _is_whole(each, path)]
        if rate["path"] == path and whole:
            what = f"{path} of {rate['size']} B, one of {rate['depth']} in flight"
            ns = min(each["seconds"] * 1e9 / each["messages"] for each in whole)
            found.append(Message(what, sent_as, rate["size"], streamed=True, ns=ns))
    return found


def _is_whole(measured: Mapping[str, Any], path: str) -> bool:
    """Whether the bytes went over a link. Raw messages have no other way."""
    return path != "stack" or float(measured.get("link_share") or 0.0) > LINKED


def middle(pairs: Sequence[Sequence[int]]) -> float:
    """The median of values and how often each came."""
    half = sum(count for _, count in pairs) / 2
    seen = 0
    for value, count in sorted((int(value), int(count)) for value, count in pairs):
        seen += count
        if seen >= half:
            return float(value)
    raise UnfitError("there are no round trips")


def least(pairs: Sequence[Sequence[int]]) -> float:
    """The least of values and how often each came."""
    return float(min(value for value, _ in pairs))


def _is_emulated(costs: Mapping[str, Any]) -> bool:
    """Whether instructions are emulated in software: QEMU then has this name for its processor."""
    return "QEMU TCG" in costs["machine"]["cpu"]


def where(pair: Pair) -> str:
    """The device and the machine, and whether they are emulated, in one line."""
    name = str(pair.costs["device"]["name"])
    software = ", a device in software" if pair.in_software else ""
    emulated = ""
    if _is_emulated(pair.costs):
        emulated = ", whose processor is emulated in software, so these times are of no hardware"
    return f"{name}{software}, between two hosts: {writing.machine_of(pair.costs)}{emulated}"


def files(pair: Pair) -> dict[str, str]:
    """All profiles, and a scenario with them, by name."""
    return {
        "device.toml": device_profile(pair),
        "link.toml": link_profile(pair),
        "host.toml": writing.host(pair.costs),
        "pair.toml": scenario(pair),
    }


class _Values:
    """The lines of a profile's values."""

    def __init__(self, pair: Pair) -> None:
        self.lines = ["[values]"]
        self._date = str(pair.costs["machine"]["date"])[:10]

    def add(self, name: str, value: str, why: str) -> None:
        text = f"netacc calibrate: {why}"
        self.lines.append(f"{name} = {{ value = {value}, source = {json.dumps(text)}, date = {self._date} }}")

    def ns(self, name: str, ns: float, why: str) -> None:
        self.add(name, f'"{round(ns)}ns"', why)


def device_profile(pair: Pair) -> str:
    """The device, as TOML."""
    fitted, times = pair.device, pair.times
    values = _Values(pair)
    values.add("mtu", f'"{pair.mtu}B"', "active MTU of the port (ibv_query_port)")
    if pair.in_software:
        _add_in_software(values, pair, pair.in_software)
    else:
        _add_fixed_time(values, pair)
    values.ns(
        "completion", fitted.values["completion"], _interval(fitted, "completion", "messages to poll for")
    )
    packet = _interval(fitted, "packet", "messages of several packets, and streams")
    values.ns("transmit-packet", fitted.values["packet"], packet)
    values.ns("receive-packet", fitted.values["packet"], f"as transmit-packet, not told apart; {packet}")
    connection = (times.connect - 2 * times.create) / 2
    values.ns(
        "create-queue-pair", times.create, "median; protection domain, completion queue, queue pair to INIT"
    )
    half = "upper bound: half of a connection without its queue pairs, but with its manager's messages"
    values.ns("connect-queue-pair", max(connection, 0.0), half)
    values.ns("destroy-queue-pair", times.destroy, "median, of the same three objects")
    for name in ("register-memory", "register-per-mib"):
        line = _interval(pair.registration, name, "least squares over medians by length, with the mapping")
        values.ns(name, pair.registration.values[name], line)
    values.ns("deregister-memory", times.deregister, "median of all lengths, with the mapping")
    values.add("retry-timeout", '"67108864ns"', "not measured: 4.096 us x 2^14, what rdma_cm sets")
    what = f"{where(pair)}. By netacc calibrate."
    head = ['kind = "device"', f"what = {json.dumps(what)}", ""]
    # Of a connection, and of a message's fixed time in hardware, only the sum is known.
    extra = ["receive-packet", "connect-queue-pair", *([] if pair.in_software else ["doorbell"])]
    return "\n".join([*head, *values.lines, "", *_calibration(pair, fitted, extra)]) + "\n"


def _add_in_software(values: _Values, pair: Pair, why: str) -> None:
    """A device whose stages share a processor: a message takes the work of a post besides its packets."""
    values.add("engines", '"shared"', why)
    post = _interval(pair.device, "base", "a call that posts, less its packet, and messages and streams")
    values.ns("doorbell", pair.device.values["base"], post)
    acknowledged = "Linux, drivers/infiniband/sw/rxe/rxe_param.h: RXE_MAX_PKT_PER_ACK; of others not measured"
    values.add("ack-interval", str(ACKNOWLEDGED), acknowledged)
    values.add("max-in-flight", str(IN_FLIGHT), "not measured: all messages of a stream are in flight")


def _add_fixed_time(values: _Values, pair: Pair) -> None:
    """The time of a message besides its packets, of which only the call that posts is known."""
    base = pair.device.values["base"]
    doorbell = min(pair.times.post, base)
    whole = _interval(pair.device, "base", "least squares over messages of several packets")
    post = f"median of a call that posts, {round(pair.times.post)} ns; {whole} with placement"
    values.ns("doorbell", doorbell, post)
    values.ns("placement", base - doorbell, f"what is left of a message's fixed time; {whole}")


def link_profile(pair: Pair) -> str:
    """The library on links of the device, as TOML."""
    values = _Values(pair)
    values.add("spin", '"1s"', "both ends of the measurements span")
    for name in ("library-call", "copy-per-kib"):
        values.ns(
            name, pair.library.values[name], _interval(pair.library, name, "round trips less the device's")
        )
    values.ns("system-call", pair.library.values["library-call"], "as library-call: not measured")
    what = f"The library on {where(pair)}. By netacc calibrate; nothing of kernel TCP is measured."
    head = [
        'kind = "stack"',
        f"machine = {json.dumps(writing.machine_of(pair.costs))}",
        f"what = {json.dumps(what)}",
        "",
    ]
    fitted = [
        "",
        "[[fitted]]",
        f"what = {json.dumps(f'netacc calibrate: ping-pong of {FITTED_SIZES[0]} bytes on a link')}",
        'figures = ["p50_ns"]',
        'follows = ["requests_per_s", "bytes_per_s", "mean_ns"]',
        "host = { server-threads = 1, client-threads = 1 }",
        'workload = { kind = "request-response", clients = 1, connections = 1, '
        f'request = "{FITTED_SIZES[0]}B", response = "{FITTED_SIZES[0]}B" }}',
    ]
    return (
        "\n".join([*head, *values.lines, "", *_calibration(pair, pair.library, ["system-call"]), *fitted])
        + "\n"
    )


def scenario(pair: Pair) -> str:
    """Two such hosts, as a scenario."""
    return f"""question = "What does a message take between two hosts as netacc calibrate found them?"

[topology]
kind = "direct"
rate = "{pair.rate_bps}bit/s"
delay = "0ns"

[device]
profile = "./device.toml"

[host]
profile = "./host.toml"
server-threads = 1
client-threads = 1

[stack]
profile = "./link.toml"
anchor = "memory"

[[workload]]
name = "echo"
clients = 1
connections = 1
request = "64B"
response = "64B"

[measure]
warmup = "100ms"
duration = "500ms"
seeds = [1]
"""


def _interval(fit: Fit, name: str, how: str) -> str:
    low, high = fit.intervals[name]
    doubt = "" if fit.identified(name) else "; not identified"
    return f"{how}; 95 %: {low:,.0f} to {high:,.0f} ns{doubt}"


def _calibration(pair: Pair, fit: Fit, unknown: Sequence[str]) -> list[str]:
    machine = pair.costs["machine"]
    busy = max(float(machine.get("busy_processors") or 0.0), float(pair.costs.get("others") or 0.0))
    doubtful = [name for name in fit.values if not fit.identified(name)]
    return [
        "[calibration]",
        f"load-before = {json.dumps([float(value) for value in machine['loadavg']])}",
        f"busy-processors = {busy}",
        f"parameters = {json.dumps(list(fit.values))}",
        f"correlation = {json.dumps([[round(value, 4) for value in row] for row in fit.correlation])}",
        f"not-identified = {json.dumps([*doubtful, *unknown])}",
        "# Nanoseconds: measured, and by the fit.",
        "residuals = [",
        *(
            f"  {{ of = {json.dumps(of)}, measured = {seen:.1f}, fitted = {by:.1f} }},"
            for of, seen, by in fit.residuals
        ),
        "]",
    ]


def rows(pair: Pair) -> list[dict[str, Any]]:
    """The fits, as plain values."""
    fits = {"device": pair.device, "link": pair.library, "registration": pair.registration}
    return [
        {
            "path": name,
            "values_ns": fit.values,
            "intervals_ns": fit.intervals,
            "correlation": fit.correlation,
            "not_identified": [each for each in fit.values if not fit.identified(each)],
            "worst_residual": max(abs(by / seen - 1) for _, seen, by in fit.residuals),
            "waker_ns": None,
        }
        for name, fit in fits.items()
    ]
