"""A .deb by dpkg-deb, an .rpm by rpmbuild and a .tar.gz by tar. The same files make the same bytes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from ci.packages.layout import CONFIGURATION, Layout

NAME = "netacc-lab"
SUMMARY = "Unmodified TCP programs over RDMA or shared memory"
MAINTAINER = "netacc-lab contributors <contributors@netacc-lab.invalid>"
# Not zstd, which dpkg of Debian 11 and rpm of some older systems cannot read.
RPM_COMPRESSION = "w6.xzdio"


def environment(epoch: int) -> dict[str, str]:
    return {**os.environ, "SOURCE_DATE_EPOCH": str(epoch), "LC_ALL": "C", "TZ": "UTC"}


def run(words: list[str], epoch: int) -> None:
    done = subprocess.run(words, env=environment(epoch), capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(words)}: {done.stdout}{done.stderr}")


def settle_times(root: Path, epoch: int) -> None:
    for path in (*root.rglob("*"), root):
        os.utime(path, (epoch, epoch), follow_symlinks=False)


def deb(layout: Layout, folder: Path, version: str, epoch: int) -> Path:
    control = layout.root / "DEBIAN"
    control.mkdir(mode=0o755)
    size = sum(path.stat().st_size for path in layout.root.rglob("*") if path.is_file()) // 1024
    (control / "control").write_text(
        f"Package: {NAME}\nVersion: {version}\nArchitecture: {layout.machine.debian}\n"
        f"Maintainer: {MAINTAINER}\n"
        f"Installed-Size: {size}\nDepends: libc6 (>= 2.28), libgcc-s1 | libgcc1\n"
        f"Recommends: libibverbs1, librdmacm1\nSection: net\nPriority: optional\nDescription: {SUMMARY}\n"
        " netacc_run PROGRAM runs a program with its TCP connections on a fast path. Connections\n"
        " start as ordinary TCP, and return to it when they must.\n"
    )
    # What an administrator has edited stays.
    (control / "conffiles").write_text(f"/{CONFIGURATION}\n")
    (control / "triggers").write_text("activate-noawait ldconfig\n")
    for file in control.iterdir():
        file.chmod(0o644)
    settle_times(layout.root, epoch)
    package = folder / f"{NAME}_{version}_{layout.machine.debian}.deb"
    run(["dpkg-deb", "--root-owner-group", "-Zxz", "--build", str(layout.root), str(package)], epoch)
    return package


def rpm(layout: Layout, folder: Path, version: str, epoch: int) -> Path:
    settle_times(layout.root, epoch)
    files = "\n".join(listed(layout.root))
    spec = folder / f"{NAME}.spec"
    spec.write_text(
        f"Name: {NAME}\nVersion: {version}\nRelease: 1\nSummary: {SUMMARY}\nLicense: MIT OR Apache-2.0\n"
        f"%description\nnetacc_run PROGRAM runs a program with its TCP connections on a fast path.\n"
        f"%install\ncp -a {layout.root}/. %{{buildroot}}/\n"
        "%post -p /sbin/ldconfig\n%postun -p /sbin/ldconfig\n"
        f"%files\n%defattr(-,root,root,-)\n{files}\n"
    )
    top = folder / "rpmbuild"
    settings = {
        "_topdir": str(top),
        "_rpmdir": str(folder),
        "_rpmfilename": "%{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}.rpm",
        "_buildhost": "localhost",
        "_binary_payload": RPM_COMPRESSION,
        "use_source_date_epoch_as_buildtime": "1",
        "clamp_mtime_to_source_date_epoch": "1",
        "_build_id_links": "none",
        # They are stripped already.
        "__os_install_post": "%{nil}",
        "debug_package": "%{nil}",
    }
    words = ["rpmbuild", "-bb", "--quiet", "--target", f"{layout.machine.name}-linux"]
    for name, value in settings.items():
        words += ["--define", f"{name} {value}"]
    run([*words, str(spec)], epoch)
    return folder / f"{NAME}-{version}-1.{layout.machine.name}.rpm"


def listed(root: Path) -> list[str]:
    """The files of an rpm; folders belong to the system."""
    files = (f"/{path.relative_to(root)}" for path in sorted(root.rglob("*")) if path.is_file())
    return [f"%config(noreplace) {file}" if file == f"/{CONFIGURATION}" else file for file in files]


def tarball(layout: Layout, folder: Path, epoch: int) -> Path:
    archive = folder / f"{layout.root.name}.tar.gz"
    words = ["tar", "--sort=name", f"--mtime=@{epoch}", "--owner=0", "--group=0", "--numeric-owner"]
    words += [
        "--use-compress-program=gzip -n",
        "-C",
        str(layout.root.parent),
        "-cf",
        str(archive),
        layout.root.name,
    ]
    run(words, epoch)
    return archive
