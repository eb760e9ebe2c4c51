"""The output of a command as a picture of a terminal: `python -m ci.recording docs/demo.svg make demo`.

`ci/run.sh recording` makes the picture in README.md. Its letters stay text, so tests and readers find words.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

# The letters come from the reader's own font: a picture should not fetch anything.
FONTS = re.compile(r"@font-face \{\{.*?\}\}\s*", re.DOTALL)
LINE = re.compile(r"url\(#.*-line-(\d+)\)")


def picture(title: str, output: str) -> str:
    """An SVG picture of a terminal with this output."""
    text = Text.from_ansi(output)
    widest = max((line.cell_len for line in text.split()), default=0)
    console = Console(record=True, width=widest + 1, file=io.StringIO())
    console.print(text, soft_wrap=True)
    return console.export_svg(title=title, code_format=FONTS.sub("", CONSOLE_SVG_FORMAT))


def lines_of(svg: str) -> list[str]:
    """The lines of the terminal in such a picture. Blank ones at the end are left out."""
    lines: dict[int, str] = {}
    for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text"):
        match = LINE.fullmatch(element.get("clip-path", ""))
        if match:
            number = int(match[1])
            lines[number] = lines.get(number, "") + (element.text or "").replace("\xa0", " ")
    return [lines.get(number, "").rstrip() for number in range(max(lines, default=-1) + 1)]


def record(file: Path, command: list[str]) -> None:
    """Runs a command, and writes the picture if it succeeds."""
    env = {**os.environ, "NO_COLOR": "1", "CARGO_TERM_COLOR": "never"}
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=env,
    )
    sys.stdout.write(done.stdout)
    if done.returncode != 0:
        sys.exit(f"no picture: '{' '.join(command)}' failed with status {done.returncode}")
    shown = done.stdout.replace(str(Path.cwd()), ".")
    file.write_text(picture(" ".join(command), shown.rstrip("\n")))


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: python -m ci.recording FILE.svg COMMAND...")
    record(Path(sys.argv[1]), sys.argv[2:])
