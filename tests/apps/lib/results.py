"""The table at the end of the session: program x mode, the bytes moved, and their share over the link."""

from __future__ import annotations

import dataclasses
import json
import platform
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.apps.lib.counters import Counters
from tests.apps.lib.modes import Mode


@dataclass(frozen=True)
class Result:
    """One row."""

    program: str
    mode: str
    requests: int
    payload_bytes: int
    seconds: float
    link_bytes: int
    tcp_bytes: int
    streams_promoted: int
    streams_demoted: int
    reasons: dict[str, int]

    @property
    def link_share(self) -> float | None:
        """None where nothing was counted, as in a native run."""
        counted = self.link_bytes + self.tcp_bytes
        return self.link_bytes / counted if counted else None


@dataclass
class Results:
    """All rows of a session."""

    rows: list[Result] = field(default_factory=list)

    def add(
        self,
        program: str,
        mode: Mode,
        seen: Counters,
        *,
        requests: int = 0,
        payload_bytes: int = 0,
        seconds: float = 0.0,
    ) -> None:
        self.rows.append(
            Result(
                program=program,
                mode=mode.value,
                requests=requests,
                payload_bytes=payload_bytes,
                seconds=round(seconds, 3),
                link_bytes=seen.link_bytes,
                tcp_bytes=seen.tcp_bytes,
                streams_promoted=seen.streams_promoted,
                streams_demoted=seen.streams_demoted,
                reasons=dict(sorted(Counter(seen.reasons).items())),
            )
        )

    def table(self) -> list[str]:
        order = [mode.value for mode in Mode]
        head = f"{'program':<24} {'mode':<12} {'requests':>9} {'payload MB':>11} {'link share':>11}  reasons"
        lines = [head, "-" * len(head)]
        for row in sorted(self.rows, key=lambda row: (row.program, order.index(row.mode))):
            share = "-" if row.link_share is None else f"{row.link_share:.4f}"
            reasons = ", ".join(f"{reason} x{count}" for reason, count in row.reasons.items())
            lines.append(
                f"{row.program:<24} {row.mode:<12} {row.requests or '-':>9} {row.payload_bytes / 1e6:>11.2f} "
                f"{share:>11}  {reasons}".rstrip()
            )
        return lines

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        rows: list[dict[str, Any]] = [
            dataclasses.asdict(row) | {"link_share": row.link_share} for row in self.rows
        ]
        document = {"format": 1, "kernel": platform.release(), "machine": platform.machine(), "results": rows}
        path.write_text(json.dumps(document, indent=1) + "\n")
