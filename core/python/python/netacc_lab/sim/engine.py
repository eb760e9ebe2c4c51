"""Engines make many runs: an existing scheduler behind a small interface.

Each run is a process of the simulator, so an engine only has to start a few of them at a time. The
scheduler keeps no results: finished runs are in the store, and a second attempt finds them there.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Protocol, Self

from netacc_lab.sim.runner import Done, Progress, Task, make


class Engine(Protocol):
    """Makes runs, a few at a time, in any order."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def run(self, tasks: Iterable[Task]) -> Iterator[Done]:
        """The outcome of each run, as it ends."""


class SerialEngine:
    """One after another in this process: for tests, and for watching one run."""

    def __init__(self, progress: Progress | None = None) -> None:
        self._progress = progress

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Does nothing: no process is open."""

    def run(self, tasks: Iterable[Task]) -> Iterator[Done]:
        for task in tasks:
            yield make(task, self._progress)


class EngineError(Exception):
    """An engine cannot be had: nothing was run."""


#: Seconds that a cluster's scheduler has to answer. Arbitrary: long for a network, short for a user.
CONNECT_TIMEOUT_S = 10


class DaskEngine:
    """Dask: a scheduler in this process, or a cluster by its address (`tcp://...`).

    Workers of a cluster have this package and the same simulator program, and write runs where they are read:
    both under the same paths as here.
    """

    def __init__(self, *, jobs: int | None = None, address: str | None = None) -> None:
        self._jobs = jobs or os.cpu_count() or 1
        self._address = address

    def __enter__(self) -> Self:
        # Costs most of a second, which a single run need not wait for.
        from distributed import Client, LocalCluster

        if self._address:
            self._cluster = None
            try:
                self._client = Client(self._address, timeout=CONNECT_TIMEOUT_S)
            except (OSError, TimeoutError, ValueError) as error:
                raise EngineError(f"no Dask scheduler at {self._address}: {error}") from error
            return self
        # Threads are enough: each waits for a process. Only this process itself can connect.
        self._cluster = LocalCluster(
            n_workers=1,
            threads_per_worker=self._jobs,
            processes=False,
            dashboard_address=None,
            # Without it the scheduler wants port 8787 all the same, and warns if another process has that.
            scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},
            memory_limit=0,
        )
        self._client = Client(self._cluster)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._client.close()
        if self._cluster:
            self._cluster.close()

    def run(self, tasks: Iterable[Task]) -> Iterator[Done]:
        from distributed import as_completed

        futures = [self._client.submit(make, task, key=task.key, retries=1, pure=False) for task in tasks]
        for future in as_completed(futures):
            yield future.result()
