"""The verbs backend on real devices: the conformance suite, on each device and narrowed to others' limits."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.apps.lib.paths import REPO
from tests.lab.lib import UpLab, fabric, restore
from tests.lab.test_limits import AS_NOBODY

EXAMPLES = REPO / "target/debug/examples"

# Tests of properties that no device of this backend has, or of the lack of one that all of them have.
NOT_APPLICABLE = {
    "directory_finds_the_other_end",
    "directory_withdraws_what_was_published",
    "freed_region_is_gone",
    "in_place_through_window",
    "knock_calls_the_first_queue",
    "message_limit",
    "send_in_order",
    "window_descriptor_is_checked",
    "discarded_memory_is_a_tail",
    "window_after_the_peer_has_ended",
    "write_with_imm_needs_capability",
}


@dataclass
class Report:
    """The results of the suite."""

    devices: list[dict[str, Any]] = field(default_factory=list)
    capabilities: dict[str, Any] = field(default_factory=dict)
    limits: dict[str, Any] = field(default_factory=dict)
    outcomes: dict[str, set[str]] = field(default_factory=dict)
    failures: list[dict[str, str]] = field(default_factory=list)


def conformance(lab: UpLab, *arguments: str, before: tuple[str, ...] = ()) -> Report:
    """Run the suite on host 1, by a command if there is one before it."""
    result = lab.run(1, *before, str(EXAMPLES / "verbs_conformance"), *arguments)
    report = Report()
    for line in result.stdout.splitlines():
        entry = json.loads(line)
        if "check" in entry:
            report.outcomes.setdefault(entry["outcome"], set()).add(entry["check"])
            if entry["outcome"] == "failed":
                report.failures.append(entry)
        else:
            for name, value in entry.items():
                setattr(report, name, value)
    assert report.outcomes, f"status {result.returncode}: {result.stderr}"
    return report


def judge(report: Report) -> None:
    assert report.failures == []
    assert report.outcomes["skipped"] == NOT_APPLICABLE
    assert len(report.outcomes["passed"]) >= 35


def test_softroce(rxe: UpLab) -> None:
    report = conformance(rxe, "10.99.0.1")
    judge(report)
    assert [device["name"] for device in report.devices] == ["rxe0"]
    assert report.devices[0]["profile"] == "rxe"
    assert not report.devices[0]["iwarp"]
    assert report.limits["immediate"]
    assert not report.capabilities["initiator_sends_first"]


def test_softroce_over_ipv6(rxe: UpLab) -> None:
    judge(conformance(rxe, "fd99::1"))


@pytest.mark.parametrize(
    ("profile", "inline", "receive_entries", "immediate"),
    # Messages no longer than a credit word go inline on every device.
    [("erdma", 96, 1, True), ("siw", 64, 6, False), ("portable", 8, 1, False)],
)
def test_softroce_with_the_limits_of_another(
    rxe: UpLab, profile: str, inline: int, receive_entries: int, immediate: bool
) -> None:
    report = conformance(rxe, "10.99.0.1", profile)
    judge(report)
    assert report.capabilities["max_inline"] == inline
    assert report.capabilities["max_recv_sge"] == receive_entries
    assert report.limits["immediate"] is immediate
    assert not report.limits["waits_for_receive"]
    assert report.capabilities["initiator_sends_first"]


def test_soft_iwarp(siw: UpLab) -> None:
    report = conformance(siw, "10.99.0.1")
    judge(report)
    assert report.devices[0]["iwarp"]
    assert report.devices[0]["profile"] == "siw"
    assert not report.limits["immediate"]
    assert report.capabilities["write_with_imm"], "a WRITE and a SEND do the same"
    assert report.capabilities["initiator_sends_first"]


def test_soft_iwarp_with_the_limits_of_erdma(siw: UpLab) -> None:
    report = conformance(siw, "10.99.0.1", "erdma")
    judge(report)
    assert report.capabilities["max_recv_sge"] == 1


def test_erdma(erdma: UpLab) -> None:
    """The true driver and provider, on an emulated function."""
    report = conformance(erdma, "10.99.0.1")
    judge(report)
    assert [device["name"] for device in report.devices] == ["erdma_0"]
    assert report.devices[0]["iwarp"]
    assert report.devices[0]["profile"] == "erdma"
    assert report.limits["immediate"]
    assert report.capabilities["max_recv_sge"] == 1
    assert report.capabilities["max_inline"] == 96
    assert report.capabilities["initiator_sends_first"]


def test_erdma_with_the_limits_of_the_least_device(erdma: UpLab) -> None:
    judge(conformance(erdma, "10.99.0.1", "portable"))


@pytest.mark.long
def test_erdma_for_an_ordinary_user(erdma: UpLab) -> None:
    judge(conformance(erdma, "10.99.0.1", before=AS_NOBODY))


#: Positions of the switches for what an ERI's contract leaves open, and a bad wire.
SETTINGS: dict[str, dict[str, Any]] = {
    "completes sent": {"completes": "sent"},
    "no flushes": {"flushes": "none"},
    "all flushes": {"flushes": "all"},
    "stalling receive queue": {"empty_receive_queue": "stall"},
    "doubled interrupts": {"duplicate_interrupts": True},
    "slow commands": {"command_delay_us": 20_000},
    "bad wire": {"loss": 0.01, "duplicate": 0.01, "delay_us": 100, "rate_gbit": 10},
}


@pytest.mark.long
@pytest.mark.parametrize("setting", SETTINGS)
def test_erdma_with_a_setting(erdma: UpLab, setting: str) -> None:
    (before,) = fabric(erdma, {"get": "settings"})
    fabric(erdma, {"set": SETTINGS[setting]})
    try:
        judge(conformance(erdma, "10.99.0.1"))
    finally:
        restore(erdma, before)


@pytest.mark.parametrize("kind", ["rxe", "siw"])
def test_an_overflowing_completion_queue_is_the_end_of_its_link_alone(
    kind: str, request: pytest.FixtureRequest
) -> None:
    """Both devices drop completions that find no room, and report it by an asynchronous event alone.

    An eRDMA function cannot notice it: its driver does not report how far it has polled.
    """
    result = request.getfixturevalue(kind).run(1, str(EXAMPLES / "verbs_overflow"), "10.99.0.1")
    assert result.returncode == 0, result.stderr
    seen = json.loads(result.stdout)
    assert seen["completed"] < seen["posted"], "it has overflowed"
    assert seen["disconnected"] == 1
    assert seen["refuses"] == "queue pair in error state"
    assert seen["peer_disconnected"]
    assert seen["others_go_on"]


def test_a_failed_open_reports_the_reason(rxe: UpLab) -> None:
    for arguments, why in {
        ("127.0.0.1",): "no RDMA device serves the address",
        ("10.99.0.77",): "no RDMA device serves the address",
        ("fd99::1", "erdma"): "IPv4 only",
    }.items():
        result = rxe.run(1, str(EXAMPLES / "verbs_conformance"), *arguments)
        assert result.returncode == 1
        assert why in result.stderr
