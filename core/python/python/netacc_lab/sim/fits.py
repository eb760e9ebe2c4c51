"""Figures of a run that its profiles were fitted on: these, and what follows from them, are no predictions.

A profile names in `fitted` the measurements on which it was fitted. A run is of such a measurement if nothing
changes in its workload and its processors when it gets the measurement's. Its network may differ: where
processors limit a rate, as in all of these measurements so far, another network hardly changes it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from netacc_lab.sim import profiles
from netacc_lab.sim.errors import ScenarioError
from netacc_lab.sim.model import Stack, StackValues

Tables = dict[str, Any]
Resolve = Callable[[Tables], Mapping[str, Any]]

#: The kinds of a figure. A profile was fitted on it; it follows from one that it was fitted on.
FITTED, FOLLOWS = "fitted", "follows"


def kinds(
    tables: Tables, resolved: Mapping[str, Any], chosen: Mapping[str, str], file: Path, resolve: Resolve
) -> dict[str, str]:
    """The kinds of those figures of a run that are no predictions, by name.

    `tables` are its scenario's, `resolved` is their resolved form, and `chosen` has the names of its profiles
    by kind. `resolve` makes the resolved form of other tables.
    """
    if resolved["processors"] is None or len(resolved["groups"]) > 1 or resolved["faults"]:
        return {}
    found: dict[str, str] = {}
    for kind in ("host", "stack"):
        for each in profiles.load(kind, chosen[kind], file).fitted:
            if _is_of(each, tables, resolved, resolve):
                found = dict.fromkeys(each.follows, FOLLOWS) | found | dict.fromkeys(each.figures, FITTED)
    return found


def _is_of(fitted: profiles.Fitted, tables: Tables, resolved: Mapping[str, Any], resolve: Resolve) -> bool:
    measured = copy.deepcopy(tables)
    own = measured["workload"][0]
    kept = {key: own[key] for key in ("name", "start") if key in own}
    measured["workload"] = [fitted.workload | kept]
    host = measured.get("host", {})
    measured["host"] = {key: host[key] for key in ("profile",) if key in host} | fitted.host
    # Costs of the scenario's own are not those that were fitted.
    costs = {Stack.model_fields[name].alias for name in StackValues.model_fields}
    stack = measured.get("stack", {})
    measured["stack"] = {key: value for key, value in stack.items() if key not in costs} | fitted.stack
    try:
        other = resolve(measured)
    except ScenarioError:
        # It would be no valid scenario with that workload.
        return False
    return all(other[part] == resolved[part] for part in ("processors", "groups"))
