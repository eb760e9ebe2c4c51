"""On a link the kernel is needed only to sleep and to wake: strace counts the calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.apps import system_calls

pytestmark = pytest.mark.usefixtures("library")


def test_a_message_that_is_there_needs_no_system_call(tmp_path: Path) -> None:
    """The library's threads have calls of their own, a few in each second."""
    assert system_calls.of_round_trip(tmp_path, system_calls.CASES["awake"]) < 0.01


def test_two_sleepers_need_no_more_calls_than_to_sleep_and_to_wake(tmp_path: Path) -> None:
    """Each of two messages: the sender wakes, the receiver sleeps. TCP's own calls would be as many."""
    assert system_calls.of_round_trip(tmp_path, system_calls.CASES["asleep"]) < 4.5
