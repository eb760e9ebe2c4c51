"""Parameters that the models declare in Rust (`parameters!`): fields of the schema, and the resolved form."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, create_model

from netacc_lab import _native
from netacc_lab.sim.costs import Cost
from netacc_lab.sim.units import Duration, Rate, Share, Size, describe

#: Greater limits cannot be written: quantities are below it.
UNLIMITED = 2**63

QUANTITIES: Mapping[str, Any] = {"time": Duration, "size": Size, "rate": Rate, "share": Share}


@dataclass(frozen=True)
class Parameter:
    """The declaration of one parameter."""

    name: str
    key: str
    unit: str
    least: int
    greatest: int | None
    choices: list[str]
    default: Any
    description: str
    section: str

    @property
    def field(self) -> str:
        """The name in Python."""
        return self.name.replace("-", "_")

    def annotation(self) -> Any:  # noqa: ANN401
        """The type of the values, with their bounds."""
        if self.unit == "choice":
            return Literal[tuple(self.choices)]
        if self.unit == "switch":
            return bool
        if self.unit == "distribution":
            return Cost
        if self.unit == "factor":
            return Annotated[float, Field(ge=self.least)]
        upper = None if self.greatest is None or self.greatest >= UNLIMITED else self.greatest
        if self.unit == "count":
            return Annotated[int, Field(ge=self.least, le=upper, strict=True)]
        return Annotated[QUANTITIES[self.unit], Field(ge=self.least or None, le=upper)]


def _read() -> dict[str, list[Parameter]]:
    tables: dict[str, list[Parameter]] = {}
    for section in json.loads(_native.parameters()):
        table = tables.setdefault(section["table"], [])
        table += [Parameter(**each, section=section["section"]) for each in section["parameters"]]
    return tables


TABLES = _read()


def model(
    table: str, base: type[BaseModel], *, optional: bool = False, without: Collection[str] = ()
) -> type[BaseModel]:
    """A model with the parameters of a table, but for those `without`.

    Values that are not given are None if `optional`.
    """
    fields: dict[str, Any] = {}
    for each in TABLES[table]:
        if each.name in without:
            continue
        kind, text = each.annotation(), each.description
        if optional:
            if each.default is not None:
                text = f"{text} Default: {describe(each.unit, each.default)}."
            fields[each.field] = (kind | None, Field(default=None, description=text))
        else:
            fields[each.field] = (kind, Field(default=each.default, description=text))
    created: type[BaseModel] = create_model(table, __base__=base, **fields)
    return created


def resolved(table: str, values: BaseModel) -> dict[str, dict[str, Any]]:
    """The values by section and key of the resolved form. Values that are not given are the defaults."""
    sections: dict[str, dict[str, Any]] = {}
    for each in TABLES[table]:
        value = getattr(values, each.field)
        sections.setdefault(each.section, {})[each.key] = each.default if value is None else value
    return sections
