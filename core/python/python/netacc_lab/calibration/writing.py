"""Profiles from measurements: the fit of each path, and its file in the form of `models/profiles`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from netacc_lab.calibration import fitting
from netacc_lab.calibration.fitting import Fit, Noise, Observation, Waker
from netacc_lab.calibration.measuring import SMALL, MeasuringError

#: The bytes of one segment on the loopback, whose packets have 65,536.
LOOPBACK_SEGMENT = "65483B"

Histogram = list[tuple[int, int, int]]


@dataclass(frozen=True)
class Calibrated:
    """A path: its costs, its wake-ups, and processor time of a stream that was not fitted on."""

    path: str
    fit: Fit
    wake_up: Histogram
    #: The waker's part of wake-ups; None of paths, and earlier measurements, without it.
    waker: Waker | None
    #: Nanoseconds from the begin of a write until the thread runs that it wakes, medians: measured, and by
    #: the fit.
    woken: tuple[float, float] | None
    #: Nanoseconds for a GiB at the sender: measured, and by the fit; None of paths without streams.
    stream: tuple[float, float] | None

    @property
    def sleep_ns(self) -> float:
        """The sleeper's part of what a sleep costs processors."""
        return max(self.fit.values["sleep"] - (self.waker.mean_ns if self.waker else 0.0), 0.0)


def calibrated(measured: Mapping[str, Any], path: str) -> Calibrated:
    """The fit of one path."""
    try:
        fit = fitting.costs(_observations(measured, path), segments=path != "shm")
        values = fit.values
        call, segment = values["system-call"], values.get("segment", 0.0)
        wakes = measured.get("wakes", {}).get(path, {"runs": []})["runs"]
        waker = fitting.waker(_waking_writes(wakes)) if wakes else None
        # Without sleeps: the waker's part passes while the other end wakes up, and what of the sleeper's
        # delays it is in the wake-up.
        work = 4 * call + 2 * segment + 2 * SMALL / 1024 * values["copy-per-kib"]
        wake_up = fitting.wake_ups(_round_trips(measured, path), work)
        woken = None
        if waker:
            # The write itself, the wake-up, and the call that slept returns.
            fitted = 2 * call + segment + fitting.middle(wake_up)
            woken = (median(_median(run["wakes"]["delay_ns"]) for run in wakes), fitted)
        return Calibrated(path, fit, wake_up, waker, woken, _stream(measured, path, fit))
    except (KeyError, IndexError, TypeError) as error:
        raise MeasuringError(f"measurements of {path}: incomplete ({error!r})") from None
    except fitting.UnfitError as error:
        raise MeasuringError(f"measurements of {path}: {error}") from None


def _waking_writes(runs: Sequence[Mapping[str, Any]]) -> list[tuple[float, int]]:
    """What writes that wake took longer than others of their round."""
    return [
        (float(value) - float(run["wakes"]["other_ns"]), int(count))
        for run in runs
        for value, count in run["wakes"]["waking_ns"]
    ]


def _median(histogram: Sequence[tuple[int, int]]) -> float:
    half = sum(count for _, count in histogram) / 2
    for value, count in sorted(histogram):
        half -= count
        if half <= 0:
            return float(value)
    raise fitting.UnfitError("a histogram is empty")


def _observations(measured: Mapping[str, Any], path: str) -> list[Observation]:
    found = []
    for echo in measured["echoes"]:
        for run in echo["paths"].get(path, {"runs": []})["runs"]:
            waits, requests = run["waits"], max(run["requests"], 1)
            for end in ("client", "server"):
                asks = waits.get(f"{end}_asks")
                if asks is None:
                    continue
                what = f"{echo['clients']} connections, {echo['size']} B, {end}, round {run['round']}"
                cpu = run[f"{end}_cpu_s"] * 1e9 / requests
                sleeps, clients = waits[f"{end}_sleeps"], echo["clients"]
                found.append(Observation(what, asks, sleeps, echo["size"], cpu, clients))
    return found


def _round_trips(measured: Mapping[str, Any], path: str) -> list[tuple[int, int]]:
    """Of one connection, small messages, all rounds."""
    alone = next(each for each in measured["echoes"] if (each["clients"], each["size"]) == (1, SMALL))
    runs = alone["paths"][path]["runs"]
    return [(int(value), int(count)) for run in runs for value, count in run["histogram_ns"]]


def _stream(measured: Mapping[str, Any], path: str, fit: Fit) -> tuple[float, float] | None:
    result = measured.get("stream", {}).get(path)
    if result is None:
        return None
    writes = (1 << 30) / 65536
    each = fit.values["system-call"] + 2 * fit.values.get("segment", 0.0)
    return result["client_cpu_s_per_gib"] * 1e9, writes * each + (1 << 20) * fit.values["copy-per-kib"]


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


def noise(measured: Mapping[str, Any]) -> Noise | None:
    """The noise of this machine's processors."""
    try:
        processors = measured["noise"]["processors"]
        return fitting.noise([each["detours_ns"] for each in processors], processors[0]["seconds"])
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise MeasuringError(f"measurements of noise: incomplete ({error!r})") from None
    except fitting.UnfitError as error:
        raise MeasuringError(f"measurements of noise: {error}") from None


def machine_of(measured: Mapping[str, Any]) -> str:
    """The machine, in one line."""
    machine = measured["machine"]
    return f"{machine['cores']} cores of {machine['cpu']}, Linux {machine['kernel']}"


def stack(measured: Mapping[str, Any], found: Calibrated, interruptions: Noise | None) -> str:
    """The profile of a path, as TOML."""
    machine = measured["machine"]
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

    add("spin", '"0ns"', "the measurements were made without spinning")
    for name, value in found.fit.values.items():
        low, high = found.fit.intervals[name]
        doubt = "" if found.fit.identified(name) else "; not identified"
        why = f"{source}; 95 %: {low:,.0f} to {high:,.0f} ns{doubt}"
        if name == "sleep" and found.waker:
            value = found.sleep_ns
            why += f". That is with the waker's part, of {found.waker.mean_ns:,.0f} ns, which is taken off"
        add(name, f'"{round(value)}ns"', why)
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
        why = "netacc bench noise: selfish detours above 1 us, on all processors at once"
        add("noise-interval", f'"{interruptions.interval_ns}ns"', why)
        add("noise", _histogram(interruptions.lengths), why)
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
        }
        for each in found
    ]
