"""Two hosts whose links fail on purpose, and how long a conversation between them stood still."""

from __future__ import annotations

import json
from dataclasses import dataclass

from tests.apps.lib.paths import RESULTS
from tests.lab.conversation import Conversation
from tests.lab.lib import UpLab

# An emulated device that finds its peer silent needs a second by its own rule; a machine that is busy, more.
LONGEST_PAUSE = 30.0
# Where TCP is cut off as well, until the device has noticed: TCP then waits as long again, at most.
LONGEST_CUT = 90.0


@dataclass(frozen=True)
class Hosts:
    """Two hosts with a device, on a link that loses nothing."""

    kind: str
    lab: UpLab

    @property
    def device(self) -> str:
        return self.lab.device

    def take_device(self, host: int = 1) -> None:
        """Takes the device of a host away. The kernel waits for whoever has it open."""
        # The only one of the machine's PCI functions that is of Alibaba Cloud.
        remove = "echo 1 >$(dirname $(grep -l 0x107f /sys/bus/pci/devices/*/device))/remove"
        taking = ("sh", "-c", remove) if self.kind == "erdma" else ("rdma", "link", "delete", self.device)
        self.lab.out(host, "timeout", "20", *taking)

    def bring_device(self, host: int = 1) -> None:
        """Brings it back."""
        if self.kind == "erdma":
            self.lab.out(host, "sh", "-c", "echo 1 >/sys/bus/pci/rescan")
            self.lab.wait_for(host, f"test -e /sys/class/infiniband/{self.device}")
        else:
            self.lab.out(host, "rdma", "link", "add", self.device, "type", self.kind, "netdev", "lab0")

    def report(self, scenario: str, longest: float, bound: float = LONGEST_PAUSE) -> None:
        """Reports the longest standstill, and judges it."""
        told = {"device": self.kind, "scenario": scenario, "longest_s": round(longest, 3), "bound_s": bound}
        RESULTS.mkdir(parents=True, exist_ok=True)
        with (RESULTS / "failover.json").open("a") as file:
            file.write(json.dumps(told) + "\n")
        print(told)
        assert longest < bound, told


def comes_back(conversation: Conversation) -> None:
    """It has left its link, and gets onto another one."""
    # Where the other end is the first to notice, this one is asked to leave the link.
    counters = conversation.counters()
    assert counters.reasons["link-failed"] + counters.reasons["peer-request"] >= 1, counters.describe()
    assert counters.streams_demoted >= 1, counters.describe()
    conversation.wait_for_promotions(counters.streams_demoted + 1)
    conversation.wait_for_progress()
