"""Records are read, their tails have honest intervals, and comparisons find what differs and nothing else."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hdrh.histogram import HdrHistogram
from netacc_lab import analysis
from netacc_lab.analysis import RecordError, Run, Series
from netacc_lab.analysis.__main__ import main

RESULTS = Path(__file__).parents[2] / "results"
MACHINE = {"cpu": "EPYC", "cores": 2, "kernel": "6.1", "date": "2026-11-26T00:00:00Z", "busy_processors": 0.0}


def histogram(values: Iterable[float]) -> HdrHistogram:
    found = HdrHistogram(1, 3_600_000_000_000, 3)
    for value in values:
        found.record_value(round(value))
    return found


def series(*runs: Iterable[float], rates: Iterable[float] = (), paired: bool = False) -> Series:
    """A run for each list of latencies, or for each rate."""
    found = [Run(None, histogram(values)) for values in runs] or [Run(rate, None) for rate in rates]
    return Series("one", tuple(found), record="test", paired=paired)


def bench(folder: Path, name: str = "bench", **changes: Any) -> Path:  # noqa: ANN401 (any JSON)
    """A result of `netacc bench echo --histogram`: three rounds of two paths, shm twice as fast."""

    def path(factor: int) -> dict[str, Any]:
        runs = [
            {
                "round": number,
                "requests_per_s": 1000 * factor * number,
                "latency_us": {"p50": 20 / factor, "p99": 90 / factor},
                "histogram_ns": [[20_000 // factor, 9000], [90_000 // factor, 1000]],
            }
            for number in (1, 2, 3)
        ]
        return {"runs": runs, "link_share": None if factor == 1 else 0.99}

    whole = {
        "bench": "echo",
        "params": {"size": 64},
        "machine": MACHINE,
        "paths": {"tcp": path(1), "shm": path(2)},
        "warnings": [],
    }
    file = folder / f"{name}.json"
    file.write_text(json.dumps(whole | changes))
    return file


def simulated(folder: Path, group: str = "set") -> Path:
    folder = folder / "run"
    folder.mkdir()
    encoded = histogram([1000, 2000]).encode()
    (folder / "latency-set.hdr").write_bytes(base64.b64decode(encoded))
    meta = {
        "scenario": {"name": "small", "seed": 7},
        "status": "unfinished",
        "groups": [{"name": group, "answered_per_s": 12.0, "link_share": 1.0}],
    }
    (folder / "meta.json").write_text(json.dumps(meta))
    return folder


def test_every_kind_of_record_is_read(tmp_path: Path) -> None:
    """Breaks if what a tool writes could not be looked at."""
    for file in sorted(RESULTS.glob("*.json")):
        if "bench" in json.loads(file.read_text()):
            record = analysis.load(file)
            counts = {len(series.runs) for series in record}
            names = {name.split(": ")[-1] for name in record.series}
            kernel = "udp" if file.stem.startswith("datagrams") else "tcp"
            assert record.kind == "bench" and len(counts) == 1 and {kernel, "shm"} <= names
    # The records are made again from time to time: what is right is what the file says.
    file = RESULTS / "datagrams.json"
    datagrams = analysis.load(file)["64 B: shm"]
    rounds = json.loads(file.read_text())["sizes"][0]["library"]["rounds"]
    assert datagrams.link_share == pytest.approx(sum(each["on_link"] for each in rounds) / len(rounds))
    for found, written in zip(datagrams.runs, rounds, strict=True):
        assert found.percentile(99) == pytest.approx(1000 * written["round_trip_us"]["p99"])
        assert found.figures["lost"] == written["lost"] and found.rate_per_s == written["packets_per_s"]
    kit = analysis.load(RESULTS / "rxe/polled")
    assert (kit.kind, kit.simulated) == ("kit", False) and "emulation" in kit.warnings[0]
    group = json.loads((RESULTS / "rxe/polled/meta.json").read_text())["groups"][0]
    assert group["name"] == "send"
    assert kit["send"].runs[0].percentile(50) == pytest.approx(group["p50_ns"], rel=1e-3)
    run = analysis.load(simulated(tmp_path))
    assert (run.kind, run.simulated, run.warnings) == ("sim", True, ("the run is unfinished",))
    assert run["set"].runs[0].rate_per_s == 12 and run["set"].runs[0].percentile(99) == 2000
    lat = tmp_path / "lat.json"
    paths = [
        {"path": "tcp", "latency_ns": {"count": 9, "min": 1, "p50": 5000, "p999": 9000, "max": 9001}},
        {"path": "verbs", "error": "no device"},
    ]
    lat.write_text(json.dumps({"version": 1, "count": 9, "sizes": [{"size": 8, "paths": paths}] * 1}))
    measured = analysis.load(lat)
    assert list(measured.series) == ["tcp"]
    assert [tail.value for tail in analysis.percentiles(measured["tcp"])] == [5000, None, None, 9000]


def test_a_busy_machine_is_named(tmp_path: Path) -> None:
    quiet = analysis.load(bench(tmp_path)).warnings
    busy = analysis.load(bench(tmp_path, machine=MACHINE | {"busy_processors": 0.7})).warnings
    assert not any("busy" in each for each in quiet)
    assert "other work kept 0.7 of 2 processors busy" in busy


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{", "no JSON, or cut short"),
        ("[]", "JSON, but no record"),
        ("{}", "neither a record nor a result"),
        ('{"bench": "echo", "paths": {}}', "not as its tool writes it: KeyError 'machine'"),
        ('{"version": 9, "paths": [], "count": 1, "size": 8}', "version 9"),
    ],
)
def test_bad_files_cost_one_line(tmp_path: Path, text: str, error: str) -> None:
    file = tmp_path / "bad.json"
    file.write_text(text)
    with pytest.raises(RecordError, match=error) as caught:
        analysis.load(file)
    assert str(file) in str(caught.value) and "\n" not in str(caught.value)


def test_bad_folders_cost_one_line(tmp_path: Path) -> None:
    """Breaks if a histogram that was cut short raised anything else, or a name led out of the folder."""
    with pytest.raises(RecordError, match="there is no such record"):
        analysis.load(tmp_path / "nothing")
    folder = simulated(tmp_path)
    file = folder / "latency-set.hdr"
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(RecordError, match="no histogram, or cut short"):
        analysis.load(folder)
    file.unlink()
    with pytest.raises(RecordError, match="No such file"):
        analysis.load(folder)
    shutil.rmtree(folder)
    with pytest.raises(RecordError, match="a file is named"):
        analysis.load(simulated(tmp_path, group="x/../../set"))
    file = bench(tmp_path)
    file.write_text(file.read_text().replace("[20000, 9000]", "[20000, -9]"))
    with pytest.raises(RecordError, match="-9 latencies"):
        analysis.load(file)


def test_an_unknown_series_is_named(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match=r"no series 'rdma'; there are tcp, shm"):
        analysis.load(bench(tmp_path))["rdma"]


def test_intervals_of_one_run_cover_the_percentile() -> None:
    """Breaks if the interval were another one than of order statistics: too narrow, or moved."""
    random = np.random.default_rng(5)
    covered = 0
    for _ in range(300):
        (tail,) = analysis.percentiles(series(random.exponential(1e6, 2000)), at=[90.0])
        assert tail.method == "ranks" and tail.low is not None and tail.high is not None
        covered += tail.low <= -np.log(0.1) * 1e6 <= tail.high
    # 285 are expected, with a deviation of 3.8.
    assert 270 <= covered <= 297


@pytest.mark.parametrize("paired", [True, False])
def test_intervals_of_ratios_cover_the_ratio(*, paired: bool) -> None:
    """Breaks if equal series were said to differ more often than one time in twenty."""
    random = np.random.default_rng(6)
    covered = 0
    for _ in range(300):
        drift = random.lognormal(0, 0.5, 5) if paired else np.ones(5)
        of = [series(rates=1000 * drift * random.lognormal(0, 0.1, 5), paired=paired) for _ in range(2)]
        ratio = analysis.compare(*of).rate
        assert ratio is not None and ratio.method == ("pairs" if paired else "welch")
        covered += not ratio.differs
    assert 270 <= covered <= 299


def test_pairs_find_what_a_drift_hides() -> None:
    """Breaks if runs of one round were compared as if they were independent."""
    drift = np.array([1.0, 2.0, 4.0, 8.0])
    first, second = 1000 * drift, 1100 * drift * [1.01, 0.99, 1.01, 0.99]
    paired = analysis.compare(series(rates=first, paired=True), series(rates=second, paired=True)).rate
    apart = analysis.compare(series(rates=first), series(rates=second)).rate
    assert paired is not None and apart is not None
    assert paired.value == pytest.approx(apart.value) == pytest.approx(1.1, rel=0.01)
    assert (paired.differs, apart.differs) == (True, False)


def test_distributions_are_compared() -> None:
    near, far = series([1000] * 75 + [2000] * 25), series([1000] * 50 + [2000] * 50)
    found = analysis.compare(near, far)
    assert found.largest_gap == pytest.approx(0.25)
    assert found.moved_ns == pytest.approx(250, rel=0.01)
    same = analysis.compare(near, near)
    assert (same.largest_gap, same.moved_ns) == (0, 0)


def test_the_share_that_takes_longer_has_a_band() -> None:
    values, share, low, high = analysis.ccdf(series([1000] * 900 + [5000] * 90 + [9000] * 10))
    assert values == pytest.approx([1000, 5000, 9000], rel=1e-3)
    assert share == pytest.approx([0.1, 0.01, 0.0])
    assert (low <= share).all() and (share <= high).all()
    # Clopper and Pearson for 10 of 1,000; for none of 1,000.
    assert (low[1], high[1]) == pytest.approx((0.0048, 0.0183), abs=1e-4)
    assert high[2] == pytest.approx(0.0037, abs=1e-4)
    with pytest.raises(ValueError, match="only percentiles"):
        analysis.ccdf(series(rates=[1.0]))


def test_a_stall_counts_as_often_as_it_was_met() -> None:
    """Breaks if coordinated omission were not corrected: one stall of a second, in place of 100 requests."""
    measured = histogram([1_000_000] * 1000 + [1_000_000_000])
    corrected = analysis.corrected(measured, 10_000_000)
    # 10, 20, ... ms besides the second, which the histogram has rounded up a little.
    assert corrected.get_total_count() == 1001 + 99
    assert corrected.get_min_value() == measured.get_min_value()
    assert (
        measured.get_value_at_percentile(95) < 2_000_000 < 300_000_000 < corrected.get_value_at_percentile(95)
    )
    # A stall shorter than twice the interval has kept nothing from being sent.
    assert analysis.corrected(histogram([19_000_000]), 10_000_000).get_total_count() == 1
    for interval in (0, -5, 9):
        with pytest.raises(ValueError, match=f"interval of {interval}"):
            analysis.corrected(measured, interval)


def test_only_what_is_alike_is_compared(tmp_path: Path) -> None:
    one = analysis.load(bench(tmp_path))
    assert analysis.differences(one, one) == []
    larger = analysis.load(bench(tmp_path, "larger", params={"size": 128}))
    assert analysis.differences(one, larger) == ["size differs: 64, 128"]
    stream = analysis.load(bench(tmp_path, "stream", bench="stream"))
    with pytest.raises(ValueError, match="cannot be compared"):
        analysis.differences(one, stream)
    run = analysis.load(simulated(tmp_path))
    assert analysis.differences(one, run) == ["one is a measurement and one a simulation"]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Breaks if a table lost a figure, or an exit code its meaning."""
    file, plot = bench(tmp_path), tmp_path / "tails.svg"
    assert main([str(file), "--plot", str(plot)]) == 0
    printed = capsys.readouterr().out
    assert "bench: shm / bench: tcp" in printed and "2.00 [2.00 to 2.00]*" in printed and "99.0%" in printed
    assert plot.read_text().startswith("<?xml")
    assert main([str(file), str(bench(tmp_path, "again")), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["rate"]["value"] for each in found["comparisons"]] == [1.0, 1.0]
    assert found["records"][0]["series"][1]["percentiles_ns"][0]["value"] == pytest.approx(10_000, rel=1e-3)
    assert main([str(file), str(bench(tmp_path, "stream", bench="stream"))]) == 2
    assert main([str(tmp_path / "nothing")]) == 2
    assert main([str(file), str(simulated(tmp_path))]) == 1
    errors = capsys.readouterr().err
    assert "cannot be compared" in errors and "no such record" in errors and "no series in common" in errors
