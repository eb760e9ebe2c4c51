"""Tables of recorded runs: `python -m ci.eri.report FILE`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

EMULATED = (
    "Machines in software emulation: only ratios within this run mean anything, and a software device that "
    "sleeps is slower than TCP."
)


def cell(outcome: dict[str, Any]) -> str:
    if not outcome["works"]:
        failure = str(outcome["failure"])
        return "fails: " + failure.replace("\n", " ").replace("|", "/")[:70]
    rates = {name: value for name, value in outcome["figures"].items() if name.endswith("_per_s")}
    said = ", ".join(f"{value:.0f} {name.removesuffix('_per_s')}/s" for name, value in rates.items())
    share = outcome.get("link_share")
    return said if share is None else f"{said}; {share:.0%} on links"


def table(document: dict[str, Any]) -> str:
    """In Markdown: a line for each program, a column for each stack."""
    paths = document["paths"]
    stacks = [name for name in ("tcp", "rsockets", "netacc") if name in paths]
    lines = [f"{EMULATED}\n"] if document["machine"]["emulated"] else []
    lines += ["| | " + " | ".join(stacks) + " | verbs alone |", "| --- |" + " --- |" * (len(stacks) + 1)]
    for name in ("round_trip_us", "messages_per_s", "gbit_per_s"):
        columns = [*stacks, "verbs"]
        values = [paths.get(stack, {}).get("rstream", {}).get(name) for stack in columns]
        said = ["fails" if stack != "verbs" else "" for stack in columns]
        said = [f"{value:g}" if value is not None else no for value, no in zip(values, said, strict=True)]
        lines.append(f"| {name} | " + " | ".join(said) + " |")
    for name in paths[stacks[0]]["programs"]:
        cells = [cell(paths[stack]["programs"][name]) for stack in stacks]
        lines.append(f"| {name} | " + " | ".join(cells) + " | |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(json.loads(Path(sys.argv[1]).read_text())))
