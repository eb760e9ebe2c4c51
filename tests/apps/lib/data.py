"""Payload whose arrival can be proved."""

from __future__ import annotations

import hashlib
import random


def blob(size: int, seed: int = 1) -> bytes:
    """Bytes that no accident reproduces; the same ones for the same arguments."""
    return random.Random(seed << 40 | size).randbytes(size)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
