"""The kit for two machines, as it runs there: by ssh, which gets to the lab's hosts through their agents."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ci.eri.programs import DEPLOYMENTS
from tests.apps.lib.paths import REPO, binaries
from tests.lab.lib import UpLab

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
# The user without rights that it wants is in its package's installation only. What a shell of root's reads
# first on the machine that the hosts have their files from may take seconds in emulation.
SERVE = """
mkdir -p /run/sshd
grep -q ^sshd: /etc/passwd || echo sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin >>/etc/passwd
sed -i '/^root:/s#[^:]*$#/bin/sh#' /etc/passwd
export LD_LIBRARY_PATH={unpacked}/usr/lib/x86_64-linux-gnu:{unpacked}/lib/x86_64-linux-gnu
exec {unpacked}/usr/sbin/sshd -i -f {folder}/sshd
"""


def ssh_to(lab: UpLab, folder: Path) -> Path:
    """A configuration for ssh that knows the hosts as lab1 and lab2."""
    reach = f"{binaries() / 'netacc'} lab exec --name {lab.name} --timeout 3300"
    for name in ("host", "key"):
        make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(make, check=True)
    (folder / "sshd").write_text(SSHD.format(folder=folder))
    unpacked = REPO / "target/lab/sshd"
    assert (unpacked / "usr/sbin/sshd").exists(), "ci/run.sh lab unpacks it"
    (folder / "serve").write_text(SERVE.format(folder=folder, unpacked=unpacked))
    config = folder / "ssh"
    config.write_text(SSH.format(folder=folder, reach=reach))
    return config


def run_kit(
    lab: UpLab, folder: Path, *more: str, there: Path | None = None, seconds: float = 120
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """How the kit ends, and what it has left, by file."""
    config, results = ssh_to(lab, folder), folder / "results"
    command = [sys.executable, "-m", "ci.eri", "lab1", "lab2", "--ssh", f"ssh -F {config}", "--emulated"]
    command += ["--addresses", "10.99.0.1,fd99::1", "10.99.0.2,fd99::2", "--placement", "one emulator"]
    command += ["--binaries", str(there or binaries()), "--local-binaries", str(binaries())]
    command += ["--results", str(results), *more]
    ran = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False, timeout=seconds)
    return ran, {path.stem: json.loads(path.read_text()) for path in results.glob("*.json")}


def test_what_is_missing_is_said_first(siw: UpLab, tmp_path: Path) -> None:
    ran, found = run_kit(siw, tmp_path, there=tmp_path / "nowhere")
    assert ran.returncode == 1
    assert "netacc_run" in ran.stderr and "==> redis" not in ran.stderr
    assert found.keys() == {"preflight"}


def test_programs_on_two_machines_by_ssh(siw: UpLab, tmp_path: Path) -> None:
    """Breaks if words for a host's shell are not quoted for it, as a setting with a blank shows."""
    steps = ("--steps", "preflight", "properties")
    ran, found = run_kit(siw, tmp_path, *steps, "--seeds", "0..2", "--env", "NACC_LOG_PATH=/tmp/a log;x")
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
    assert found["preflight"]["paths"]["host2"]["devices"] == ["siw0"]
    assert found["properties"]["paths"]["status"] == 0
    assert found["properties"]["paths"]["counts"]["programs"] == 2


@pytest.mark.long
@pytest.mark.timeout(3400)
def test_the_whole_kit_by_ssh(siw: UpLab, tmp_path: Path) -> None:
    ran, found = run_kit(siw, tmp_path, "--seeds", "0..5", seconds=3200)
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
    assert found.keys() >= {"preflight", "redis", "latency", "polled", "properties", "figures"}
    redis = found["redis"]["paths"]
    assert len(redis["rounds"]["netacc"]) == len(redis["rounds"]["tcp"]) == 3
    assert (
        "-c 100" in redis["commands"]["netacc"]["client"]
        and "--threads 4" in redis["commands"]["tcp"]["client"]
    )
    assert found["latency"]["params"]["placement"] == "one emulator"
    latency = found["latency"]["paths"]
    # perftest's tools do not always end there.
    assert latency["verbs"].keys() | latency["failures"].keys()
    polled = found["polled"]["paths"]
    assert 0 < polled["summary"]["stack"]["min_us"] <= polled["summary"]["stack"]["median_p50_us"]
    assert polled["summary"].keys() - {"ib_send_lat"} == {"message", "stack", "tcp"}
    assert found["properties"]["paths"]["counts"]["programs"] == 5
    programs = found["figures"]["paths"]["netacc"]["programs"]
    assert programs.keys() == DEPLOYMENTS.keys()
    assert all(outcome["works"] for outcome in programs.values()), programs
    assert all(document["machine"]["emulated"] for name, document in found.items() if "machine" in document)
