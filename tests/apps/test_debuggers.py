"""Debuggers of static programs and Go under the library: breakpoints, stacks, steps."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.apps.lib import golang
from tests.apps.lib.compiling import compile_c
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
tbreak {function}
echo prepared\\n
continue
backtrace
next
print {total}
delete
detach
"""

DLV = """
break main.add
continue
stack
next
print total
clearall
"""


def _debug(
    program: Path, words: list[str | Path], prepared: str, lab: Lab, farewell: Sequence[str] = ()
) -> str:
    """What a debugger prints. The program reaches its breakpoint once that is set, and runs on afterwards."""
    # A goroutine that is preempted goes on in another thread, where no step of the debugger ends.
    calm = {"GODEBUG": "asyncpreemptoff=1"}
    watched = lab.start("watched", [program], accelerated=True, env=calm, interactive=True)
    watched.wait_line("ready")
    words = [str(word).format(pid=watched.pid) for word in words]
    debugger = lab.start("debugger", words, interactive=True)
    debugger.wait_line(prepared)
    watched.send_line("20")
    for line in farewell:
        debugger.send_line(line)
    printed = debugger.finish()
    watched.wait_line("count 41")
    watched.send_line("1")
    watched.wait_line("count 43")
    watched.end_input()
    watched.finish()
    assert watched.stderr() == "", "it ran plainly"
    return printed


@pytest.mark.parametrize("kind", [*COMPILERS, "go"])
def test_gdb_stops_a_static_program(kind: str, lab: Lab) -> None:
    """Breaks if the code that the debugger changes is not the one that runs, or has no frames behind it."""
    program, script = lab.folder / kind, lab.folder / "script"
    names, total = ["add", "count", "main"], "total"
    if kind == "go":
        names, total = [f"main.{name}" for name in names], "'main.total'"
        golang.build(program, golang.MODES[kind], source=SOURCES / "debugged")
    else:
        flags = ["-static", "-no-pie", "-g", "-O1"]
        compile_c(program, SOURCES / "debugged.c", *flags, compiler=COMPILERS[kind])
    script.write_text(GDB.format(program=program, function=names[0], total=total))
    printed = _debug(program, ["gdb", "-q", "-nx", "-batch", "-p", "{pid}", "-x", script], "prepared", lab)
    frames = [line.split(" (")[0].split()[-1] for line in printed.splitlines() if line.startswith("#")]
    assert frames[:3] == names, printed
    assert "$1 = 40" in printed, printed


@pytest.mark.long
@pytest.mark.timeout(900)
def test_delve_stops_a_go_program_with_c(lab: Lab) -> None:
    """Breaks if a goroutine is not found at a breakpoint: Go keeps it below the thread pointer.

    Programs that the loader runs are not delve's: it takes /proc/PID/exe for the program.
    """
    program, script, tools = lab.folder / "go", lab.folder / "script", REPO / "target/delve"
    environment = os.environ | {"GOBIN": str(tools), "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=mod"}
    subprocess.run(["go", "install", DELVE], cwd=lab.folder, env=environment, check=True, timeout=600)
    golang.build(program, golang.MODES["go-cgo"], source=SOURCES / "debugged")
    script.write_text(DLV)
    words: list[str | Path] = [tools / "dlv", "attach", "{pid}"]
    words += ["--init", script, "--allow-non-terminal-interactive"]
    # It is not to end the program.
    printed = _debug(program, words, "Breakpoint 1 set", lab, farewell=["exit", "n"])
    plain = re.sub(r"\x1b\[\d*m", "", printed)
    for frame in ("main.add", "main.count", "main.main"):
        assert f"in {frame}\n" in plain, printed
    assert "\n40\n" in plain, printed
