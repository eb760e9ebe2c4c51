"""Calibration of two hosts with RDMA devices: fits find known costs again, and the simulator agrees."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from netacc_lab.analysis import load
from netacc_lab.calibration import devices, pairs
from netacc_lab.calibration.__main__ import main
from netacc_lab.calibration.measuring import MeasuringError
from netacc_lab.sim import profiles

from tests.sim.rows import mean, simulate

MTU = 1024
#: In nanoseconds.
KNOWN = {"base": 30_000.0, "completion": 4_000.0, "packet": 9_000.0, "byte": 6.0}
CALL, COPY = 2_500.0, 800.0
#: Nanoseconds of a registration, and of each of its MiB.
REGISTER = (40_000, 700_000)
SIZES = (64, 256, 1024, 4096, 16384, 65536)
PATHS = ("write", "message", "send")


#: Devices in software and in hardware.
NAMES = {"shared": "rxe0", "separate": "erdma_0"}


def costs(
    device: str = "rxe0",
    cpu: str = "QEMU TCG CPU version 2.5+",
    known: dict[str, float] = KNOWN,
    engines: devices.Engines = "shared",
) -> dict[str, Any]:
    """What `netacc lat --costs` would print of two hosts with known costs."""

    def of(ns: float, link_share: float | None = None) -> dict[str, Any]:
        # In emulation the least is the truth, and else the median.
        fast = [] if "TCG" in cpu else [[round(ns * 0.9), 2]]
        spread = [*fast, [round(ns), 3], [round(ns * 3), 2]]
        share = {} if link_share is None else {"link_share": link_share}
        # Other work in the first round.
        return {"rounds": [{"half_ns": [[10 * round(ns), 7]]} | share, {"half_ns": spread} | share]}

    echoes = []
    for size in SIZES:
        for path in PATHS:
            half = devices.half_round_trip(size, path, MTU, known, engines)
            echoes.append({"path": path, "size": size} | of(half))
        half = devices.half_round_trip(size, "message", MTU, known, engines)
        half += 3 * CALL + 2 * size / 1024 * COPY
        echoes.append({"path": "stack", "size": size} | of(half, 1.0))
    rates = []
    for size in (64, 1024, 4096, 16384, 65536):
        seconds = 100 * devices.between(size, "write", MTU, known, engines) / 1e9
        rates.append(
            {"path": "write", "size": size, "depth": 16, "rounds": [{"messages": 100, "seconds": seconds}]}
        )
    commands = {
        "create_queue_pair": [300_000, 100_000, 200_000],
        "destroy_queue_pair": [90_000],
        "register": [
            (length, round(REGISTER[0] + length / (1 << 20) * REGISTER[1]))
            for length in (4096, 1 << 20, 4 << 20)
        ],
        "deregister": [(4096, 30_000)],
        "connect": [[1_000_000, 5]],
    }
    machine = {
        "cpu": cpu,
        "cores": 1,
        "kernel": "6.1",
        "date": "2026-11-28T08:00:00Z",
        "loadavg": [0.1, 0.2, 0.3],
        "busy_processors": 0.0,
    }
    return {
        "version": 1,
        "machine": machine,
        "device": {"name": device, "mtu": MTU},
        "commands": commands,
        "post": [[round(known["base"] + known["packet"]), 5]],
        "echoes": echoes,
        "rates": rates,
        "others": 0.02,
    }


def measured(found: dict[str, Any]) -> dict[str, Any]:
    """As `netacc calibrate` keeps it."""
    return {"format": 1, "paths": [], "peer": "10.99.0.1", "costs": found}


@pytest.mark.parametrize("cpu", ["QEMU TCG CPU version 2.5+", "AMD EPYC"])
@pytest.mark.parametrize("engines", NAMES)
def test_fits_find_known_costs(cpu: str, engines: devices.Engines) -> None:
    """Breaks if a cost is charged for another message than in the model, or a median is no median."""
    found = pairs.calibrated(measured(costs(NAMES[engines], cpu, engines=engines)))
    for name, value in KNOWN.items():
        assert found.device.values[name] == pytest.approx(value, rel=0.01), found.device.values
        assert found.device.identified(name)
    assert found.library.values["library-call"] == pytest.approx(CALL, rel=0.01)
    assert found.library.values["copy-per-kib"] == pytest.approx(COPY, rel=0.01)
    assert list(found.registration.values.values()) == pytest.approx(REGISTER, rel=0.01)
    assert found.rate_bps == pytest.approx(8e9 / KNOWN["byte"], rel=0.01)


def test_a_packet_s_cost_is_found_where_the_wire_sets_the_pace() -> None:
    """Breaks if a fast device's packets count as costing anything that leaves its round trips as they are."""
    known = {"base": 6_000.0, "completion": 400.0, "packet": 120.0, "byte": 0.32}
    found = pairs.calibrated(measured(costs(NAMES["separate"], known=known, engines="separate")))
    for name, value in known.items():
        assert found.device.values[name] == pytest.approx(value, rel=0.03), found.device.values
        assert found.device.identified(name)


def test_bytes_on_tcp_are_no_measurement_of_a_link() -> None:
    """Breaks if a connection that never came onto a link counts as one on a link."""
    found = costs()
    for echo in found["echoes"]:
        if echo["path"] == "stack":
            for each in echo["rounds"]:
                each["link_share"] = 0.5
    with pytest.raises(MeasuringError, match="0 measurements are too few for 2 costs"):
        pairs.calibrated(measured(found))


def test_the_profiles_can_be_read_and_their_scenario_run(tmp_path: Path) -> None:
    """Breaks if a file is not valid, or the simulated hosts are others than those that were measured."""
    kept = tmp_path / "kept.json"
    kept.write_text(json.dumps(measured(costs())))
    out = tmp_path / "out"
    assert main(["--from", str(kept), "--output", str(out)]) == 0
    device = profiles.load("device", "device.toml", out / "pair.toml")
    assert device.values["engines"].value == "shared"
    assert "rxe0 is a driver" in device.values["engines"].source
    assert "software" in device.what and "emulated" in device.what
    assert device.values["create-queue-pair"].value == "200000ns"
    # Of a connection of 1 ms without two queue pairs of 0.2 ms.
    assert device.values["connect-queue-pair"].value == "300000ns"
    assert device.calibration is not None and device.calibration.busy_processors == 0.02
    assert "connect-queue-pair" in device.calibration.not_identified
    pair = tomllib.loads((out / "pair.toml").read_text())
    tables = {name: pair[name] for name in ("topology", "device", "host", "stack", "workload", "measure")}
    half = mean(simulate(out, **tables), "echo", "p50_ns") / 2
    expected = devices.half_round_trip(64, "message", MTU, KNOWN, "shared") + 3 * CALL + 2 * 64 / 1024 * COPY
    assert half == pytest.approx(expected, rel=0.01)


def test_hardware_is_not_called_emulated() -> None:
    """Breaks if a profile of a true device warns of emulation, which its reader would then distrust."""
    found = pairs.calibrated(measured(costs("erdma_0", "AMD EPYC", engines="separate")))
    assert pairs.where(found) == "erdma_0, between two hosts: 1 cores of AMD EPYC, Linux 6.1"


def test_a_device_whose_stream_is_slower_than_its_round_trips_is_in_software() -> None:
    """Breaks if such a device is taken for one whose parts work side by side, or its profile hides why."""
    found = pairs.calibrated(measured(costs("unknown0", engines="shared")))
    assert found.in_software is None, "its stream is as fast as its round trips: by nothing else is it known"
    known = KNOWN | {"completion": 60_000.0}
    found = pairs.calibrated(measured(costs("unknown0", known=known, engines="shared")))
    assert found.device.values["completion"] == pytest.approx(60_000, rel=0.01)
    assert "a device in software" in pairs.where(found)
    assert "108,000 ns of a stream" in pairs.device_profile(found)


@pytest.mark.parametrize("size", [64, 1024, 4096, 65536])
@pytest.mark.parametrize("verb", ["write", "send"])
@pytest.mark.parametrize("engines", NAMES)
def test_the_simulator_takes_what_the_fit_assumes(
    tmp_path: Path, engines: devices.Engines, verb: str, size: int
) -> None:
    """Breaks if the closed form of the fit and the simulated device are two models."""
    values = KNOWN
    hardware = {"doorbell": "12000ns", "placement": f"{values['base'] - 12_000}ns"}
    software = {
        "engines": "shared",
        "doorbell": f"{values['base']}ns",
        "ack-interval": 64,
        "max-in-flight": 1024,
    }
    device = {
        "mtu": f"{MTU}B",
        **(software if engines == "shared" else hardware),
        "completion": f"{values['completion']}ns",
        "transmit-packet": f"{values['packet']}ns",
        "receive-packet": f"{values['packet']}ns",
    }
    topology = {"kind": "direct", "rate": f"{round(8e9 / values['byte'])}bit/s", "delay": "0ns"}
    measure = {"warmup": "20ms", "duration": "100ms", "seeds": [1]}
    load = {"name": "load", "kind": "verbs", "verb": verb, "clients": 1, "request": f"{size}B"}
    echo = load | {"response": f"{size}B"}
    point = simulate(tmp_path, topology=topology, device=device, workload=[echo], measure=measure)
    half = devices.half_round_trip(size, verb, MTU, values, engines)
    assert mean(point, "load", "p50_ns") / 2 == pytest.approx(half, rel=0.01)
    many = load | {"depth": 16}
    point = simulate(tmp_path, topology=topology, device=device, workload=[many], measure=measure)
    each = devices.between(size, verb, MTU, values, engines)
    assert 1e9 / mean(point, "load", "answered_per_s") == pytest.approx(each, rel=0.02)


def test_measurements_of_two_hosts_are_a_record(tmp_path: Path) -> None:
    """Breaks if `netacc report` cannot show what a profile was fitted on."""
    kept = tmp_path / "measurements.json"
    kept.write_text(json.dumps(measured(costs())))
    record = load(kept)
    assert {"write, 64 B", "stack, 65536 B"} <= set(record.series)


@pytest.mark.parametrize("left_out", ["post", "echoes", "commands", "device"])
def test_an_incomplete_measurement_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], left_out: str
) -> None:
    """Breaks if a measurement that lacks a part ends in a traceback, or becomes a profile."""
    found = costs()
    del found[left_out]
    kept = tmp_path / "kept.json"
    kept.write_text(json.dumps(measured(found)))
    assert main(["--from", str(kept), "--output", str(tmp_path / "out")]) == 1
    message = capsys.readouterr().err
    assert message.startswith("netacc calibrate: measurements of two hosts: ") and message.count("\n") == 1
    assert not list((tmp_path / "out").glob("*.toml"))


@pytest.mark.parametrize(
    "arguments", [["--device", "rxe0"], ["--via", "ssh a"], ["--peer", "a", "--count", "0"]]
)
def test_arguments_without_effect_are_refused(arguments: list[str]) -> None:
    """Breaks if a device is named, and this host's sockets are measured instead."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
