"""Stages of messages: what makes the tail, and what has changed between two traces."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from matplotlib.patches import Rectangle
from netacc_lab import analysis
from netacc_lab.analysis.__main__ import main as report
from netacc_lab.analysis.stages import STAGES
from netacc_lab.records import Contents, Header, folder
from netacc_lab.records.model import Kind, Run, Series, Table

from tests.analysis.test_analysis import histogram

DIRECTION = "client to server, link"


def trace(path: Path, copy: int = 100) -> analysis.Record:
    """1,000 messages in 4 windows. Ten of them wait 50 us for a wake-up."""
    messages: list[dict[str, Any]] = [
        dict.fromkeys(STAGES, 0)
        | {"from": "client", "to": "server", "path": "link", "copy": copy + number % 3, "read": 40}
        | {"wake": 50_000 if number % 100 == 7 else 0}
        for number in range(1000)
    ]
    runs = [
        Run(
            histograms={"latency": f"latency-{number}.hdr"},
            figures={f"{name}_ns": sum(message[name] for message in part) / len(part) for name in STAGES},
        )
        for number in range(4)
        for part in [messages[number * 250 : (number + 1) * 250]]
    ]
    header = Header(
        kind=Kind.TRACE,
        title="netacc trace: stages of messages",
        series=[Series(name=DIRECTION, runs=runs)],
        tables=[Table(name="messages", file="messages.jsonl", form="jsonl", rows=len(messages))],
    )
    histograms = {f"latency-{number}.hdr": histogram([copy + 40]) for number in range(4)}
    folder.write(path, Contents(header, histograms, {}, ""))
    (path / "messages.jsonl").write_text("".join(json.dumps(message) + "\n" for message in messages))
    return analysis.load(path)


def test_the_stage_that_makes_the_tail_is_found(tmp_path: Path) -> None:
    record = trace(tmp_path / "trace")
    found = {each.stage: each for each in analysis.stages(record)}
    assert set(found) == {"copy", "wake", "read", "total"}
    assert found["wake"].mean_ns == 500 and found["wake"].slowest_ns == 50_000
    assert found["wake"].p50_ns == 0 and found["total"].messages == 1000
    excess = analysis.decompose_tail(record, DIRECTION)
    assert next(iter(excess)) == "wake" and excess["wake"] == 49_500
    assert excess["read"] == 0


def test_a_change_of_one_stage_is_found(tmp_path: Path) -> None:
    first, second = (trace(tmp_path / str(copy), copy) for copy in (100, 200))
    changes = {each.stage: each for each in analysis.stage_changes(first, second)}
    assert changes["copy"].ratio.differs and changes["copy"].ratio.value == pytest.approx(1.99, rel=0.01)
    assert not changes["read"].ratio.differs


def test_wrong_questions_have_answers(tmp_path: Path) -> None:
    record = trace(tmp_path / "trace")
    with pytest.raises(ValueError, match="above 0 and at most 1"):
        analysis.stages(record, slowest=0)
    with pytest.raises(KeyError, match="no direction 'a to b'; there are client to server, link"):
        analysis.decompose_tail(record, "a to b")
    with pytest.raises(KeyError, match="no table 'messages'"):
        analysis.stages(dataclasses.replace(record, contents=None))


def test_the_report_shows_stages_and_their_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace(tmp_path / "100")
    trace(tmp_path / "200", 200)
    assert report([str(tmp_path / "100")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith(DIRECTION) and "wake" in line and "50 us" in line for line in lines)
    assert report([str(tmp_path / "100"), str(tmp_path / "200")]) == 0
    lines = capsys.readouterr().out.splitlines()
    (changed,) = [line for line in lines if line.startswith(DIRECTION) and "*" in line and "copy" in line]
    assert "1.99" in changed


def test_stages_are_drawn(tmp_path: Path) -> None:
    """Breaks if rows of two directions share a place: both have one of their slowest messages."""
    path = trace(tmp_path / "trace").path
    messages = path / "messages.jsonl"
    back = messages.read_text().replace(
        '"from": "client", "to": "server"', '"from": "server", "to": "client"'
    )
    messages.write_text(messages.read_text() + back)
    header = json.loads((path / "record.json").read_text())
    header["tables"][0]["rows"] *= 2
    (path / "record.json").write_text(json.dumps(header))
    axes = analysis.plot_stages(analysis.load(path))
    labels = [text.get_text() for text in axes.get_yticklabels()]
    assert labels == [DIRECTION, "its slowest 1%", "server to client, link", "its slowest 1%"]
    # A bar for each of the three stages, in each row.
    assert len(axes.patches) == 12
    rows = {round(bar.get_y() + bar.get_height() / 2) for bar in axes.patches if isinstance(bar, Rectangle)}
    assert rows == {0, 1, 2, 3}
