"""Programs without a shared C library, on links: static ones of glibc and musl, Rust with musl, Go."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.apps.lib import counters, golang
from tests.apps.lib.client import DONE, read_report
from tests.apps.lib.compiling import compile_c
from tests.apps.lib.lab import Lab
from tests.apps.lib.net import free_port, wait_listening
from tests.apps.lib.paths import PROGRAMS, binaries
from tests.apps.lib.process import Process

pytestmark = pytest.mark.usefixtures("library")

SOURCES = PROGRAMS / "static"
MODULES = "tests.apps.programs"
CONNECTIONS = 4
#: The rest goes over TCP, before the connections are on links.
SHARE = 0.5

#: The compiler, and how it links.
COMPILERS = {
    "glibc": ("gcc", ["-static"]),
    "glibc-pie": ("gcc", ["-static-pie"]),
    "musl": ("musl-gcc", ["-static"]),
}
#: The same in other forms, each in one test.
FORMS = {
    "glibc-stripped": ("gcc", ["-static", "-s"]),
    "musl-stripped": ("musl-gcc", ["-static", "-s"]),
}
RUST = {
    "rust": [],
    "rust-stripped": ["-C", "strip=symbols"],
    "rust-fixed": ["-C", "relocation-model=static"],
}
#: A test that runs all versions of Go has the others: see test_go_versions.py.
GO = ["go", "go-stripped", "go-pie", "go-cgo"]
BUILDS = [*COMPILERS, "rust", *GO]

SPAWN = "import os, sys; pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ); os.waitpid(pid, 0)"

#: Python's descriptors are closed when another program starts.
EXEC_FILE = "import os, sys; os.execve(os.open(sys.argv[1], os.O_RDONLY), sys.argv[1:], os.environ)"
EXEC_COPY = """
import os, pathlib, sys
copy = os.memfd_create("copy")
with open(copy, "wb", closefd=False) as to:
    to.write(pathlib.Path(sys.argv[1]).read_bytes())
os.execve(copy, sys.argv[1:], os.environ)
"""

Build = Callable[[str], Path]


def compile_static(program: Path, kind: str, name: str) -> None:
    """Makes a program of `programs/static/NAME.c`."""
    compiler, flags = (COMPILERS | FORMS)[kind]
    compile_c(program, SOURCES / f"{name}.c", "-pthread", *flags, compiler=compiler)


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Builds a program at its first use."""
    folder = tmp_path_factory.mktemp("static")

    def built(kind: str) -> Path:
        program = folder / kind
        if program.exists():
            return program
        if kind in RUST:
            target = ["--target", "x86_64-unknown-linux-musl", "--edition", "2021", *RUST[kind]]
            subprocess.run(
                ["rustc", "-O", *target, "-o", program, SOURCES / "echo.rs"], check=True, timeout=120
            )
        elif kind in GO:
            golang.build(program, golang.MODES[kind])
        else:
            compile_static(program, kind, "echo")
        return program

    return built


@pytest.mark.parametrize("kind", [*BUILDS, *FORMS, *(kind for kind in RUST if kind not in BUILDS)])
def test_a_static_client_talks_over_links(kind: str, build: Build, lab: Lab) -> None:
    port = free_port()
    server = lab.start(
        "server", [sys.executable, "-m", f"{MODULES}.echo_server", str(port)], accelerated=True
    )
    wait_listening(port, server)
    words: list[str | Path] = [build(kind), "connect", str(port), str(CONNECTIONS)]
    client, report = lab.client("client", words, accelerated=True)
    for who, side in (("client", client), ("server", server)):
        lab.expect_link(counters.totals(side), who=who, payload_bytes=report.payload_bytes, share=SHARE)
    lab.dismiss(client)


@pytest.mark.parametrize("kind", BUILDS)
def test_a_static_server_talks_over_links(kind: str, build: Build, lab: Lab) -> None:
    port = free_port()
    server = lab.start("server", [build(kind), "serve", str(port)], accelerated=True)
    wait_listening(port, server)
    client, report = lab.client(
        "client",
        [sys.executable, "-m", f"{MODULES}.echo_client", str(port), "--connections", str(CONNECTIONS)],
        accelerated=True,
    )
    for who, side in (("client", client), ("server", server)):
        lab.expect_link(counters.totals(side), who=who, payload_bytes=report.payload_bytes, share=SHARE)
    lab.dismiss(client)


@pytest.mark.parametrize(
    "starter",
    [
        pytest.param(["sh", "-c", 'exec "$0" "$@"'], id="exec"),
        pytest.param(["env"], id="execvp"),
        pytest.param([sys.executable, "-c", SPAWN], id="posix_spawn"),
        pytest.param([sys.executable, "-c", SPAWN.replace("spawn(", "spawnp(")], id="posix_spawnp"),
        pytest.param([sys.executable, "-c", EXEC_FILE], id="fexecve"),
        pytest.param([sys.executable, "-c", EXEC_COPY], id="fexecve-memfd"),
        pytest.param(["go"], id="go"),
        pytest.param(["go-cgo"], id="go-cgo"),
        pytest.param(["musl"], id="musl"),
    ],
)
def test_a_static_child_talks_over_links(starter: list[str], build: Build, lab: Lab) -> None:
    """The parent is dynamic, or static itself."""
    port = free_port()
    server = lab.start("server", [build("musl"), "serve", str(port)], accelerated=True)
    wait_listening(port, server)
    words: list[str | Path] = [*starter, build("musl"), "connect", str(port), "2"]
    if starter[0] in BUILDS:
        words[:1] = [build(starter[0]), "run"]
    client, report = lab.client("client", words, accelerated=True)
    lab.expect_link(counters.totals(client), who="client", payload_bytes=report.payload_bytes, share=SHARE)
    lab.dismiss(client)


@pytest.mark.parametrize("kind", ["go", "go-cgo", "musl"])
def test_a_dynamic_child_of_a_static_program_talks_over_links(kind: str, build: Build, lab: Lab) -> None:
    port = free_port()
    server = lab.start("server", [build(kind), "serve", str(port)], accelerated=True)
    wait_listening(port, server)
    echo = [sys.executable, "-m", f"{MODULES}.echo_client", str(port)]
    client, report = lab.client("client", [build(kind), "run", *echo], accelerated=True)
    lab.expect_link(counters.totals(client), who="client", payload_bytes=report.payload_bytes, share=SHARE)
    lab.dismiss(client)


@pytest.mark.parametrize("kind", ["go", "go-cgo"])
def test_a_listener_is_handed_over(kind: str, build: Build, lab: Lab) -> None:
    """A server starts its successor with its listener, as for an upgrade. Both have connections on links."""
    port = free_port()
    server = lab.start("server", [build(kind), "relay", str(port)], accelerated=True)
    server.wait_line("ready")
    wait_listening(port, server)
    words: list[str | Path] = [build(kind), "connect", str(port), str(CONNECTIONS)]
    for name in ("before", "after"):
        client, report = lab.client(name, words, accelerated=True)
        lab.expect_link(counters.totals(client), who=name, payload_bytes=report.payload_bytes, share=SHARE)
        lab.dismiss(client)
        if name == "before":
            os.kill(server.pid, signal.SIGHUP)
            server.wait_line("taken over")


@pytest.mark.parametrize("kind", ["go", "go-cgo"])
def test_a_crash_of_go_shows_where_it_was(kind: str, build: Build, lab: Lab) -> None:
    """Breaks if the fault does not come to Go's own handler, or Go cannot read its own stack."""
    crashed = lab.start("crash", [build(kind), "crash"], accelerated=True)
    assert crashed.wait(60) == 2
    assert "invalid memory address or nil pointer dereference" in crashed.stderr()
    assert "main.crash" in crashed.stderr() and "main.go:" in crashed.stderr()


@pytest.mark.parametrize("kind", ["go", "go-cgo", "musl", "rust"])
def test_a_peer_without_the_library_notices_nothing(kind: str, build: Build, lab: Lab) -> None:
    port = free_port()
    server = lab.start("server", [build(kind), "serve", str(port)], accelerated=True)
    wait_listening(port, server)
    client, report = lab.client("client", [build(kind), "connect", str(port), "1"])
    lab.expect_tcp(counters.totals(server), who="server", payload_bytes=report.payload_bytes)
    lab.dismiss(client)


@pytest.mark.parametrize(
    ("kind", "numbers"),
    [
        ("go", [signal.SIGURG, signal.SIGPROF]),
        ("go-cgo", [signal.SIGURG, signal.SIGPROF]),
        ("musl", [signal.SIGUSR1]),
        ("glibc", [signal.SIGUSR1]),
    ],
)
def test_signals_flood_a_static_program(kind: str, numbers: list[int], build: Build, lab: Lab) -> None:
    """Breaks if a handler runs with the C library's variables, or an interrupted call loses its stack."""
    port = free_port()
    server = lab.start("server", [build(kind), "serve", str(port)], accelerated=True)
    wait_listening(port, server)
    words: list[str | Path] = [build(kind), "connect", str(port), str(CONNECTIONS)]
    client = lab.start("client", words, accelerated=True, interactive=True)
    client.wait_line("begun")
    sent = 0
    while DONE not in client.stdout() and client.poll() is None:
        for number in numbers:
            os.kill(client.pid, number)
            sent += 1
    report = read_report(client.wait_line(DONE, 60))
    lab.remark(f"{sent} signals")
    assert sent > 100
    lab.expect_link(counters.totals(client), who="client", payload_bytes=report.payload_bytes, share=SHARE)
    lab.dismiss(client)


def test_a_program_that_cannot_be_changed_as_a_whole_runs_plainly(lab: Lab) -> None:
    program = compile_c(lab.folder / "unmovable", SOURCES / "unmovable.c", "-static", "-O1")
    result = subprocess.run(
        [binaries() / "netacc_run", program],
        capture_output=True,
        text=True,
        env={"NETACC_CONF": "/dev/null"},
        check=True,
        timeout=60,
    )
    assert result.stdout == "done\n"
    begin = f"netacc_run: {program} is statically linked, and the system call at 0x"
    assert result.stderr.startswith(begin), result.stderr
    assert result.stderr.endswith(" cannot be replaced: it stays on TCP\n")


@pytest.mark.parametrize("sections", ["with", "without"])
def test_a_function_that_only_frames_name_stays_where_it_is(sections: str, lab: Lab) -> None:
    """Programs that `gcc -static` links have no table of functions (`.eh_frame_hdr`), but have the frames.

    Breaks if the frames are not read: the function's first instructions move with the system call before it.
    """
    options = ["-static", "-s", "-O1", "-Wl,--no-eh-frame-hdr"]
    program = compile_c(lab.folder / "computed", SOURCES / "computed.c", *options)
    if sections == "without":
        file = bytearray(program.read_bytes())
        # Where the headers of the sections are, and how many.
        file[40:48], file[60:64] = bytes(8), bytes(4)
        program.write_bytes(file)
    client = lab.start("computed", [program], accelerated=True)
    assert client.finish() == "42\n"
    assert client.stderr() == ""


@pytest.mark.parametrize(("kind", "stack"), [("glibc", "own"), ("glibc", "aside"), ("glibc-pie", "own")])
def test_a_handler_has_its_stack_whatever_call_it_interrupts(kind: str, stack: str, lab: Lab) -> None:
    """Breaks if a call of the handler uses the part of the library's stack that the interrupted call has."""
    program = lab.folder / kind
    compile_static(program, kind, "handlers")
    assert lab.run("handlers", [program, stack], accelerated=True) == "done\n"


def test_a_program_sees_its_own_name_and_file(lab: Lab) -> None:
    """Also when it starts itself again, by the link to its own file."""
    program = lab.folder / "identity"
    subprocess.run(
        ["musl-gcc", "-static", "-O1", "-o", program, SOURCES / "identity.c"], check=True, timeout=60
    )
    printed = lab.run("identity", [program, "first"], accelerated=True)
    assert printed.splitlines() == [
        f"{program} {program} identity| {program}|first| clean",
        f"again {program} identity| again|last| clean",
    ]


@pytest.mark.parametrize("kind", ["go", "go-pie", "musl"])
def test_a_static_program_talks_over_links_without_privileges(
    kind: str, build: Build, lab: Lab, need_condition: Callable[[str, bool], None]
) -> None:
    """As another user, who can gain no privileges, under the filter of a container runtime."""
    need_condition("root", os.geteuid() == 0)
    program = shutil.copy(build(kind), lab.folder)
    folder, port = lab.shared_folder("nobody", "nobody"), free_port()
    confined = [sys.executable, "-m", f"{MODULES}.docker_filter"]

    def start(name: str, *words: str) -> Process:
        return lab.start(
            name,
            [program, *words],
            accelerated=True,
            user="nobody",
            before=confined,
            folder=folder,
            interactive=True,
        )

    server = start("server", "serve", str(port))
    wait_listening(port, server)
    client = start("client", "connect", str(port), str(CONNECTIONS))
    report = read_report(client.wait_line(DONE))
    for who, side in (("client", client), ("server", server)):
        status = Path(f"/proc/{side.pid}/status").read_text().split()
        assert status[status.index("Seccomp:") + 1] == "2" and status[status.index("NoNewPrivs:") + 1] == "1"
        lab.expect_link(counters.totals(side), who=who, payload_bytes=report.payload_bytes, share=SHARE)
    lab.dismiss(client)


@pytest.mark.parametrize("way", ["memfd", "file", "path-only", "folder", "absolute", "link", "copy"])
def test_a_program_that_is_started_by_a_descriptor_sees_what_the_kernel_shows(way: str, lab: Lab) -> None:
    """Its name, its file, its environment and its descriptors; also when it starts itself by its own link.

    Its environment does not have the library, which adds itself.
    """
    program = lab.folder / "descriptors"
    compile_static(program, "musl", "descriptors")
    shutil.copy(program, lab.folder / "copy")
    printed = lab.run("natively", [program, way])
    accelerated = lab.start("accelerated", [program, way], accelerated=True)
    assert accelerated.finish() == printed
    assert len(printed.splitlines()) == 2
    assert accelerated.stderr() == "loaded\n" * 2


@pytest.mark.parametrize("kind", COMPILERS)
def test_children_and_threads_by_clone3(kind: str, lab: Lab) -> None:
    """Breaks if a thread does not end as the kernel ends it, or a fork forgets what the kernel was to do."""
    program = lab.folder / kind
    compile_static(program, kind, "clones")
    printed = lab.run("natively", [program])
    assert printed.splitlines()[-1] == "last: 51 1 400"
    assert lab.run("accelerated", [program], accelerated=True) == printed


def cgroups() -> Path | None:
    """The control groups of version 2."""
    mounts = (line.split() for line in Path("/proc/self/mounts").read_text().splitlines())
    return next((Path(where) for _, where, kind, *_ in mounts if kind == "cgroup2"), None)


@pytest.fixture
def control_group(need_condition: Callable[[str, bool], None]) -> Iterator[Path]:
    """A control group of this test's own."""
    root = cgroups()
    group = (root or Path("/nowhere")) / f"netacc-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        need_condition("cgroup2", False)
    yield group
    group.rmdir()


@pytest.mark.parametrize("kind", ["go", "go-cgo"])
def test_a_child_of_go_begins_in_a_control_group(
    kind: str, control_group: Path, lab: Lab, need_condition: Callable[[str, bool], None]
) -> None:
    """Breaks if `clone3` is refused: Go has nothing else for that."""
    need_condition("Go 1.20", golang.installed() >= (1, 20))
    program = lab.folder / kind
    golang.build(program, golang.MODES[kind], source=SOURCES / "cgroup")
    (lab.folder / "no-group").mkdir()
    for folder in (control_group, lab.folder / "no-group"):
        printed = lab.run("natively", [program, folder])
        assert lab.run("accelerated", [program, folder], accelerated=True) == printed
        assert (control_group.name in printed) == (folder == control_group)


@pytest.mark.parametrize("kind", ["go", "go-cgo"])
def test_a_child_of_go_has_a_descriptor(
    kind: str, lab: Lab, need_condition: Callable[[str, bool], None]
) -> None:
    """Breaks if the descriptor is not written where the program wants it, or is of another process."""
    need_condition("Go 1.22", golang.installed() >= (1, 22))
    program = lab.folder / kind
    golang.build(program, golang.MODES[kind], source=SOURCES / "pidfd")
    printed = lab.run("natively", [program])
    assert printed == "errno 0 true 7\n"
    assert lab.run("accelerated", [program], accelerated=True) == printed


@pytest.mark.parametrize("kind", COMPILERS)
def test_a_program_finds_in_its_process_what_the_kernel_provides(kind: str, lab: Lab) -> None:
    """Registers, heap, start, thread pointers, handlers, children, threads, and the file of the program."""
    program = lab.folder / kind
    compile_static(program, kind, "process")
    printed = lab.run("natively", [program])
    assert printed.splitlines()[-1] == "end: 0"
    accelerated = lab.start("accelerated", [program], accelerated=True)
    assert accelerated.finish() == printed
    assert accelerated.stderr() == "", "it ran plainly"


def test_doctor_says_how_a_program_will_run(build: Build, tmp_path: Path) -> None:
    def finding(program: str | Path, **env: str) -> str:
        words = [str(binaries() / "netacc"), "doctor", "--json", str(program)]
        clean = {"PATH": os.environ["PATH"], "NETACC_CONF": "/dev/null"}
        result = subprocess.run(
            words, capture_output=True, text=True, env=clean | env, check=False, timeout=60
        )
        checks = json.loads(result.stdout)["checks"]
        return str(next(check["finding"] for check in checks if check["name"] == "program"))

    assert f"{build('go')} is Go: netacc-loader runs it, with " in finding(build("go"))
    assert "is statically linked: netacc-loader runs it" in finding(build("musl"))
    assert "NACC_STATIC=0: it stays on TCP" in finding(build("musl"), NACC_STATIC="0")
    assert f"{build('go-pie')} is Go: netacc-loader runs it, with " in finding(build("go-pie"))
    assert "is Go with C: the library is preloaded, and replaces its system calls" in finding(build("go-cgo"))
    assert "its Go code stays on TCP" in finding(build("go-cgo"), NACC_STATIC="0")
    assert "is dynamically linked: the library is preloaded" in finding("env")
    # Go's linker marks libraries in this way (`-buildmode=c-shared`, `plugin`), and they need the C library.
    source, library = tmp_path / "shared.c", tmp_path / "shared.so"
    mark = '__attribute__((section(".go.buildinfo"))) int mark = 1;'
    source.write_text(f"#include <unistd.h>\n{mark}\nint used(void) {{ return getppid(); }}\n")
    compile_c(library, source, "-shared")
    assert "is a shared library in Go: its Go code stays on TCP" in finding(library)
