"""PgBouncer, whose new process takes the sockets of the old one over while pgbench runs."""

from __future__ import annotations

import re
import time
from pathlib import Path

from tests.apps.lib import counters
from tests.apps.lib.lab import Lab
from tests.apps.lib.modes import Mode
from tests.apps.lib.net import free_port, wait_listening
from tests.apps.test_postgresql import Database, database, tools

__all__ = ["database"]

CLIENTS = 2
TRANSACTIONS = 30_000  # of each client: some seconds, also where all of them go by links

CONFIG = """
[databases]
* = host=127.0.0.1 port={database}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir = {folder}
auth_type = trust
auth_file = {folder}/users
admin_users = postgres
pool_mode = transaction
pidfile = {folder}/pgbouncer.pid
"""


def test_takeover(mode: Mode, database: Database, lab: Lab) -> None:
    """No transaction fails. Clients' and servers' connections are on links in the new process."""
    folder = lab.shared_folder("bouncer", database.user) if database.user else lab.folder / "bouncer"
    folder.mkdir(exist_ok=True)
    port = free_port()
    config = folder / "pgbouncer.ini"
    config.write_text(CONFIG.format(database=database.port, port=port, folder=folder))
    (folder / "users").write_text('"postgres" ""\n')
    argv = ["pgbouncer", "-q", str(config)]
    old = lab.start("pgbouncer", argv, accelerated=mode.server, user=database.user, folder=folder)
    wait_listening(port, old)
    bench = lab.start(
        "pgbench",
        [
            *(str(tools() / "pgbench"), "-h", "127.0.0.1", "-p", str(port), "-U", "postgres", "-n", "-S"),
            *("-c", str(CLIENTS), "-t", str(TRANSACTIONS), "-P", "1"),
        ],
        accelerated=mode.client,
        user=database.user,
    )
    await_progress(bench.stderr_path)
    argv.insert(1, "-R")
    new = lab.start("pgbouncer", argv, accelerated=mode.server, user=database.user, folder=folder)
    old.finish()
    printed = bench.finish(100)
    match = re.search(r"actually processed: (\d+)/(\d+)", printed)
    assert match and match[1] == match[2] == str(CLIENTS * TRANSACTIONS), printed
    if mode.server:
        seen = counters.totals(new)
        # Bytes from before the new process held the sockets alone are not on its links.
        if mode is Mode.SHM:
            lab.expect_link(seen, who="the new process", payload_bytes=100_000, share=0.5)
            assert seen.streams_promoted >= 2 * CLIENTS, seen.describe()


def await_progress(path: Path) -> None:
    """Until pgbench has reported that transactions are made."""
    deadline = time.monotonic() + 20
    while "progress:" not in path.read_text():
        assert time.monotonic() < deadline, "pgbench reports no progress"
        time.sleep(0.01)
