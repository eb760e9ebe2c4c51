"""Runs: the same twice, found when asked again, failed when they hang; and their reports."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from distributed import Client, LocalCluster, get_task_stream
from hdrh.histogram import HdrHistogram
from netacc_lab import analysis
from netacc_lab.analysis.__main__ import main as report_records
from netacc_lab.sim import (
    DaskEngine,
    SerialEngine,
    Store,
    columns,
    engine,
    estimate,
    paths,
    report,
    resolve,
    slowdown,
    stats,
    study,
    tables,
)
from netacc_lab.sim.cli import main
from netacc_lab.sim.runner import Done, Task, make
from netacc_lab.sim.store import Code

from tests.sim.conftest import Write
from tests.sim.test_scenarios import flow_scenario


def test_a_run_is_the_same_twice(write: Write, tmp_path: Path) -> None:
    """Breaks if a run depends on anything but scenario and seed."""
    first = study(write(), engine=SerialEngine(), folder=tmp_path / "a")
    again = study(write(), engine=SerialEngine(), folder=tmp_path / "b")
    hashes = [run.meta["trace_hash"] for run in first.points[0].runs]
    assert hashes == [run.meta["trace_hash"] for run in again.points[0].runs]
    assert len(set(hashes)) == 2, "two seeds"
    for run in first.points[0].runs:
        other = tmp_path / "b" / run.folder.name
        assert (run.folder / "samples.csv").read_bytes() == (other / "samples.csv").read_bytes()
        assert run.meta["linked"] == run.meta["connections"] == 4
        assert run.meta["unanswered"] == 0
        rows = (run.folder / "samples.csv").read_text().splitlines()
        assert len(rows) == run.meta["answered"] + 1
        assert run.histogram("get").get_total_count() == run.meta["groups"][0]["samples"] > 100


@pytest.mark.usefixtures("runs")
def test_flows_alone_take_what_an_empty_network_takes(write: Write, tmp_path: Path) -> None:
    """Breaks if the ideal is another network's, or slowdowns of flows that meet are those of flows alone."""
    lines = [f"{n % 2} 2 3 100 {size} {2 + n / 10**4}" for n, size in enumerate((100, 4000, 30_000, 60_000))]
    alone = flow_scenario(write, "\n".join(["4", *lines]))
    (point,) = study(alone, seeds=[1], engine=SerialEngine()).points
    found = slowdown.slowdowns(point.runs)
    assert [each.most_bytes for each in found] == [100, 4000, 30_000, 60_000]
    assert all(0.95 < each.p50 < 1.3 for each in found), found
    together = [f"{n} 2 3 100 60000 2.0" for n in (0, 1)]
    meeting = study(flow_scenario(write, "\n".join(["2", *together])), seeds=[1], engine=SerialEngine())
    slow = slowdown.slowdowns(meeting.points[0].runs)
    # Each gets half of the receiver's link.
    assert max(each.p50 for each in slow) > 1.5 * found[-1].p50, slow
    report.write(meeting, tmp_path / "page.html")
    assert f"<td>{slow[-1].p99:.2f}</td>" in (tmp_path / "page.html").read_text()
    assert f"{slow[-1].p50:.2f}" in columns.table(meeting).splitlines()[-1]
    both = study(tmp_path / "small.toml", seeds=[1, 2], engine=SerialEngine())
    assert sum(each.flows for each in slowdown.slowdowns(both.points[0].runs)) == 2 * len(together)


@pytest.mark.usefixtures("runs")
def test_ports_are_written_down(write: Write, tmp_path: Path) -> None:
    """Breaks if a port's queue, bytes or pauses are another one's, or are not in the report."""
    file = write(
        ("hosts = 3", 'hosts = 3\n\n[topology.switch]\npfc = true\npfc-xoff = "20kB"\npfc-xon = "10kB"'),
        ('rate = "25Gbit/s"\ndelay = "1us"', ""),
        ("[topology]", '[topology]\nrate = "25Gbit/s"\ndelay = "1us"'),
        ('request = "64B"\nresponse = "1KiB"', 'kind = "incast"\nrequest = "64KiB"'),
        ("seeds = [1, 2]", 'seeds = [1]\nports = true\nprogress = "1us"'),
    )
    assert main(["report", str(file), "--out", str(tmp_path)]) == 0
    rows = pq.read_table(tmp_path / "small-ports.parquet").to_pylist()
    (run,) = Store(paths.runs_folder()).all()
    network = run.meta["network"]
    last = {(row["node"], row["peer"]): row for row in rows}
    # Clients are hosts 1 and 2; the switch is node 3. Queues are at its port to the server.
    queues = [
        max(row["queue_bytes"] for row in rows if row["node"] == 3 and row["peer"] == n) for n in range(3)
    ]
    assert max(queues[1:]) < queues[0] <= network["max_queue_bytes"]
    assert sum(row["pauses"] for row in last.values()) == network["pauses"] > 0
    assert last[1, 3]["sent_bytes"] > 2 * 65_536 > last[0, 3]["sent_bytes"]
    assert {row["node"] for row in rows if row["paused"]} <= {1, 2}
    assert any(row["paused"] for row in rows) and last[3, 0]["queue_bytes"] == 0
    assert "Ports over time" in (tmp_path / "small.html").read_text()


def test_the_stages_of_messages_are_written_down(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Breaks if they are not those of the measured requests, or `netacc report` does not know them."""
    changes = ["measure.stages=true", "measure.duration=1ms"]
    sets = [word for change in changes for word in ("--set", change)]
    assert main(["run", "redis-load", *sets, "--seeds", "1"]) == 0
    (run,) = Store(runs).all()
    record = analysis.load(run.folder)
    found = {(each.direction, each.stage): each for each in analysis.stages(record)}
    directions = ["client to server, link", "server to client, link"]
    assert {direction for direction, _ in found} == set(directions)
    totals = [found[direction, "total"] for direction in directions]
    # Requests that were made within the span, and the few that were under way at its ends.
    assert totals[0].messages == pytest.approx(run.meta["groups"][0]["samples"], rel=0.1)
    # Between the two messages of a request is the server's own time; a request is measured from its post on.
    mean = run.histogram("set").get_mean_value()
    assert 0.8 * mean < sum(total.mean_ns for total in totals) < mean
    capsys.readouterr()
    assert report_records([str(run.folder)]) == 0
    assert any("completion" in line for line in capsys.readouterr().out.splitlines())


@pytest.mark.usefixtures("runs")
def test_a_graph_has_its_bottleneck(write: Write) -> None:
    """Breaks if packets do not take the links of a graph: all go over one of 1 Gbit/s in the middle."""
    graph = (
        'kind = "graph"\nhosts = 3\nswitches = 2\nlink = [{ ends = ["host:0", "switch:0"] }, '
        '{ ends = ["host:1", "switch:1"] }, { ends = ["host:2", "switch:1"] }, '
        '{ ends = ["switch:0", "switch:1"], rate = "1Gbit/s" }]\n'
    )
    file = write(
        ('kind = "star"\nhosts = 3\n', graph),
        ('request = "64B"\nresponse = "1KiB"', 'kind = "streaming"\nrequest = "16KiB"'),
        ('duration = "1ms"', 'duration = "20ms"'),
    )
    (point,) = study(file, seeds=[1], engine=SerialEngine()).points
    rate = point.metrics("get")["bytes_per_s"].value
    assert rate is not None and 0.9 * 125e6 < rate < 125e6


@pytest.mark.parametrize("anchor", ["tcp", "memory"])
def test_links_carry_the_bytes(write: Write, runs: Path, anchor: str) -> None:
    """Breaks if connections stay on TCP, on either kind of TCP, or are on unused queue pairs."""
    study(write(("[measure]", f'[stack]\nanchor = "{anchor}"\n[measure]')), seeds=[1], engine=SerialEngine())
    (run,) = Store(runs).all()
    assert run.meta["linked"] == 4
    assert run.meta["nics"]["data_delivered"] > 2 * run.meta["answered"] - 100


@pytest.mark.parametrize(
    ("warmup", "duration", "linked"), [("0s", "1ms", 0), ("0s", "8ms", 4), ("100us", "1ms", 4)]
)
def test_links_take_their_time(write: Write, runs: Path, warmup: str, duration: str, linked: int) -> None:
    """Breaks if devices make links in no time, or need time for links that were made before the run."""
    # Either end makes a queue pair and connects it, 0.89 ms each: 1.8 ms until the first link.
    study(write(('"100us"', f'"{warmup}"'), ('"1ms"', f'"{duration}"')), seeds=[1], engine=SerialEngine())
    (run,) = Store(runs).all()
    assert (run.status, run.meta["linked"]) == ("complete", linked)


def test_tcp_alone(write: Write, runs: Path) -> None:
    """Breaks if TCP uses a queue pair, or a request long after connecting is never answered."""
    late = (
        "[measure]\nwarmup = ",
        '[stack]\nkind = "kernel-tcp"\n[host]\nprofile = "two-cores"\n[measure]\nwarmup = ',
    )
    study(write(late), seeds=[1], engine=SerialEngine())
    (run,) = Store(runs).all()
    assert run.status == "complete"
    assert run.meta["nics"]["data_sent"] == run.meta["linked"] == 0
    columns = {line.split(",")[3] for line in (run.folder / "samples.csv").read_text().splitlines()[1:]}
    assert columns == {"0", "1", "2", "3"}
    # The server's two cores have one thread, which has done something and did not poll.
    servers = run.meta["servers"]
    assert 0 < servers["busy_ns"] < run.meta["simulated_ns"]
    assert (servers["hosts"], servers["polling_ns"], run.meta["clients"]["hosts"]) == (1, 0, 2)


#: Links that are made and memory that is registered take milliseconds.
LONGER = ('"1ms"', '"8ms"')
#: The helper thread takes its time on processors.
HELPED = ("[measure]", '[host]\nprofile = "two-cores"\n[measure]')
SHORT = ('name = "get"', 'name = "get"\nkind = "short-connections"\nrequests-per-connection = 8')


def test_short_connections(write: Write, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Breaks if short connections are not closed, not reported, or gain otherwise than by links."""
    stacks = {"stack.kind": ["netacc", "kernel-tcp"]}
    found = study(write(SHORT, LONGER), sweep=stacks, seeds=[1], engine=SerialEngine())
    links, tcp = (point.runs[0].meta for point in found.points)
    for meta in (links, tcp):
        group = meta["groups"][0]
        assert meta["status"] == "complete"
        assert group["short"]["failed"] == 0
        # Answers that came within the span, and connections that were begun there: at its ends they differ.
        assert 8 * group["short"]["made"] == pytest.approx(group["samples"], abs=2 * 4 * 8)
        # Each way through a switch, and headers: a connection can be used as soon as the answer is there.
        assert 4_000 <= group["short"]["connect"]["min_ns"] <= group["short"]["connect"]["p50_ns"] < 6_000
        assert group["short"]["whole"]["min_ns"] > 8 * group["min_ns"]
    assert (tcp["groups"][0]["link_share"], tcp["links"]["asked"]) == (0, 0)
    # The first of eight requests is on TCP, whose answer begins the promotion.
    short = links["groups"][0]["short"]
    assert 0.4 < links["groups"][0]["link_share"] < 7 / 8
    assert short["promoted"] == short["made"] > 20
    # Four at a time, and those that are being closed.
    assert links["links"]["made"] < 20 < links["links"]["reused"]
    assert max(links["connections_left"], tcp["connections_left"]) < 10
    rows = (found.points[0].runs[0].folder / "connections.csv").read_text().splitlines()
    assert len({len(row.split(",")) for row in rows}) == 1
    assert len(rows) > short["made"]
    assert main(["sweep", str(write(SHORT, LONGER)), "--seeds", "1"]) == 0
    assert "connect p99" in capsys.readouterr().out
    assert "whole_mean_ns" in found.table()[0]
    assert tables.write(Store(runs).all(), runs / "out.parquet") == 2
    kept = pq.read_table(runs / "out.parquet").to_pylist()
    assert {row["short_made"] for row in kept} == {m["groups"][0]["short"]["made"] for m in (links, tcp)}


def test_short_connections_are_the_same_twice(write: Write, tmp_path: Path) -> None:
    """Breaks if connecting, links or closing depend on anything but scenario and seed, open loops too."""
    loss = ('delay = "1us"', 'delay = "1us"\nloss = "0.1%"')
    opened = ("connections = 4", 'connections = 4\narrival = "open"\nrate = "50k/s"')
    metas = []
    for folder in ("a", "b"):
        file = write(SHORT, loss, opened, LONGER, HELPED)
        made = study(file, seeds=[3], engine=SerialEngine(), folder=tmp_path / folder)
        metas.append(made.points[0].runs[0].meta)
    assert metas[0]["trace_hash"] == metas[1]["trace_hash"]
    assert metas[0]["groups"] == metas[1]["groups"]
    short = metas[0]["groups"][0]["short"]
    # 400 are due in the measured span, give or take.
    assert 300 < short["made"] < 500
    assert metas[0]["status"] == "complete"


def test_a_server_that_is_cut_off_fails_connections(write: Write, runs: Path) -> None:
    """Breaks if a connection is waited for after TCP has given up, or passes for one that was used."""
    fault = (
        '[stack]\nkind = "kernel-tcp"\n[[fault]]\nkind = "cut"\nat = "500us"\ntarget = "host:0"\n[measure]\n'
    )
    patience = 'progress = "10s"\nstall = "3000s"\ndrain = "4000s"\n'
    study(write(SHORT, ("[measure]\n", fault + patience)), seeds=[1], engine=SerialEngine())
    (run,) = Store(runs).all()
    short = run.meta["groups"][0]["short"]
    assert run.status == "complete"
    assert short["failed"] + short["made"] > 4
    assert short["failed"] == 4
    # The cut also catches those that were being closed.
    assert 4 <= run.meta["network"]["tcp_failed"] <= 8
    rows = [row.split(",") for row in (run.folder / "connections.csv").read_text().splitlines()[1:]]
    assert [int(row[5]) < 8 for row in rows].count(True) == 4


def test_existing_runs_are_not_made_again(write: Write, runs: Path) -> None:
    """Breaks if an interrupted sweep begins anew, or a change of the scenario is taken for the same run."""
    seen: list[tuple[int, int]] = []
    sweep = {"topology.delay": ["1us", "2us"]}
    study(write(), sweep={}, seeds=[1], engine=SerialEngine())
    made = {run.folder.stat().st_ino for run in Store(runs).all()}
    assert len(made) == 1
    study(
        write(),
        sweep=sweep,
        seeds=[1, 2],
        engine=SerialEngine(),
        progress=lambda p: seen.append((p.done, p.hits)),
    )
    assert seen[-1] == (4, 1)
    kept = Store(runs).all()
    assert len(kept) == 4
    assert made <= {run.folder.stat().st_ino for run in kept}
    # An interrupted run leaves no folder that counts as a run.
    (runs / ".partial.1").mkdir()
    assert len(Store(runs).all()) == 4


def test_dask_makes_the_same(write: Write, tmp_path: Path) -> None:
    """Breaks if runs made by a scheduler differ from those made here, or a failed one stops the others."""
    serial = study(write(), engine=SerialEngine(), folder=tmp_path / "a")
    dask = study(write(), engine=DaskEngine(jobs=2), folder=tmp_path / "b")
    assert serial.table() == dask.table()


def test_a_cluster_makes_the_same(write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Breaks if `--cluster` makes runs here after all, or they differ from those made here."""
    serial = study(write(), engine=SerialEngine(), folder=tmp_path / "a")
    command = ["sweep", str(write()), "--runs", str(tmp_path / "b"), "--json"]
    # A scheduler and a worker, which is another process.
    parts = {"n_workers": 1, "threads_per_worker": 2, "host": "127.0.0.1", "dashboard_address": None}
    with LocalCluster(**parts) as cluster, Client(cluster) as client, get_task_stream(client) as seen:
        assert main([*command, "--cluster", cluster.scheduler_address]) == 0
    assert len({task["key"] for task in seen.data}) == 2
    assert json.loads(capsys.readouterr().out)["points"] == json.loads(json.dumps(serial.table()))


def test_a_cluster_that_is_not_there(
    write: Write, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Breaks if a wrong address is waited for, or ends in anything but a sentence."""
    monkeypatch.setattr(engine, "CONNECT_TIMEOUT_S", 1)
    for address in ("tcp://127.0.0.1:1", "nonsense://x"):
        assert main(["sweep", str(write()), "--cluster", address]) == 2
        assert f"no Dask scheduler at {address}" in capsys.readouterr().err


def test_each_engine_has_the_same_program_and_folder(write: Write, runs: Path) -> None:
    """Breaks if a run by another program, or one that is nowhere, passes for one that was asked for."""
    done = make(Task("key", {}, paths.simulator(), "another version", runs))
    assert (done.status, done.error.count("another version")) == ("error", 1)

    class Elsewhere(SerialEngine):
        def run(self, tasks: Iterable[Task]) -> Iterator[Done]:
            return (Done(task.key, "complete", hit=False) for task in tasks)

    found = study(write(), seeds=[1], engine=Elsewhere())
    assert [(done.status, "is not in" in done.error) for done in found.failures] == [("error", True)]


def test_a_simulation_is_one_process(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    """Breaks if ranks are promised that there are not, or one is refused."""
    assert main(["run", str(write()), "--ranks", "2"]) == 2
    assert "no MPI" in capsys.readouterr().err
    assert main(["run", str(write()), "--ranks", "1", "--dry-run"]) == 0


def test_a_run_that_hangs_has_failed(write: Write, runs: Path) -> None:
    """Breaks if a network that carries nothing is waited for, or its run passes for one that went well."""
    fault = '[[fault]]\nkind = "cut"\nat = "500us"\ntarget = "host:0"\n[measure]\nstall = "20ms"\n'
    file = write(("[measure]\n", fault), ('"roce-100g"', '"roce-100g"\nretry-timeout = "5ms"'))
    found = study(file, seeds=[1], engine=SerialEngine())
    assert [done.status for done in found.failures] == ["stalled"]
    (run,) = Store(runs).all()
    assert run.meta["simulated_ns"] < 50_000_000
    assert run.meta["unanswered"] == 4
    assert main(["run", str(file), "--seeds", "1"]) == 1


def test_links_come_back(write: Write, runs: Path) -> None:
    """Breaks if connections whose links have failed stay on TCP for good, once the network is well again."""
    fault = '[[fault]]\nkind = "cut"\nat = "500us"\nuntil = "3ms"\ntarget = "host:0"\n[measure]\n'
    patience = '"roce-100g"\nretry-timeout = "100us"\nretry-count = 2'
    think = 'connections = 4\nthink = "200us"'
    file = write(
        ("[measure]\n", fault),
        ('"roce-100g"', patience),
        ("connections = 4", think),
        ('duration = "1ms"', 'duration = "260ms"'),
    )
    study(file, seeds=[1], engine=SerialEngine())
    (run,) = Store(runs).all()
    assert run.status == "complete"
    # Both ends of each link, whose streams have waited for a reset of a dead peer on their anchors, before
    # they went back to them.
    assert run.meta["nics"]["failed"] >= 8
    assert run.meta["groups"][0]["max_ns"] > 50_000_000
    assert run.meta["linked"] == 4


def test_unanswered_requests_are_reported(write: Write, runs: Path) -> None:
    """Breaks if an overloaded run seems to have answered everything, or is made to go on for ever."""
    open_loop = 'connections = 4\narrival = "open"\nrate = "10M/s"'
    file = write(("connections = 4", open_loop), ("[measure]\n", '[measure]\ndrain = "50us"\n'))
    assert main(["run", str(file), "--seeds", "1", "--json"]) == 4
    (run,) = Store(runs).all()
    assert run.status == "unfinished"
    assert run.meta["unanswered"] > 0


def test_a_crash_is_a_failed_run(runs: Path, tmp_path: Path) -> None:
    """Breaks if a simulator that crashes leaves a run, or takes its caller along."""
    program = tmp_path / "crashes"
    program.write_text('#!/bin/sh\n[ "$1" = --ns3-version ] && exit\necho told >&2\nkill -9 $$\n')
    program.chmod(0o755)
    done = make(Task("key", {}, program, Code(program).version, runs))
    assert done == Done("key", "error", hit=False, error="the simulator ended with signal 9: told")
    assert Store(runs).all() == []


def test_the_program_refuses_nonsense(tmp_path: Path) -> None:
    """Breaks if the simulator runs a scenario that it does not understand."""
    program = paths.simulator()
    ended = subprocess.run(
        [program, "/dev/stdin", tmp_path / "out"], input="{}", capture_output=True, text=True
    )
    assert ended.returncode == 2
    assert "missing field" in ended.stderr
    assert len(Code(program).version) == 16


def test_parquet_keeps_histograms_whole(write: Write, runs: Path, tmp_path: Path) -> None:
    """Breaks if a table loses a column, its description, or a part of a histogram."""
    study(write(), engine=SerialEngine())
    made = Store(runs).all()
    assert tables.write(made, tmp_path / "out.parquet") == 2
    table = pq.read_table(tmp_path / "out.parquet")
    assert all(table.schema.field(name).metadata[b"description"] for name in table.schema.names)
    rows = table.to_pylist()
    assert {row["run"] for row in rows} == {run.folder.name for run in made}
    for row, run in zip(rows, made, strict=True):
        assert row["latency"] == (run.folder / "latency-get.hdr").read_bytes()
        assert row["samples"] == run.histogram("get").get_total_count()
        assert json.loads(row["config"])["seed"] == row["seed"]


def test_a_parameter_that_changes_nothing_is_reported(
    write: Write, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Breaks if the report does not mark a key that no run uses, or marks one that is used."""
    del runs
    sweep = (
        '[sweep]\n"device.recovery" = ["go-back-n", "selective-repeat"]\n"topology.delay" = ["1us", "3us"]'
    )
    stay = "[stack.nacc]\nNACC_PROMOTE_AFTER = 1000000\n[measure]"
    file = write(("[measure]", stay), ("seeds = [1, 2]", f"seeds = [1, 2]\n{sweep}"))
    assert main(["report", str(file), "--out", str(tmp_path / "out")]) == 0
    notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note: ")]
    assert len(notes) == 1 and notes[0].startswith("note: device.recovery changes nothing")
    assert "device.recovery changes nothing" in (tmp_path / "out/small.html").read_text()


def cheap_sweeps() -> list[Path]:
    """Ready scenarios that are compared with themselves, and whose sweep is done in seconds."""
    files = sorted(paths.scenarios_folder().glob("*.toml"))
    planned = {file: resolve.runs(file, seeds=[1]) for file in files}
    most = 4_000_000
    return [
        file
        for file, found in planned.items()
        if len(found) > 1 and sum(estimate.events(run.resolved) for run in found) < most
    ]


@pytest.mark.parametrize("file", cheap_sweeps(), ids=lambda file: file.stem)
def test_ready_scenarios_use_their_swept_parameters(file: Path, runs: Path) -> None:
    """Breaks if a scenario has a question that its runs never reach."""
    found = study(file, seeds=[1], folder=runs, engine=SerialEngine())
    assert len(found.points) > 1
    assert found.without_effect() == []


def test_the_command(write: Write, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Breaks if a subcommand does not follow its help, or ends with another code."""
    file = write(("seeds = [1, 2]", 'seeds = [1, 2]\n[sweep]\n"topology.delay" = ["1us", "3us"]'))
    assert main(["sweep", str(file), "--dry-run", "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["runs"] == 4
    assert main(["report", str(file), "--out", str(tmp_path / "out"), "--json", "--jobs", "2"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert [row["topology.delay"] for row in summary["points"]] == ["1us", "3us"]
    assert summary["without_effect"] == []
    # Eight more microseconds on the way there and back through a switch.
    near, far = (row["p50_ns"] for row in summary["points"])
    assert far - near == pytest.approx(8000, abs=20)
    assert summary["points"][0]["p999_ns"] is None, "too few samples"
    events = sum(run.meta["events"] for run in Store(runs).all())
    assert planned["events"] / 3 < events < planned["events"] * 3
    page = (tmp_path / "out/small.html").read_text()
    # Tails, latency and rate by delay, and rate over time.
    assert page.count("data:image/svg+xml") == 4
    assert "What does a request take" in page
    assert "Seeds: 1, 2. Profiles: device roce-100g; host free; stack netacc." in page
    assert "[[workload]]" in page, "the scenario is there"
    kept = pq.read_table(tmp_path / "out/small.parquet")
    assert [row["topology.delay"] for row in kept.to_pylist()] == ["1us", "1us", "3us", "3us"]
    assert main(["list", "--made", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 4
    assert main(["list"]) == 0
    assert "deployment set" in capsys.readouterr().out
    assert main(["run", "no-such-scenario"]) == 2
    assert "ready ones" in capsys.readouterr().err
    assert main(["run", str(file), "--set", "topology.delay=7"]) == 2
    assert main(["run", str(file), "--seeds", "x"]) == 2


def test_no_run_at_a_time_is_refused(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    """Breaks if `--jobs 0` makes as many runs at a time as there are processors."""
    for jobs in ("0", "-1"):
        assert main(["sweep", str(write()), "--jobs", jobs]) == 2
        assert f"{jobs} runs at a time: at least 1" in capsys.readouterr().err


def test_late_links_are_told(write: Write, runs: Path) -> None:
    """Breaks if a reader takes figures of TCP for those of links, or is warned of links that were early."""
    late = study(write(('"100us"', '"0s"'), ('"1ms"', '"8ms"')), seeds=[1], engine=SerialEngine())
    assert [note.partition(": ")[2] for note in late.notes()] == [
        "4 connections went onto links after the warm-up: the figures are of TCP and links"
    ]
    early = study(write(), seeds=[1], engine=SerialEngine())
    assert early.notes() == []
    assert len(Store(runs).all()) == 2


def test_stacks_of_different_machines_are_not_ranked(write: Write, runs: Path) -> None:
    """Breaks if costs that were fitted on different machines are compared without a word."""
    host = ("[measure]", '[host]\nprofile = "two-cores"\n[measure]')
    of_one = {"stack.kind": ["netacc", "kernel-tcp"]}
    of_two = {"stack.kind": ["kernel-tcp", "udpdk-like"]}
    assert study(write(host), sweep=of_one, seeds=[1], engine=SerialEngine()).notes() == []
    (note,) = study(write(host), sweep=of_two, seeds=[1], engine=SerialEngine()).notes()
    assert "kernel-tcp (ecs.g8ae.4xlarge), udpdk-like (Xeon E5-2640)" in note
    assert len(Store(runs).all()) == 3


@pytest.mark.usefixtures("runs")
def test_a_stacks_thread_limits_tcp(write: Write) -> None:
    """Breaks if segments both ways are not the work of one thread, beside the program's."""
    stack = '[stack]\nkind = "kernel-tcp"\nsegment = "5us"\nsystem-call = "1us"\nspin = "1s"'
    file = write(
        ("[measure]", f'[host]\nprofile = "g8ae-4xlarge"\nwork-factor = 2.0\n{stack}\n[measure]'),
        ("connections = 4", "connections = 8"),
        ('duration = "1ms"', 'duration = "20ms"'),
    )
    rates = {}
    for threaded in (True, False):
        found = study(file, sweep={"stack.stack-thread": [threaded]}, seeds=[1], engine=SerialEngine())
        (rates[threaded],) = (row["requests_per_s"] for row in found.table())
    # Two segments of 10 us each; else the program's thread has them, three calls and a copy to do.
    assert abs(rates[True] / 50_000 - 1) < 0.02, rates
    assert rates[False] < 40_000, rates


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize("kind", ["netacc", "kernel-tcp"])
@pytest.mark.parametrize("load", ["request-response", "short-connections", "datagrams"])
def test_a_dry_run_is_near(write: Write, kind: str, load: str) -> None:
    """Breaks if a dry run counts the events of a run more than twice too high or too low."""
    hosts = f'[host]\nprofile = "g8ae-4xlarge"\n[stack]\nkind = "{kind}"\n[measure]'
    file = write(
        ("[measure]", hosts),
        ('response = "1KiB"', f'kind = "{load}"\nresponse = "1KiB"'),
        ('duration = "1ms"', 'duration = "10ms"'),
    )
    (expected,) = (estimate.events(run.resolved) for run in resolve.runs(file, sweep={}, seeds=[1]))
    (point,) = study(file, sweep={}, seeds=[1], engine=SerialEngine()).points
    true = point.runs[0].meta["events"]
    assert 0.5 < expected / true < 2, (expected, true)


def test_datagrams(write: Write, runs: Path) -> None:
    """Breaks if datagrams do not pass ns-3, are lost without a word, or are compared as TCP's bytes."""
    datagrams = ('response = "1KiB"', 'kind = "datagrams"\nresponse = "1KiB"')
    kernel = ("[measure]", '[host]\nprofile = "g8ae-4xlarge"\n[stack]\nkind = "kernel-tcp"\n[measure]')
    (row,) = study(write(datagrams, kernel), seeds=[1], engine=SerialEngine()).table()
    assert row["status"] == "complete"
    assert row["datagrams_lost"] == 0 and row["requests_per_s"] > 0
    lossy = ("hosts = 3", 'hosts = 3\nloss = "20%"')
    open_loop = ("connections = 4", 'connections = 4\narrival = "open"\nrate = "100k/s"')
    (row,) = study(write(datagrams, kernel, lossy, open_loop), seeds=[1], engine=SerialEngine()).table()
    assert row["status"] == "complete"
    # Each of four links loses a fifth: of about 110, 59 % are not answered.
    assert 40 <= row["datagrams_lost"] <= 90
    first = {run.meta["trace_hash"] for run in Store(runs).all()}
    assert len(first) == 2


def test_frames_that_pfc_loses_are_told(write: Write, runs: Path) -> None:
    """Breaks if a network that should lose nothing does, and the report is silent."""
    incast = ('name = "get"', 'name = "get"\nkind = "incast"')
    file = write(incast, ('request = "64B"', 'request = "1MiB"'))
    assert study(file, seeds=[1], engine=SerialEngine()).notes() == []
    (run,) = Store(runs).all()
    # No scenario comes to this, as buffers are checked before: the record is made up.
    meta = json.loads(json.dumps(run.meta))
    meta["network"]["dropped"] = 7
    meta["scenario"]["network"]["switch"]["pfc"] = True
    (run.folder / "meta.json").write_text(json.dumps(meta))
    again = study(file, seeds=[1], engine=SerialEngine())
    assert [note.partition(": ")[2] for note in again.notes()] == [
        "7 frames were dropped, although pfc should lose none"
    ]


def test_requests_that_wait_for_links_are_late(write: Write, runs: Path) -> None:
    """Breaks if a request's wait for its connection's link is nobody's latency, or the request is lost."""
    burst = ('name = "get"', 'name = "get"\nkind = "incast"')
    memory = ("[measure]", '[stack]\nanchor = "memory"\n[measure]')
    study(write(burst, memory, ('"100us"', '"0s"')), seeds=[1], engine=SerialEngine())
    (run,) = Store(runs).all()
    group = run.meta["groups"][0]
    # Either end makes a queue pair and connects it, 0.89 ms each. The measured span ends before that.
    assert group["samples"] == 4
    assert group["min_ns"] > 1_700_000


def test_tcp_has_a_trace(write: Write, runs: Path) -> None:
    """Breaks if the hash of a run on TCP does not depend on it."""
    stack = ("[measure]", '[stack]\nkind = "kernel-tcp"\n[measure]')
    found = study(write(stack), engine=SerialEngine())
    later = study(write(stack, ('delay = "1us"', 'delay = "2us"')), engine=SerialEngine())
    hashes = {run.meta["trace_hash"] for each in (found, later) for run in each.points[0].runs}
    assert len(hashes) == 4
    assert len(Store(runs).all()) == 4


def _kernel_tcp(device: str, more: str = "") -> list[tuple[str, str]]:
    stack = f'[stack]\nkind = "kernel-tcp"\n{more}[measure]'
    return [("[measure]", stack), ('"roce-100g"', device)]


def test_kernel_tcp_pays_nic_and_interrupt(write: Write, runs: Path) -> None:
    """Breaks if TCP's packets pass a NIC in no time, or one way only."""
    medians = [
        study(write(*_kernel_tcp(name)), seeds=[1], engine=SerialEngine()).points[0].runs[0].meta["groups"][0]
        for name in ('"ideal"', '"roce-100g"')
    ]
    # Doorbell 150, fetches 2 x 300, packets 2 x 15, placement 200, completion 150, interrupt 2000; each way.
    assert medians[1]["p50_ns"] - medians[0]["p50_ns"] == pytest.approx(2 * 3130, abs=20)
    assert len(Store(runs).all()) == 2


def test_interrupts_are_moderated(write: Write, runs: Path) -> None:
    """Breaks if packets that come between two interrupts do not wait for the second."""
    file = write(*_kernel_tcp('"roce-100g"\ninterrupt-interval = "50us"'))
    study(file, seeds=[1], engine=SerialEngine())
    (run,) = Store(runs).all()
    rows = [line.split(",") for line in (run.folder / "samples.csv").read_text().splitlines()[1:]]
    assert len(rows) > 20
    for host in range(2):
        # Connections are spread over the two clients' hosts, the first half on the first one.
        ends = sorted({int(row[0]) for row in rows if int(row[3]) // 2 == host})
        assert len(ends) > 5
        assert min(np.diff(ends)) >= 50_000


def test_costs_vary_by_seed(write: Write, runs: Path) -> None:
    """Breaks if a distribution of a scenario does not reach the hosts, or its draws are not the seed's."""
    costs = (
        'system-call = { lognormal = { median = "1us", deviation = 0.5 } }\n[host]\nprofile = "two-cores"\n'
    )
    file = write(*_kernel_tcp('"ideal"', costs))
    found = study(file, engine=SerialEngine())
    again = study(file, engine=SerialEngine(), folder=runs / "again")
    hashes = [[run.meta["trace_hash"] for run in each.points[0].runs] for each in (found, again)]
    assert hashes[0] == hashes[1]
    assert len(set(hashes[0])) == 2
    constant = study(file, sweep={"stack.system-call": ["1us"]}, seeds=[1], engine=SerialEngine())
    spread = [point.runs[0].histogram("get").get_stddev() for point in (*found.points, *constant.points)]
    assert spread[0] > 1.5 * spread[1]


def test_interruptions_reach_hosts(write: Write, runs: Path) -> None:
    """Breaks if ticks and noise of a scenario keep no work from a core."""
    noise = (
        'tick-interval = "100us"\ntick = "5us"\nnoise-interval = "50us"\nnoise = { exponential = "5us" }\n'
    )
    hosts = '[host]\nprofile = "two-cores"\n'
    for more in ("", noise):
        study(write(*_kernel_tcp('"ideal"', more + hosts)), seeds=[1], engine=SerialEngine())
    quiet, noisy = (run.meta["servers"]["interrupted_ns"] for run in Store(runs).all())
    assert quiet == 0 < noisy


def test_netacc_starts_it() -> None:
    """Breaks if `netacc sim` does not find the tools, or hides how they ended."""
    import os

    binary = Path(os.environ.get("NETACC_BIN_DIR", "target/release")) / "netacc"
    ended = subprocess.run([binary, "sim", "list", "--json"], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert len(json.loads(ended.stdout)) >= 10
    assert subprocess.run([binary, "sim", "run", "none"], capture_output=True).returncode == 2
    without = subprocess.run(
        [binary, "sim", "list"], env={"NETACC_PYTHON": "/bin/false"}, capture_output=True
    )
    assert without.returncode == 69


def test_intervals() -> None:
    """Breaks if an interval is not the t-interval, or a percentile is reported from too few samples."""
    found = stats.mean([10.0, 12.0, 14.0])
    # t(0.975, 2) = 4.3027, standard error 2 / sqrt(3).
    assert found.value == 12.0
    assert found.high == pytest.approx(12 + 4.3027 * 2 / 3**0.5, abs=1e-3)
    assert stats.mean([3.0]) == stats.Estimate(3.0)

    def histogram(count: int, shift: int) -> HdrHistogram:
        made = HdrHistogram(1, 3_600_000_000_000, 3)
        for value in np.random.default_rng(shift).integers(1000, 2000, count):
            made.record_value(int(value) + shift)
        return made

    assert stats.percentile([histogram(9_999, 0)], 99.9).value is None
    assert stats.percentile([histogram(10_000, 0)], 99.9).value == pytest.approx(1999, abs=3)
    several = stats.percentile([histogram(500, shift) for shift in (0, 50, 100)], 50)
    assert several.low is not None
    assert several.high is not None
    # Medians of the runs are about 1500, 1550 and 1600, each give or take 25: 4.3 times 29 beside the middle.
    assert several.value is not None
    assert 1370 < several.low < 1480 < several.value < 1620 < several.high < 1730


@pytest.mark.parametrize("percent", [50.0, 95.0])
def test_intervals_cover_what_they_promise(percent: float) -> None:
    """Breaks if a 95 % interval of a percentile over three seeds covers the true one less often."""
    rng = np.random.default_rng(5)

    def requests(runs: int, each: int) -> np.ndarray:
        # Runs differ, and requests within a run: a long tail, in nanoseconds.
        return 100_000 * np.exp(rng.normal(0, 0.05, (runs, 1)) + rng.normal(0, 0.3, (runs, each)))

    true = float(np.percentile(requests(20_000, 100), percent))
    trials, covered = 400, 0
    for _ in range(trials):
        histograms = []
        for run in requests(3, 300):
            histograms.append(HdrHistogram(1, 3_600_000_000_000, 3))
            for value in run:
                histograms[-1].record_value(int(value))
        found = stats.percentile(histograms, percent)
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= true <= found.high
    # Three standard errors of 400 trials are 3.3 %.
    assert covered / trials > 0.917
