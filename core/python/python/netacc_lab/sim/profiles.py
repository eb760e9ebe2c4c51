"""Profiles of devices and hosts, each value with its source and date (`models/profiles/*.toml`)."""

from __future__ import annotations

import datetime
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from netacc_lab.sim.errors import from_validation, refuse
from netacc_lab.sim.model import DeviceValues, HostChoice, StackValues, Strict
from netacc_lab.sim.paths import profiles_folder


class Sourced(BaseModel):
    """A value, and where it comes from."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    value: Any
    source: Annotated[str, Field(min_length=5)]
    date: datetime.date


class HostValues(Strict):
    """Processors of a host."""

    cores: Annotated[int, Field(ge=0, strict=True, description="0 for one each thread")]
    free: bool = Field(description="calls take no time, with any stack")
    work_factor: float = Field(
        default=1.0,
        gt=0,
        description="how many times as long work takes as on the stack's machine",
    )


#: A figure of a group in a study's table.
Figure = Literal[
    "requests_per_s", "bytes_per_s", "mean_ns", "p50_ns", "p90_ns", "p95_ns", "p99_ns", "p999_ns"
]


class Residual(Strict):
    """A figure that a profile was fitted on."""

    of: str
    measured: float
    fitted: float


class Check(Strict):
    """A figure that a profile was not fitted on."""

    measured: float
    predicted: float


class Calibration(Strict):
    """How well the values of a stack follow from measurements of its machine (`netacc calibrate`)."""

    load_before: list[float]
    busy_processors: float
    #: Nanoseconds of a round trip of a cache line between processors; 0 of one, and of earlier profiles.
    transfer: float = 0.0
    parameters: list[str]
    correlation: list[list[float]]
    not_identified: list[str]
    residuals: list[Residual]
    stream: Check | None = None
    woken: Check | None = None


class Fitted(Strict):
    """A measurement that a profile was fitted on: figures of it are no predictions."""

    what: Annotated[str, Field(min_length=10, description="the measurement, and its source")]
    figures: Annotated[list[Figure], Field(min_length=1, description="those that the profile was fitted on")]
    follows: list[Figure] = Field(default=[], description="those that follow from them")
    workload: dict[str, Any] = Field(description="as in a scenario, but for its name")
    host: dict[str, Any] = Field(default={}, description="as in a scenario; without a profile, any")
    stack: dict[str, Any] = Field(default={}, description="as in a scenario; without a kind, any")


class Profile(BaseModel):
    """One file of `models/profiles`, or of `netacc calibrate`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["device", "host", "stack"]
    machine: Annotated[str, Field(min_length=3)] | None = Field(
        default=None, description="stack: the machine that its costs were fitted on"
    )
    what: Annotated[str, Field(min_length=10, description="its meaning, and how far to believe it")]
    values: dict[str, Sourced]
    calibration: Calibration | None = None
    fitted: list[Fitted] = []

    def plain(self) -> dict[str, Any]:
        """The values alone."""
        return {key: sourced.value for key, sourced in self.values.items()}


def names(kind: str) -> list[str]:
    """The profiles that there are."""
    found = []
    for path in sorted(profiles_folder().glob("*.toml")):
        with path.open("rb") as file:
            if tomllib.load(file).get("kind") == kind:
                found.append(path.stem)
    return found


def load(kind: str, name: str, required_by: Path | str) -> Profile:
    """A profile. Raises ScenarioError where there is none of that name, or it is not valid."""
    path = Path(required_by).parent / name if name.endswith(".toml") else profiles_folder() / f"{name}.toml"
    if not path.exists():
        there = f"there are {', '.join(names(kind))}, and files by their paths"
        raise refuse(required_by, f"{kind}.profile", f"there is no {name!r}; {there}")
    try:
        with path.open("rb") as file:
            profile = Profile.model_validate(tomllib.load(file))
    except ValidationError as error:
        raise from_validation(path, Profile, error) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise refuse(path, "", str(error)) from None
    except OSError as error:
        raise refuse(path, "", error.strerror or str(error)) from None
    if profile.kind != kind:
        there = ", ".join(names(kind))
        raise refuse(required_by, f"{kind}.profile", f"{name!r} is of a {profile.kind}; there are {there}")
    models: dict[str, type[BaseModel]] = {"device": DeviceValues, "host": HostValues, "stack": StackValues}
    model = models[kind]
    try:
        model.model_validate(profile.plain())
    except ValidationError as error:
        raise from_validation(path, model, error) from None
    return profile


def device(name: str, overrides: BaseModel, required_by: Path | str) -> DeviceValues:
    """A NIC: the profile's values, and over them those of a scenario."""
    base = DeviceValues.model_validate(load("device", name, required_by).plain())
    merged: DeviceValues = base.model_copy(update=_said(overrides, DeviceValues))
    return merged


def host(chosen: HostChoice, required_by: Path | str) -> HostValues:
    """Processors: the profile's values, and over them those of a scenario."""
    base = HostValues.model_validate(load("host", chosen.profile, required_by).plain())
    return base.model_copy(update=_said(chosen, HostValues))


def stack(name: str, overrides: BaseModel, required_by: Path | str) -> StackValues:
    """The costs of a stack: the profile's, and over them those of a scenario."""
    base = StackValues.model_validate(load("stack", name, required_by).plain())
    merged: StackValues = base.model_copy(update=_said(overrides, StackValues))
    return merged


def _said(overrides: BaseModel, model: type[BaseModel]) -> dict[str, Any]:
    """Values of a scenario that are to replace those of the profile."""
    return {key: value for key, value in overrides if key in model.model_fields and value is not None}
