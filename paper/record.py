"""Makes the records of `paper/records`: `python -m paper.record counts|model|simulation|measured`.

The paper quotes nothing but records. Most are in `results`, written by the tools that measured. This module
makes the others: it counts what is in the tree, runs the model check, and runs the simulations that are
compared with known figures. `measured` alone measures time.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ci.spec import CLAUSE, SPEC
from tests.suites import redis as redis_suite
from tests.suites.__main__ import CPYTHON

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / "paper/records"

#: Names that the library exports and that are no calls of the C library.
OWN_NAMES = re.compile(r"^(netacc_|__[at]san_default_options)")
STATES = re.compile(r"(?:^|\.\.\. )([a-z: ]+): (\d+) states, depth (\d+), [0-9.]+ s$")
MUTANT = re.compile(r"(?:^|\.\.\. )([A-Z]\w+): (true|false)$")
REGRESSION = re.compile(r"^test regressions::(\w+) \.\.\. ok$")
CLOSING = re.compile(r"^test result: ok\. (\d+) passed; 0 failed; (\d+) ignored")

#: The checks of `tests/sim/validation.py` that give the same everywhere.
CHECKS = (
    "serialisation", "bandwidth_delay", "credit", "queueing", "incast", "congestion", "dcqcn_fixed_point",
    "dcqcn_many_flows", "links", "redis", "deployment_set", "gazelle", "udpdk",
)  # fmt: skip


@dataclass(frozen=True)
class Options:
    """What the command line says."""

    #: The commit of the code that ran, where it is not that of this tree.
    revision: str | None
    #: The output of a model check that has run already.
    output: Path | None
    checks: tuple[str, ...]


def revision() -> str:
    """The commit of this tree."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def write(name: str, options: Options, content: dict[str, Any]) -> None:
    """A record, with its date and the commit of the code."""
    header = {"date": datetime.now(UTC).date().isoformat(), "revision": options.revision or revision()}
    RECORDS.mkdir(exist_ok=True)
    file = RECORDS / f"{name}.json"
    file.write_text(json.dumps(header | content, indent=1) + "\n", encoding="utf-8")
    print(file.relative_to(ROOT))


# ---- counts -----------------------------------------------------------------------------------------------


def _lines(*patterns: str) -> int:
    """Lines with something on them, of the files of the tree that match."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", *patterns], check=True, capture_output=True, text=True
    ).stdout
    files = (ROOT / name for name in listed.split("\0") if name)
    return sum(sum(1 for line in file.read_text("utf-8").splitlines() if line.strip()) for file in files)


def _rows(text: str) -> int:
    """Rows of the first table of a Markdown text, without its head."""
    table = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert table, "there is no table"
    return table[0].count("\n") - 2


def _section(text: str, heading: str) -> str:
    return text.split(f"{heading}\n", 1)[1]


def counts(options: Options) -> None:
    """Counts of what is in the tree."""
    spec = SPEC.read_text("utf-8")
    clauses = [found for found in map(CLAUSE.match, spec.splitlines()) if found]
    symbols = (ROOT / "core/preload/tests/symbols").read_text().split()
    mutants = tomllib.loads((ROOT / "tests/properties/mutants.toml").read_text("utf-8"))["mutant"]
    differences = tomllib.loads((ROOT / "tests/suites/differences.toml").read_text("utf-8"))["difference"]
    instructions = tomllib.loads((ROOT / "tests/apps/instructions.toml").read_text("utf-8"))
    freedoms = (ROOT / "tests/program/freedoms.md").read_text("utf-8")
    write("counts", options, {
        "command": "python -m paper.record counts",
        "clauses": len(clauses),
        "symbols": sum(1 for name in symbols if not OWN_NAMES.match(name)),
        "reasons": _rows(_section(spec, "## 9. Reason codes")),
        "mutants": len(mutants),
        "regressions": len(list((ROOT / "tests/properties/regressions").glob("*.json"))),
        "freedoms": _rows(freedoms),
        "scenarios": len(list((ROOT / "sim/scenarios").glob("*.toml"))),
        "redis_suite_files": len(redis_suite.UNITS),
        "cpython_modules": len(CPYTHON),
        "suite_differences": len(differences),
        "instructions": instructions,
        "lines": {
            "protocol": _lines("core/proto/src/*.rs"),
            "preload": _lines("core/preload/src/*.rs", "core/preload/src/*.c"),
            "rust": _lines("*.rs"),
            "specification": _lines("core/proto/SPEC.md"),
        },
    })  # fmt: skip


# ---- the model check --------------------------------------------------------------------------------------


def _families(lines: Iterable[str]) -> dict[str, dict[str, int]]:
    """What the checker explored: by family of bounds the configurations, states and greatest depth."""
    families: dict[str, dict[str, int]] = {}
    for line in lines:
        found = STATES.search(line)
        if found:
            name, states, depth = found[1].strip(), int(found[2]), int(found[3])
            # "slow", "slow close" and "slow crash" are one family.
            each = families.setdefault(name.split()[0] if name.startswith("slow") else name, {
                "configurations": 0, "states": 0, "most_states": 0, "depth": 0,
            })  # fmt: skip
            each["configurations"] += 1
            each["states"] += states
            each["most_states"] = max(each["most_states"], states)
            each["depth"] = max(each["depth"], depth)
    return families


def model(options: Options) -> None:
    """The exhaustive check of the switching protocol, as the job `model` runs it."""
    command = ["cargo", "test", "--locked", "--release", "-p", "netacc-proto", "--test", "model"]
    command += ["--", "--nocapture", "--test-threads", "1"]
    if options.output:
        text = options.output.read_text("utf-8")
    else:
        text = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    lines = text.splitlines()
    families = _families(lines)
    mutants = {found[1]: found[2] == "true" for found in map(MUTANT.search, lines) if found}
    closing = next((found for found in map(CLOSING.match, lines) if found), None)
    if closing is None or not families or not all(mutants.values()):
        sys.exit("the model check has failed, or its output has another form")
    write("model", options, {
        "command": " ".join(command),
        "families": families,
        "configurations": sum(each["configurations"] for each in families.values()),
        "states": sum(each["states"] for each in families.values()),
        "most_states": max(each["most_states"] for each in families.values()),
        "depth": max(each["depth"] for each in families.values()),
        "mutants": sorted(mutants),
        "mutants_found": len(mutants),
        "regressions": [found[1] for found in map(REGRESSION.match, lines) if found],
        "passed": int(closing[1]),
        "ignored": int(closing[2]),
    })  # fmt: skip


# ---- simulation -------------------------------------------------------------------------------------------


def _kind(what: str, check: str) -> str:
    """A row says in brackets how its simulated figure came about; the rows of closed forms need not."""
    found = re.search(r"\((fitted|follows|predicted|calibrated)\)", what)
    if found:
        return found[1]
    published = ("redis", "gazelle", "udpdk", "deployment_set", "redis_here")
    return "predicted" if check in published else "closed form"


def simulation(options: Options) -> None:
    """Simulation beside closed forms and published figures. Needs `ci/run.sh sim-tools`."""
    checks = {name: _rows_of(name) for name in options.checks or CHECKS}
    write("simulation", options, {"command": "python -m paper.record simulation", "checks": checks})


def measured(options: Options) -> None:
    """Simulation beside Redis on this machine. Needs `ci/run.sh sim-tools`, and the programs."""
    checks = {"redis_here": _rows_of("redis_here")}
    machine = {"cores": os.cpu_count(), "kernel": os.uname().release}
    write(
        "measured",
        options,
        {"command": "python -m paper.record measured", "machine": machine, "checks": checks},
    )


def _rows_of(check: str) -> list[dict[str, Any]]:
    """The rows of a check of `tests/sim/validation.py`."""
    # Only here, because it needs the built package.
    from tests.sim import validation

    with tempfile.TemporaryDirectory() as folder:
        rows = getattr(validation, check)(Path(folder))
    print(f"{check}: {len(rows)} rows", file=sys.stderr)
    return [
        {
            "what": re.sub(r" \((fitted|follows|predicted|calibrated)\)", "", row.what),
            "kind": _kind(row.what, check),
            "expected": row.expected,
            "simulated": row.simulated,
            "unit": row.unit,
            "bound": row.bound,
            "holds": row.holds,
        }
        for row in rows
    ]


COMMANDS: dict[str, Callable[[Options], None]] = {
    command.__name__: command for command in (counts, model, simulation, measured)
}


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m paper.record", description=__doc__)
    parser.add_argument("record", choices=COMMANDS)
    parser.add_argument("checks", nargs="*", choices=[*CHECKS, []], help="of simulation: only these")
    parser.add_argument("--revision", help="the commit of the programs that run, if not this tree's")
    parser.add_argument("--output", type=Path, help="of model: the output of a check that has run already")
    given = parser.parse_args()
    COMMANDS[given.record](Options(given.revision, given.output, tuple(given.checks)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
