"""Records on disk: all tools write the same form, and a bad one costs one line."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pyarrow as pa
import pytest
from netacc_lab import analysis
from netacc_lab.analysis.__main__ import main as report
from netacc_lab.calibration.__main__ import main as calibrate
from netacc_lab.records import Contents, Header, RecordError, converting, folder
from netacc_lab.records.__main__ import main as record
from netacc_lab.records.model import HEADER, Kind, Run, Series, Table
from netacc_lab.sim import runner

from ci.eri.record import Record as KitRecord
from tests.analysis.test_analysis import RESULTS, bench, histogram, simulated

REPO = RESULTS.parent
SCHEMA = Path(converting.__file__).with_name("schema.json")
BINARIES = Path(os.environ.get("NETACC_BIN_DIR") or REPO / "target/release")


def contents() -> Contents:
    """A record with a histogram, a time series and details."""
    run = Run(rate_per_s=10.0, histograms={"latency": "latency-shm-1.hdr"}, figures={"seconds": 2.0})
    rows = [{"at_ns": at * 1_000_000_000, "sent": at * 5, "still": 1} for at in range(3)]
    return Contents(
        Header(
            kind=Kind.BENCH,
            title="test",
            series=[Series(name="shm", runs=[run])],
            tables=[Table(name="counters", file="counters.parquet", form="parquet", rows=3)],
            details="result.json",
        ),
        {"latency-shm-1.hdr": histogram([1000, 2000])},
        {"counters.parquet": pa.Table.from_pylist(rows)},
        "{}",
    )


def valid(path: Path) -> Header:
    """Checks all of a record, and that its header is what the published schema allows."""
    found = json.loads((path / HEADER).read_text())
    jsonschema.validate(found, json.loads(SCHEMA.read_text()))
    return folder.check(path)


def program(*words: str) -> None:
    """Runs one of the programs under test."""
    done = subprocess.run([BINARIES / words[0], *words[1:]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_schema_is_published() -> None:
    assert json.loads(SCHEMA.read_text()) == Header.model_json_schema(), (
        "netacc record schema >core/python/python/netacc_lab/records/schema.json"
    )


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """Breaks if a part got lost, or a record replaced another one."""
    path = tmp_path / "record"
    folder.write(path, contents())
    assert valid(path) == contents().header
    found = analysis.load(path)
    assert found["shm"].runs[0].percentile(100) == pytest.approx(2000, rel=1e-3)
    assert found["shm"].runs[0].figures == {"seconds": 2.0}
    assert found.table("counters").column("sent").to_pylist() == [0, 5, 10]
    with pytest.raises(KeyError, match="no table 'sent'; there are counters"):
        found.table("sent")
    with pytest.raises(RecordError, match="there is something already"):
        folder.write(path, contents())
    assert [each.name for each in tmp_path.iterdir()] == ["record"]


def test_counters_are_followed_over_time(tmp_path: Path) -> None:
    folder.write(tmp_path / "record", contents())
    found = analysis.load(tmp_path / "record")
    (change,) = analysis.changes(found)
    assert (change.name, change.first, change.last, change.per_s) == ("sent", 0, 10, 5.0)
    (line,) = analysis.plot_timeline(found).get_lines()
    assert np.array_equal(line.get_xydata(), [[1.0, 5.0], [2.0, 5.0]])
    with pytest.raises(KeyError, match="no column 'nope'"):
        analysis.plot_timeline(found, "nope")


def _changed(**changes: Any) -> Any:  # noqa: ANN401 (any JSON)
    def change(path: Path) -> None:
        header = json.loads((path / HEADER).read_text())
        (path / HEADER).write_text(json.dumps(header | changes))

    return change


def _cut(name: str) -> Any:  # noqa: ANN401 (a function)
    def change(path: Path) -> None:
        file = path / name
        file.write_bytes(file.read_bytes()[:-9])

    return change


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (_cut(HEADER), "cut short"),
        (_cut("latency-shm-1.hdr"), "no histogram, or cut short"),
        (_cut("counters.parquet"), "no table, or cut short"),
        (_changed(version=2), "version 2; this program knows 1"),
        (_changed(version=None), "it has no version"),
        (_changed(colour="red"), "colour: Extra inputs"),
        (_changed(kind="guess"), "kind: Input should be"),
        (_changed(details="../other"), "a file is named '../other'"),
        (_changed(details="nothing"), "No such file"),
        (_changed(series=[{"name": "a", "runs": []}] * 2), "two have the name 'a'"),
        (
            _changed(tables=[{"name": "a", "file": "counters.parquet", "form": "parquet", "rows": 4}]),
            "cut short: it has 3 rows of 4",
        ),
    ],
)
def test_a_bad_record_costs_one_line(
    change: Any,  # noqa: ANN401 (a function)
    error: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "record"
    folder.write(path, contents())
    change(path)
    assert record(["check", str(path)]) == 2
    said = capsys.readouterr().err
    assert error in said and str(path) in said and said.count("\n") == 1


def test_a_line_that_was_cut_is_noticed(tmp_path: Path) -> None:
    """Breaks if a time series whose writer was killed lost rows silently."""
    path = tmp_path / "record"
    folder.write(path, contents())
    table = Table(name="counters", file="counters.jsonl", form="jsonl")
    # A counter that appears later.
    first = '{"at_ns": 0}\n' * 200_000
    (path / table.file).write_text(first + '{"at_ns": 1, "sent": 5}\n')
    found = folder.read_table(path, table)
    assert (found.num_rows, found.column("sent").to_pylist()[-1]) == (200_001, 5)
    (path / table.file).write_text('{"at_ns": 0}\n{"at')
    with pytest.raises(RecordError, match="its last line has no end"):
        folder.read_table(path, table)


def test_older_results_are_converted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Breaks if a conversion lost a run, or a result could not be converted."""
    files = [file for file in sorted(RESULTS.glob("*.json")) if "bench" in json.loads(file.read_text())]
    assert len(files) > 5
    for old in [*files, RESULTS / "rxe/polled", simulated(tmp_path)]:
        new = tmp_path / f"new-{old.stem}"
        assert record(["convert", str(old), str(new)]) == 0
        valid(new)
        before, after = analysis.load(old), analysis.load(new)
        assert (before.title, before.warnings) == (after.title, after.warnings)
        for series in before:
            pairs = zip(series.runs, after[series.name].runs, strict=True)
            assert all(one.percentile(99) == other.percentile(99) for one, other in pairs)
            assert series.link_share == after[series.name].link_share
    two_tests = analysis.load(RESULTS / "redis-c1000.json")
    assert {"set: shm", "get: shm"} <= two_tests.series.keys()
    assert record(["convert", str(tmp_path / "new-polled"), str(tmp_path / "x")]) == 2
    assert record(["convert", str(files[0]), str(tmp_path / "new-polled")]) == 2
    said = capsys.readouterr().err
    assert "a record already" in said and "there is something already" in said


def test_counters_of_one_moment_are_converted(tmp_path: Path) -> None:
    old = tmp_path / "ss.json"
    old.write_text(json.dumps({"version": 1, "pid": 5, "program": "nginx", "cnt": {"sent": 7}}))
    assert analysis.load(old).table("counters").to_pylist() == [{"at_ns": 0, "sent": 7}]
    assert record(["convert", str(old), str(tmp_path / "new")]) == 0
    assert valid(tmp_path / "new").kind == Kind.SS
    old.write_text(json.dumps({"version": 2, "pid": 5}))
    with pytest.raises(RecordError, match="version 2 of netacc_ss's output"):
        analysis.load(old)


def test_netacc_bench_writes_one(tmp_path: Path) -> None:
    """Breaks if what the program writes is not what the schema says, or not what its own result says."""
    path = tmp_path / "echo"
    arguments = ["--paths", "tcp,unix", "--pairs", "2", "--requests", "300", "-q", "--record", str(path)]
    program("netacc", "bench", "echo", *arguments)
    header = valid(path)
    assert header.command[1:3] == ["bench", "echo"] and header.configuration["NACC_BACKEND"]
    assert header.began <= header.ended and header.load.during is not None
    found, again = analysis.load(path), analysis.load(path / "result.json")
    assert (found.title, found.machine, found.date) == (again.title, again.machine, again.date)
    assert found.warnings == again.warnings
    for series in found:
        assert [run.latency.get_total_count() for run in series.runs if run.latency] == [300, 300]
        for run, of in zip(series.runs, again[series.name].runs, strict=True):
            assert run.rate_per_s == of.rate_per_s and run.figures == pytest.approx(of.figures)
            assert run.percentile(99) == pytest.approx(of.percentile(99), rel=0.01)
    assert report([str(path), str(path)]) == 0


def test_netacc_bench_noise_and_wake_write_them(tmp_path: Path) -> None:
    """Breaks if a detour or a wake-up got lost, or the conversion of their JSON gives something else."""
    for name, more in (("noise", []), ("noise", ["--work", "tcp"]), ("wake", [])):
        path = tmp_path / "-".join([name, *more])
        program("netacc", "bench", name, *more, "--seconds", "0.1", "--record", str(path))
        header, found, again = valid(path), analysis.load(path), analysis.load(path / "result.json")
        assert header.title == again.title == f"netacc bench {name}"
        for series in found:
            one, other = (record[series.name].histograms()[0] for record in (found, again))
            assert one.get_total_count() == other.get_total_count() > 0
        assert found.tables == again.tables
        for table in found.tables:
            assert found.table(table).to_pylist() == again.table(table).to_pylist()
    assert list(analysis.load(tmp_path / "wake").series) == ["wake"]
    assert analysis.load(tmp_path / "noise").tables == ["detours"]


def free_port() -> int:
    """Below those that the kernel gives to clients."""
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            return port


def test_netacc_lat_writes_one(tmp_path: Path) -> None:
    """Breaks if the histogram was another one than the result's."""
    path, port = tmp_path / "lat", str(free_port())
    serve: list[str | Path] = [BINARIES / "netacc", "lat", "--serve", "127.0.0.1", "--port", port]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        assert server.stdout and b"listening" in server.stdout.readline()
        program(
            "netacc", "lat", "127.0.0.1", "--port", port, "--path", "tcp", "-n", "200", "--record", str(path)
        )
        server.terminate()
    header = valid(path)
    assert header.status == "complete" and header.load.during is not None
    found, again = analysis.load(path), analysis.load(path / "result.json")
    one, other = (record["tcp"].histograms()[0] for record in (found, again))
    assert one.get_total_count() == 200
    assert one.get_value_at_percentile(99) == other.get_value_at_percentile(99)


def test_netacc_lat_names_what_failed(tmp_path: Path) -> None:
    """Breaks if a path that failed was not told."""
    path = tmp_path / "lat"
    # No process listens on port 1.
    arguments = ["lat", "127.0.0.1", "--port", "1", "--path", "tcp", "--record", str(path)]
    done = subprocess.run([BINARIES / "netacc", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    header = valid(path)
    assert header.status == "unfinished" and "tcp was not measured: " in "".join(header.warnings)
    again = converting.convert(path / "result.json").header
    assert (again.title, again.parameters, again.series) == (header.title, header.parameters, header.series)


def test_netacc_ss_writes_one(tmp_path: Path) -> None:
    """Breaks if samples got lost, the record was not ended, or the end of the process was an error."""
    script = "import socket; s = socket.create_server(('', 0)); print(1, flush=True); input()"
    sleeper: list[str | Path] = [BINARIES / "netacc_run", sys.executable, "-c", script]
    with subprocess.Popen(sleeper, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin and process.stdout and process.stdout.readline()
        pid, every = str(process.pid), ["--every", "20ms"]
        program("netacc_ss", "-p", pid, "-s", "all", "--record", f"{tmp_path}/some", *every, "--for", "100ms")
        endless: list[str | Path] = [BINARIES / "netacc_ss", pid, *every, "--record"]
        with subprocess.Popen([*endless, tmp_path / "until"], stderr=subprocess.PIPE) as recorder:
            assert recorder.stderr and b"recording process" in recorder.stderr.readline()
            # It has its name from the first sample on.
            assert json.loads((tmp_path / "until" / HEADER).read_text())["status"] == "unfinished"
            recorder.send_signal(signal.SIGINT)
            assert recorder.wait() == 0
        with subprocess.Popen([*endless, tmp_path / "ended"], stderr=subprocess.PIPE) as recorder:
            assert recorder.stderr and b"recording process" in recorder.stderr.readline()
            process.communicate(b"\n")
            assert recorder.wait() == 0
    some, until, ended = (valid(tmp_path / name) for name in ("some", "until", "ended"))
    assert [table.name for table in some.tables] == [
        "counters",
        "reasons",
        "memory",
        "queue-pairs",
        "sockets",
        "udp-sockets",
    ]
    assert some.tables[0].rows == 6 and some.configuration["NACC_BACKEND"]
    times = analysis.timeline(analysis.load(tmp_path / "some"))["at_ns"]
    assert times == sorted(times) and times[0] == 0
    assert (some.status, until.status, ended.status) == ("complete",) * 3
    assert "the process ended" in ended.warnings and not until.warnings
    assert report([str(tmp_path / "some")]) == 0


def test_the_kit_and_calibrations_and_simulations_write_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Breaks if a tool forgot its record, or the report of a folder left one out."""
    measured = {"step": "latency", "placement": "none", "date": "2026-01-01T00:00:00Z", "emulated": False}
    kit = KitRecord(measured, failures={"redis": "no server"})
    kit.latencies("stack", [(20_000, 90)])
    kit.write(tmp_path / "all/kit")
    run = simulated(tmp_path)
    runner.record(run, ["netacc-simulator"])
    run.rename(tmp_path / "all/run")
    kept = tmp_path / "all/calibration"
    kept.mkdir()
    old = bench(tmp_path)
    whole = json.loads(old.read_text())
    echo = {"clients": 1, "size": 64, "paths": whole["paths"]}
    (kept / "measurements.json").write_text(
        json.dumps(
            {
                "format": 1,
                "paths": ["tcp", "shm"],
                "echoes": [echo, echo | {"spin": True}],
                "machine": whole["machine"],
            }
        )
    )
    folder.write_into(kept, converting.convert(kept / "measurements.json"))
    kinds = {name: valid(tmp_path / "all" / name).kind for name in ("kit", "run", "calibration")}
    assert kinds == {"kit": Kind.KIT, "run": Kind.SIM, "calibration": Kind.CALIBRATE}
    assert "redis: no server" in folder.read_header(tmp_path / "all/kit").warnings
    for name in ("shm, 1 x 64 B", "shm, 1 x 64 B, polling"):
        assert len(analysis.load(kept)[name].histograms()) == 3
    assert report([str(tmp_path / "all")]) == 0
    printed = capsys.readouterr().out
    assert all(title in printed for title in ("kit for two machines", "netacc sim small", "netacc calibrate"))
    assert calibrate(["--from", str(tmp_path / "nothing")]) == 1


def test_only_the_same_is_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Breaks if half round trips were compared with whole ones, or a setting that differs was not named."""
    for name, changes in (
        ("one", {"configuration": {"NACC_POLL_MS": 1}}),
        ("two", {"configuration": {"NACC_POLL_MS": 2}}),
        ("lat", {"kind": "lat"}),
    ):
        folder.write(tmp_path / name, contents())
        _changed(**changes)(tmp_path / name)
    assert report([str(tmp_path / "one"), str(tmp_path / "two")]) == 0
    assert "NACC_POLL_MS differs: 1, 2" in capsys.readouterr().err
    assert report([str(tmp_path / "one"), str(tmp_path / "lat")]) == 2
    assert "cannot be compared" in capsys.readouterr().err
