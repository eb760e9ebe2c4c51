"""The cost of a call in instructions: callgrind counts them, and gets the same count each time."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.apps import instructions
from tests.apps.lib import tracing

RECORDED = Path(__file__).with_name("instructions.toml")
#: Of the recorded count. Compilers and C libraries differ by less.
TOLERANCE = 0.03


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return instructions.build(tmp_path_factory.mktemp("instructions"))


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("call", instructions.CALLS)
def test_a_call_takes_as_many_instructions_as_recorded(call: str, program: Path, tmp_path: Path) -> None:
    recorded = tomllib.loads(RECORDED.read_text())["instructions"][call]
    each = instructions.of_call(tmp_path, program, call)
    assert abs(each - recorded) <= TOLERANCE * recorded, f"{call} takes {each:.1f}, recorded are {recorded}"


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("call", instructions.CALLS)
def test_a_call_on_tcp_takes_as_many_instructions_as_recorded(
    call: str, program: Path, tmp_path: Path
) -> None:
    recorded = tomllib.loads(RECORDED.read_text())["tcp"][call]
    each = instructions.of_call_on_tcp(tmp_path, program, call)
    assert abs(each - recorded) <= TOLERANCE * recorded, f"{call} takes {each:.1f}, recorded are {recorded}"


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("path", ["link", "tcp"])
def test_a_call_with_two_buffers_takes_as_many_instructions_as_recorded(
    path: str, program: Path, tmp_path: Path
) -> None:
    """Breaks if a short message from several buffers is not sent the direct way."""
    recorded = tomllib.loads(RECORDED.read_text())["vector"][path]
    each = instructions.of_vector(tmp_path, program, on_link=path == "link")
    assert abs(each - recorded) <= TOLERANCE * recorded, f"writev takes {each:.1f}, recorded are {recorded}"


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(("window", "end"), [("none", None), ("shut", tracing.SHUT), ("open", tracing.OPEN)])
def test_a_trace_costs_as_many_instructions_as_recorded(
    window: str, end: int | None, program: Path, tmp_path: Path
) -> None:
    """Of a send and its receive."""
    recorded = tomllib.loads(RECORDED.read_text())["trace"][window]
    each = instructions.of_message(tmp_path, program, end)
    assert abs(each - recorded) <= TOLERANCE * recorded, (
        f"with the window {window} they take {each:.1f}, recorded are {recorded}"
    )


@pytest.mark.usefixtures("library")
def test_a_short_connection_takes_as_many_instructions_as_recorded(tmp_path: Path) -> None:
    """Both ends: making it, two requests and their answers, and closing it."""
    recorded = tomllib.loads(RECORDED.read_text())["connection"]["short"]
    each = instructions.of_connection(tmp_path, instructions.build(tmp_path, "short"))
    # The work of the library's thread differs from run to run.
    assert abs(each - recorded) <= 2 * TOLERANCE * recorded, f"it takes {each:.1f}, recorded are {recorded}"
