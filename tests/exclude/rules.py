"""Reads the lists of tests that are left out, with their reasons. The format is in README.md."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class ListError(ValueError):
    """A list that breaks its own rules."""


@dataclass(frozen=True)
class Exclusion:
    """One test, or all whose name begins so, that a backend cannot pass."""

    test: str
    reason: str

    @property
    def file(self) -> str:
        return self.test.split("::")[0].rstrip("*")

    def matches(self, node: str) -> bool:
        if self.test.endswith("*"):
            return node.startswith(self.test[:-1])
        return node == self.test


def read_exclusions(path: Path) -> list[Exclusion]:
    """The entries of `<backend>.toml`. Every one must name a test and give a reason."""
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    _only(path, data, {"exclude"})
    return [Exclusion(*_strings(path, entry, "test", "reason")) for entry in data.get("exclude", [])]


def read_conditions(path: Path) -> dict[str, str]:
    """The entries of `conditions.toml`: name and reason."""
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    _only(path, data, {"condition"})
    return dict(_strings(path, entry, "name", "reason") for entry in data.get("condition", []))


def _only(path: Path, entry: dict[str, Any], allowed: set[str]) -> None:
    if unknown := entry.keys() - allowed:
        raise ListError(f"{path.name}: unknown key {', '.join(sorted(unknown))}")


def _strings(path: Path, entry: dict[str, Any], *keys: str) -> list[str]:
    _only(path, entry, set(keys))
    values = [entry.get(key) for key in keys]
    for key, value in zip(keys, values, strict=True):
        if not isinstance(value, str) or not value.strip():
            raise ListError(f"{path.name}: an entry without {key}: {entry}")
    return [str(value) for value in values]
