"""Memory of a simulation."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from netacc_lab.sim import paths, resolve

from tests.sim.conftest import Write

#: Runs a program, and prints its greatest size in KiB. A small process does that, because the kernel counts
#: for a program the memory of the process that started it, too.
MEASURED = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def test_rings_take_the_pages_that_are_used(write: Write, runs: Path) -> None:
    """Breaks if each ring of a simulated process takes all of its pages, though few bytes are ever in it."""
    scenario = write(
        ("clients = 2\nconnections = 4", "clients = 2\nconnections = 1000\ncount = 1"),
        ("[measure]", '[stack]\nanchor = "memory"\nnacc.NACC_RING_SIZE = 65536\n[measure]'),
    )
    (found, *_) = resolve.runs(scenario)
    runs.mkdir()
    file = runs / "resolved.json"
    file.write_text(json.dumps(found.resolved))
    words = [sys.executable, "-c", MEASURED, str(paths.simulator()), str(file), str(runs)]
    size = int(subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout)
    # A connection has four rings, 256,000 KiB in all. 287,000 KiB were measured while the allocator took
    # memory ahead, and 160,000 since.
    assert size < 220_000, f"{size} KiB"
