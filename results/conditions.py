"""Round trips of two processes where a spinner is in the way: on kernel TCP and accelerated.

python results/conditions.py [ROUNDS] [ROUND_TRIPS] >results/conditions.json
As root, after `make build`. A quota needs the `cpu` controller of cgroup v1 at /sys/fs/cgroup/cpu.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
CPU = Path("/sys/fs/cgroup/cpu")
PERIOD_US = 100_000

#: The words before the command, and the quota of processors.
CONDITIONS: dict[str, tuple[list[str], float | None]] = {
    "plain": ([], None),
    "nice 19": (["nice", "-n", "19"], None),
    "one processor": (["taskset", "-c", "0"], None),
    "SCHED_FIFO": (["chrt", "-f", "10"], None),
    "SCHED_FIFO, one processor": (["taskset", "-c", "0", "chrt", "-f", "10"], None),
    "quota of 0.5 processors": ([], 0.5),
    "quota of 1 processor": ([], 1.0),
}


def round_trip_us(command: list[str], group: Path | None, round_trips: int) -> float:
    enter = None if group is None else (lambda: (group / "cgroup.procs").write_text(str(os.getpid())))
    words = [*command, str(round_trips)]
    done = subprocess.run(words, check=True, timeout=120, preexec_fn=enter, stdout=subprocess.PIPE)
    return float(done.stdout)


def measure(
    program: Path, words: list[str], quota: float | None, rounds: int, round_trips: int
) -> dict[str, object]:
    group = CPU / f"netacc-conditions-{os.getpid()}" if quota else None
    if group is not None and quota is not None:
        group.mkdir()
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(int(quota * PERIOD_US)))
    natively, ours = [*words, str(program)], [*words, str(REPO / "target/release/netacc_run"), str(program)]
    try:
        pairs = [
            (round_trip_us(natively, group, round_trips), round_trip_us(ours, group, round_trips))
            for _ in range(rounds)
        ]
    finally:
        if group is not None:
            group.rmdir()
    ratios = sorted(tcp / netacc for tcp, netacc in pairs)
    return {
        "tcp_us": [round(tcp, 2) for tcp, _ in pairs],
        "netacc_us": [round(netacc, 2) for _, netacc in pairs],
        "rate_to_tcp": {
            "median": round(statistics.median(ratios), 2),
            "min": round(ratios[0], 2),
            "max": round(ratios[-1], 2),
        },
    }


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    round_trips = int(sys.argv[2]) if len(sys.argv) > 2 else 20_000
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "ping_pong"
        source = REPO / "tests/apps/programs/ping_pong.c"
        subprocess.run(["gcc", "-O2", "-o", program, source], check=True)
        result: dict[str, object] = {"load_average": os.getloadavg(), "date": time.strftime("%Y-%m-%d")}
        for name, (words, quota) in CONDITIONS.items():
            result[name] = measure(program, words, quota, rounds, round_trips)
            print(name, result[name], file=sys.stderr)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
