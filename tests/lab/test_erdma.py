"""Labs with emulated eRDMA functions: processors, the process with the functions, what cannot be had."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.apps.lib.paths import binaries
from tests.lab.conversation import begin_on_link
from tests.lab.lib import BOOT_SECONDS, ERDMA, UpLab, attempts, down, fabric, line_from, link, netacc_lab, up
from tests.lab.test_limits import AS_NOBODY, client_command, run_clients, serve
from tests.lab.test_links import links_made
from tests.lab.test_programs import Device, until_on_links
from tests.lab.test_verbs import conformance, judge

# The functions' settings for a loss of 0.5%, a delay of 3 ms and 500 Mbit/s.
WIRE = {"loss": 0.005, "delay_us": 3000, "rate_gbit": 0.5}


def process_with_functions(lab: str) -> int:
    """The process id of a lab's `netacc-erdma`."""
    found = subprocess.run(
        ["pgrep", "-f", f"^[^ ]*netacc-erdma .*/{lab}/"], capture_output=True, text=True, check=True
    )
    return int(found.stdout)


def test_requests_reach_the_functions(erdma: UpLab) -> None:
    """Breaks if a knob that does not exist is taken, or a device that is none is asked."""
    (counters, changed) = fabric(erdma, {"get": "counters"}, {"set": {"stall_transmit": False}})
    assert len(counters["functions"]) == 2
    assert changed == {"ok": True}
    refused = netacc_lab("fabric", "--name", erdma.name, "--request", '{"set":{"colour":"red"}}')
    assert refused.returncode == 125
    assert "netacc-erdma refused" in refused.stderr and "colour" in refused.stderr


def test_the_link_is_changed_for_the_card_and_for_the_functions(erdma: UpLab) -> None:
    """Breaks if what an RDMA connection carries went on as if nothing were lost or delayed."""
    before = fabric(erdma, {"get": "settings"})
    link(erdma, "--loss", "0.5%", "--delay", "3ms", "--rate", "500mbit")
    (settings,) = fabric(erdma, {"get": "settings"})
    reported = json.dumps(settings)
    assert all(f'"{name}": {value}' in reported for name, value in WIRE.items()), reported
    for host in (1, 2):
        assert "delay 3ms" in erdma.out(host, "tc", "qdisc", "show", "dev", "lab0")
    link(erdma)
    assert fabric(erdma, {"get": "settings"}) == before
    assert "netem" not in erdma.out(1, "tc", "qdisc", "show", "dev", "lab0")


def test_one_host_of_several_processors() -> None:
    """An interrupt for each processor's completions, and an Ethernet card with nobody at its other end."""
    script = "nproc; rdma link; grep -c erdma /proc/interrupts; rmmod erdma; rdma link"
    boot = (*ERDMA, "--cpus", "3")
    result = netacc_lab("run", "-q", *boot, "--", "sh", "-c", script)
    assert result.returncode == 0, result.stderr
    processors, link, interrupts, *rest = result.stdout.splitlines()
    assert processors == "3"
    assert link.startswith("link erdma_0/1 state ACTIVE") and "netdev lab0" in link
    assert int(interrupts) == 1 + 4, "one for commands, and one for each processor that there may be"
    assert rest == [], "the driver lets go of the function"


@pytest.mark.long
@pytest.mark.timeout(600)
def test_two_hosts_of_several_processors() -> None:
    """Threads of one program use the device at the same time, and its interrupts go to several processors."""
    name = f"several-{os.getpid()}"
    lab = up(name, "--hosts", "2", *ERDMA, "--cpus", "3")
    try:
        judge(conformance(lab, "10.99.0.1"))
        links, streams = links_made(lab, 4, 2, NACC_SOR_CONN_PER_QP="4")
        assert 1 <= links <= streams
        begin_on_link(lab).end()
    finally:
        lab.end_commands()
        down(name)


@pytest.mark.long
def test_programs_of_an_ordinary_user(erdma: UpLab) -> None:
    """Both ends. The device's file is everybody's; memory is locked as the user's limit allows."""
    device = Device(erdma, "native", loses=False)
    server = serve(device, "7006", *AS_NOBODY)
    asked = (*AS_NOBODY, *device.accelerated(*client_command("7006", 2)))
    counters = until_on_links(device, server, lambda _: run_clients(erdma, *asked))
    assert counters.link_bytes > 0


@pytest.mark.long
def test_the_end_of_the_functions_is_reported() -> None:
    """Breaks if a host whose device does nothing any more passes for one that is only slow."""
    name = f"gone-{os.getpid()}"
    lab = up(name, *ERDMA)
    try:
        os.kill(process_with_functions(name), signal.SIGKILL)
        result = netacc_lab("exec", "--name", name, "1", "echo", "alive")
        assert (result.returncode, result.stdout) == (0, "alive\n"), "the host itself goes on"
        for reported in (result.stderr, netacc_lab("status").stdout):
            assert "netacc-erdma: it has ended" in reported
        refused = netacc_lab("fabric", "--name", name, "--request", '{"get":"counters"}')
        assert refused.returncode == 125 and "it has ended" in refused.stderr
    finally:
        assert down(lab.name).returncode == 0


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_conversation_outlives_the_functions() -> None:
    """Breaks if a block is lost or differs once no work completes, and no event comes, on either host."""
    name = f"killed-{os.getpid()}"
    lab = up(name, "--hosts", "2", *ERDMA)
    try:
        for _ in attempts():
            conversation = begin_on_link(lab)
            os.kill(process_with_functions(name), signal.SIGKILL)
            if lab.answers():
                break
            # QEMU 11.1.3 aborts if the process ends while a request to it is under way.
            lab.boot_again()
        conversation.wait_for_progress(200)
        # The driver may still wait for answers to commands.
        assert conversation.counters().streams_promoted == 1
        assert conversation.client_counters().streams_promoted == 1
        print(f"the functions' process killed: longest block {conversation.end():.2f} s")
    finally:
        lab.end_commands()
        down(name)


@pytest.mark.long
def test_a_run_reports_their_end_and_ends_them() -> None:
    command = ["sh", "-c", "echo up; read line; echo $line"]
    lab_run = [str(binaries() / "netacc"), "lab", "run", "-q", *ERDMA, "--", *command]
    with subprocess.Popen(
        lab_run, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert line_from(process.stdout) == "up\n"
        os.kill(process_with_functions(f"run-{process.pid}"), signal.SIGKILL)
        assert "netacc-erdma: it has ended" in line_from(process.stderr)
        printed, _ = process.communicate("on\n", timeout=BOOT_SECONDS)
        assert (process.returncode, printed) == (0, "on\n")


@pytest.mark.long
def test_down_ends_the_functions() -> None:
    name = f"ends-{os.getpid()}"
    lab = up(name, *ERDMA)
    pidfd = os.pidfd_open(process_with_functions(name))
    # Waits for its end.
    with os.fdopen(pidfd, "rb", buffering=0) as ended:
        assert down(lab.name).returncode == 0
        assert select.select([ended], [], [], 60)[0]


def test_a_driver_without_a_package_is_requested() -> None:
    result = netacc_lab("setup", "--rdma", "erdma", "--driver", "alibaba")
    assert result.returncode == 125
    assert "--driver-module" in result.stderr and "erdma.ko" in result.stderr


def test_a_module_for_another_kernel_is_refused(tmp_path: Path) -> None:
    """Breaks if the guest is booted with it: there the kernel says nothing but that the format is wrong."""
    wrong = tmp_path / "erdma.ko"
    wrong.write_text("not a module")
    result = netacc_lab("setup", "--rdma", "erdma", "--driver-module", str(wrong))
    assert result.returncode == 125
    assert "modinfo" in result.stderr
    env = {**os.environ, "NETACC_LAB_ERDMA_MODULE": str(tmp_path / "none.ko")}
    missing = netacc_lab("setup", "--rdma", "erdma", env=env)
    assert missing.returncode == 125 and "none.ko" in missing.stderr


def test_an_old_emulator_is_reported_where_downloads_are_forbidden(
    tmp_path: Path, need_condition: Callable[[str, bool], None]
) -> None:
    """Breaks if a machine is booted by a QEMU without vfio-user, which only says that an option is wrong."""
    found = json.loads(netacc_lab("setup", "--json", "--rdma", "erdma", seconds=2 * BOOT_SECONDS).stdout)
    cache = Path(found["module"]).parents[2]
    need_condition("old QEMU", Path(found["qemu"]).is_relative_to(cache))
    for part in ("kernel", "erdma"):
        if (cache / part).exists():
            (tmp_path / part).symlink_to(cache / part)
    env = {**os.environ, "NETACC_LAB_CACHE": str(tmp_path)}
    result = netacc_lab("setup", "--rdma", "erdma", "--no-install", env=env)
    assert result.returncode == 125
    assert "need a QEMU with vfio-user-pci" in result.stderr


def test_it_is_a_virtual_machines() -> None:
    result = netacc_lab("run", "--rdma", "erdma", "--where", "host", "true")
    assert result.returncode == 125
    assert "--where vm" in result.stderr
