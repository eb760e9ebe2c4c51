"""Errors of scenarios, for people: file, key, allowed values."""

from __future__ import annotations

import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ValidationError


@dataclass(frozen=True)
class Problem:
    """One error."""

    key: str
    text: str


class ScenarioError(Exception):
    """A scenario or a profile that cannot be used. It is raised before any run."""

    def __init__(self, file: Path | str, problems: Sequence[Problem]) -> None:
        self.file = str(file)
        self.problems = tuple(problems)
        lines = [f"{self.file}: {p.key}: {p.text}" if p.key else f"{self.file}: {p.text}" for p in problems]
        super().__init__("\n".join(lines))


def refuse(file: Path | str, key: str, text: str) -> ScenarioError:
    """One problem, to be raised."""
    return ScenarioError(file, [Problem(key, text)])


def from_validation(file: Path | str, model: type[BaseModel], error: ValidationError) -> ScenarioError:
    """The problems that pydantic has found."""
    problems = []
    for each in error.errors(include_url=False):
        key = ".".join(str(part) for part in each["loc"])
        text = each["msg"].removeprefix("Value error, ")
        if each["type"] == "extra_forbidden":
            owner = _model_at(model, each["loc"][:-1])
            allowed = sorted(_key(name, field.alias) for name, field in owner.model_fields.items())
            text = f"no such key; there are {', '.join(allowed)}"
        elif each["type"] == "missing":
            text = "is missing"
        elif (
            "input" in each and not isinstance(each["input"], dict | list) and repr(each["input"]) not in text
        ):
            text = f"{text}; it is {each['input']!r}"
        problems.append(Problem(key, text))
    return ScenarioError(file, problems)


def _key(name: str, alias: str | None) -> str:
    return alias or name


def _model_at(model: type[BaseModel], path: Sequence[int | str]) -> type[BaseModel]:
    """The model of the table at a path."""
    for part in path:
        if isinstance(part, int):
            continue
        found = next((f for n, f in model.model_fields.items() if part in (n, f.alias)), None)
        inner = _inner(found.annotation) if found else None
        model = inner or model
    return model


def _inner(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if isinstance(annotation, types.UnionType) or typing.get_args(annotation):
        for part in typing.get_args(annotation):
            inner = _inner(part)
            if inner:
                return inner
    return None
