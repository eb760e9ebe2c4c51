"""Profiles from measurements: the fit of each path, and its file in the form of `models/profiles`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from netacc_lab.calibration import fitting
from netacc_lab.calibration.fitting import SMALL, Fit, Noise, Observation, Waker, Wakes
from netacc_lab.calibration.measuring import ALONE, LINKED, NOISES, Echo, MeasuringError, counted

#: The bytes of one segment on the loopback, whose packets have 65,536.
LOOPBACK_SEGMENT = "65483B"

#: Round trips that are so many times as long as most were interrupted. Arbitrary.
INTERRUPTED = 5
#: How long the library polls, at most: MAX_SPIN_NS of core/preload.
SPIN = "120us"

Histogram = list[tuple[int, int, int]]


@dataclass(frozen=True)
class Calibrated:
    """A path: its costs, its wake-ups, and processor time of a stream that was not fitted on."""

    path: str
    fit: Fit
    wake_up: Histogram
    #: The waker's part of wake-ups; None of paths, and earlier measurements, without it.
    waker: Waker | None
    #: The parts of sleeps by their length; None where the waker's part is.
    wakes: Wakes | None
    #: Nanoseconds from the begin of a write until the thread runs that it wakes, medians: measured, and by
    #: the fit.
    woken: tuple[float, float] | None
    #: Nanoseconds until a thread that polls sees a message; None of paths on which none polls.
    notice_ns: float | None
    #: Nanoseconds for a GiB at the sender: measured, and by the fit; None of paths without streams.
    stream: tuple[float, float] | None

    @property
    def sleep_ns(self) -> float:
        """The sleeper's part of what a long sleep costs; where it is not measured, by the fit with both."""
        return self.wakes.costs(math.inf, self.fit)[0] if self.wakes else self.fit.values["sleep"]

    def sleep_costs(self, idle_ns: float) -> tuple[float, float]:
        """What a sleep of that length takes of the sleeper's and of the waker's processor time."""
        return self.wakes.costs(idle_ns, self.fit) if self.wakes else (self.sleep_ns, 0.0)


def calibrated(measured: Mapping[str, Any], path: str) -> Calibrated:
    """The fit of one path."""
    try:
        wakes = _wakes(measured, path)
        by_length = _by_length(wakes) if wakes else None
        fit = fitting.costs(_observations(measured, path, by_length), segments=path != "shm")
        values = fit.values
        call, segment = values["system-call"], values.get("segment", 0.0)
        waker = fitting.waker(_waking_writes(wakes)) if wakes else None
        # Without sleeps: the waker's part passes while the other end wakes up, and what of the sleeper's
        # delays it is in the wake-up.
        work = 4 * call + 2 * segment + 2 * SMALL / 1024 * values["copy-per-kib"]
        wake_up = fitting.wake_ups(_round_trips(measured, path, ALONE), work)
        polled = _round_trips(measured, path, Echo(1, SMALL, spin=True))
        turn = 3 * call + 2 * SMALL / 1024 * values["copy-per-kib"]
        notice = max(_median(polled) / 2 - turn, 0.0) if polled else None
        woken = None
        if wakes:
            # The write itself, the wake-up, and the call that slept returns.
            fitted = 2 * call + segment + fitting.middle(wake_up)
            woken = (_median(_longest(wakes)["delay_ns"]), fitted)
        return Calibrated(path, fit, wake_up, waker, by_length, woken, notice, _stream(measured, path, fit))
    except (KeyError, IndexError, TypeError) as error:
        raise MeasuringError(f"measurements of {path}: incomplete ({error!r})") from None
    except fitting.UnfitError as error:
        raise MeasuringError(f"measurements of {path}: {error}") from None


def _wakes(measured: Mapping[str, Any], path: str) -> Mapping[str, Any] | None:
    """The fastest round of wakes, as for other measurements; None of a path without them."""
    rounds = [run["wakes"] for run in measured.get("wakes", {}).get(path, {"runs": []})["runs"]]

    def took(wakes: Mapping[str, Any]) -> float:
        return sum(float(each["server_cpu_ns"]) + _median(each["waking_ns"]) for each in wakes["by_pause"])

    return min(rounds, key=took) if rounds else None


def _by_length(wakes: Mapping[str, Any]) -> Wakes:
    found = sorted(
        (
            float(each["pause_ns"]) + _median(each["delay_ns"]),
            float(each["server_cpu_ns"]),
            max(_median(each["waking_ns"]) - float(wakes["other_ns"]), 0.0),
        )
        for each in wakes["by_pause"]
    )
    lengths, servers, wakers = (list(column) for column in zip(*found, strict=True))
    return Wakes(lengths, servers, wakers)


def _longest(wakes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Wakes after the longest pause, as in ping-pongs."""
    found: Mapping[str, Any] = wakes["by_pause"][-1]
    return found


def _waking_writes(wakes: Mapping[str, Any]) -> list[tuple[float, int]]:
    """How much longer writes that wake took than others of their round."""
    return [(float(value) - wakes["other_ns"], int(count)) for value, count in _longest(wakes)["waking_ns"]]


def _median(histogram: Sequence[tuple[int, int]]) -> float:
    half = sum(count for _, count in histogram) / 2
    for value, count in sorted(histogram):
        half -= count
        if half <= 0:
            return float(value)
    raise fitting.UnfitError("a histogram is empty")


def _observations(measured: Mapping[str, Any], path: str, wakes: Wakes | None) -> list[Observation]:
    """Of ping-pongs without polling."""
    changes = 2 * interest_change_ns(measured, path)
    found = []
    for echo in measured["echoes"]:
        kind, runs = Echo.of(echo), echo["paths"].get(path, {"runs": []})["runs"]
        if kind.spin or not runs:
            continue
        run = counted(runs)
        waits, requests = run["waits"], max(run["requests"], 1)
        for end in ("client", "server"):
            asks = waits.get(f"{end}_asks")
            if asks is None:
                continue
            what = f"{kind.clients} connections, {kind.size} B, {end}, round {run['round']}"
            cpu = run[f"{end}_cpu_s"] * 1e9 / requests
            sleeps = waits[f"{end}_sleeps"]
            pairs = None
            if wakes:
                idle = 1e9 / run["requests_per_s"] - cpu
                pairs = sleeps * wakes.pair_ns(max(idle, 0.0) / sleeps) if sleeps > 0 else 0.0
            cpu -= changes * (kind.rewatch and end == "client")
            found.append(Observation(what, asks, sleeps, kind.size, cpu, kind.clients, pairs))
    return found


def _round_trips(measured: Mapping[str, Any], path: str, kind: Echo) -> list[tuple[int, int]]:
    """Of a ping-pong, without those that were interrupted: these are noise. None if the path has none."""
    found = next((each for each in measured["echoes"] if Echo.of(each) == kind), None)
    runs = found["paths"].get(path, {"runs": []})["runs"] if found else []
    if not runs:
        return []
    trips = [(int(value), int(count)) for value, count in counted(runs)["histogram_ns"]]
    most = INTERRUPTED * _median(trips)
    return [(value, count) for value, count in trips if value <= most]


def _stream(measured: Mapping[str, Any], path: str, fit: Fit) -> tuple[float, float] | None:
    result = measured.get("stream", {}).get(path)
    if result is None:
        return None
    writes = (1 << 30) / 65536
    each = fit.values["system-call"] + 2 * fit.values.get("segment", 0.0)
    fastest = max(result["runs"], key=lambda run: float(run["bytes_per_s"]))
    taken = float(fastest["client_cpu_s"]) / (fastest["bytes_per_s"] * fastest["seconds"]) * (1 << 30)
    return taken * 1e9, writes * each + (1 << 20) * fit.values["copy-per-kib"]


def interest_change_ns(measured: Mapping[str, Any], path: str) -> float:
    """Of an `epoll_ctl` that adds or deletes a connection of the path: the median of all ping-pongs.

    Event loops that watch a connection for room before each write make several of these calls a request.
    """
    found = [
        run["waits"].get("interest_change_ns")
        for echo in measured["echoes"]
        for run in echo["paths"].get(path, {"runs": []})["runs"]
    ]
    known = [float(value) for value in found if value is not None]
    if not known:
        raise MeasuringError(f"measurements of {path}: without the time of an epoll_ctl")
    return median(known)


def noise(measured: Mapping[str, Any], path: str) -> Noise | None:
    """The noise of this machine's processors while they work for a path.

    The kernel's own threads work for programs on its sockets; those on links leave it nothing to do. Earlier
    measurements have noise of processors that only read the clock, for all paths.
    """
    name = "noise-tcp" if path not in LINKED and "noise-tcp" in measured else "noise"
    try:
        processors, params = measured[name]["processors"], measured[name].get("params", {})
        threshold_us = params.get("threshold_ns", 1000) / 1000
        source = f"netacc bench noise --work {NOISES[name]}: detours above {threshold_us:g} us"
        detours = [each["detours_ns"] for each in processors]
        return fitting.noise(detours, processors[0]["seconds"], f"{source}, on all processors at once")
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise MeasuringError(f"measurements of noise: incomplete ({error!r})") from None
    except fitting.UnfitError as error:
        raise MeasuringError(f"measurements of noise: {error}") from None


def machine_of(measured: Mapping[str, Any]) -> str:
    """The machine, in one line."""
    machine = measured["machine"]
    return f"{machine['cores']} cores of {machine['cpu']}, Linux {machine['kernel']}"


def stack(measured: Mapping[str, Any], found: Calibrated) -> str:
    """The profile of a path, as TOML."""
    machine, interruptions = measured["machine"], noise(measured, found.path)
    date = str(machine["date"])[:10]
    source = (
        f"netacc calibrate, {found.path}: least squares over ping-pongs of 1 to {_most(measured)} connections"
    )
    lines = [
        'kind = "stack"',
        f"machine = {json.dumps(machine_of(measured))}",
        f"what = {json.dumps(_what(found))}",
        "",
        "[values]",
    ]

    def add(name: str, value: str, why: str) -> None:
        lines.append(f"{name} = {{ value = {value}, source = {json.dumps(why)}, date = {date} }}")

    if found.notice_ns is None:
        add("spin", '"0ns"', "no library polls on this path")
    else:
        add("spin", f'"{SPIN}"', "the longest that the library polls (docs/explanation/waiting.md)")
        why = "netacc calibrate, shm: half of a ping-pong's round trip while both ends poll, less the work"
        add("notice", f'"{round(found.notice_ns)}ns"', why)
    for name, value in found.fit.values.items():
        low, high = found.fit.intervals[name]
        doubt = "" if found.fit.identified(name) else "; not identified"
        add(name, f'"{round(value)}ns"', f"{source}; 95 %: {low:,.0f} to {high:,.0f} ns{doubt}")
    if found.wakes:
        why = f"netacc calibrate, {found.path}: the server's processor time of a wake, less two messages"
        add("sleep", f'"{round(found.sleep_ns)}ns"', why)
    if found.fit.warm:
        warm, least, most = found.fit.warm
        add("warm-connections", str(warm), f"{source}; 95 %: {least} to {most}")
    call = round(found.fit.values["system-call"])
    add("library-call", f'"{call}ns"', "as system-call: the path's own calls were measured")
    if found.path == "shm":
        add("segment", '"0ns"', "nothing is on TCP")
    add("segment-size", f'"{LOOPBACK_SEGMENT}"', "the loopback's packets of 65,536 bytes without headers")
    if found.waker:
        why = f"netacc calibrate, {found.path}: what writes take longer that wake a sleeping thread"
        add("waker", _histogram(found.waker.bins), f"{why}; median {found.waker.median_ns:,.0f} ns")
    rest = "half of a round trip of one connection, less the work" + (
        " but the waker's" if found.waker else ""
    )
    add("wake-up", _histogram(found.wake_up), f"netacc calibrate, {found.path}: {rest}")
    if interruptions:
        add("noise-interval", f'"{interruptions.interval_ns}ns"', interruptions.source)
        add("noise", _histogram(interruptions.lengths), interruptions.source)
    lines += ["", *_calibration(measured, found)]
    return "\n".join(lines) + "\n"


def _most(measured: Mapping[str, Any]) -> int:
    return max(int(echo["clients"]) for echo in measured["echoes"])


def _what(found: Calibrated) -> str:
    return (
        f"This machine's {found.path}, by netacc calibrate. Round trips of one connection are no prediction."
    )


def _histogram(bins: Histogram) -> str:
    parts = ", ".join(
        f'{{ share = {share}, min = "{low}ns", max = "{high}ns" }}' for share, low, high in _scaled(bins)
    )
    return f"{{ histogram = [{parts}] }}"


def _scaled(bins: Histogram) -> Histogram:
    """With shares that a profile may have."""
    total = max(sum(share for share, _, _ in bins), 1)
    return [(max(round(share / total * 1_000_000), 1), low, high) for share, low, high in bins]


def _calibration(measured: Mapping[str, Any], found: Calibrated) -> list[str]:
    machine = measured["machine"]
    fit = found.fit
    lines = [
        "[calibration]",
        f"load-before = {json.dumps([float(value) for value in machine['loadavg']])}",
        f"busy-processors = {float(machine.get('busy_processors') or 0.0)}",
        "# Nanoseconds of a cache line's round trip between processors; 0 of one, or if they moved.",
        f"transfer = {float(measured.get('transfer_ns', 0.0))}",
        f"parameters = {json.dumps(list(fit.values))}",
        f"correlation = {json.dumps([[round(value, 4) for value in row] for row in fit.correlation])}",
        f"not-identified = {json.dumps([name for name in fit.values if not fit.identified(name)])}",
        "# The processor time of a request, in nanoseconds: measured, and by the fit.",
        "residuals = [",
        *(
            f"  {{ of = {json.dumps(of)}, measured = {seen:.1f}, fitted = {by:.1f} }},"
            for of, seen, by in fit.residuals
        ),
        "]",
    ]
    if found.stream:
        lines.append("# Processor time of the sender of a GiB, in nanoseconds. It was not fitted on.")
        lines.append(f"stream = {{ measured = {found.stream[0]:.0f}, predicted = {found.stream[1]:.0f} }}")
    if found.woken:
        lines.append(
            "# From the begin of a write until the thread runs that it wakes: medians. It was not fitted on."
        )
        lines.append(f"woken = {{ measured = {found.woken[0]:.0f}, predicted = {found.woken[1]:.0f} }}")
    return [*lines, "", *_fitted(found)]


def _fitted(found: Calibrated) -> list[str]:
    """The round trips that wake-ups were fitted on, as a scenario has them."""
    what = f"netacc calibrate, {found.path}: ping-pong of {SMALL} bytes, one connection"
    kind = "datagrams" if found.path == "udp" else "request-response"
    workload = f'kind = "{kind}", clients = 1, connections = 1, request = "{SMALL}B", response = "{SMALL}B"'
    figures = ["requests_per_s", "mean_ns", "p50_ns", "p90_ns", "p95_ns", "p99_ns", "p999_ns"]
    return [
        "[[fitted]]",
        f"what = {json.dumps(what)}",
        f"figures = {json.dumps(figures)}",
        'follows = ["bytes_per_s"]',
        "host = { server-threads = 1, client-threads = 1 }",
        f"workload = {{ {workload} }}",
    ]


def host(measured: Mapping[str, Any]) -> str:
    """The profile of the processors, as TOML."""
    machine = measured["machine"]
    date = str(machine["date"])[:10]
    return "\n".join(
        [
            'kind = "host"',
            f"what = {json.dumps(f'This machine, by netacc calibrate: {machine_of(measured)}.')}",
            "",
            "[values]",
            f'cores = {{ value = {int(machine["cores"])}, source = "all that it may use", date = {date} }}',
            f'free = {{ value = false, source = "the costs are the stacks\' profiles", date = {date} }}',
            "",
        ]
    )


def rows(found: Sequence[Calibrated]) -> list[dict[str, Any]]:
    """The fits, as plain values."""
    return [
        {
            "path": each.path,
            "values_ns": each.fit.values,
            "intervals_ns": each.fit.intervals,
            "correlation": each.fit.correlation,
            "not_identified": [name for name in each.fit.values if not each.fit.identified(name)],
            "warm_connections": each.fit.warm,
            "worst_residual": max(abs(by / seen - 1) for _, seen, by in each.fit.residuals),
            "stream_ns_per_gib": each.stream,
            "waker_ns": each.waker and {"mean": each.waker.mean_ns, "median": each.waker.median_ns},
            "sleep_ns": each.sleep_ns,
            "woken_ns": each.woken,
            "notice_ns": each.notice_ns,
        }
        for each in found
    ]
