"""The kit for two machines, as it runs there: by ssh, which gets to the lab's hosts through their agents."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from netacc_lab.sim.store import Recorded, Store

from ci.eri.micro import PATHS
from ci.eri.preflight import OURS
from ci.eri.profile import SUITE
from ci.eri.programs import DEPLOYMENTS
from ci.eri.scale import Scale
from ci.eri.steps import STEPS
from tests.apps.lib.paths import REPO, binaries
from tests.lab.lib import UpLab, programs_and_examples

SSHD = """
HostKey {folder}/host
AuthorizedKeysFile {folder}/key.pub
StrictModes no
UsePAM no
PidFile none
"""
SSH = """
Host lab1 lab2
    User root
    IdentityFile {folder}/key
    UserKnownHostsFile {folder}/known
    StrictHostKeyChecking no
    LogLevel ERROR
    ControlMaster auto
    ControlPath {folder}/%n
    ControlPersist 60
Host lab1
    ProxyCommand {reach} 1 sh {folder}/serve
Host lab2
    ProxyCommand {reach} 2 sh {folder}/serve
"""
# The user without rights that it wants is in its package's installation only. The start-up files of
# root's shell on the machine that the hosts have their files from may take seconds in emulation.
SERVE = """
mkdir -p /run/sshd
grep -q ^sshd: /etc/passwd || echo sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin >>/etc/passwd
sed -i '/^root:/s#[^:]*$#/bin/sh#' /etc/passwd
export LD_LIBRARY_PATH={unpacked}/usr/lib/x86_64-linux-gnu:{unpacked}/lib/x86_64-linux-gnu
exec {unpacked}/usr/sbin/sshd -i -f {folder}/sshd
"""


def ssh_to(lab: UpLab, folder: Path) -> None:
    """A configuration for ssh in that folder, which names the hosts lab1 and lab2."""
    reach = f"{binaries() / 'netacc'} lab exec --name {lab.name} --timeout 3300"
    for name in ("host", "key"):
        make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(make, check=True)
    (folder / "sshd").write_text(SSHD.format(folder=folder))
    unpacked = REPO / "target/lab/sshd"
    assert (unpacked / "usr/sbin/sshd").exists(), "ci/run.sh lab unpacks it"
    (folder / "serve").write_text(SERVE.format(folder=folder, unpacked=unpacked))
    (folder / "ssh").write_text(SSH.format(folder=folder, reach=reach))


@dataclass(frozen=True)
class Kit:
    """The kit for two hosts of a lab, reached by ssh."""

    lab: UpLab
    folder: Path

    @property
    def results(self) -> Path:
        return self.folder / "results"

    def run(self, *more: str, placement: str = "one-emulator", seconds: float = 170) -> Ended:
        """Its exit status, and its results, by step."""
        config = self.folder / "ssh"
        if not config.exists():
            ssh_to(self.lab, self.folder)
        command = [sys.executable, "-m", "ci.eri", "lab1", "lab2", "--ssh", f"ssh -F {config}", "--emulated"]
        command += ["--local-binaries", str(binaries()), "--results", str(self.results)]
        command += ["--placement", placement, *more]
        ran = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False, timeout=seconds)
        runs = Store(self.results / placement).all()
        return Ended(ran, {run.meta["measured"]["step"]: run for run in runs})

    def report(self) -> str:
        command = [sys.executable, "-m", "ci.eri.report", str(self.results)]
        return subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=True).stdout


@dataclass(frozen=True)
class Ended:
    """A run of the kit that has ended."""

    ran: subprocess.CompletedProcess[str]
    runs: dict[str, Recorded]

    def figures(self, step: str) -> dict[str, Any]:
        found: dict[str, Any] = self.runs[step].meta["figures"]
        return found

    def expect(self, status: int) -> None:
        assert self.ran.returncode == status, f"{self.ran.stdout}\n{self.ran.stderr}"


@pytest.fixture
def kit(iwarp: UpLab, tmp_path: Path) -> Kit:
    return Kit(iwarp, tmp_path)


BUILT = ("--binaries", str(binaries()))
ADDRESSES = ("--addresses", "10.99.0.1,fd99::1", "10.99.0.2,fd99::2")


def test_missing_tools_are_reported_first(kit: Kit) -> None:
    ended = kit.run("--binaries", str(kit.folder / "nowhere"), *ADDRESSES)
    ended.expect(1)
    assert "netacc_run" in ended.ran.stderr and "==> redis" not in ended.ran.stderr
    assert ended.runs.keys() == {"preflight"} and ended.runs["preflight"].status == "unfinished"


def test_a_host_that_cannot_be_reached_is_reported(kit: Kit) -> None:
    """No traceback, and the request is on record."""
    ended = kit.run("--ssh", "ssh -F /dev/null -o ConnectTimeout=5 -p 9 -o BatchMode=yes", *ADDRESSES)
    ended.expect(1)
    assert "Traceback" not in ended.ran.stderr
    assert "host 1 (lab1) cannot be reached" in ended.runs["preflight"].meta["failures"]["preflight"]


def test_from_nothing_to_programs_on_two_machines(kit: Kit) -> None:
    """As in README.md: installs, finds the addresses, checks, and runs.

    Breaks if words for a host's shell are not quoted for it, as a setting with a blank shows.
    """
    steps = ("--steps", "install", "preflight", "properties", "--no-packages", "--json")
    ended = kit.run(*steps, "--seeds", "0..2", "--env", "NACC_LOG_PATH=/tmp/a log;x")
    ended.expect(0)
    assert ended.figures("preflight")["host2"]["devices"] == [kit.lab.device]
    assert [host["address"] for host in ended.runs["preflight"].meta["measured"]["hosts"]] == [
        "10.99.0.1",
        "10.99.0.2",
    ]
    assert ended.figures("properties")["counts"]["programs"] == 2
    reported = json.loads(ended.ran.stdout)
    assert {name: step["failures"] for name, step in reported["steps"].items()} == {
        name: {} for name in steps[1:4]
    }


def test_failures_set_the_exit_status(kit: Kit) -> None:
    """A deployment of ours that does not work; the results of the others are on record all the same."""
    broken = kit.folder / "broken"
    broken.mkdir()
    for name in OURS:
        (broken / name).symlink_to(binaries() / name)
    (broken / "netacc_run").unlink()
    (broken / "netacc_run").write_text("#!/bin/sh\necho broken >&2; exit 3\n")
    (broken / "netacc_run").chmod(0o755)
    steps = ("--steps", "figures", "--programs", "redis-single")
    ended = kit.run(*steps, "--binaries", str(broken), *ADDRESSES)
    ended.expect(1)
    figures = ended.figures("figures")
    assert figures["tcp"]["programs"]["redis-single"]["works"]
    assert "status 3" in figures["netacc"]["programs"]["redis-single"]["failure"]
    assert "netacc, redis-single" in ended.runs["figures"].meta["failures"]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_latencies_are_recorded(kit: Kit) -> None:
    ended = kit.run("--steps", "latency", *BUILT, *ADDRESSES, seconds=580)
    ended.expect(0)
    run = ended.runs["latency"]
    groups = {group["name"]: group for group in run.meta["groups"]}
    assert groups.keys() == set(PATHS)
    assert groups["stack"]["link_share"] > 0.9
    whole = run.histogram("stack")
    assert whole.get_total_count() == groups["stack"]["samples"] == 500
    assert groups["stack"]["p50_ns"] == whole.get_value_at_percentile(50)
    assert any(line.startswith("stack ") for line in kit.report().splitlines())


@pytest.mark.long
@pytest.mark.timeout(3400)
def test_the_whole_kit_by_ssh(kit: Kit) -> None:
    """From preflight to figures, also with the profile that `test_eri_profile.py` reads."""
    local = programs_and_examples(kit.folder / "local")
    ended = kit.run("--seeds", "0..5", *BUILT, "--local-binaries", str(local), seconds=3200)
    ended.expect(0)
    scale = Scale.emulated()
    assert ended.runs.keys() == set(STEPS) - {"install"}
    assert all(run.status == "complete" and run.meta["measured"]["emulated"] for run in ended.runs.values())
    profile = ended.figures("profile")["host1"]
    assert profile["devinfo"]["transport"] == "iWARP (1)" and len(profile[SUITE]) > 35
    redis = ended.figures("redis")
    assert [of.keys() for of in redis["rounds"]] == [{"tcp", "netacc"}] * scale.redis_rounds
    client = redis["commands"]["netacc"]["client"]
    assert "-c 100" in client and "--threads 4" in client and "-r 10000" in client and "-d 512" in client
    latency = ended.runs["latency"]
    # perftest's tools do not always end there.
    assert ended.figures("latency")["verbs"].keys() | latency.meta["remarks"].keys()
    polled = ended.runs["polled"].meta["measured"]["params"]
    assert (polled["turns"], polled["round_trips"]) == (scale.turns, scale.polled_round_trips)
    summary = ended.figures("polled")["summary"]
    assert 0 < summary["stack"]["min_us"] <= summary["stack"]["median_p50_us"]
    assert summary.keys() - {"ib_send_lat"} == {"send", "message", "stack", "tcp"}
    assert ended.figures("properties")["counts"]["programs"] == 5
    programs = ended.figures("figures")["netacc"]["programs"]
    assert programs.keys() == DEPLOYMENTS.keys()
    assert all(outcome["works"] for outcome in programs.values()), programs
    assert "redis-cluster" in kit.report()
