"""`netacc trace` on two hosts: their events are joined, although their clocks differ."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.apps.lib.paths import binaries
from tests.lab.conversation import begin_on_link
from tests.lab.lib import COMMAND_SECONDS, UpLab, attempts

NETACC = str(binaries() / "netacc")
#: Windows one after the other: messages take long between emulated hosts.
WINDOWS = ("--duration", "6s", "--window", "2s", "--every", "2s")
EVENTS = "/tmp/trace-events"
STAGES = {"call", "copy", "held", "post", "wire", "completion", "wake", "ready", "read", "total"}


def traced(lab: UpLab, pids: tuple[str, str], folder: Path) -> dict[str, Any]:
    """What the join of both hosts' events shows; nothing if no message was seen as a whole."""
    words = " ".join((NETACC, "trace", *WINDOWS, "--events", EVENTS))
    tools = [
        # A host alone sees no message as a whole, which is status 7.
        lab.start(host, "sh", "-c", f"{words} -p {pid} >/dev/null 2>&1; [ $? = 7 ] && cat {EVENTS}")
        for host, pid in zip((1, 2), pids, strict=True)
    ]
    files = [folder / "1", folder / "2"]
    for tool, file in zip(tools, files, strict=True):
        events, _ = tool.communicate(timeout=COMMAND_SECONDS)
        assert tool.returncode == 0, events
        file.write_text(events)
    done = subprocess.run(
        [NETACC, "trace", "--json", "--join", *map(str, files)], capture_output=True, text=True, timeout=60
    )
    if done.returncode == 7:
        return {}
    assert done.returncode == 0, done.stderr
    shown: dict[str, Any] = json.loads(done.stdout)
    return shown


def test_messages_between_two_hosts_have_stages(iwarp: UpLab, tmp_path: Path) -> None:
    """Breaks if a device's completions were not among the events, or the clocks were joined wrongly."""
    talk = begin_on_link(iwarp)
    for _ in attempts():
        shown = traced(iwarp, (talk.server, talk.client), tmp_path)
        on_links = [group for group in shown.get("messages", ()) if group["path"].startswith("link")]
        if len(on_links) == 2:
            break
    else:
        pytest.fail(f"no message on a link was seen by both hosts: {shown}")
    talk.end()
    for group in on_links:
        stages = {stage["stage"]: stage["mean"] for stage in group["stages"]}
        assert {"call", "copy", "post", "read", "total"} <= stages.keys() <= STAGES
        # What a device and its receiver take: the wire's part of it is apart only if the receiver polls.
        assert stages.keys() & {"wire", "completion", "wake"}
        assert sum(stages.values()) == pytest.approx(2 * stages["total"], rel=1e-6)
    there, back = (
        next(stage["mean"] for stage in group["stages"] if stage["stage"] == "total") for group in on_links
    )
    # No message arrives before it was sent: the bound is half of a whole way there and back at most.
    assert shown["clocks"]["uncertainty"] <= (there + back) / 2
