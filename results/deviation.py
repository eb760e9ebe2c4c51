#!/usr/bin/env python3
"""How much round trips of 64-byte datagrams deviate, and how much of that is the machine's other work.

In turns: two processes that answer each other through a shared word of memory, without anything of this
project; datagrams by the kernel; and datagrams with the library. Each end has a processor of its own. With
--real-time both ends run before all other programs (SCHED_FIFO; needs root), which cannot interrupt them.

    results/deviation.py [--real-time] [--rounds 5] [--seconds 0.5] [--json FILE]

NETACC_BIN_DIR names the folder with the programs [target/release].
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

BIN = Path(os.environ.get("NETACC_BIN_DIR", "target/release")).absolute()
SIZE = 64
#: Real-time processes may use this long without a pause (sched_rt_runtime_us is 0.95 s in 1 s by default).
MOST_SECONDS = 0.6
#: So each measurement has a second of its own, or the kernel gives other programs their turn within it.
PAUSE_SECONDS = 1
Row = dict[str, float]


def build(folder: Path) -> Path:
    program = folder / "shared_word"
    source = Path(__file__).parent / "shared_word.c"
    subprocess.run(["cc", "-O2", "-o", program, source, "-lm"], check=True)
    return program


def on(processor: int, real_time: bool) -> list[str]:
    """The beginning of a command that runs there."""
    return [*(["chrt", "-f", "50"] if real_time else []), "taskset", "-c", str(processor)]


def word(program: Path, seconds: float, real_time: bool) -> Row:
    first = ["chrt", "-f", "50"] if real_time else []
    command = [*first, str(program), str(seconds), "0", "1"]
    row: Row = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return row


def line(process: subprocess.Popen[str], word: str) -> str:
    """The rest of the process' line that begins with a word."""
    assert process.stdout is not None
    for printed in process.stdout:
        if printed.startswith(word):
            return printed.removeprefix(word).strip()
    sys.exit(f"{process.args!r} wrote no {word}")


def datagrams(launcher: list[str], seconds: float, real_time: bool) -> Row:
    """By the two ends that `netacc bench datagrams` starts."""
    peer = [*launcher, str(BIN / "netacc"), "bench-peer", "datagrams"]
    ends = []

    def start(processor: int, *words: str) -> subprocess.Popen[str]:
        command = [*on(processor, real_time), *peer, *words]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        ends.append(process)
        return process

    try:
        address = line(start(0, "echo"), "READY").split()[1]
        asking = start(1, "ask", "--to", address, "--size", str(SIZE), "--seconds", str(seconds))
        row: Row = json.loads(line(asking, "RESULT"))
    finally:
        for process in ends:
            process.kill()
            process.wait()
    return row


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--real-time", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.real_time and options.seconds > MOST_SECONDS:
        sys.exit(f"--seconds: more than {MOST_SECONDS} with --real-time starve the machine")
    load = os.getloadavg()
    with tempfile.TemporaryDirectory() as name:
        program = build(Path(name))
        library = [str(BIN / "netacc_run")]
        ways: dict[str, Callable[[], Row]] = {
            "shared word": lambda: word(program, options.seconds, options.real_time),
            "kernel": lambda: datagrams([], options.seconds, options.real_time),
            "library": lambda: datagrams(library, options.seconds, options.real_time),
        }
        columns: dict[str, list[Row]] = {way: [] for way in ways}
        for _ in range(options.rounds):
            for way, measure in ways.items():
                columns[way].append(measure())
                time.sleep(PAUSE_SECONDS)
    print("| µs | mean | deviation (least, most) |\n| --- | --- | --- |")
    for column, rounds in columns.items():
        mean = statistics.median(row["mean"] for row in rounds)
        deviations = sorted(row["deviation"] for row in rounds)
        middle = statistics.median(deviations)
        print(f"| {column} | {mean:.2f} | {middle:.2f} ({deviations[0]:.2f}..{deviations[-1]:.2f}) |")
    if options.json:
        found = {"real_time": options.real_time, "load": load, "seconds": options.seconds, "rounds": columns}
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
