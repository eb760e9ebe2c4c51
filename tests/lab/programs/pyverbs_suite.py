"""rdma-core's own tests of verbs on an iWARP device whose function has no network interface of its own.

`pyverbs_suite.py FOLDER DEVICE INTERFACE`: FOLDER has the package `tests` of rdma-core. Unchanged, the suite
finds no port there: it ignores a GID that ends with zeros, and looks for the address in the device's folder
of sysfs. And it uses at most half of the entries of a receive, of which eRDMA has one.
"""

from __future__ import annotations

import importlib
import random
import sys
import unittest
from typing import Protocol

folder, device, interface = sys.argv[1:]
sys.path[:0] = [folder, f"{folder}/tests"]
sys.argv[1:] = ["-v", "--dev", device, "--gid", "0"]
suite, base, utils, qp = map(importlib.import_module, ("tests", "tests.base", "tests.utils", "pyverbs.qp"))


class Case(Protocol):
    """A case of the suite. `args`: the ports to choose from, and their addresses."""

    args: list[list[object]]

    def get_ip_mac_address(self, interface: str) -> tuple[str, str]: ...


class Attributes(Protocol):
    """Those of a device."""

    max_qp_wr: int


def add_port(case: Case, device: str, port: int, gid: int) -> None:
    """The port, with the address of the interface that belongs to it."""
    case.args.append([device, port, gid, *case.get_ip_mac_address(interface)])


def limits(attributes: Attributes) -> object:
    """Some that the device has."""
    send, receive = (random.randint(1, attributes.max_qp_wr // 8) for _ in range(2))
    return qp.QPCap(send, receive, 1, 1)


importlib.import_module("args_parser").parser.parse_args()
base.RDMATestCase._get_ip_mac = add_port
vars(utils)["random_qp_cap"] = limits
unittest.main(module=suite)
