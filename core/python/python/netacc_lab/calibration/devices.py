"""From messages between two hosts to the costs of an RDMA device, and of the library on it.

The model is that of `models/rnic` and of a direct cable: a packet takes the transmitting engine, the wire and
the receiving engine, one packet after the other in each, and a message has a fixed time besides:

    half round trip = base + (completion, if the receiver polls one) + the message's packets in turn

`packet` is the time of either engine: no message tells the two apart, as the slower one sets the pace.

A device in software has no engines. All of its work takes turns on one processor: `base` is the work of a
post, whose call makes the first packet, too, and a message costs its receiver an acknowledgement besides,
which is a packet. So a stream is slower than that of a device in hardware with the same round trips:

    between two messages = base + the message's packets + the packet of its acknowledgement + completion

The library adds `CALLS` calls to a half round trip, and a copy at each end. Fits weigh relative errors alike.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

import numpy as np
from scipy import optimize, stats

from netacc_lab.calibration.fitting import CONFIDENCE, Array, Fit, UnfitError

#: A frame without its payload: preamble, gap and Ethernet 38, IP and UDP 28, BTH and ICRC 16.
FRAME = 82
#: An acknowledgement without a payload: a frame, and AETH.
ACKNOWLEDGEMENT = FRAME + 4
#: More in the first packet of a message: RETH of a write, and an immediate.
HEADERS = {"write": 16, "message": 20, "send": 0}
#: The sizes of messages that are fitted on; all others are predictions.
FITTED_SIZES = (64, 1024, 16384)
#: The sizes of writes in flight that are fitted on. Where the wire sets the pace of large ones, only small
#: ones show what a packet costs the engines.
FITTED_STREAMS = (64, 65536)
#: Calls of the library in half of a round trip while both ends spin: its sender writes, and its receiver
#: looks for what is ready and reads.
CALLS = 3
#: Whether the parts of a device work side by side (hardware), or take turns on a processor (software).
Engines = Literal["separate", "shared"]
#: The parameters of a device's fit.
DEVICE = ("base", "completion", "packet", "byte")


@dataclass(frozen=True)
class Message:
    """A measured time of messages of one size: half of a round trip, or of one of many in flight."""

    what: str
    #: A key of `HEADERS`. The receiver of a write polls memory, any other one a completion.
    path: str
    size: int
    #: Many in flight: the time between two of them.
    streamed: bool
    ns: float


#: A call that posts, while nothing else is in flight: a message of this path.
POST = "post"


def is_fitted(message: Message) -> bool:
    """Whether costs are fitted on such a message."""
    return message.size in (FITTED_STREAMS if message.streamed else FITTED_SIZES)


def packets(size: int, path: str, mtu: int) -> list[int]:
    """The bytes of each packet of a message on the wire."""
    full, rest = divmod(size, mtu)
    payloads = [mtu] * full + ([rest] if rest or not full else [])
    return [FRAME + payload + (HEADERS[path] if first == 0 else 0) for first, payload in enumerate(payloads)]


def half_round_trip(
    size: int, path: str, mtu: int, values: Mapping[str, float], engines: Engines = "separate"
) -> float:
    """Of a message alone, by the costs of `DEVICE`."""
    packet, byte = values["packet"], values["byte"]
    polled = 0.0 if path == "write" else values["completion"]
    lengths = packets(size, path, mtu)
    if engines == "shared":
        # As the answer is posted, the acknowledgement of what it answers is on the way to its receiver, who
        # takes that first, and completes what it has sent.
        busy = ACKNOWLEDGEMENT * byte + packet + values["completion"]
        received = _received(lengths, packet, byte, values["base"], busy)
        return received + polled + packet
    # The acknowledgement of what was received is sent before the answer.
    return _received(lengths, packet, byte, 0.0, 0.0) + max(values["base"] + polled, packet)


def _received(lengths: Sequence[int], packet: float, byte: float, posted: float, busy: float) -> float:
    """When the receiver is done with all packets: it is busy before, as the sender is with the post."""
    sent, wired, received = posted, 0.0, busy
    for length in lengths:
        sent += packet
        wired = max(wired, sent) + length * byte
        received = max(received, wired) + packet
    return received


def between(
    size: int, path: str, mtu: int, values: Mapping[str, float], engines: Engines = "separate"
) -> float:
    """The time between two of many messages in flight."""
    lengths = packets(size, path, mtu)
    work = len(lengths) * values["packet"]
    if engines == "shared":
        work += values["base"] + values["packet"] + values["completion"]
    return max(work, sum(lengths) * values["byte"])


def predicted(message: Message, mtu: int, values: Mapping[str, float], engines: Engines) -> float:
    """What the costs make of a measurement."""
    if message.path == POST:
        return values["base"] + values["packet"]
    of = between if message.streamed else half_round_trip
    return of(message.size, message.path, mtu, values, engines)


def device(messages: Sequence[Message], mtu: int, engines: Engines) -> Fit:
    """The costs of a device."""
    times = _times(messages, len(DEVICE))

    def model(_: Array, *given: float) -> Array:
        values = dict(zip(DEVICE, given, strict=True))
        return np.array([predicted(message, mtu, values, engines) for message in messages])

    least = float(times.min())
    longest = max(messages, key=lambda message: message.size)
    packet = longest.ns / len(packets(longest.size, longest.path, mtu))
    start = [least / 2, least / 20, min(packet, least / 4), packet / (4 * mtu)]
    return _fit(model, DEVICE, np.zeros(len(messages)), times, messages, start)


def library(messages: Sequence[Message], mtu: int, of_device: Mapping[str, float], engines: Engines) -> Fit:
    """What the library adds, on a device of known costs: a call, and a copied KiB."""
    names = ("library-call", "copy-per-kib")
    times = _times(messages, len(names))
    alone = np.array(
        [half_round_trip(message.size, "message", mtu, of_device, engines) for message in messages]
    )
    sizes = np.array([message.size / 1024 for message in messages])

    def model(_: Array, call: float, copy: float) -> Array:
        return np.asarray(alone + CALLS * call + 2 * sizes * copy, dtype=float)

    least = float(times.min())
    return _fit(model, names, sizes, times, messages, [least / 20, least / 200])


def registration(registered: Sequence[tuple[int, int]]) -> Fit:
    """Fixed, and by the MiB: of medians, since a registration now and then waits for something else."""
    lengths = sorted({length for length, _ in registered})
    medians = [median(ns for length, ns in registered if length == each) for each in lengths]
    messages = [
        Message(f"registering {length} B", "", length, streamed=False, ns=float(ns))
        for length, ns in zip(lengths, medians, strict=True)
    ]
    names = ("register-memory", "register-per-mib")
    times = _times(messages, len(names))
    mebibytes = np.array(lengths) / (1 << 20)

    def model(at: Array, fixed: float, by_mib: float) -> Array:
        return np.asarray(fixed + at * by_mib, dtype=float)

    return _fit(model, names, mebibytes, times, messages, [times[0], times[-1] / mebibytes[-1]])


def _times(messages: Sequence[Message], costs: int) -> Array:
    times = np.array([message.ns for message in messages])
    if len(times) <= costs:
        raise UnfitError(f"{len(times)} measurements are too few for {costs} costs")
    if not (np.isfinite(times).all() and (times > 0).all()):
        raise UnfitError("a measured time is no positive number")
    return times


def _fit(
    model: Callable[..., Array],
    names: Sequence[str],
    at: Array,
    times: Array,
    messages: Sequence[Message],
    start: Sequence[float],
) -> Fit:
    scale = np.maximum(np.array(start, dtype=float), 1e-3)
    try:
        found, covariance = optimize.curve_fit(
            model, at, times, p0=scale, sigma=times, bounds=(0, np.inf), x_scale=scale, max_nfev=10_000
        )
    except (RuntimeError, ValueError) as error:
        raise UnfitError(str(error)) from None
    errors = np.sqrt(np.diag(covariance))
    reach = stats.t.ppf((1 + CONFIDENCE) / 2, len(times) - len(names)) * errors
    spread = np.where((errors > 0) & np.isfinite(errors), errors, 1)
    correlation: Any = np.where(np.isfinite(covariance), covariance, 0) / np.outer(spread, spread)
    return Fit(
        {name: float(value) for name, value in zip(names, found, strict=True)},
        {n: (float(v - r), float(v + r)) for n, v, r in zip(names, found, reach, strict=True)},
        [[float(value) for value in row] for row in correlation],
        [
            (message.what, message.ns, float(by))
            for message, by in zip(messages, model(at, *found), strict=True)
        ],
    )
