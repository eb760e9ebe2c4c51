"""A run in pieces: the file with its counts says where the next piece begins."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from netacc_lab.differential import Tally


class OtherRunError(Exception):
    """The file is of a run of other programs."""


@dataclass
class Pieces:
    """The counts of all pieces so far.

    A file holds the counts of the first programs of a run, so it is written only while no program is judged
    before an earlier one. Nothing is counted twice if a piece is ended early.
    """

    #: What is the same in all pieces.
    description: Mapping[str, object]
    tally: Tally = field(default_factory=Tally)
    #: So many programs of the run are judged, in earlier pieces.
    before: int = 0
    #: Each earlier piece: programs, seconds, revision.
    earlier: list[dict[str, object]] = field(default_factory=list)
    _seconds: float = 0.0
    _judged: int = 0
    _last: int = -1

    @staticmethod
    def load(path: Path, description: Mapping[str, object]) -> Pieces:
        """Goes on with the run in the file, or begins it if there is no file."""
        if not path.exists():
            return Pieces(description)
        document = json.loads(path.read_text())
        for name, value in description.items():
            if document.get(name) != value:
                raise OtherRunError(f"{path} is of a run with {name} = {document.get(name)}, not {value}")
        tally = Tally.of(document)
        return Pieces(description, tally, tally.programs, document["pieces"], tally.seconds)

    def judged(self, index: int, seconds: float) -> bool:
        """The program with that index in this piece is judged and counted. Whether all before it are."""
        self._judged += 1
        self._last = max(self._last, index)
        self.tally.seconds = self._seconds + seconds
        return self._last + 1 == self._judged

    def write(self, path: Path, revision: str) -> None:
        """Call it only where `judged` has said that all before are."""
        this = {
            "programs": self._judged,
            "seconds": self.tally.seconds - self._seconds,
            "revision": revision,
        }
        pieces = [*self.earlier, this] if self._judged else self.earlier
        document = {**self.description, "pieces": pieces, **self.tally.document()}
        new = path.with_suffix(".new")
        new.write_text(json.dumps(document, indent=1) + "\n")
        new.replace(path)
