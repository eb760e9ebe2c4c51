"""Calibration: fits find known costs again, profiles are read and run, and bad files give one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from netacc_lab.calibration import fitting, measuring, writing
from netacc_lab.calibration.__main__ import main
from netacc_lab.sim import SerialEngine, profiles, study

from tests.sim.conftest import Write

#: In nanoseconds.
KNOWN = {"system-call": 900.0, "segment": 2500.0, "sleep": 15_000.0, "copy-per-kib": 150.0, "cold": 3000.0}
#: Connections whose states the caches keep.
WARM = 120
WAKE_UP = {"median": 20_000.0, "deviation": 0.4}
#: The waker's part of a sleep, and a write that wakes nobody.
WAKER, WRITE = 9000.0, 3400.0


def _cpu(asks: float, sleeps: float, size: int, segments: bool, clients: int = 1) -> float:
    calls = (2 + asks + sleeps) * KNOWN["system-call"]
    return (
        calls
        + 2 * segments * KNOWN["segment"]
        + sleeps * KNOWN["sleep"]
        + 2 * size / 1024 * KNOWN["copy-per-kib"]
        + max(0.0, 1 - WARM / clients) * KNOWN["cold"]
    )


def _measured(random: np.random.Generator, spread: float = 0.01) -> dict[str, Any]:
    """Measurements of a machine with known costs."""
    machine = {
        "cpu": "a test",
        "cores": 2,
        "kernel": "6.1",
        "date": "2026-11-26T08:00:00Z",
        "loadavg": [0.1, 0.2, 0.3],
    }
    echoes = []
    for clients, size in measuring.ECHOES:
        found = {}
        for path in ("tcp", "shm"):
            runs = []
            for number in (1, 2, 3):
                sleeps = [float(1 / clients * random.uniform(0.3, 1)) for _ in range(2)]
                asks = [sleep + float(random.uniform(0, 1 - sleep)) for sleep in sleeps]
                cpu = [
                    _cpu(a, s, size, path == "tcp", clients) * random.normal(1, spread)
                    for a, s in zip(asks, sleeps, strict=True)
                ]
                run: dict[str, Any] = {
                    "round": number,
                    "requests": 1000,
                    "histogram_ns": _round_trips(random, path, 1000),
                }
                run["client_cpu_s"], run["server_cpu_s"] = (each * 1000 / 1e9 for each in cpu)
                run["waits"] = {"client_asks": asks[0], "client_sleeps": sleeps[0]}
                run["waits"] |= {"server_asks": asks[1], "server_sleeps": sleeps[1]}
                runs.append(run)
            found[path] = {"runs": runs}
        echoes.append({"clients": clients, "size": size, "paths": found})
    noise = {
        "processors": [
            {"processor": 0, "seconds": 1.0, "detours_ns": [[i * 1000, 2000 + i] for i in range(100)]}
        ]
    }
    wakes = {path: {"runs": [{"wakes": _wakes(random)} for _ in range(3)]} for path in ("tcp", "shm")}
    return {
        "format": 1,
        "paths": ["tcp", "shm"],
        "machine": machine,
        "echoes": echoes,
        "noise": noise,
        "wakes": wakes,
    }


def _wakes(random: np.random.Generator) -> dict[str, Any]:
    """By `netacc bench echo --wakes`."""
    waking = [[round(WRITE + value), 1] for value in random.normal(WAKER, WAKER / 10, 1000)]
    return {"waking_ns": waking, "other_ns": round(WRITE), "delay_ns": [[70_000, 3], [80_000, 4]]}


def _round_trips(random: np.random.Generator, path: str, count: int) -> list[list[int]]:
    work = 4 * KNOWN["system-call"] + 2 * (path == "tcp") * KNOWN["segment"] + 0.125 * KNOWN["copy-per-kib"]
    two = random.lognormal(np.log(WAKE_UP["median"]), WAKE_UP["deviation"], (count, 2)).sum(axis=1)
    return [[round(2 * work + each), 1] for each in two]


def test_fits_find_known_costs() -> None:
    """Breaks if a count is multiplied with the wrong cost, or an interval misses the truth."""
    random = np.random.default_rng(5)
    observations = []
    for clients, size in measuring.ECHOES * 4:
        sleeps = float(random.uniform(0.3, 1) / clients)
        asks = sleeps + float(random.uniform(0, 1 - sleeps))
        cpu = _cpu(asks, sleeps, size, True, clients) * random.normal(1, 0.005)
        observations.append(fitting.Observation("one", asks, sleeps, size, float(cpu), clients))
    found = fitting.costs(observations, segments=True)
    for name, (low, high) in found.intervals.items():
        # A fifth more than the interval: it is one draw of many.
        reach = 0.6 * (high - low)
        assert abs(found.values[name] - KNOWN[name]) < reach, (name, found.values, found.intervals)
    assert found.values["sleep"] == pytest.approx(KNOWN["sleep"], rel=0.02)
    assert found.values["cold"] == pytest.approx(KNOWN["cold"], rel=0.1)
    assert found.warm is not None and found.warm[1] <= WARM <= found.warm[2], found.warm
    assert found.values["copy-per-kib"] == pytest.approx(KNOWN["copy-per-kib"], rel=0.05)
    message = found.values["system-call"] + found.values["segment"]
    assert message == pytest.approx(KNOWN["system-call"] + KNOWN["segment"], rel=0.05)
    names = list(found.values)
    together = found.correlation[names.index("system-call")][names.index("segment")]
    assert together < -0.8, "call and segment are told apart badly, and the fit says so"


def test_what_never_varies_is_not_identified() -> None:
    """Breaks if a cost that the measurements cannot tell from another one counts as known."""
    random = np.random.default_rng(5)
    alike = [
        fitting.Observation("one", 0.5, 0.5, 64, float(_cpu(0.5, 0.5, 64, True) * random.normal(1, 0.01)))
        for _ in range(12)
    ]
    found = fitting.costs(alike, segments=True)
    assert not all(found.identified(name) for name in found.values), found


def test_few_connections_displace_nothing() -> None:
    """Breaks if measurements of few connections, as earlier calibrations have them, give a cost of many."""
    random = np.random.default_rng(5)
    few = [each for each in measuring.ECHOES * 4 if each[0] < fitting.MANY]
    observations = []
    for clients, size in few:
        sleeps = float(random.uniform(0.3, 1) / clients)
        cpu = _cpu(sleeps, sleeps, size, True, clients) * random.normal(1, 0.005)
        observations.append(fitting.Observation("one", sleeps, sleeps, size, float(cpu), clients))
    found = fitting.costs(observations, segments=True)
    assert "cold" not in found.values and found.warm is None


def test_wake_ups_are_half_of_what_is_left() -> None:
    """Breaks if the wake-ups of a round trip are one instead of two, or its work counts as one."""
    random = np.random.default_rng(7)
    found = fitting.wake_ups(
        [(value, count) for value, count in _round_trips(random, "tcp", 20_000)], 8_618.75
    )
    shares = np.array([share for share, _, _ in found], dtype=float)
    middles = np.array([(low + high) / 2 for _, low, high in found])
    mean = float((shares * middles).sum() / shares.sum())
    assert mean == pytest.approx(WAKE_UP["median"] * np.exp(WAKE_UP["deviation"] ** 2 / 2), rel=0.05)
    spread = float(np.sqrt((shares * (middles - mean) ** 2).sum() / shares.sum()))
    assert spread == pytest.approx(mean * np.sqrt(np.exp(WAKE_UP["deviation"] ** 2) - 1), rel=0.15)


def test_round_trips_of_two_modes_have_their_mean() -> None:
    """Breaks if round trips that are shorter than two sleeps, or two modes of them, change the rate."""
    random = np.random.default_rng(1)
    fast = random.random(20_000) < 0.3
    trips = np.where(
        fast, random.lognormal(np.log(13_000), 0.1, 20_000), random.lognormal(np.log(55_000), 0.1, 20_000)
    )
    found = fitting.wake_ups([(int(trip), 1) for trip in trips], 5000)
    shares = np.array([share for share, _, _ in found], dtype=float)
    middles = np.array([(low + high) / 2 for _, low, high in found])
    assert 2 * (5000 + shares @ middles / shares.sum()) == pytest.approx(trips.mean(), rel=0.02)


def test_a_waker_pays_its_part() -> None:
    """Breaks if the waker's part counts twice or not at all, or what a write costs anyway counts as it."""
    measured = _measured(np.random.default_rng(11))
    found, before = (writing.calibrated(each, "tcp") for each in (measured, measured | {"wakes": {}}))
    assert found.waker is not None and before.waker is None
    assert found.waker.mean_ns == pytest.approx(WAKER, rel=0.02)
    assert fitting.middle(found.waker.bins) == pytest.approx(WAKER, rel=0.05)
    assert found.sleep_ns == pytest.approx(before.sleep_ns - found.waker.mean_ns, abs=1)
    # It passes while the other end wakes up: a round trip is as long as before.
    assert found.wake_up == before.wake_up
    assert found.woken is not None and found.woken[0] == 80_000
    values = found.fit.values
    expected = 2 * values["system-call"] + values["segment"] + fitting.middle(found.wake_up)
    assert found.woken[1] == pytest.approx(expected)


def test_writes_that_take_no_longer_wake_for_nothing() -> None:
    """Breaks if a write that was faster than others makes a negative cost."""
    found = fitting.waker([(-50.0, 10), (0.0, 5)])
    assert found.mean_ns == found.median_ns == 0 and found.bins == [(15, 0, 1)]


def test_a_profile_is_read_and_runs(tmp_path: Path, write: Write, runs: Path) -> None:
    """Breaks if the simulator cannot read what a calibration writes, or its round trip is another one."""
    del runs
    random = np.random.default_rng(9)
    kept = tmp_path / "kept.json"
    kept.write_text(json.dumps(_measured(random)))
    assert main(["--from", str(kept), "--paths", "tcp,shm", "--output", str(tmp_path / "here")]) == 0
    read = profiles.load("stack", "here/shm.toml", tmp_path / "any.toml")
    assert read.calibration is not None and len(read.calibration.residuals) == 2 * 3 * len(measuring.ECHOES)
    assert read.plain()["segment"] == "0ns"
    assert 100 <= read.plain()["warm-connections"] <= 140
    assert "histogram" in read.plain()["waker"] and read.calibration.woken is not None
    scenario = write(
        (
            'kind = "star"\nhosts = 3\nrate = "25Gbit/s"\ndelay = "1us"',
            'kind = "direct"\nrate = "1000Gbit/s"\ndelay = "0ns"',
        ),
        (
            '[device]\nprofile = "roce-100g"',
            '[host]\nprofile = "here/host.toml"\nclient-threads = 1\n'
            '[stack]\nkind = "kernel-tcp"\nprofile = "./here/tcp.toml"',
        ),
        ("clients = 2\nconnections = 4", "clients = 1\nconnections = 1"),
        ('response = "1KiB"', 'response = "64B"'),
        ('duration = "1ms"\nseeds = [1, 2]', 'duration = "300ms"\nseeds = [1]'),
    )
    point = study(scenario, engine=SerialEngine()).points[0]
    assert point.kinds["p99_ns"] == "fitted"
    p50 = point.metrics("get")["p50_ns"].value
    expected = np.median([value for value, _ in _round_trips(random, "tcp", 10_000)])
    assert p50 == pytest.approx(expected, rel=0.1), "the round trip that it was fitted on"


@pytest.mark.parametrize(
    "text", ["", "[]", '{"format": 2}', '{"format": 1, "paths": ["tcp"], "echoes": [{}]}', "\udcff"]
)
def test_bad_measurements_give_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    """Breaks if a file that is none ends in a trace, or in a profile."""
    kept = tmp_path / "kept.json"
    kept.write_bytes(text.encode(errors="surrogateescape"))
    assert main(["--from", str(kept), "--output", str(tmp_path / "out")]) == 1
    message = capsys.readouterr().err
    assert message.startswith("netacc calibrate: ") and message.count("\n") == 1
    assert not list((tmp_path / "out").glob("*.toml"))


def test_a_busy_machine_is_no_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Breaks if interruptions that leave no time become a profile, with which simulations answer nothing."""
    measured = _measured(np.random.default_rng(9))
    measured["noise"]["processors"][0]["detours_ns"] = [[i * 10_000_000, 9_000_000] for i in range(100)]
    kept = tmp_path / "kept.json"
    kept.write_text(json.dumps(measured))
    assert main(["--from", str(kept), "--output", str(tmp_path / "out")]) == 1
    assert "interruptions take 90% of the processors' time" in capsys.readouterr().err
    assert not list((tmp_path / "out").glob("*.toml"))


@pytest.mark.parametrize("arguments", [["--paths", "tcp,warp"], ["--seconds", "nan"], ["--rounds", "0"]])
def test_bad_arguments_are_refused(arguments: list[str]) -> None:
    """Breaks if something else than what was asked for is measured."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
