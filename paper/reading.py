"""Reads records: JSON, tables and sentences of Markdown, histograms.

A record, key, row or sentence that is not there costs a MissingError, which ends the build. Each reading is
noted, so that the build can list what the paper takes from where.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hdrh.histogram import HdrHistogram

ROOT = Path(__file__).resolve().parent.parent


class MissingError(Exception):
    """A record, or something in it, is not there."""


def _plain(cell: str) -> str:
    """A cell of Markdown without links and marks."""
    cell = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", cell)
    return cell.replace("`", "").replace("**", "").strip()


def _cells(line: str) -> list[str]:
    return [_plain(cell) for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]


@dataclass(frozen=True)
class Reader:
    """Reads records below a folder, the project's own but in tests."""

    root: Path = ROOT
    #: What was read: "results/connect.json: paths.shm.requests_per_s".
    readings: dict[str, None] = field(default_factory=dict)
    _texts: dict[str, str] = field(default_factory=dict)
    _parsed: dict[str, Any] = field(default_factory=dict)

    def _text(self, record: str) -> str:
        if record not in self._texts:
            try:
                self._texts[record] = (self.root / record).read_text("utf-8")
            except OSError as error:
                raise MissingError(f"{record}: {error.strerror}") from None
        return self._texts[record]

    def _json(self, record: str) -> Any:  # noqa: ANN401 - any JSON
        if record not in self._parsed:
            text = self._text(record)
            try:
                lines = record.endswith(".jsonl")
                self._parsed[record] = (
                    [json.loads(line) for line in text.splitlines()] if lines else json.loads(text)
                )
            except ValueError as error:
                raise MissingError(f"{record}: {error}") from None
        return self._parsed[record]

    def records(self) -> list[str]:
        """The records that were read since the readings were last cleared."""
        return sorted({reading.split(":")[0] for reading in self.readings})

    def _note(self, record: str, key: str) -> None:
        self.readings[f"{record}: {key}"] = None

    def any(self, record: str, key: str) -> Any:  # noqa: ANN401 - any JSON
        """What is at a path of keys and indices, which dots separate."""
        found = self._json(record)
        for step in key.split("."):
            try:
                found = found[int(step)] if isinstance(found, list) else found[step]
            except (KeyError, IndexError, ValueError, TypeError):
                raise MissingError(f"{record}: there is no {key}") from None
        self._note(record, key)
        return found

    def number(self, record: str, key: str) -> float:
        """The same, for a number."""
        found = self.any(record, key)
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise MissingError(f"{record}: {key} is no number")
        return found

    def chosen(self, record: str, key: str, **wanted: object) -> dict[str, Any]:
        """The only object of a list that has these values."""
        found = [each for each in self.any(record, key) if all(each.get(k) == v for k, v in wanted.items())]
        if len(found) != 1:
            raise MissingError(f"{record}: {key} has {len(found)} entries with {wanted}")
        self._note(record, f"{key} {wanted}")
        return dict(found[0])

    def cell(self, record: str, heading: str, row: str, column: str) -> str:
        """A cell of the first table below a heading that has such a row and column."""
        text = self._text(record)
        below = re.split(rf"^#+ {re.escape(heading)}\n", text, maxsplit=1, flags=re.MULTILINE)
        if len(below) != 2:
            raise MissingError(f"{record}: there is no heading {heading!r}")
        for table in re.findall(r"(?:^\|.*\n)+", below[1], re.MULTILINE):
            lines = [_cells(line) for line in table.splitlines()]
            rows = [line for line in lines[2:] if line[0].startswith(row)]
            if column in lines[0] and rows:
                self._note(record, f"{heading} / {row} / {column}")
                return rows[0][lines[0].index(column)]
        raise MissingError(f"{record}: {heading}: no table has a row {row!r} and a column {column!r}")

    def said(self, record: str, pattern: str) -> tuple[str, ...]:
        """The groups of the only match of a pattern in a Markdown text, whose lines may break anywhere."""
        text = " ".join(self._text(record).split())
        found = [match.groups() for match in re.finditer(pattern, text)]
        if len(found) != 1:
            raise MissingError(f"{record}: {len(found)} matches of {pattern!r}")
        self._note(record, pattern)
        return found[0]

    def histogram(self, record: str) -> HdrHistogram:
        """A latency histogram in nanoseconds (HdrHistogram V2, compressed)."""
        try:
            data = (self.root / record).read_bytes()
        except OSError as error:
            raise MissingError(f"{record}: {error.strerror}") from None
        self._note(record, "histogram")
        return HdrHistogram.decode(base64.b64encode(data))

    def lines(self, record: str) -> list[dict[str, Any]]:
        """The objects of a file of JSON lines."""
        self._note(record, "all lines")
        return list(self._json(record))
