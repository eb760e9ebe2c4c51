"""The cost of a simulation in instructions, which callgrind counts."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from netacc_lab.sim import paths, resolve

#: The scenario `many-clients` with fewer of all.
SCALE: dict[str, list[object]] = {
    "topology.hosts": [5],
    "workload.0.clients": [4],
    "workload.0.connections": [400],
    "workload.0.rate": ["200k/s"],
    "measure.duration": ["20ms"],
}
#: Per frame that reaches a host. A build without link-time optimisation took 19,700 when this was written,
#: and one with it 17,200. Without it had taken 21,600 while tables were trees and each event of a NIC asked
#: for news and time again and again, and more than twice as much while each event gave its process a turn,
#: and each read cleared 16 KiB first.
MOST_INSTRUCTIONS = 20_700
#: For a run, under callgrind on a busy machine.
TIMEOUT = 300


def test_a_frame_takes_few_instructions(tmp_path: Path) -> None:
    """Breaks if processes have turns for the events of their NICs alone, or NICs are served twice for each.

    All instructions of a run count: those of the network, both NICs, the core and the programs.
    """
    file = paths.scenarios_folder() / "many-clients.toml"
    (found,) = resolve.runs(file, sweep=SCALE, seeds=[1])
    scenario = tmp_path / "resolved.json"
    scenario.write_text(json.dumps(found.resolved))
    profile = tmp_path / "profile"
    words = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={profile}"]
    words += [str(paths.simulator()), str(scenario), str(tmp_path)]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=TIMEOUT)
    totals = [line.split()[1] for line in profile.read_text().splitlines() if line.startswith("totals:")]
    meta = json.loads((tmp_path / "meta.json").read_text())
    frames = meta["deliveries"]
    assert meta["unanswered"] == 0
    assert frames > 10_000
    assert int(totals[-1]) / frames < MOST_INSTRUCTIONS
