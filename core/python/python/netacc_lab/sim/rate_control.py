"""Checks of a NIC's rate control: keys of another one have no effect, and some values must fit each other."""

from __future__ import annotations

from pathlib import Path

from netacc_lab.sim import declared
from netacc_lab.sim.errors import refuse
from netacc_lab.sim.model import DeviceValues, Scenario

#: Sections of declared parameters, and the rate controls that use them.
USERS = {
    "dcqcn": ("dcqcn-paper", "dcqcn-hpcc"),
    "timely": ("timely",),
    "swift": ("swift",),
    "hpcc": ("hpcc",),
}

#: Lengths of Swift's, in thousandths of a packet and in packets, of which the first is below the second.
SWIFT_ORDER = (("swift_min_window", "swift_max_window"), ("swift_scaling_min", "swift_scaling_max"))


def check(device: DeviceValues, scenario: Scenario, file: Path) -> None:
    """Raises ScenarioError where a value has no effect, is missing, or does not fit another one."""
    control = device.rate_control
    if scenario.device.window is not None and control != "fixed-window":
        raise refuse(file, "device.window", "has no effect unless rate-control is fixed-window")
    if control == "fixed-window" and device.window is None:
        raise refuse(file, "device.window", "is missing: fixed-window needs it")
    for each in declared.TABLES["device"]:
        users = USERS.get(each.section)
        if users and control not in users and each.field in scenario.device.model_fields_set:
            text = f"has no effect unless rate-control is {' or '.join(users)}"
            raise refuse(file, f"device.{each.name}", text)
    if control in USERS["dcqcn"] and not scenario.topology.switch.ecn:
        raise refuse(file, "topology.switch.ecn", f"must be true: {control} needs switches that mark")
    if control == "hpcc" and scenario.topology.kind == "direct":
        raise refuse(file, "device.rate-control", "hpcc needs the telemetry of switches: there is none")
    _check_order(device, file)


def _check_order(device: DeviceValues, file: Path) -> None:
    values = {
        each.field: each.default if getattr(device, each.field) is None else getattr(device, each.field)
        for each in declared.TABLES["device"]
    }
    if device.rate_control == "timely" and values["timely_low"] >= values["timely_high"]:
        text = f"{values['timely_low']}ns is not below timely-high, {values['timely_high']}ns"
        raise refuse(file, "device.timely-low", text)
    if device.rate_control == "swift":
        for low, high in (
            ("swift_min_window", "swift_max_window"),
            ("swift_scaling_min", "swift_scaling_max"),
        ):
            least, most = values[f"{low}_milli"], values[high] * 1000
            if least >= most:
                text = f"{least} thousandths of a packet are not below {high.replace('_', '-')}, {most}"
                raise refuse(file, f"device.{low.replace('_', '-')}-milli", text)
