"""Simulated studies as series, so that they stand beside measurements."""

from __future__ import annotations

from netacc_lab.analysis.record import Run, Series
from netacc_lab.sim.study import Study


def series_of(study: Study) -> list[Series]:
    """A series for each point and group of a study; its runs are those of the seeds."""
    found = []
    for point in study.points:
        for group in point.groups():
            of_group = [next(g for g in run.meta["groups"] if g["name"] == group) for run in point.runs]
            runs = tuple(
                Run(float(of["answered_per_s"]), run.histogram(group))
                for of, run in zip(of_group, point.runs, strict=True)
            )
            share = sum(float(of["link_share"]) for of in of_group) / len(of_group)
            name = group if point.label == "-" else f"{point.label}: {group}"
            found.append(Series(name, runs, share, study.name))
    return found
