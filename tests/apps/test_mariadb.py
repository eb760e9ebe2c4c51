"""MariaDB with mariadb-slap and its command-line client: a thread for each connection, a ring for files.

The configuration is the default. InnoDB makes its ring with liburing before it accepts connections.
No connection is ever put into it, so connections are on links.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.apps.lib.counters import Counters
from tests.apps.lib.data import blob
from tests.apps.lib.lab import Lab
from tests.apps.lib.modes import Mode
from tests.apps.lib.net import free_port, wait_listening
from tests.apps.lib.process import Process
from tests.apps.lib.results import Results

CLIENTS = 16
QUERIES = 3200  # of all clients
ROWS = 20_000
SERVER = "/usr/sbin/mariadbd"
CLIENT_OPTIONS = ("--no-defaults", "--protocol=tcp", "--host=127.0.0.1", "--user=root")


#: `io_uring_setup`, the same on all machines, and the length of its parameters.
IO_URING_SETUP = 425
IO_URING_PARAMS_BYTES = 120


def permits_rings() -> bool:
    """Can a process make an io_uring here?"""
    parameters = ctypes.create_string_buffer(IO_URING_PARAMS_BYTES)
    ring = int(ctypes.CDLL(None).syscall(IO_URING_SETUP, 1, parameters))
    if ring >= 0:
        os.close(ring)
    return ring >= 0


@dataclass(frozen=True)
class Database:
    """A running server."""

    lab: Lab
    server: Process
    port: int

    def sql(self, text: str, *, accelerated: bool = False) -> str:
        """Executes statements; the rows that came back."""
        output = ("--skip-column-names", "--batch", f"--execute={text}")
        words = ["mariadb", *CLIENT_OPTIONS, f"--port={self.port}", *output]
        return self.lab.run("mariadb", words, accelerated=accelerated)


#: The server and its installer refuse to be root without these options.
AS_ROOT = ("--user=root",) if os.geteuid() == 0 else ()


@pytest.fixture(scope="module")
def installed(public_tmp: Path) -> Path:
    """A data directory as it is installed, to be copied."""
    data = public_tmp / "mariadb"
    install = ("--no-defaults", f"--datadir={data}", "--auth-root-authentication-method=normal")
    subprocess.run(["mariadb-install-db", *install, *AS_ROOT], check=True, capture_output=True, timeout=100)
    return data


@pytest.fixture
def database(
    lab: Lab, mode: Mode, need_condition: Callable[[str, bool], None], request: pytest.FixtureRequest
) -> Database:
    """A server with a new data directory and nothing configured but where it is."""
    need_condition("io_uring", permits_rings())
    data = lab.folder / "data"
    shutil.copytree(request.getfixturevalue("installed"), data)
    port = free_port()
    settings = {
        "datadir": data,
        "port": port,
        "bind-address": "127.0.0.1",
        "socket": lab.folder / "socket",
        "pid-file": lab.folder / "pid",
    }
    server = lab.start(
        "mariadbd",
        [SERVER, "--no-defaults", *(f"--{key}={value}" for key, value in settings.items()), *AS_ROOT],
        accelerated=mode.server,
    )
    wait_listening(port, server)
    return Database(lab, server, port)


def has_ring(process: Process) -> bool:
    descriptors = Path(f"/proc/{process.pid}/fd").iterdir()
    return any("io_uring" in str(entry.readlink()) for entry in descriptors)


def test_slap(mode: Mode, database: Database, lab: Lab, results: Results) -> None:
    """Clients that read and write tables at the same time."""
    assert has_ring(database.server), "InnoDB has no io_uring, so this would prove nothing"
    words = (
        *(*CLIENT_OPTIONS, f"--port={database.port}", "--auto-generate-sql", "--engine=innodb"),
        *("--auto-generate-sql-load-type=mixed", "--auto-generate-sql-write-number=100", "--no-drop"),
        *(f"--concurrency={CLIENTS}", f"--number-of-queries={QUERIES}", "--csv"),
    )
    began = time.perf_counter()
    load = lab.load("mariadb-slap", ["mariadb-slap", *words], mode)
    # The load's last columns are its clients and the queries of each.
    assert load.printed.strip().endswith(f",{CLIENTS},{QUERIES // CLIENTS}"), load.printed
    seen = Counters()
    if mode is not Mode.TCP:
        seen = lab.judge(mode, server=database.server, client=load, payload_bytes=1_000_000, share=0.9)
    results.add("mariadb slap", mode, seen, requests=QUERIES, seconds=time.perf_counter() - began)
    # Each write of the load is a row.
    written = int(database.sql("SELECT count(*) FROM mysqlslap.t1"))
    assert written >= 100


def test_rows(mode: Mode, database: Database, lab: Lab) -> None:
    """Megabytes in and out again, as one stream each way; InnoDB writes them by its ring meanwhile."""
    expected = "".join(f"{n}\t{blob(100, n).hex()}\n" for n in range(ROWS))
    source = lab.folder / "rows"
    source.write_text(expected)
    columns = "(number int PRIMARY KEY, value text) ENGINE=InnoDB"
    database.sql(f"CREATE DATABASE copied; CREATE TABLE copied.rows {columns}")
    load = f"LOAD DATA LOCAL INFILE '{source}' INTO TABLE copied.rows"
    database.sql(load, accelerated=mode.client)
    database.sql("SET GLOBAL innodb_max_dirty_pages_pct=0; FLUSH TABLES")
    found = database.sql("SELECT number, value FROM copied.rows ORDER BY number", accelerated=mode.client)
    assert found == expected
