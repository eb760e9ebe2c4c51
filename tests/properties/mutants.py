"""Shows that the programs notice faults: breaks the library on purpose, one way at a time.

`python -m tests.properties.mutants` builds each mutant of mutants.toml in a copy of the sources below
target/mutants and runs programs until one differs in a way that the unbroken library does not, or the test
of the core that the mutant names; then the faults that the simulated device can have, on the core alone. It
fails if a fault lives.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

from netacc_lab import BrokenPromise, HarnessExecutor, Mix, Program, Trace, compare, generate
from netacc_lab._native import mutants as device_mutants
from netacc_lab.differential import Differential
from netacc_lab.strategies import from_seed

from tests.apps.lib.paths import REPO, binaries

HERE = Path(__file__).parent
WORK = REPO / "target/mutants"
FIRST_SEED = 1_000_000
# Programs that a mutant is given at most.
MOST = 400
PATIENCE_S = 60.0


def copy_sources() -> Path:
    """The tracked files, so that a mutant never touches files in the working tree."""
    sources = WORK / "sources"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPO, capture_output=True, check=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        source, copy = REPO / name, sources / name
        if source.is_file() and not (copy.exists() and copy.read_bytes() == source.read_bytes()):
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)
    return sources


def build(sources: Path, name: str) -> Path:
    """A folder with the library as the sources are, and the unbroken programs."""
    env = os.environ | {"CARGO_TARGET_DIR": str(WORK / "build"), "CARGO_INCREMENTAL": "0"}
    subprocess.run(
        ["cargo", "build", "--quiet", "--locked", "-p", "netacc-preload"], cwd=sources, env=env, check=True
    )
    folder = WORK / "bin" / name
    folder.mkdir(parents=True, exist_ok=True)
    for file in ("netacc-exec", "netacc_run"):
        shutil.copy(binaries() / file, folder)
    shutil.copy(WORK / "build/debug/libnetacc_preload.so", folder / "libnetacc-preload.so")
    return folder


def hunt(mutant: Differential, unbroken: Differential, mixes: tuple[Mix, ...]) -> tuple[str, int, float]:
    """The failure of the first program that fails twice with the mutant, and never without."""
    began, ran = time.monotonic(), 0
    for ran in range(1, MOST + 1):
        program = from_seed(FIRST_SEED + ran, mixes=mixes).program
        verdict = mutant.check(program)
        if verdict.failed and not any(unbroken.check(program).failed for _ in range(3)):
            again = mutant.check(program)
            if again.failed:
                return verdict.signature, ran, time.monotonic() - began
        if time.monotonic() - began > PATIENCE_S:
            break
    return "", ran, time.monotonic() - began


def is_green(sources: Path, words: list[str]) -> bool:
    """Whether the tests that `cargo test` finds with these words pass; there has to be one."""
    env = os.environ | {"CARGO_TARGET_DIR": str(WORK / "build"), "CARGO_INCREMENTAL": "0"}
    command = ["cargo", "test", "--quiet", "--locked", *words]
    subprocess.run([*command, "--no-run"], cwd=sources, env=env, check=True)
    done = subprocess.run(command, cwd=sources, env=env, capture_output=True, text=True, check=False)
    if not re.search(r"^running [1-9]", done.stdout, re.MULTILINE):
        raise SystemExit(f"{' '.join(words)}: no such test")
    return done.returncode == 0


def run_test(sources: Path, mutant: dict[str, Any]) -> tuple[str, int, float]:
    """Whether a test is red with the mutant, and green without."""
    began = time.monotonic()
    words = mutant["test"]
    green = is_green(sources, words)
    path, whole = break_once(sources, mutant)
    try:
        red = not is_green(sources, words)
    finally:
        path.write_text(whole)
    return f"{words[-1]} is red" if green and red else "", 0, time.monotonic() - began


def break_once(sources: Path, mutant: dict[str, Any]) -> tuple[Path, str]:
    path = sources / mutant["file"]
    whole = path.read_text()
    count = whole.count(mutant["find"])
    if count != mutant.get("count", 1):
        raise SystemExit(f"{mutant['name']}: {mutant['file']} has the text to replace {count} times")
    path.write_text(whole.replace(mutant["find"], mutant["replace"]))
    return path, whole


def break_library(only: list[str]) -> list[dict[str, Any]]:
    sources = copy_sources()
    unbroken = Differential(build(sources, "unbroken"), log=WORK / "netacc.log")
    rows = []
    for mutant in tomllib.loads((HERE / "mutants.toml").read_text())["mutant"]:
        if only and mutant["name"] not in only:
            continue
        if "test" in mutant:
            rows.append(row("library", mutant["name"], *run_test(sources, mutant)))
            continue
        path, whole = break_once(sources, mutant)
        try:
            folder = build(sources, mutant["name"])
        finally:
            path.write_text(whole)
        mixes = tuple(Mix(name) for name in mutant["mixes"])
        with Differential(folder, log=WORK / "netacc.log") as lab:
            rows.append(row("library", mutant["name"], *hunt(lab, unbroken, mixes)))
    unbroken.close()
    return rows


def simulated(program: Program, expected: Trace, seed: int, mutant: str) -> str:
    """The difference on the core alone, if there is one."""
    try:
        differences = compare(
            program, expected, HarnessExecutor(seed=seed, mutant=mutant).run(program, expected)
        )
    except BrokenPromise as broken:
        return str(broken)[:60]
    return differences[0].signature if differences else ""


def break_device(only: list[str]) -> list[dict[str, Any]]:
    rows = []
    with Differential(binaries(), accelerated=False) as oracle:
        for mutant in device_mutants():
            if only and mutant not in only:
                continue
            found, ran, began = "", 0, time.monotonic()
            for ran in range(1, 20 * MOST):
                drawn = from_seed(FIRST_SEED + ran, mixes=(Mix.DATA,))
                # Some faults strike only where links die.
                config = replace(drawn.shape.config, fault_per_mille=(0, 10, 40)[ran % 3])
                program = generate(replace(drawn.shape, config=config), drawn.decisions)
                expected = oracle.check(program).oracle
                found = simulated(program, expected, ran, mutant)
                # Another seed is another schedule: a program that fails without the mutant proves nothing.
                if found and not any(simulated(program, expected, seed, "") for seed in range(ran, ran + 20)):
                    break
                found = ""
                if time.monotonic() - began > PATIENCE_S:
                    break
            rows.append(row("device", mutant, found, ran, time.monotonic() - began))
    return rows


def row(where: str, name: str, found: str, ran: int, seconds: float) -> dict[str, Any]:
    how = f"found: {found}," if found else "LIVES"
    print(f"{where:8} {name:24} {how} after {ran} programs, {seconds:.1f} s", flush=True)
    return {"where": where, "mutant": name, "found": found, "programs": ran, "seconds": round(seconds, 2)}


# Mutants that no program of these executors can see, and the tests that see them.
SIMULATION = "ci/run.sh sim sees it"
BEYOND = {
    "LeakRegion": f"nothing that a program does shows a leak; {SIMULATION}",
    "DropGive": f"a step that waits tries again, and finds the credit without an event; {SIMULATION}",
    "DropDisconnect": f"a writer finds the link dead, and a reader a record on the anchor; {SIMULATION}",
    "DropEdge": f"the programs do not wait with the simulation's epoll; {SIMULATION}",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("only", nargs="*", help="names of mutants")
    parser.add_argument("--json", type=Path, default=REPO / "results/local/mutants.json")
    arguments = parser.parse_args()
    rows = break_library(arguments.only) + break_device(arguments.only)
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps({"format": 1, "mutants": rows}, indent=1) + "\n")
    alive = [item["mutant"] for item in rows if not item["found"] and item["mutant"] not in BEYOND]
    found = sum(bool(item["found"]) for item in rows)
    print(f"{found} of {len(rows)} found; alive: {', '.join(alive) or 'none'}")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
