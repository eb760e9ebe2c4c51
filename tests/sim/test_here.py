"""What is calibrated of a program on this machine, from loads whose costs are known."""

from __future__ import annotations

from typing import Any

import pytest
from netacc_lab.calibration.fitting import Fit

from tests.sim import here
from tests.sim.rows import Row

COSTS = {"system-call": 800.0, "segment": 2000.0, "copy-per-kib": 100.0}
#: Nanoseconds of a request, and of a turn, of the program's own.
OWN, OWN_TURN = {"server": 900.0, "client": 400.0}, {"server": 300.0, "client": 2800.0}
#: Sleeps for each request, and how long they last.
SLEEPS = {"server": 0.02, "client": 0.01}
LENGTHS = {"server": 14_000.0, "client": 80_000.0}


def _sleeps(length: float) -> tuple[float, float]:
    """The sleeper's part, and the waker's: a short sleep takes less of both."""
    return (3000.0, 1000.0) if length < 30_000 else (8000.0, 9000.0)


#: Nanoseconds of polling for each request.
POLLED = {"server": 30.0, "client": 600.0}
#: Asks for each request. Many turns share an ask.
ASKS = {"server": 0.01, "client": 0.02}


def _load(length: int, own_turn: dict[str, float]) -> here.Piped:
    turns = 2 * COSTS["system-call"] + 2 * COSTS["segment"]
    copies = here.VALUE / 1024 * COSTS["copy-per-kib"]
    ends = (("server", "client"), ("client", "server"))
    # An end that does not work sleeps; both have the same time, and what sleeps cost depends on each other.
    elapsed, sleeps = 10_000.0, dict(SLEEPS)
    for _ in range(60):
        cpu = {
            end: OWN[end]
            + (own_turn[end] + turns) / length
            + ASKS[end] * COSTS["system-call"]
            + copies
            + sleeps[end] * _sleeps(LENGTHS[end])[0]
            + sleeps[other] * _sleeps(LENGTHS[other])[1]
            for end, other in ends
        }
        sleeps = {end: (elapsed - cpu[end] - POLLED[end]) / LENGTHS[end] for end in cpu}
    cpu = {end: cpu[end] + POLLED[end] for end in cpu}
    return here.Piped(length, elapsed, cpu, sleeps, ASKS, POLLED)


def test_own_work_is_found_again() -> None:
    """Breaks if the stack's costs or those of sleeps count as the program's, or its turns are forgotten."""
    loads = [_load(length, OWN_TURN) for length in here.PIPELINES]
    found = here.own_work(loads, Fit(COSTS, {}, [], []), _sleeps)
    for end, own in found.items():
        assert own.request == pytest.approx(OWN[end], abs=1), end
        assert own.turn == pytest.approx(OWN_TURN[end], abs=1), end
        assert own.service == pytest.approx(own.request + own.turn)


def test_a_request_costs_no_less_than_nothing() -> None:
    """Breaks if a stack that is dearer in ping-pongs than in the load makes a program faster than nothing."""
    loads = [_load(length, {"server": -5000.0, "client": -100.0}) for length in here.PIPELINES]
    found = here.own_work(loads, Fit(COSTS, {}, [], []), _sleeps)
    assert found["server"].service == 0
    # One that is dearer by less makes the whole less.
    assert found["client"].service == pytest.approx(OWN["client"] - 100, abs=1)


def test_a_round_is_what_is_left_of_a_turn() -> None:
    """Breaks if work that is known already, or polling, counts as a round's own."""
    fit, each_round, length, polled = Fit(COSTS, {}, [], []), 350.0, 4, 600.0
    asks = {"server": 1 / 4, "client": 2 / 4}
    for end in here.ENDS:
        calls = (2 + length * asks[end]) * COSTS["system-call"]
        copies = length * here.VALUE / 1024 * COSTS["copy-per-kib"]
        work = calls + 2 * COSTS["segment"] + copies + length * OWN[end] + OWN_TURN[end] + each_round
        cpu, none = {end: work / length + polled}, dict.fromkeys(here.ENDS, 0.0)
        alone = here.Piped(length, 2 * work / length, cpu, none, asks, {end: polled})
        own = here.Own(OWN[end], OWN_TURN[end])
        assert here.own_round(alone, end, own, fit, _sleeps) == pytest.approx(each_round), end
        dearer = here.Own(OWN[end], 1e6)
        assert here.own_round(alone, end, dearer, fit, _sleeps) == 0


def test_displaced_states_are_what_a_turn_takes_more() -> None:
    """Breaks if the stack's displaced states, or calls that ask, count as the program's."""
    extra, cold, warm, turn = 1300.0, 400.0, 250, 2500.0
    fit = Fit(COSTS | {"cold": cold}, {}, [], [], (warm, 200, 300))
    for end in here.ENDS:
        none = dict.fromkeys(here.ENDS, 0.0)

        def load(asks: float, more: float, end: str = end, none: dict[str, float] = none) -> here.Piped:
            each = turn + more + asks * COSTS["system-call"]
            return here.Piped(1, each, {end: each}, none, {end: asks}, none)

        crowd = load(0.01, extra + cold * (1 - warm / here.CROWD))
        few = load(0.4, 0.0)
        assert here.displaced_work(crowd, few, end, fit, _sleeps) == pytest.approx(extra), end
        assert here.displaced_work(few, crowd, end, fit, _sleeps) == 0, end


def test_figures_of_a_load_are_of_a_request() -> None:
    """Breaks if a figure is of the whole load, or one end's is the other's."""
    waits = {"server_sleeps": 0.1, "client_sleeps": 0.2, "client_asks": 0.05, "client_spun_ns": 70.0}
    run = {
        "requests": 400,
        "seconds": 0.0005,
        "server_cpu_s": 0.00025,
        "client_cpu_s": 0.000125,
        "waits": waits,
    }
    found = here.piped(run, 8)
    assert found.length == 8 and found.elapsed_ns == pytest.approx(1250)
    assert found.cpu_ns == {"server": pytest.approx(625), "client": pytest.approx(312.5)}
    assert found.sleeps == {"server": 0.1, "client": 0.2}
    # The server's are not counted: it asks for each turn.
    assert found.asks == {"server": 1 / 8, "client": 0.05}
    assert found.polled_ns == {"server": 0, "client": 70}


def test_rounds_at_one_speed_count_together() -> None:
    """Breaks if one round decides what an end works, or a figure is another one's mean."""
    waits = {"server_sleeps": 0.1, "client_sleeps": 0.2, "server_asks": 0.3, "client_asks": 0.4}
    waits |= {"server_spun_ns": 50.0, "client_spun_ns": 60.0}
    run = {"requests": 100, "seconds": 1e-4, "server_cpu_s": 5e-5, "client_cpu_s": 6e-5, "waits": waits}
    other = run | {"seconds": 3e-4, "server_cpu_s": 7e-5, "client_cpu_s": 1e-4}
    other["waits"] = {name: 3 * value for name, value in waits.items()}
    found = here.together([run, other], 4)
    assert found.length == 4 and found.elapsed_ns == pytest.approx(2000)
    assert found.cpu_ns == pytest.approx({"server": 600, "client": 800})
    assert found.sleeps == pytest.approx({"server": 0.2, "client": 0.4})
    assert found.asks == pytest.approx({"server": 0.6, "client": 0.8})
    assert found.polled_ns == pytest.approx({"server": 100, "client": 120})


def _round(rate: float, p99: float, sleeps: float = 0.1) -> dict[str, Any]:
    """A round of a load, of which the path is `tcp`."""
    latencies = {"p50": 471.0, "p95": 559.0, "p99": p99, "p999": 2000.0}
    waits = {"server_sleeps": sleeps, "client_sleeps": 0.0}
    run = {"requests_per_s": rate, "requests": 1000, "server_cpu_s": 0.006, "latency_us": latencies}
    return {"paths": {"tcp": {"runs": [run | {"waits": waits}]}}}


def test_figures_have_the_spread_of_rounds_that_are_alike() -> None:
    """Breaks if rounds at another speed make figures look less known, or the fastest one counts no more."""
    rounds = [_round(100_000, 1103), _round(104_000, 847), _round(80_000, 1191), _round(98_900, 1063)]
    seen = {"rate": 9e4, "p50": 471.0, "p95": 559.0, "p99": 1050.0, "p999": 2000.0, "cpu": 6.0}
    seen |= dict.fromkeys(here.COUNTS, 0.0)
    rows = {row.what: row for row in here.compared("tcp", rounds, "tcp", seen, 8.0)}
    p99, rate = rows["tcp: p99 (predicted)"], rows["tcp: rate (predicted)"]
    assert (p99.expected, p99.simulated, p99.spread) == (847, 1050, (847, 1103))
    assert (rate.expected, rate.spread) == (104_000, (98_900, 104_000))
    assert not p99.agrees and p99.holds and not rate.holds
    assert "| 847.0 (847.0 to 1,103.0) us |" in p99.line()
    assert p99.line().endswith("| 1.240 | 20.0% | within the measured spread |")
    assert rate.line().endswith("| 0.865 | 10.0% | NO |")
    counted = {what for what in rows if what.split(": ")[1].split(" ")[0] in here.COUNTS}
    assert counted == {"tcp: server_sleeps (predicted)", "tcp: client_sleeps (predicted)"}
    # Beside other work no bound counts.
    busy = {row.what: row.tolerance for row in here.compared("tcp", rounds, "tcp", seen, None)}
    assert set(busy.values()) == {None}
    # One step of a coarse latency is allowed.
    assert {row.what: row.tolerance for row in here.compared("tcp", rounds, "tcp", seen, 471.0)}[
        "tcp: p50 (predicted)"
    ] == pytest.approx(1.0)


def test_what_an_end_waits_for_is_compared() -> None:
    """Breaks if a count of one end were compared with another count, or with that of the other end."""
    load = _round(100_000, 1000)
    names = sorted(here.COUNTS)
    load["paths"]["tcp"]["runs"][0]["waits"] = {name: number for number, name in enumerate(names)}
    seen = dict.fromkeys(("rate", "cpu", *here.LATENCIES), 1.0)
    seen |= {name: 10.0 + number for number, name in enumerate(names)}
    rows = [row for row in here.compared("tcp", [load], "tcp", seen, 8.0) if row.simulated >= 10]
    assert [(row.what.split(" ")[1], row.simulated - row.expected) for row in rows] == [
        (name, 10) for name in here.COUNTS
    ]
    assert {row.unit for row in rows} == {"", "ns"}


@pytest.mark.parametrize(
    ("simulated", "verdict"), [(109, "yes"), (115, "within the measured spread"), (121, "NO"), (89, "NO")]
)
def test_what_a_machine_does_not_repeat_holds(simulated: float, verdict: str) -> None:
    """Breaks if a figure beyond all measured ones holds, or one that agrees does so by the spread."""
    row = Row("p99", 100, simulated, "us", 0.1, spread=(95, 120))
    assert row.line().endswith(f"| {verdict} |")
    assert row.holds == (verdict != "NO")
