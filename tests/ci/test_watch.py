"""`ci/run.sh watch` finds what has become slower, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from netacc_lab import analysis

from ci import watch

#: In place of `netacc bench`: rates by path, which rise from round to round as other work goes away.
STUB = """#!/usr/bin/env python3
import json, pathlib, sys
here = pathlib.Path(__file__).parent
calls = here.parent / "calls"
with calls.open("a") as file:
    file.write(here.name + "\\n")
number = calls.read_text().count(here.name)
def path(factor):
    rate = 1000 * number * factor * (1.01 if number % 2 else 0.99)
    waits = {"client_sleeps": factor, "server_sleeps": 0.5}
    return {"runs": [{"round": 1, "requests_per_s": rate, "latency_us": {"p50": 1e6 / rate}, "waits": waits}]}
machine = {"cpu": "EPYC", "cores": 2, "kernel": "6.1", "date": "2026-11-26T00:00:00Z"}
paths = {"tcp": path(1), "shm": path(FACTOR)}
whole = {"bench": sys.argv[2], "params": {}, "machine": machine, "paths": paths, "warnings": [here.name]}
pathlib.Path(sys.argv[sys.argv.index("--json") + 1]).write_text(json.dumps(whole))
"""


def programs(folder: Path, new: float) -> list[str]:
    for name, factor in (("base", 2.0), ("new", new)):
        (folder / name).mkdir()
        program = folder / name / "netacc"
        program.write_text(STUB.replace("FACTOR", str(factor)))
        program.chmod(0o755)
    out = str(folder / "out")
    return [str(folder / "base"), str(folder / "new"), "--no-count", "--output", out, "--only", "echo-spin"]


@pytest.mark.parametrize(("new", "status"), [(1.8, 1), (2.0, 0), (2.2, 0)])
def test_a_lower_rate_is_found(
    new: float, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Breaks if the rise of both trees hid that one is slower, or a faster one counted as worse."""
    assert watch.main([*programs(tmp_path, new), "--rounds", "4", "--json"]) == status
    rows = {(row["path"], row["figure"]): row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert rows["shm", "client sleeps"]["means"] == [2.0, new] and rows["shm", "server sleeps"]["means"] == [
        0.5,
        0.5,
    ]
    assert rows["shm", "rate"]["value"] == pytest.approx(new / 2)
    assert rows["shm", "p50"]["value"] == pytest.approx(2 / new)
    assert rows["tcp", "rate"]["value"] == pytest.approx(1)
    assert [key for key, row in rows.items() if row.get("worse")] == ([("shm", "rate")] if status else [])


def test_trees_take_turns_and_their_records_are_kept(tmp_path: Path) -> None:
    """Breaks if one tree always had the machine first, or a round were lost."""
    assert watch.main([*programs(tmp_path, 2.0), "--rounds", "3"]) == 0
    assert (tmp_path / "calls").read_text().split() == ["new", "base", "base", "new", "new", "base"]
    record = analysis.load(tmp_path / "out/echo-spin-new")
    assert record.contents and record.contents.header.versions == {"programs": str(tmp_path / "new")}
    assert len(record["shm"].runs) == len(record["tcp"].runs) == 3
    assert "new" in record.warnings


def test_an_earlier_record_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*programs(tmp_path, 2.0), "--rounds", "2"]
    assert (watch.main(arguments), watch.main(arguments)) == (0, 2)
    assert len((tmp_path / "calls").read_text().split()) == 4, (
        "nothing is measured for a record that has no place"
    )
    assert "there is something already" in capsys.readouterr().err


def test_more_instructions_or_system_calls_are_worse() -> None:
    base = {"instructions": {"send": 1000.0, "recv": 1200.0}, "system_calls": {"awake": 0.001, "asleep": 2.1}}

    def found(what: str, **changed: float) -> bool:
        return watch.more({"base": base, "new": base | {what: base[what] | changed}})

    assert not watch.more({})
    assert not found("instructions", send=900.0)
    assert found("instructions", recv=1210.0)
    assert not found("system_calls", awake=0.005, asleep=2.4)
    assert found("system_calls", awake=1.0)
    assert found("system_calls", asleep=4.1)


def test_a_program_that_fails_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = programs(tmp_path, 2.0)
    (tmp_path / "new/netacc").write_text("#!/bin/sh\necho no redis-server >&2\nexit 3\n")
    assert watch.main([*arguments, "--rounds", "2"]) == 2
    assert "new/netacc bench echo: no redis-server" in capsys.readouterr().err
    (tmp_path / "new/netacc").unlink()
    assert watch.main([*arguments, "--rounds", "2"]) == 2
    with pytest.raises(SystemExit, match="2"):
        watch.main([*arguments, "--rounds", "1"])
