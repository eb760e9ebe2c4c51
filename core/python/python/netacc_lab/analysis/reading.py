"""Reads records, and results that tools wrote before there were records: those are converted in memory.

Bad input costs one RecordError, whose text is one line.
"""

from __future__ import annotations

from pathlib import Path

from netacc_lab.analysis.record import Record, Run, Series
from netacc_lab.records import Contents, RecordError, converting, folder
from netacc_lab.records.model import HEADER, Header, Kind


def load(path: str | Path) -> Record:
    """The record in a folder, or the result of a tool in a file or folder.

    Raises RecordError if there is none, or it is cut short, or of a version that this one does not know.
    """
    path = Path(path)
    return of(folder.read(path) if folder.is_record(path) else converting.convert(path), path)


def below(path: Path) -> list[Path]:
    """The folders of records and of older runs below a folder, in the order of their names."""
    files = (file for name in (HEADER, "meta.json") for file in path.rglob(name))
    return sorted({file.parent for file in files if not file.parent.name.startswith(".")})


def _label(header: Header, path: Path) -> str:
    """In legends."""
    if header.kind == Kind.SIM:
        return header.title.removeprefix("netacc sim ")
    if header.kind == Kind.KIT:
        return f"{header.parameters.get('placement')}, {header.parameters.get('step')}"
    return path.stem


def of(contents: Contents, path: Path) -> Record:
    """A record that is in memory. Raises RecordError for a percentile that is no number."""
    header = contents.header
    label = _label(header, path)
    series = {}
    for each in header.series:
        runs = []
        for run in each.runs:
            parts = {what: contents.histograms[name] for what, name in run.histograms.items()}
            try:
                summary = {float(percent): value for percent, value in run.percentiles_ns.items()}
            except ValueError as error:
                raise RecordError(f"{path}: {each.name}: a percentile is no number: {error}") from None
            latency = parts.pop("latency", None)
            runs.append(Run(run.rate_per_s, latency, summary, parts, run.figures))
        series[each.name] = Series(each.name, tuple(runs), each.link_share, label, header.paired, each.of)
    names = [f"{machine.cores} cores of {machine.cpu}, Linux {machine.kernel}" for machine in header.machines]
    return Record(
        path,
        str(header.kind),
        header.title,
        series,
        "simulated" if header.simulated else "; ".join(dict.fromkeys(names)),
        header.began,
        header.simulated,
        tuple(header.warnings),
        header.parameters,
        contents,
    )
