"""The files of a package, where each kind of system has them."""

from __future__ import annotations

import gzip
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
CONFIGURATION = "etc/netacc.conf"
LIBRARY = "libnetacc-preload.so"
PROGRAMS = ("netacc", "netacc_run", "netacc_ss")
# Runs static programs of x86-64; it has to lie beside the library.
LOADER = "netacc-loader"
DOCUMENTS = ("README.md", "LICENSE-MIT", "LICENSE-APACHE")
# Where systems have the completions of each shell.
COMPLETIONS = {
    "bash/netacc.bash": "bash-completion/completions/netacc",
    "zsh/_netacc": "zsh/vendor-completions/_netacc",
    "fish/netacc.fish": "fish/vendor_completions.d/netacc.fish",
}


@dataclass(frozen=True)
class Machine:
    """A kind of processor, by the names that packages have for it."""

    name: str
    debian: str
    strip: str
    # Runs its programs on the machine that makes the packages.
    runner: tuple[str, ...]
    has_loader: bool

    @property
    def multiarch(self) -> str:
        """Debian's folder of libraries."""
        return f"usr/lib/{self.name}-linux-gnu"


MACHINES = {
    machine.name: machine
    for machine in (
        Machine("x86_64", "amd64", "strip", (), has_loader=True),
        Machine(
            "aarch64",
            "arm64",
            "aarch64-linux-gnu-strip",
            ("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"),
            has_loader=False,
        ),
    )
}


@dataclass(frozen=True)
class Layout:
    """A root folder with the files of a package in it."""

    machine: Machine
    root: Path
    # The folder of shared libraries, below the root.
    libraries: str
    # The folder of programs and of what all machines may share.
    prefix: str = "usr"

    @property
    def documents(self) -> Path:
        return self.root / self.prefix / "share/doc/netacc-lab"


def stage(layout: Layout, built: Path) -> None:
    """Puts the files into the layout's root. The programs' debug information stays behind."""
    shutil.rmtree(layout.root, ignore_errors=True)
    for name in PROGRAMS:
        program(layout.machine, built / name, layout.root / layout.prefix / "bin" / name)
    libraries = layout.root / layout.libraries
    if layout.machine.has_loader:
        program(layout.machine, built / LOADER, libraries / LOADER)
    program(layout.machine, built / "libnetacc_portable.so", libraries / LIBRARY, mode=0o644)
    place(REPO / "core/config/netacc.conf", layout.root / CONFIGURATION)
    example = layout.documents / "examples/redis-server.service.d/netacc.conf"
    place(REPO / "ci/packages/netacc.conf.example", example)
    example.write_text(example.read_text().replace("usr/lib/x86_64-linux-gnu", layout.machine.multiarch))
    for name in DOCUMENTS:
        place(REPO / name, layout.documents / name)
    pages(layout, built)
    for folder in layout.root.rglob("*"):
        if folder.is_dir():
            folder.chmod(0o755)


def program(machine: Machine, source: Path, target: Path, mode: int = 0o755) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run([machine.strip, "--strip-unneeded", "-o", str(target), str(source)], check=True)
    target.chmod(mode)


def place(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(0o644)


def pages(layout: Layout, built: Path) -> None:
    """Manual pages and completions: those of netacc come from its arguments, the others from their help."""
    made = layout.root / "made"
    runner = layout.machine.runner
    subprocess.run([*runner, str(built / "netacc"), "pages", str(made)], check=True)
    for name in ("netacc_run", "netacc_ss"):
        words = [*runner, str(built / name), "-h"]
        shown = subprocess.run(words, check=True, capture_output=True, text=True).stdout
        (made / "man" / f"{name}.1").write_text(manual(name, shown))
    manuals = layout.root / layout.prefix / "share/man/man1"
    manuals.mkdir(parents=True)
    for page in sorted((made / "man").iterdir()):
        # Without a name and a time, the same bytes each time.
        packed = gzip.compress(page.read_bytes(), mtime=0)
        (manuals / f"{page.name}.gz").write_bytes(packed)
    for source, target in COMPLETIONS.items():
        place(made / source, layout.root / layout.prefix / "share" / target)
    shutil.rmtree(made)


def manual(name: str, shown: str) -> str:
    """A manual page with a program's help as it is."""
    lines = "\n".join(escaped(line) for line in shown.splitlines())
    purpose = {
        "netacc_run": "run a program with its TCP connections on RDMA or shared memory",
        "netacc_ss": "show the state of a program that netacc_run runs",
    }[name]
    # The help of netacc_run is the original's, to the letter.
    unset = "Without \\-t the number of helper threads is that of the configuration file, or 1."
    notes = f".SH NOTES\n{unset}\n" if name == "netacc_run" else ""
    head = f".TH {name} 1\n.SH NAME\n{name} \\- {purpose}\n"
    return f"{head}.SH DESCRIPTION\n.nf\n{lines}\n.fi\n{notes}.SH SEE ALSO\nnetacc(1)\n"


def escaped(line: str) -> str:
    text = line.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text.startswith((".", "'")) else text
