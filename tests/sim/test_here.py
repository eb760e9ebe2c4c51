"""What is calibrated of a program on this machine, from loads whose costs are known."""

from __future__ import annotations

import pytest
from netacc_lab.calibration.fitting import Fit

from tests.sim import here

COSTS = {"system-call": 800.0, "segment": 2000.0, "copy-per-kib": 100.0}
#: Nanoseconds of a request, and of a turn, of the program's own.
OWN, OWN_TURN = {"server": 900.0, "client": 400.0}, {"server": 300.0, "client": 2800.0}
#: Sleeps for each request, and how long they last.
SLEEPS = {"server": 0.02, "client": 0.01}
LENGTHS = {"server": 14_000.0, "client": 80_000.0}


def _sleeps(length: float) -> tuple[float, float]:
    """The sleeper's part, and the waker's: a short sleep takes less of both."""
    return (3000.0, 1000.0) if length < 30_000 else (8000.0, 9000.0)


def _load(length: int, own_turn: dict[str, float]) -> here.Piped:
    stack = 3 * COSTS["system-call"] + 2 * COSTS["segment"]
    copies = here.VALUE / 1024 * COSTS["copy-per-kib"]
    cpu = {
        end: OWN[end]
        + (own_turn[end] + stack) / length
        + copies
        + SLEEPS[end] * _sleeps(LENGTHS[end])[0]
        + SLEEPS[other] * _sleeps(LENGTHS[other])[1]
        for end, other in (("server", "client"), ("client", "server"))
    }
    # An end that does not work sleeps; both have the same time.
    elapsed = 10_000.0
    sleeps = {end: (elapsed - cpu[end]) / LENGTHS[end] for end in cpu}
    cpu = {
        end: cpu[end]
        + (sleeps[end] - SLEEPS[end]) * _sleeps(LENGTHS[end])[0]
        + (sleeps[other] - SLEEPS[other]) * _sleeps(LENGTHS[other])[1]
        for end, other in (("server", "client"), ("client", "server"))
    }
    return here.Piped(elapsed, cpu, sleeps)


def test_own_work_is_found_again() -> None:
    """Breaks if the stack's costs or those of sleeps count as the program's, or its turns are forgotten."""
    loads = {length: _load(length, OWN_TURN) for length in here.PIPELINES}
    found = here.own_work(loads, Fit(COSTS, {}, [], []), _sleeps)
    for end, own in found.items():
        assert own.request == pytest.approx(OWN[end], abs=1), end
        assert own.turn == pytest.approx(OWN_TURN[end], abs=1), end


def test_a_turn_costs_no_less_than_nothing() -> None:
    """Breaks if a stack that is dearer in ping-pongs than in the load makes turns cheaper than nothing."""
    loads = {length: _load(length, {"server": -5000.0, "client": 0.0}) for length in here.PIPELINES}
    found = here.own_work(loads, Fit(COSTS, {}, [], []), _sleeps)
    assert found["server"].turn == 0


def test_a_round_is_what_is_left_of_a_round_trip() -> None:
    """Breaks if work that is known already, or the time of a message, counts as a round's own."""
    own = {end: here.Own(OWN[end], OWN_TURN[end]) for end in here.ENDS}
    fit, notice, each_round = Fit(COSTS, {}, [], []), 700.0, 350.0
    length = here.PIPELINES[0]
    stack = 3 * COSTS["system-call"] + 2 * COSTS["segment"]
    work = sum(length * OWN[end] + OWN_TURN[end] + stack + each_round for end in here.ENDS)
    copies = 2 * length * here.VALUE / 1024 * COSTS["copy-per-kib"]
    alone = here.Piped((work + copies + 2 * notice) / length, {}, {})
    assert here.own_round(alone, own, fit, notice) == pytest.approx(each_round)
    assert here.own_round(here.Piped(1.0, {}, {}), own, fit, notice) == 0


def test_figures_of_a_load_are_of_a_request() -> None:
    """Breaks if a figure is of the whole load, or one end's is the other's."""
    waits = {"server_sleeps": 0.1, "client_sleeps": 0.2}
    run = {
        "requests": 400,
        "seconds": 0.0005,
        "server_cpu_s": 0.00025,
        "client_cpu_s": 0.000125,
        "waits": waits,
    }
    found = here.piped(run)
    assert found.elapsed_ns == pytest.approx(1250)
    assert found.cpu_ns == {"server": pytest.approx(625), "client": pytest.approx(312.5)}
    assert found.sleeps == {"server": 0.1, "client": 0.2}
