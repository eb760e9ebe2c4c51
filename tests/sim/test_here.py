"""What is calibrated of a program on this machine, from loads whose costs are known."""

from __future__ import annotations

from typing import Any

import pytest
from netacc_lab.calibration.fitting import Fit
from netacc_lab.calibration.measuring import MeasuringError

from tests.sim import here

COSTS = {"system-call": 800.0, "segment": 2000.0, "sleep": 0.0, "copy-per-kib": 100.0, "cold": 500.0}
WARM = 200
#: Nanoseconds of a request; and more where a state is displaced: of a turn, and of each of its requests.
OWN = {"server": 900.0, "client": 400.0}
TURN = {"tcp": 6000.0, "shm": 1500.0}
REQUEST = 250.0


def _piped(path: str) -> here.Piped:
    found: here.Piped = {}
    for connections in (here.FEW, here.MANY):
        displaced = max(0.0, 1 - WARM / connections)
        for length in here.PIPELINES:
            stack = (3 * COSTS["system-call"] + 2 * COSTS["segment"]) / length
            stack += here.VALUE / 1024 * COSTS["copy-per-kib"]
            cold = displaced * ((TURN[path] + COSTS["cold"]) / length + REQUEST)
            found[connections, length] = {path: {side: own + stack + cold for side, own in OWN.items()}}
    return found


@pytest.mark.parametrize("path", ["tcp", "shm"])
def test_own_work_is_found_again(path: str) -> None:
    """Breaks if the stack's costs count as the program's, or those of one path as those of another."""
    fit = Fit(COSTS, {}, [], [])
    found = here._services(_piped(path), path, fit, WARM)
    assert found["service"] == pytest.approx(OWN["server"], abs=1)
    assert found["client-service"] == pytest.approx(OWN["client"], abs=1)
    # A turn with one request: what the ping-pongs show of it is the stack's.
    assert found["cold-service"] == found["client-cold-service"]
    assert found["cold-service"] == pytest.approx(TURN[path] + REQUEST, abs=1)


def test_making_connections_is_no_part_of_a_request() -> None:
    """Breaks if the time that a load takes to connect counts as that of its requests."""

    def measured(requests: int) -> dict[str, Any]:
        # Half a second to connect, and 2 us for a request.
        run = {"requests": requests}
        cpu = {f"{side}_cpu_s": 0.5 + requests * 2e-6 for side in ("server", "client")}
        return {"paths": {"shm": {"runs": [run | cpu, run | cpu]}}}

    found = here.steady(measured(400_000), measured(100_000))
    assert found["shm"] == {"server": pytest.approx(2000), "client": pytest.approx(2000)}
    with pytest.raises(MeasuringError, match="no more requests"):
        here.steady(measured(100_000), measured(100_000))
