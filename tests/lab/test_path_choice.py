"""Where a link takes longer than TCP to bring answers, connections stay on TCP, until that changes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.apps.lib.counters import parse
from tests.apps.lib.paths import REPO, binaries
from tests.lab.lib import COMMAND_SECONDS, UpLab, line_from, whole_wire

STEADY = str(REPO / "tests/lab/programs/steady.py")
SERVER, PORT, TOLD = "10.99.0.1", "7003", "/tmp/choice"

# Far above what an emulated machine takes for an answer on either path.
SLOW = "50ms"
# IP protocols of what is delayed: RoCE's packets are UDP.
TCP, ROCE = "6", "17"


@contextmanager
def bands(lab: UpLab) -> Iterator[None]:
    """Gives what the second host sends a slow band, in which nothing is yet."""
    qdisc = ("dev", "lab0", "root")
    lab.out(2, "modprobe", "-a", "sch_prio", "sch_netem", "cls_u32")
    # Everything goes into the first band.
    lab.out(2, "tc", "qdisc", "replace", *qdisc, "handle", "1:", "prio", "priomap", *["0"] * 16)
    lab.out(2, "tc", "qdisc", "add", "dev", "lab0", "parent", "1:3", "netem", "delay", SLOW)
    try:
        yield
    finally:
        lab.out(2, "tc", "qdisc", "replace", *qdisc, "netem", *lab.impairment)


def delay(lab: UpLab, protocol: str) -> None:
    """Packets of this protocol alone go into the slow band."""
    of = ("dev", "lab0", "parent", "1:")
    match = ("u32", "match", "ip", "protocol", protocol, "0xff", "flowid", "1:3")
    lab.out(2, "tc", "filter", "del", *of)
    lab.out(2, "tc", "filter", "add", *of, "protocol", "ip", "prio", "1", *match)


def wait_until_asker_is(lab: UpLab, asker: int, condition: str) -> None:
    """Until that holds of the asker's line in `netacc_ss`: FD LOCAL REMOTE STATE PATH QP REASON."""
    script = f'$3 == "{SERVER}:{PORT}" && {condition} {{ found = 1 }} END {{ exit !found }}'
    lab.wait_for(2, f"{binaries()}/netacc_ss -p {asker} -s sock | awk '{script}'")


def test_the_slower_path_is_left(rxe: UpLab) -> None:
    with whole_wire(rxe), bands(rxe):
        rxe.out(2, "rm", "-f", TOLD, f"{TOLD}.stop")
        run = [str(binaries() / "netacc_run"), sys.executable, STEADY]
        server = rxe.start(1, *run, "serve", SERVER, PORT)
        assert line_from(server.stdout).startswith("listening as")

        measured = ("env", "NACC_PATH_CHOICE=measured")
        asker = rxe.start(2, *measured, *run, "ask", SERVER, PORT, TOLD)
        rxe.wait_for(2, f"test -e {TOLD}")
        pid = json.loads(rxe.out(2, "cat", TOLD))["pid"]
        # In emulation it may be slower as it is. Not so slow as to be in the way of its own promotion.
        left = '$5 == "tcp" && $7 == "link-slower"'
        wait_until_asker_is(rxe, pid, f'($5 == "link" || {left})')
        delay(rxe, ROCE)
        wait_until_asker_is(rxe, pid, left)
        counted = parse(rxe.out(2, f"{binaries()}/netacc_ss", "-p", str(pid), "-s", "all", "--json"))
        assert counted.streams_demoted >= 1, "it was on the link"

        # It is the other path that is slow now, which shows when the link is tried again.
        delay(rxe, TCP)
        wait_until_asker_is(rxe, pid, '$5 == "link"')
        rxe.out(2, "touch", f"{TOLD}.stop")
        printed, _ = asker.communicate(timeout=COMMAND_SECONDS)
        assert asker.returncode == 0, printed
