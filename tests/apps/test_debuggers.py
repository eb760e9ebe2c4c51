"""Debuggers of static programs and Go under the library: breakpoints, stacks, single steps."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.apps.lib import golang
from tests.apps.lib.lab import Lab
from tests.apps.lib.paths import PROGRAMS, REPO

pytestmark = pytest.mark.usefixtures("library")

SOURCES = PROGRAMS / "static"
COMPILERS = {"glibc": "gcc", "musl": "musl-gcc"}
#: Its modules come from the Go module proxy.
DELVE = "github.com/go-delve/delve/cmd/dlv@v1.27.2"

#: The debugger takes the loader's file for the program's. The library finds out by SIGSEGV which memory is
#: accessible.
GDB = """
set confirm off
set pagination off
handle SIGSEGV SIGSYS nostop noprint pass
add-symbol-file {program}
break add
echo prepared\\n
continue
backtrace
next
next
print doubled
print total
delete
detach
"""

DLV = """
break main.add
continue
stack
next
next
print doubled
print total
clearall
exit -c
"""


def _debug(program: Path, words: list[str | Path], prepared: str, lab: Lab) -> str:
    """What a debugger prints. The program reaches its breakpoint once that is set, and runs on afterwards."""
    watched = lab.start("watched", [program], accelerated=True, interactive=True)
    watched.wait_line("ready")
    debugger = lab.start("debugger", [str(word).format(pid=watched.pid) for word in words])
    debugger.wait_line(prepared)
    watched.send_line("20")
    printed = debugger.finish()
    watched.wait_line("count 41")
    watched.send_line("1")
    watched.wait_line("count 43")
    watched.end_input()
    watched.finish()
    assert watched.stderr() == "", "it ran plainly"
    return printed


@pytest.mark.parametrize("kind", COMPILERS)
def test_gdb_stops_a_static_program(kind: str, lab: Lab) -> None:
    """Breaks if the code that the debugger changes is not the one that runs, or has no frames behind it."""
    program, script = lab.folder / kind, lab.folder / "script"
    flags = ["-static", "-no-pie", "-g", "-O1", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([COMPILERS[kind], *flags, "-o", program, SOURCES / "debugged.c"], check=True, timeout=60)
    script.write_text(GDB.format(program=program))
    printed = _debug(program, ["gdb", "-q", "-nx", "-batch", "-p", "{pid}", "-x", script], "prepared", lab)
    frames = [line.split(" (")[0].split()[-1] for line in printed.splitlines() if line.startswith("#")]
    assert frames[:3] == ["add", "count", "main"], printed
    assert "$1 = 40" in printed and "$2 = 40" in printed, printed


@pytest.mark.long
@pytest.mark.timeout(900)
def test_delve_stops_a_go_program(lab: Lab) -> None:
    """Breaks if a goroutine is not found at a breakpoint: Go keeps it below the thread pointer."""
    program, script, tools = lab.folder / "go", lab.folder / "script", REPO / "target/delve"
    environment = os.environ | {"GOBIN": str(tools), "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=mod"}
    subprocess.run(["go", "install", DELVE], cwd=lab.folder, env=environment, check=True, timeout=600)
    golang.build(program, golang.MODES["go"], source=SOURCES / "debugged")
    script.write_text(DLV)
    words: list[str | Path] = [tools / "dlv", "attach", "{pid}", program]
    words += ["--init", script, "--allow-non-terminal-interactive"]
    printed = _debug(program, words, "Breakpoint 1 set", lab)
    for frame in ("main.add", "main.count", "main.main"):
        assert f"in {frame}" in printed, printed
    assert printed.count("\n40\n") == 2, printed
