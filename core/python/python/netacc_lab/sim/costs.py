"""Costs that may vary, as scenarios and profiles write them.

A time alone is always the same. Else there is a table with one key, the distribution:

    "350ns"
    { exponential = "2us" }                                  # its mean
    { lognormal = { median = "2us", deviation = 0.3 } }      # the deviation of the natural logarithm
    { histogram = [{ share = 9, min = "1us", max = "2us" }, { share = 1, min = "2us", max = "9us" }] }
    { mixture = [{ share = 99, of = "1us" }, { share = 1, of = { exponential = "50us" } }] }

Read, it is the form of `models/parameters/src/distribution.rs`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

from netacc_lab.sim.units import TIME, parse

#: A cost in the resolved form: nanoseconds, or a distribution of them.
Resolved = int | dict[str, Any]

#: Parts of a deviation, and of a share.
_MILLION = 10**6
#: Mixtures in mixtures, as in the model.
_MAX_DEPTH = 4


def read(value: object) -> Resolved:
    """The cost, in the resolved form. Raises ValueError with the permitted forms."""
    return _read(value, _MAX_DEPTH)


def mean_ns(cost: Resolved) -> float:
    """Its mean, in nanoseconds."""
    if isinstance(cost, int):
        return float(cost)
    ((form, value),) = cost.items()
    if form == "exponential":
        return float(value)
    if form == "lognormal":
        return float(value[0] * math.exp((value[1] / _MILLION) ** 2 / 2))
    weight = sum(part[0] for part in value)
    if form == "histogram":
        return float(sum(part[0] * (part[1] + part[2]) / 2 for part in value) / weight)
    return float(sum(part[0] * mean_ns(part[1]) for part in value) / weight)


def scaled(cost: Resolved, factor: float) -> Resolved:
    """A cost that is so many times as long."""
    if isinstance(cost, int):
        return round(cost * factor)
    ((form, value),) = cost.items()
    if form == "exponential":
        return {form: round(value * factor)}
    if form == "lognormal":
        return {form: [round(value[0] * factor), value[1]]}
    if form == "histogram":
        return {form: [[share, round(least * factor), round(most * factor)] for share, least, most in value]}
    return {form: [[share, scaled(of, factor)] for share, of in value]}


def _time(value: object) -> int:
    return parse(value, "a time", TIME)


def _read(value: object, depth: int) -> Resolved:
    if not isinstance(value, Mapping):
        return _time(value)
    if len(value) != 1 or depth == 0:
        raise ValueError(f"{value!r} is not a time, or a table with one of {', '.join(_FORMS)}")
    ((name, form),) = value.items()
    if name not in _FORMS:
        raise ValueError(f"{name!r} is no distribution; there are {', '.join(_FORMS)}")
    return {name: _FORMS[name](form, depth)}


def _keys(table: object, keys: tuple[str, ...]) -> list[Any]:
    """The values of a table with these keys."""
    if not isinstance(table, Mapping) or set(table) != set(keys):
        raise ValueError(f"{table!r} is not a table of {', '.join(keys)}")
    return [table[key] for key in keys]


def _share(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MILLION:
        raise ValueError(f"share {value!r} is not a whole number from 0 to {_MILLION}")
    return value


def _shares(value: object, keys: tuple[str, ...]) -> list[list[Any]]:
    """The tables of a list, of which some have a share."""
    found = [_keys(each, keys) for each in value] if isinstance(value, list) else []
    if not any(_share(each[0]) for each in found):
        raise ValueError(f"{value!r} is not a list of tables of {', '.join(keys)}, of which one has a share")
    return found


def _lognormal(value: object, _: int) -> list[int]:
    median, deviation = _keys(value, ("median", "deviation"))
    # Beyond 10 no two values are of the same order of magnitude.
    if not isinstance(deviation, int | float) or isinstance(deviation, bool) or not 0 <= deviation <= 10:
        raise ValueError(f"deviation {deviation!r} is not a number from 0 to 10")
    return [_time(median), round(deviation * _MILLION)]


def _histogram(value: object, _: int) -> list[list[int]]:
    found = []
    for share, least, most in _shares(value, ("share", "min", "max")):
        found.append([share, _time(least), _time(most)])
        if found[-1][1] > found[-1][2]:
            raise ValueError(f"min {least} is more than max {most}")
    return found


def _mixture(value: object, depth: int) -> list[list[Any]]:
    return [[share, _read(of, depth - 1)] for share, of in _shares(value, ("share", "of"))]


_FORMS: Mapping[str, Callable[[object, int], Any]] = {
    "exponential": lambda value, _: _time(value),
    "lognormal": _lognormal,
    "histogram": _histogram,
    "mixture": _mixture,
}

_TIME_SCHEMA = {"type": "string", "pattern": rf"^\d+(\.\d+)?\s*({'|'.join(TIME)})$"}


Cost = Annotated[
    Any,
    BeforeValidator(read),
    WithJsonSchema(
        {
            "description": "A time, always the same or distributed (the forms are in costs.py)",
            "anyOf": [
                _TIME_SCHEMA,
                {
                    "type": "object",
                    "minProperties": 1,
                    "maxProperties": 1,
                    "propertyNames": {"enum": list(_FORMS)},
                },
            ],
        }
    ),
]
