"""PostgreSQL with pgbench and psql: a process forked for every connection.

The connection is accepted in one process and used in another, and ends up on a link there.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.apps.lib import counters
from tests.apps.lib.counters import Counters
from tests.apps.lib.data import blob, sha256
from tests.apps.lib.lab import Lab
from tests.apps.lib.modes import Mode
from tests.apps.lib.net import free_port, wait_listening
from tests.apps.lib.process import Process
from tests.apps.lib.results import Results

CLIENTS = 4
TRANSACTIONS = 300  # of each client
ROWS = 20_000


def tools() -> Path:
    """The newest installed version's programs, which Debian keeps out of PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    return found[-1].parent if found else Path(str(shutil.which("initdb"))).parent


@dataclass(frozen=True)
class Database:
    """A running server."""

    lab: Lab
    server: Process
    port: int
    user: str | None

    def arguments(self) -> list[str]:
        return ["-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres"]

    def psql(self, *words: str, accelerated: bool = False) -> str:
        argv = [str(tools() / "psql"), *self.arguments(), "-X", "-A", "-t", "-v", "ON_ERROR_STOP=1", *words]
        return self.lab.run("psql", argv, accelerated=accelerated, user=self.user)


@pytest.fixture
def database(lab: Lab, mode: Mode) -> Database:
    """A server on a new cluster, prepared for pgbench. initdb and the server refuse to be root."""
    user = "postgres" if os.geteuid() == 0 else None
    if user:
        folder = lab.shared_folder("cluster", user)
    else:
        folder = lab.folder / "cluster"
        folder.mkdir()
    data = folder / "data"
    lab.run(
        "initdb",
        [
            *(str(tools() / "initdb"), "-D", str(data), "-U", "postgres", "--auth=trust", "--no-sync"),
            *("--encoding=UTF8", "--locale=C"),
        ],
        user=user,
    )
    port = free_port()
    settings = {
        "port": port,
        "listen_addresses": "127.0.0.1",
        "unix_socket_directories": folder,
        "fsync": "off",
        "max_connections": 20,
    }
    server = lab.start(
        "postgres",
        [tools() / "postgres", "-D", data, *(f"--{key}={value}" for key, value in settings.items())],
        accelerated=mode.server,
        user=user,
        folder=folder,
    )
    wait_listening(port, server)
    base = Database(lab, server, port, user)
    deadline = time.monotonic() + 20
    while ready := lab.start("pg_isready", [tools() / "pg_isready", *base.arguments()]).wait():
        assert time.monotonic() < deadline, f"pg_isready still says {ready}"
    lab.run("pgbench-init", [tools() / "pgbench", *base.arguments(), "-i", "-q"], user=user)
    return base


def test_pgbench(mode: Mode, database: Database, lab: Lab, results: Results) -> None:
    client = lab.start(
        "pgbench",
        [
            *(str(tools() / "pgbench"), *database.arguments(), "--no-vacuum"),
            *("-c", str(CLIENTS), "-j", "2", "-t", str(TRANSACTIONS)),
        ],
        accelerated=mode.client,
        user=database.user,
    )
    seen = Counters()
    if mode is Mode.SERVER_ONLY:
        # The backends end with their clients, so they are watched while they run.
        seen = counters.last_of(database.server, until=client)
    elif mode.client:
        seen = counters.last_of(client)
    printed = client.finish()
    match = re.search(r"actually processed: (\d+)/(\d+)", printed)
    assert match and match[1] == match[2] == str(CLIENTS * TRANSACTIONS), printed
    assert "number of failed transactions: 0" in printed
    # Every transaction adds the same amount to three tables and records it in a fourth.
    columns = {"abalance": "accounts", "bbalance": "branches", "tbalance": "tellers", "delta": "history"}
    queries = [f"SELECT sum({column}) FROM pgbench_{table}" for column, table in columns.items()]
    queries.append("SELECT count(*) FROM pgbench_history")
    *sums, count = database.psql(*(word for query in queries for word in ("-c", query))).split()
    assert len(sums) == 4 and len(set(sums)) == 1, sums
    assert count == str(CLIENTS * TRANSACTIONS)
    if mode.one_sided:
        lab.expect_tcp(seen, who="pgbench" if mode.client else "postgres")
    elif mode is Mode.SHM:
        lab.expect_link(seen, who="pgbench", payload_bytes=1, share=0.9)
    results.add("postgresql pgbench", mode, seen, requests=CLIENTS * TRANSACTIONS)


def test_copy(mode: Mode, database: Database, lab: Lab) -> None:
    """Megabytes in and out again, as one stream each way."""
    rows = [f"{n}\t{blob(100, n).hex()}" for n in range(ROWS)]
    text = "\n".join(rows) + "\n"
    source = lab.folder / "rows"
    source.write_text(text)
    database.psql("-c", "CREATE TABLE copied (number int PRIMARY KEY, value text)")
    database.psql("-c", f"\\copy copied FROM '{source}'", accelerated=mode.client)
    query = "COPY (SELECT * FROM copied ORDER BY number) TO STDOUT"
    copied = database.psql("-c", query, accelerated=mode.client)
    assert sha256(copied.encode()) == sha256(text.encode())
