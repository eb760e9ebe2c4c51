"""The commands, records and output of the kit for two machines, without machines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from netacc_lab.sim.store import Store

from ci.eri import micro
from ci.eri.pair import Failed, Host, Pair, Stack
from ci.eri.programs import Comparison, paths
from ci.eri.record import Record
from tests.apps.lib.paths import REPO

# Of perftest's own, with its lines about the device around it.
ALL_SIZES = """
 Dual-port       : OFF          Device         : erdma_0
---------------------------------------------------------------------------------------
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]
 2       1000          7.01           15.20        7.20                7.21             0.20            8.01                    15.20
 4       1000          7.02           15.30        7.30                7.31             0.21            8.02                    15.30
 8388608 1000          700.01         1500.20      720.20              721.21           20.20           801.01                  1500.20
---------------------------------------------------------------------------------------
"""  # noqa: E501


def anywhere(*, quoted: bool = False) -> Pair:
    """Two hosts that are this one, reached by a shell or not at all."""
    reach = ("sh", "-c", "exit 255", "sh") if quoted else ("env",)
    host = Host(reach, "10.0.0.1", quoted=quoted, name="eri")
    return Pair((host, Host(host.reach, "10.0.0.2", quoted=quoted, name="eri")), Path("/opt"), seconds=5)


def record(step: str, placement: str, **figures: object) -> Record:
    measured = {"step": step, "placement": placement, "date": "2026-01-01T00:00:00Z", "emulated": False}
    return Record(measured, figures=dict(figures))


def test_the_comparison_is_the_originals() -> None:
    """Its parameters of redis-benchmark, on both sides the same."""
    asked = "redis-benchmark -h 10.0.0.1 -p 6400 -c 100 -n 5000000 -r 10000 --threads 4 -d 512 -t set"
    for stack in (Stack.tcp(), Stack.netacc(Path("/opt"))):
        commands = Comparison().commands(anywhere(), stack)
        assert commands["client"].endswith(asked)
        assert commands["server"].endswith("redis-server --port 6400 --protected-mode no --save ''")


def test_the_share_of_links_is_of_the_measured_run() -> None:
    """Breaks if it were of the server's life, with the run that warms it up."""
    names = ("rx_bytes_link", "tx_bytes_link", "rx_bytes_tcp", "tx_bytes_tcp", "streams_promoted")
    before, after = (
        dict(zip(names, counts, strict=True)) for counts in ((10, 5, 80, 5, 2), (80, 15, 95, 10, 5))
    )
    found = paths({7: before}, {7: after})
    assert (found["link_share"], found["streams_promoted"]) == (0.8, 3)
    assert paths({}, {}) == {}, "kernel TCP"


def test_a_run_reads_as_a_simulated_one_does(tmp_path: Path) -> None:
    run = record("latency", "none")
    run.latencies("stack", [(20_000, 90), (40_000, 9), (1_000_000, 1)], link_share=1.0)
    run.write(tmp_path / "none/latency")
    run.write(tmp_path / "none/latency")
    (found,) = Store(tmp_path / "none").all()
    (group,) = found.meta["groups"]
    assert found.status == "complete" and (group["name"], group["samples"]) == ("stack", 100)
    histogram = found.histogram("stack")
    assert histogram.get_total_count() == 100
    assert histogram.get_value_at_percentile(50) == group["p50_ns"]
    assert abs(group["p50_ns"] - 20_000) < 40 and abs(group["p99_ns"] - 40_000) < 80


def test_failures_are_in_the_record(tmp_path: Path) -> None:
    run = record("redis", "none")
    run.failures["round 1, tcp"] = "redis-server did not start"
    run.write(tmp_path / "redis")
    (found,) = Store(tmp_path).all()
    assert found.status == "unfinished"
    assert found.meta["failures"] == {"round 1, tcp": "redis-server did not start"}


def test_placements_are_compared_and_drawn(tmp_path: Path) -> None:
    for placement, ns in (("low-latency", 16_000), ("none", 24_000)):
        sizes = [{"bytes": 2, "typical": ns / 2000, "p99": ns / 1000}]
        run = record("latency", placement, ib_write_lat_us=sizes)
        run.latencies("stack", [(ns, 1000)])
        run.write(tmp_path / placement / "latency")
    figures: dict[str, Any] = {
        stack: {"rstream": {}, "rstream_turns": [], "programs": {}} for stack in ("tcp", "rsockets", "netacc")
    }
    turns = [
        {"round_trip_us": 100.0, "messages_per_s": rate, "gbit_per_s": rate / 1e5}
        for rate in (9000, 12_000, 10_000)
    ]
    figures["netacc"] |= {"rstream_turns": turns, "rstream": micro.medians(turns)}
    works = {"works": True, "figures": {"set_per_s": 1000.0}, "link_share": 0.9}
    figures["netacc"]["programs"]["redis-single"] = works
    figures["tcp"]["programs"]["redis-single"] = {"works": False, "failure": "signal 11", "figures": {}}
    record("figures", "none", **figures).write(tmp_path / "none/figures")
    rounds = [{"tcp": {"set_per_s": 100.0, "set_p99_ms": 2.0}}, {}, {}]
    rounds[1] = {
        stack: {"set_per_s": rate, "set_p99_ms": 2.0} for stack, rate in (("tcp", 100), ("netacc", 150))
    }
    record("redis", "none", rounds=rounds).write(tmp_path / "none/redis")
    plot = tmp_path / "latencies.svg"
    command = [sys.executable, "-m", "ci.eri.report", str(tmp_path), "--plot", str(plot)]
    reported = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=True).stdout
    lines = [line.replace(" ", "") for line in reported.splitlines()]
    compared = {line.split()[2]: line for line in reported.splitlines() if line.startswith("none, latency:")}
    # Both percentiles that perftest gives; all four of a histogram.
    assert compared["ib_write_lat"].count("1.50") == 2, reported
    assert compared["stack"].count("1.50") == 4, reported
    assert "|redis-single|fails:signal11||1000set/s;90%onlinks||" in lines
    assert "|messages_per_s|fails|fails|10,000(9,000to12,000)||" in lines
    assert "|gbit_per_s|fails|fails|0.1(0.09to0.12)||" in lines
    assert "|2|100|150|2|2|1.50|" in lines and not any(line.startswith("|1|100|") for line in lines)
    assert plot.read_text().startswith("<?xml")


def test_an_empty_record_is_reported(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ci.eri.report", str(tmp_path)]
    ran = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False)
    assert ran.returncode == 1 and "no recorded runs" in ran.stderr


def test_all_sizes_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(micro, "both", lambda *_, **__: ALL_SIZES)
    rows = micro.all_sizes(anywhere(), (), 5)
    assert [(row["bytes"], row["typical"], row["p99"]) for row in rows] == [
        (2, 7.2, 8.01),
        (4, 7.3, 8.02),
        (8388608, 720.2, 801.01),
    ]


def test_hosts_that_do_not_answer_are_named() -> None:
    with pytest.raises(Failed, match=r"host 2 \(eri\) cannot be reached"):
        anywhere(quoted=True).run(2, "true")


def test_rsockets_that_are_not_installed_do_not_run_on_tcp(tmp_path: Path) -> None:
    """ld.so only warns of libraries that it cannot load."""
    words = Stack.rsockets().of("echo", "ran")
    script = words[2].replace("/usr/lib", str(tmp_path))
    ran = subprocess.run(["sh", "-c", script, *words[3:]], capture_output=True, text=True, check=False)
    assert ran.returncode == 127 and "librspreload.so" in ran.stderr and not ran.stdout
    (tmp_path / "rsocket").mkdir()
    (tmp_path / "rsocket/librspreload.so").touch()
    ran = subprocess.run(["sh", "-c", script, *words[3:]], capture_output=True, text=True, check=False)
    assert ran.stdout == "ran\n"


@pytest.mark.parametrize("wrong", [["--placement", "a/b"], ["--env", "x"], ["--steps", "nothing"]])
def test_wrong_arguments_are_reported(wrong: list[str]) -> None:
    command = [sys.executable, "-m", "ci.eri", "a", "b", "--addresses", "10.0.0.1", "10.0.0.2", *wrong]
    ran = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False)
    assert ran.returncode == 2 and wrong[1] in ran.stderr


CREATE = str(REPO / "ci/eri/create.sh")
REQUIRED = ("--region", "r", "--vswitch", "v", "--security-group", "g", "--key-pair", "k", "--image", "i")


def created(*more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([CREATE, *REQUIRED, *more], capture_output=True, text=True, check=False)


def test_instances_are_created_with_elastic_rdma_interfaces() -> None:
    apart = created("--dry-run").stdout
    assert "NetworkInterfaceTrafficMode HighPerformance" in apart and "DeploymentSet" not in apart
    near = created("--dry-run", "--placement", "low-latency").stdout.splitlines()
    assert "CreateDeploymentSet" in near[0] and "--Strategy LowLatency" in near[0]
    assert "--DeploymentSetId" in near[1] and "--Amount 2" in near[1]


@pytest.mark.parametrize("wrong", [("--placement", "far"), ("--what",), ("--type",), ("--image", "")])
def test_create_reports_wrong_arguments(wrong: tuple[str, ...]) -> None:
    ran = created(*wrong)
    assert ran.returncode == 2 and "Usage" in ran.stderr and not ran.stdout
