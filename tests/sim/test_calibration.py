"""Calibration: fits find known costs again, profiles are read and run, and bad files give one line."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from netacc_lab.calibration import fitting, measuring, writing
from netacc_lab.calibration.__main__ import main
from netacc_lab.calibration.fitting import SMALL
from netacc_lab.sim import SerialEngine, profiles, study

from tests.sim.conftest import Write

#: In nanoseconds.
KNOWN = {"system-call": 900.0, "segment": 2500.0, "sleep": 15_000.0, "copy-per-kib": 150.0, "cold": 3000.0}
#: Connections whose states the caches keep.
WARM = 120
WAKE_UP = {"median": 20_000.0, "deviation": 0.4}
#: The waker's part of a sleep, and a write that wakes nobody.
WAKER, WRITE = 9000.0, 3400.0
#: The sleeper's part, and how much less it is of a sleep that ends before the processor sleeps.
SLEEPER, SHORTER = KNOWN["sleep"] - WAKER, 4000.0
#: Of a call by which a client watches its connection anew.
CHANGE = 550.0
#: Until a thread that polls sees a message.
NOTICE = 700.0


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
    for echo in measuring.ECHOES:
        clients, size = echo.clients, echo.size
        found = {}
        for path in measuring.LINKED if echo.spin else ("tcp", "shm"):
            runs = []
            for number in (1, 2, 3):
                # Alone on a connection, nearly always; and else threads shared a processor.
                least = 0.98 if clients == 1 else 0.3
                sleeps = [float(1 / clients * random.uniform(least, 1)) for _ in range(2)]
                asks = [sleep + float(random.uniform(0, 1 - sleep)) for sleep in sleeps]
                cpu = [
                    _cpu(a, s, size, path == "tcp", clients) * random.normal(1, spread)
                    for a, s in zip(asks, sleeps, strict=True)
                ]
                cpu[0] += 2 * CHANGE * echo.rewatch
                trips = _polled(size) if echo.spin else _round_trips(random, path, 1000)
                run: dict[str, Any] = {"round": number, "requests": 1000, "histogram_ns": trips}
                run["requests_per_s"] = 1e12 / sum(value * count for value, count in trips)
                run["client_cpu_s"], run["server_cpu_s"] = (each * 1000 / 1e9 for each in cpu)
                run["waits"] = {"client_asks": asks[0], "client_sleeps": sleeps[0]}
                run["waits"] |= {
                    "interest_change_ns": CHANGE,
                    "server_asks": asks[1],
                    "server_sleeps": sleeps[1],
                }
                runs.append(run)
            found[path] = {"runs": runs}
        echoes.append({**asdict(echo), "paths": found})
    noises = {
        name: {
            "params": {"threshold_ns": threshold_ns},
            "processors": [
                {
                    "processor": 0,
                    "seconds": 1.0,
                    "detours_ns": [[i * 1000, 2 * least + i] for i in range(count)],
                }
            ],
        }
        for name, threshold_ns, least, count in (("noise", 1000, 1000, 100), ("noise-tcp", 4000, 20_000, 200))
    }
    wakes = {path: {"runs": [{"wakes": _wakes(random, path)} for _ in range(3)]} for path in ("tcp", "shm")}
    return {
        "format": 1,
        "paths": ["tcp", "shm"],
        "machine": machine,
        "echoes": echoes,
        **noises,
        "wakes": wakes,
    }


def _wakes(random: np.random.Generator, path: str) -> dict[str, Any]:
    """By `netacc bench echo --wakes`."""
    waking = [[round(WRITE + value), 1] for value in random.normal(WAKER, WAKER / 10, 1000)]
    pair = 7 * KNOWN["system-call"] + 4 * SMALL / 1024 * KNOWN["copy-per-kib"]
    pair += 4 * (path == "tcp") * KNOWN["segment"]
    after = {"waking_ns": waking, "delay_ns": [[70_000, 3], [80_000, 4]], "server_cpu_ns": pair + SLEEPER}
    # After a short pause the server is not asleep yet.
    short = pair + SLEEPER - SHORTER
    before = {"waking_ns": [[round(WRITE), 1]], "delay_ns": [[5_000, 1]], "server_cpu_ns": short}
    by_pause = [{"pause_ns": 1000, **before}, {"pause_ns": 40_000, **after}]
    return {"other_ns": round(WRITE), "by_pause": by_pause}


def _polled(size: int) -> list[list[int]]:
    """Nobody sleeps: both ends ask, read and write."""
    turn = 3 * KNOWN["system-call"] + 2 * size / 1024 * KNOWN["copy-per-kib"]
    return [[round(2 * (turn + NOTICE)), 1000]]


def _round_trips(random: np.random.Generator, path: str, count: int) -> list[list[int]]:
    work = 4 * KNOWN["system-call"] + 2 * (path == "tcp") * KNOWN["segment"] + 0.125 * KNOWN["copy-per-kib"]
    two = random.lognormal(np.log(WAKE_UP["median"]), WAKE_UP["deviation"], (count, 2)).sum(axis=1)
    return [[round(2 * work + each), 1] for each in two]


def test_fits_find_known_costs() -> None:
    """Breaks if a count is multiplied with the wrong cost, or an interval misses the truth."""
    random = np.random.default_rng(5)
    observations = []
    for echo in measuring.ECHOES * 4:
        clients, size = echo.clients, echo.size
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
    few = [each for each in measuring.ECHOES * 4 if each.clients < fitting.MANY]
    observations = []
    for echo in few:
        clients, size = echo.clients, echo.size
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
    assert before.sleep_ns == pytest.approx(KNOWN["sleep"], rel=0.03)
    # Known as well as seven calls are.
    assert found.sleep_ns == pytest.approx(KNOWN["sleep"] - WAKER, rel=0.15)
    # It passes while the other end wakes up: a round trip is as long as before.
    middles = [fitting.middle(each.wake_up) for each in (found, before)]
    assert middles[0] == pytest.approx(middles[1], rel=0.02)
    assert found.woken is not None and found.woken[0] == 80_000
    values = found.fit.values
    expected = 2 * values["system-call"] + values["segment"] + fitting.middle(found.wake_up)
    assert found.woken[1] == pytest.approx(expected)


def test_watching_anew_is_no_part_of_a_sleep() -> None:
    """Breaks if the calls by which the ping-pong's client watches its connection count as the sleep's."""
    measured = _measured(np.random.default_rng(11)) | {"wakes": {}}
    found = writing.calibrated(measured, "tcp").fit
    for echo in measured["echoes"]:
        for path in echo["paths"].values():
            for run in path["runs"]:
                run["waits"]["interest_change_ns"] = 0.0
    with_calls = writing.calibrated(measured, "tcp").fit
    assert found.values["sleep"] == pytest.approx(KNOWN["sleep"], rel=0.03)
    assert with_calls.values["sleep"] > found.values["sleep"] + CHANGE / 2


def test_one_round_of_another_kind_does_not_count() -> None:
    """Breaks if a round in which threads woke each other in another way, or interruptions, make wake-ups."""
    measured = _measured(np.random.default_rng(11))
    usual = writing.calibrated(measured, "tcp").wake_up
    alone = next(each for each in measured["echoes"] if measuring.Echo.of(each) == measuring.ALONE)
    runs = alone["paths"]["tcp"]["runs"]
    runs[0] |= {"histogram_ns": [[13_000, 1000]], "requests_per_s": 77_000.0}
    runs[0]["waits"]["server_sleeps"] = 0.6
    runs[1]["histogram_ns"].append([5_000_000, 20])
    found = writing.calibrated(measured, "tcp").wake_up
    means = [
        sum(share * (low + high) / 2 for share, low, high in each) / 1_000_000 for each in (usual, found)
    ]
    assert means[1] == pytest.approx(means[0], rel=0.05)
    assert max(high for _, _, high in found) < 1_000_000


def test_the_fastest_round_counts() -> None:
    """Breaks if costs follow rounds that other machines on the same cores made slower."""
    measured = _measured(np.random.default_rng(11))
    for echo in measured["echoes"]:
        for path in echo["paths"].values():
            slow = path["runs"][1]
            slow["requests_per_s"] /= 2
            slow["client_cpu_s"] *= 2
            slow["server_cpu_s"] *= 2
    found = writing.calibrated(measured, "tcp").fit.values
    message = found["system-call"] + found["segment"]
    assert message == pytest.approx(KNOWN["system-call"] + KNOWN["segment"], rel=0.1)
    # In the round with the highest rate the server slept less often: its client had the same processor.
    for sleeps, rate in (([0.10, 0.07, 0.10], 9), ([0.99, 0.80, 0.98], 5)):
        rates = zip((3, 9, 5), sleeps, strict=True)
        runs = [{"requests_per_s": each, "waits": {"server_sleeps": slept}} for each, slept in rates]
        assert measuring.counted(runs)["requests_per_s"] == rate


def test_short_sleeps_cost_less() -> None:
    """Breaks if a sleep that ended before the processor slept has the price of a deep one."""
    measured = _measured(np.random.default_rng(11))
    found = writing.calibrated(measured, "tcp")
    short, deep = (found.sleep_costs(length) for length in (5_000.0, 1e6))
    assert short[0] == pytest.approx(found.sleep_ns - SHORTER) and short[1] == 0
    assert deep[0] == pytest.approx(found.sleep_ns) and deep[1] == pytest.approx(WAKER, rel=0.05)
    # Half way between the two lengths that were measured, which are pause and delay together.
    between = found.sleep_costs((6_000.0 + 120_000.0) / 2)
    assert between[1] == pytest.approx(WAKER / 2, rel=0.05)


def test_short_sleeps_do_not_decide_what_a_call_costs() -> None:
    """Breaks if a ping-pong whose threads woke each other at once is fitted with the costs of long sleeps."""
    measured = _measured(np.random.default_rng(11))
    echo = next(each for each in measured["echoes"] if measuring.Echo.of(each) == measuring.Echo(10, SMALL))
    cpu = _cpu(0.5, 0.4, SMALL, False, 10) - 0.4 * (SHORTER + WAKER)
    run = echo["paths"]["shm"]["runs"][0]
    run["client_cpu_s"] = run["server_cpu_s"] = cpu * 1000 / 1e9
    run["waits"] |= {"client_asks": 0.5, "client_sleeps": 0.4, "server_asks": 0.5, "server_sleeps": 0.4}
    # So fast that it counts, and that a sleep lasts 4 us.
    run["requests_per_s"] = 1e9 / (cpu + 0.4 * 4000)
    found = writing.calibrated(measured, "shm").fit
    assert found.values["system-call"] == pytest.approx(KNOWN["system-call"], rel=0.03)
    assert "sleep" not in found.values


def test_displaced_states_that_cost_nothing_have_no_cost() -> None:
    """Breaks if what cannot be told from nothing takes the place of what each call costs."""
    random = np.random.default_rng(5)
    observations = []
    for echo in measuring.ECHOES * 2:
        clients, size = echo.clients, echo.size
        cpu = _cpu(0.1, 0.0, size, False) * random.normal(1, 0.05)
        observations.append(fitting.Observation("one", 0.1, 0.0, size, float(cpu), clients, 0.0))
    found = fitting.costs(observations, segments=False)
    assert set(found.values) == {"system-call", "copy-per-kib"} and found.warm is None
    assert found.values["system-call"] == pytest.approx(KNOWN["system-call"], rel=0.05)


def test_polling_ends_notice_late() -> None:
    """Breaks if the work of a round trip counts as the time until a message is seen, or one way as both."""
    measured = _measured(np.random.default_rng(11))
    tcp, shm = (writing.calibrated(measured, path) for path in ("tcp", "shm"))
    assert tcp.notice_ns is None
    assert shm.notice_ns == pytest.approx(NOTICE, abs=60)


def test_each_path_has_its_noise() -> None:
    """Breaks if a link has the noise of kernel TCP, or TCP that of processors with nothing to do."""
    measured = _measured(np.random.default_rng(11))
    tcp, udp, shm = (writing.noise(measured, path) for path in ("tcp", "udp", "shm"))
    assert tcp is not None and shm is not None
    assert (tcp.interval_ns, shm.interval_ns) == (5_000_000, 10_000_000) and tcp == udp
    assert min(low for _, low, _ in tcp.lengths) == 40_000 > max(high for _, _, high in shm.lengths)
    assert "--work tcp: detours above 4 us" in tcp.source
    assert "--work clock: detours above 1 us" in shm.source
    # Earlier measurements have one noise, without its parameters.
    del measured["noise-tcp"], measured["noise"]["params"]
    assert writing.noise(measured, "tcp") == shm


def test_rounds_are_merged() -> None:
    """Breaks if a round's runs, noise or other work are lost, or a ping-pong is there twice."""
    first, second = (_measured(np.random.default_rng(seed)) for seed in (1, 2))
    for each, busy in ((first, 0.0), (second, 0.4)):
        each["machine"]["busy_processors"] = busy
        for echo in each["echoes"]:
            echo["pace_ns"] = [100.0 + busy]
    measuring.merge(first, second)
    assert len(first["echoes"]) == len(measuring.ECHOES)
    assert {len(path["runs"]) for echo in first["echoes"] for path in echo["paths"].values()} == {6}
    assert first["echoes"][0]["pace_ns"] == [100.0, 100.4]
    assert len(first["wakes"]["tcp"]["runs"]) == 6
    assert all(len(first[name]["processors"]) == 2 for name in measuring.NOISES)
    assert first["machine"]["busy_processors"] == 0.4


def test_slow_measurements_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if a measurement counts in which the processors were slower or busy, or attempts never end."""
    # Before and after each measurement: fast; fast with other work, slow, then fast; slow for good.
    copies = iter([100, 101, *(100, 100), *(100, 180, 102, 103), *[190] * 1000])
    others = iter([0.0, 0.9, *[0.0] * 100])

    def bench(*arguments: str) -> dict[str, Any]:
        assert arguments[0] == "noise"
        copy = next(copies)
        return {"processors": [{"copy_ns": each, "transfer_ns": None} for each in (copy - 3, copy)]}

    monkeypatch.setattr(measuring, "bench", bench)
    made: list[int] = []

    def measurement() -> dict[str, Any]:
        made.append(1)
        return {"machine": {"busy_processors": next(others)}, "paths": {}}

    pace = measuring.Pace()
    found = [pace.hold(measurement)["pace_ns"] for _ in range(3)]
    assert found == [101, 103, 190]
    assert len(made) == 1 + 3 + measuring.ATTEMPTS
    # Not for ever: in the end each is made once.
    for _ in range(measuring.AGAIN):
        pace.hold(measurement)
    before = len(made)
    pace.hold(measurement)
    assert len(made) == before + 1


def test_measurements_in_which_a_processor_moved_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks if such a measurement counts, or if a run does not say how far apart the processors were."""
    # Before and after each measurement: near; moved meanwhile, then far; alone.
    transfers = iter([45, 50, *(45, 350, 360, 340), None, None])

    def bench(*arguments: str) -> dict[str, Any]:
        assert arguments[0] == "noise"
        transfer = next(transfers)
        return {"processors": [{"copy_ns": 100, "transfer_ns": transfer}] * 2}

    monkeypatch.setattr(measuring, "bench", bench)
    made: list[int] = []

    def measurement() -> dict[str, Any]:
        made.append(1)
        return {"machine": {"busy_processors": 0.0}, "paths": {"tcp": {"runs": [{}, {}]}}}

    pace = measuring.Pace()
    found = [(pace.hold(measurement)["paths"]["tcp"]["runs"], len(made)) for _ in range(3)]
    tagged = [[{"transfer_ns": each}] * 2 for each in (50, 340, 0)]
    assert found == [(tagged[0], 1), (tagged[1], 3), (tagged[2], 4)]


def test_a_calibration_is_of_one_distance() -> None:
    """Breaks if runs at several distances are mixed, or one counts at which a load is missing."""

    def load(*transfers: float) -> list[dict[str, float]]:
        return [{"transfer_ns": each} for each in transfers]

    # More runs are far, but one load was only measured near.
    loads = [load(45, 350, 360), load(340, 350, 60), load(50)]
    distance = measuring.at_one_distance(loads)
    assert distance in (45, 50)
    measuring.keep_near(loads, distance)
    assert loads == [load(45), load(60), load(50)]
    # Of two that have all, the one with more runs.
    assert measuring.at_one_distance([load(45, 350, 360), load(350, 46)]) in (350, 360)
    assert measuring.at_one_distance([load(45, 46), load(350)]) is None
    assert measuring.at_one_distance([[{}], [{}]]) == 0


def test_a_calibration_ends_on_a_machine_whose_processors_always_move(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Breaks if rounds never end, or runs of several distances pass for those of one."""

    def once(*_: object, number: int, **__: object) -> dict[str, Any]:
        paths = {"tcp": {"runs": [{"transfer_ns": 2.0 ** (2 * number)}]}}
        kept = {**asdict(measuring.ALONE), "machine": {}, "paths": paths, "pace_ns": []}
        other = {**asdict(measuring.ECHOES[-1]), "machine": {}, "paths": {"tcp": {"runs": []}}, "pace_ns": []}
        other["paths"]["tcp"]["runs"].append({"transfer_ns": 2.0 ** (2 * number + 1)})
        return {"machine": {}, "echoes": [kept, other]}

    monkeypatch.setattr(measuring, "measure_once", once)
    monkeypatch.setattr(measuring, "bench", lambda *_: {})
    found = measuring.measure(["tcp"], seconds=0.1, rounds=2, progress=lambda _: None)
    assert "transfer_ns" not in found
    runs = [len(load) for load in measuring.loads_of(found)]
    assert runs == [2 * measuring.LONGER] * 2


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
    assert read.calibration is not None
    # Both ends of one round of each but the one that polls.
    assert len(read.calibration.residuals) == 2 * (len(measuring.ECHOES) - 1)
    assert read.plain()["spin"] == "120us" and "notice" in read.plain()
    assert read.plain()["segment"] == "0ns"
    assert float(str(read.plain()["sleep"]).removesuffix("ns")) == pytest.approx(SLEEPER, rel=0.15)
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
    measured["noise-tcp"]["processors"][0]["detours_ns"] = [[i * 10_000_000, 9_000_000] for i in range(100)]
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
