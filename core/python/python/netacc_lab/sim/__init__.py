"""What-if studies: scenarios in, runs of the simulator program, and their results.

>>> from netacc_lab.sim import study
>>> result = study("connections-per-qp", seeds=[1, 2, 3])  # doctest: +SKIP
>>> for row in result.table():  # doctest: +SKIP
...     print(row["p99_ns"])

Runs are kept in folders named by scenario and code, so asking again is reading. The command is `netacc sim`.
"""

from netacc_lab.sim.engine import DaskEngine, Engine, SerialEngine
from netacc_lab.sim.errors import Problem, ScenarioError
from netacc_lab.sim.model import Scenario
from netacc_lab.sim.resolve import Run, check, read, runs
from netacc_lab.sim.stats import Estimate
from netacc_lab.sim.store import Recorded, Store
from netacc_lab.sim.study import Point, Progress, Study, study

__all__ = [
    "DaskEngine",
    "Engine",
    "Estimate",
    "Point",
    "Problem",
    "Progress",
    "Recorded",
    "Run",
    "Scenario",
    "ScenarioError",
    "SerialEngine",
    "Store",
    "Study",
    "check",
    "read",
    "runs",
    "study",
]
