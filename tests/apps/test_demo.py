"""The picture of `make demo` in README.md shows what the demo prints today."""

from __future__ import annotations

import re
import subprocess

from ci.recording import lines_of, picture
from tests.apps.lib.paths import REPO, binaries

PICTURE = REPO / "docs/demo.svg"


def form(lines: list[str]) -> list[str]:
    """What every run prints, without numbers and widths: the title, the headings and the paths."""
    title = next(line for line in lines if line.startswith("netacc bench redis set:"))
    rows = [re.split("[│┆]", line) for line in lines if line.startswith("│")]
    headings = [cell.strip() for cell in rows[0]]
    paths = [row[1].strip() for row in rows[1:]]
    return [re.sub(r"\d+", "N", title), *headings, *paths]


def test_the_picture_shows_the_current_output() -> None:
    """Breaks if the benchmark's table changes and `ci/run.sh recording` is forgotten."""
    arguments = [
        "--clients",
        "100",
        "--size",
        "512",
        "--threads",
        "1",
        "--pairs",
        "2",
        "--requests",
        "2000",
        "-q",
    ]
    demo = subprocess.run(
        [binaries() / "netacc", "bench", "redis", *arguments], capture_output=True, text=True, check=True
    )
    recorded = lines_of(PICTURE.read_text())
    assert form(recorded) == form(demo.stdout.splitlines())
    announced = re.findall(
        r'^ +say "(netacc bench redis: .*)"$', (REPO / "ci/run.sh").read_text(), re.MULTILINE
    )
    assert len(announced) == 1
    assert f"==> {announced[0]}" in recorded


def test_a_picture_has_the_lines_of_its_text() -> None:
    lines = ["==> <first> & last", "", "│ tcp  ┆ 1,383 │", "  indented"]
    assert lines_of(picture("a title", "\n".join(lines))) == lines


def test_the_picture_fetches_nothing() -> None:
    assert "url(http" not in PICTURE.read_text()
    assert "@font-face" not in PICTURE.read_text()
