"""The kit for two machines, as it runs there: by ssh, which gets to the lab's hosts through their agents."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

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
# The user without rights that it wants is in its package's installation only.
SERVE = """
mkdir -p /run/sshd
grep -q ^sshd: /etc/passwd || echo sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin >>/etc/passwd
export LD_LIBRARY_PATH={unpacked}/usr/lib/x86_64-linux-gnu:{unpacked}/lib/x86_64-linux-gnu
exec {unpacked}/usr/sbin/sshd -i -f {folder}/sshd
"""


def ssh_to(lab: UpLab, folder: Path) -> Path:
    """A configuration for ssh that knows the hosts as lab1 and lab2."""
    reach = f"{binaries() / 'netacc'} lab exec --name {lab.name} --timeout 900"
    for name in ("host", "key"):
        make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(make, check=True)
    (folder / "sshd").write_text(SSHD.format(folder=folder))
    unpacked = REPO / "target/lab/sshd"
    assert (unpacked / "usr/sbin/sshd").exists(), "ci/run.sh lab-long unpacks it"
    (folder / "serve").write_text(SERVE.format(folder=folder, unpacked=unpacked))
    config = folder / "ssh"
    config.write_text(SSH.format(folder=folder, reach=reach))
    return config


@pytest.mark.long
@pytest.mark.timeout(1000)
def test_the_kit_by_ssh(siw: UpLab, tmp_path: Path) -> None:
    config = ssh_to(siw, tmp_path)
    results = tmp_path / "results"
    command = [sys.executable, "-m", "ci.eri", "lab1", "lab2", "--ssh", f"ssh -F {config}"]
    command += ["--addresses", "10.99.0.1", "10.99.0.2", "--binaries", str(binaries())]
    command += ["--local-binaries", str(binaries()), "--results", str(results), "--emulated"]
    command += ["--seeds", "0..5", "--placement", "one emulator", "--programs", "redis-single"]
    ran = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False, timeout=900)
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
    found = {path.stem: json.loads(path.read_text()) for path in results.glob("*.json")}
    assert found.keys() >= {"preflight", "redis", "latency", "properties", "figures"}
    assert found["preflight"]["paths"]["host2"]["devices"] == ["siw0"]
    assert len(found["redis"]["paths"]["rounds"]["netacc"]) == 3
    assert found["latency"]["params"]["placement"] == "one emulator"
    assert found["latency"]["paths"]["verbs"]["round_trip_us"] > 0
    assert found["properties"]["paths"]["status"] == 0
    assert found["figures"]["paths"]["netacc"]["programs"]["redis-single"]["works"]
    assert all(document["machine"]["emulated"] for name, document in found.items() if "machine" in document)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_what_is_missing_is_said_first(siw: UpLab, tmp_path: Path) -> None:
    config = ssh_to(siw, tmp_path)
    command = [sys.executable, "-m", "ci.eri", "lab1", "lab2", "--ssh", f"ssh -F {config}", "--emulated"]
    command += ["--addresses", "10.99.0.1", "10.99.0.2", "--binaries", str(tmp_path / "nowhere")]
    ran = subprocess.run(
        [*command, "--results", str(tmp_path / "results")],
        cwd=REPO,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ran.returncode == 1
    assert "netacc_run" in ran.stderr and "==> redis" not in ran.stderr
