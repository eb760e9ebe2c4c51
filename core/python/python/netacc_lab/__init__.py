"""Programs of socket operations, the same for every backend.

A *program* is a list of operations of several processes, an *executor* runs it and returns a *trace*, and a
trace must agree with kernel TCP's up to the freedoms that TCP itself has.

>>> from netacc_lab import ProcessExecutor, Shape, generate
>>> program = generate(Shape(), [7, 8, 9])
>>> with ProcessExecutor("target/release/netacc-exec") as tcp:  # doctest: +SKIP
...     trace = tcp.run(program)

Strategies for Hypothesis are in `netacc_lab.strategies`, the differential runner in
`netacc_lab.differential`.
"""

from importlib.metadata import version

from netacc_lab.executors import (
    BrokenPromise,
    Executor,
    ExecutorError,
    Far,
    HarnessExecutor,
    Host,
    Ns3Executor,
    ProcessExecutor,
)
from netacc_lab.program import Config, Difference, Mix, Outcome, Program, Shape, Trace, compare, generate

__version__ = version("netacc-lab")

__all__ = [
    "BrokenPromise",
    "Config",
    "Difference",
    "Executor",
    "ExecutorError",
    "Far",
    "HarnessExecutor",
    "Host",
    "Mix",
    "Ns3Executor",
    "Outcome",
    "ProcessExecutor",
    "Program",
    "Shape",
    "Trace",
    "compare",
    "generate",
]
