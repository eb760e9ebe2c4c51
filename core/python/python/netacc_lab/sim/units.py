"""Quantities with units, as scenarios and profiles write them: "10us", "25Gbit/s", "64KiB", "0.1%".

Each is an integer of its base unit (nanoseconds, bits per second, bytes, parts per million, thousandths of an
event per second) once it is read; a number without a unit is an error, and so is one that is no whole number
of base units.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

TIME = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}
RATE = {"bit/s": 1, "kbit/s": 10**3, "Mbit/s": 10**6, "Gbit/s": 10**9, "Tbit/s": 10**12}
SIZE = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
SHARE = {"ppm": 1, "%": 10**4}
#: All of it, as a share.
WHOLE = 10**6
FREQUENCY = {"/s": 1000, "k/s": 10**6, "M/s": 10**9}

_NUMBER = r"\d+(\.\d+)?"


def parse(text: object, what: str, units: Mapping[str, int]) -> int:
    """The quantity in base units. Raises ValueError with the allowed forms."""
    allowed = f"{what}: a number and one of {', '.join(units)}"
    match = re.fullmatch(rf"({_NUMBER})\s*(\S+)", text) if isinstance(text, str) else None
    if match is None or match[3] not in units:
        raise ValueError(f"{text!r} is not {allowed}")
    value = Decimal(match[1]) * units[match[3]]
    if value != int(value):
        raise ValueError(f"{text!r} is no whole number of {next(iter(units))}")
    if value >= 2**63:
        raise ValueError(f"{text!r} is too much")
    return int(value)


def _reader(what: str, units: Mapping[str, int]) -> Callable[[Any], int]:
    return lambda text: parse(text, what, units)


def _schema(what: str, units: Mapping[str, int]) -> WithJsonSchema:
    names = "|".join(re.escape(unit) for unit in units)
    return WithJsonSchema(
        {"type": "string", "pattern": rf"^{_NUMBER}\s*({names})$", "description": what[0].upper() + what[1:]}
    )


def _span(text: object) -> int:
    span = parse(text, "a time", TIME)
    if span == 0:
        raise ValueError(f"{text!r} is no time: at least 1ns")
    return span


def _share(text: object) -> int:
    share = parse(text, "a share", SHARE)
    if share > WHOLE:
        raise ValueError(f"{text!r} is more than the whole: at most 100%")
    return share


Duration = Annotated[int, BeforeValidator(_reader("a time", TIME)), _schema("a time", TIME)]
#: A time that passes.
Span = Annotated[int, BeforeValidator(_span), _schema("a time above 0", TIME)]
Rate = Annotated[int, Field(gt=0), BeforeValidator(_reader("a rate", RATE)), _schema("a rate", RATE)]
Size = Annotated[int, BeforeValidator(_reader("a size", SIZE)), _schema("a size", SIZE)]
Share = Annotated[int, BeforeValidator(_share), _schema("a share", SHARE)]
#: Events a second, in thousandths.
Frequency = Annotated[
    int, Field(gt=0), BeforeValidator(_reader("a frequency", FREQUENCY)), _schema("a frequency", FREQUENCY)
]


#: The units of quantities that are not just numbers.
UNITS: Mapping[str, Mapping[str, int]] = {
    "time": TIME,
    "size": SIZE,
    "rate": RATE,
    "share": SHARE,
    "frequency": FREQUENCY,
}


def describe(kind: str, value: object) -> str:
    """A value of a parameter as scenarios write it, in the greatest unit that leaves a whole number."""
    if kind == "switch":
        return str(value).lower()
    if kind == "distribution":
        kind = "time"
    if kind not in UNITS or not isinstance(value, int):
        return str(value)
    fitting = [(size, unit) for unit, size in UNITS[kind].items() if value % size == 0 and value >= size]
    size, unit = max(fitting, default=(1, next(iter(UNITS[kind]))))
    return f"{value // size}{unit}"


def describe_ns(ns: float) -> str:
    """A time for people: three digits and a unit."""
    for unit, size in reversed(TIME.items()):
        if ns >= size:
            return f"{ns / size:.3g} {unit}"
    return f"{ns:.3g} ns"
