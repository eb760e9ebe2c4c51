"""rdma-core's own tests of verbs, as Debian ships them, on an emulated eRDMA function with its true stack."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

from tests.apps.lib.paths import REPO
from tests.lab.lib import UpLab

#: Of the package python3-pyverbs: Python, partly compressed.
SUITE = Path("/usr/share/doc/rdma-core/tests")
SHIM = str(REPO / "tests/lab/programs/pyverbs_suite.py")
#: A line for each case, with another one between if the case is described.
CASE = re.compile(r"^(test_\w+) \(tests\.(\w+)\.[\w.]+\)(?:\n.*)? \.\.\. (.*)$", re.MULTILINE)

#: In the summary at the end.
FAILED = re.compile(r"^(?:ERROR|FAIL): (test_\w+) \(tests\.(\w+)\.", re.MULTILINE)

BY_HAND = "connects queue pairs without the connection manager, which iWARP cannot"
#: What fails there, and why: none of it is the function's fault.
FAILS = {
    "test_cq.test_create_cq_bad_flow": "expects EINVAL, and the provider makes EIO of every error",
    "test_cq_events.test_cq_events_rc": BY_HAND,
    "test_mr.test_mr_rereg_access": BY_HAND,
    "test_mr.test_mr_rereg_access_bad_flow": BY_HAND,
    "test_mr.test_mr_rereg_addr": BY_HAND,
    "test_mr.test_mr_rereg_pd": BY_HAND,
    "test_relaxed_ordering.test_ro_rc_traffic": BY_HAND,
    "test_rdmacm.test_rdmacm_async_traffic": "expects an acknowledgement time-out among the attributes",
    "test_rdmacm.test_rdmacm_async_traffic_external_qp": BY_HAND,
    "test_rdmacm.test_rdmacm_async_udp_traffic": "needs datagrams",
}
#: What must pass at least. Most others are skipped: for other devices, or for what iWARP does not have.
PASSES = {
    "test_cq.test_create_cq",
    "test_mr.test_reg_mr_bad_flags",
    "test_pd.test_dealloc_pd",
    "test_qp.test_create_rc_qp_no_attr",
    "test_qp.test_query_rc_qp",
    "test_rdmacm.test_rdmacm_async_read",
    "test_rdmacm.test_rdmacm_async_reject_traffic",
    "test_rdmacm.test_rdmacm_async_write",
    "test_rdmacm.test_rdmacm_sync_traffic",
}


def unpack(folder: Path) -> Path:
    """The suite, in a folder that the hosts see as well."""
    tests = folder / "tests"
    tests.mkdir()
    for file in SUITE.iterdir():
        if file.suffix == ".gz":
            (tests / file.stem).write_bytes(gzip.decompress(file.read_bytes()))
        else:
            (tests / file.name).write_bytes(file.read_bytes())
    return tests


@pytest.mark.long
@pytest.mark.timeout(600)
def test_rdma_cores_own_tests(erdma: UpLab, tmp_path: Path) -> None:
    """Breaks if the function refuses what rdma-core takes for granted, or permits what it must not."""
    unpack(tmp_path)
    run = ("timeout", "400", "/usr/bin/python3", SHIM, str(tmp_path), erdma.device, "lab0")
    printed, _ = erdma.start(1, *run, seconds=420).communicate()
    failed = {f"{module}.{name}" for name, module in FAILED.findall(printed)}
    assert failed == FAILS.keys(), printed
    passed = {f"{module}.{name}" for name, module, outcome in CASE.findall(printed) if outcome == "ok"}
    assert passed >= PASSES, printed
