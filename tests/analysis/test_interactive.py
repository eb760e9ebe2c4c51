"""Interactive figures: they show the same numbers, and a page of them needs no network."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from netacc_lab import analysis
from netacc_lab.analysis import interactive
from netacc_lab.analysis.__main__ import main as report
from netacc_lab.records import folder

from tests.analysis.test_analysis import bench
from tests.analysis.test_records import contents
from tests.analysis.test_stages import DIRECTION, trace


def test_the_share_that_takes_longer_is_drawn(tmp_path: Path) -> None:
    """Breaks if a value of 0 is drawn on a logarithmic axis, or a band belongs to another series."""
    record = analysis.load(bench(tmp_path))
    figure = interactive.plot_ccdf(record)
    curves = [trace for trace in figure.data if trace.showlegend is not False]
    assert [trace.name for trace in curves] == [each.label for each in record]
    for each, curve in zip(record, curves, strict=True):
        values, share, low, high = analysis.ccdf(each)
        shown = share > 0
        np.testing.assert_array_equal(curve.x, values[shown] / 1000)
        np.testing.assert_array_equal(curve.y, share[shown])
        bands = [trace for trace in figure.data if trace.legendgroup == each.label and trace is not curve]
        np.testing.assert_array_equal(bands[0].y, high[shown])
        np.testing.assert_array_equal(bands[1].y, low[shown])
    assert len(interactive.plot_ccdf(record, bands=False).data) == 2


def test_percentiles_have_their_intervals(tmp_path: Path) -> None:
    record = analysis.load(bench(tmp_path))
    figure = interactive.plot_percentiles(record)
    for each, points in zip(record, figure.data, strict=True):
        tails = [tail for tail in analysis.percentiles(each) if tail.value is not None]
        assert list(points.x) == [f"p{tail.percent:g}" for tail in tails]
        for tail, value, above in zip(tails, points.y, points.error_y.array, strict=True):
            assert value * 1000 == pytest.approx(tail.value)
            assert tail.high is None or value + above == pytest.approx(tail.high / 1000)


def test_stages_and_the_slowest_messages_are_drawn(tmp_path: Path) -> None:
    """Breaks if two rows share a name, or the messages are not the slowest ones."""
    record = trace(tmp_path / "trace")
    bars = {bar.name: bar for bar in interactive.plot_stages(record).data}
    assert list(bars) == ["copy", "wake", "read"]
    assert list(bars["wake"].y) == [DIRECTION, f"{DIRECTION}: its slowest 1%"]
    assert list(bars["wake"].x) == [0.5, 50.0]
    messages = {bar.name: bar for bar in interactive.plot_messages(record, 12).data}
    assert list(messages["wake"].x) == [50.0] * 10 + [0.0] * 2
    assert len(set(messages["wake"].y)) == 12
    assert messages["read"].marker.color == bars["read"].marker.color
    with pytest.raises(KeyError, match="no table 'messages'"):
        interactive.plot_messages(analysis.load(bench(tmp_path)))


def test_rates_over_time_are_drawn(tmp_path: Path) -> None:
    folder.write(tmp_path / "record", contents())
    record = analysis.load(tmp_path / "record")
    figure = interactive.plot_timeline(record)
    axes = analysis.plot_timeline(record)
    assert figure.data
    for line, drawn in zip(axes.get_lines(), figure.data, strict=True):
        assert drawn.name == line.get_label()
        np.testing.assert_array_equal(drawn.x, line.get_xdata())
        np.testing.assert_array_equal(drawn.y, line.get_ydata())


def test_a_page_has_all_figures_and_needs_no_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    assert report([str(trace(tmp_path / "trace").path), "--plot", str(page)]) == 0
    text = page.read_text()
    # The tails, the percentiles, the stages, the slowest messages.
    assert text.count('class="plotly-graph-div"') == 4
    assert "<h1>netacc trace: stages of messages</h1>" in text
    assert "<script src=" not in text
    monkeypatch.setitem(sys.modules, "netacc_lab.analysis.interactive", None)
    monkeypatch.delattr(analysis, "interactive")
    assert report([str(bench(tmp_path)), "--plot", str(page)]) == 2
    assert "pip install netacc-lab[interactive]" in capsys.readouterr().err
