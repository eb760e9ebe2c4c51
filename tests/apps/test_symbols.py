"""Programs that were linked on an older system ask for older versions of the C library's functions: the
library replaces those, too, and they do what the older versions do."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.apps.lib.compiling import compile_program
from tests.apps.lib.paths import binaries
from tests.apps.test_calls import run

LIBC = "/lib/x86_64-linux-gnu/libc.so.6"

PROGRAM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
{declarations}
static const struct {{ const char *name; void *address; }} wanted[] = {{ {entries} }};
int main(void) {{
    for (unsigned i = 0; i < sizeof wanted / sizeof *wanted; i++) {{
        Dl_info found;
        const char *object = dladdr(wanted[i].address, &found) ? found.dli_fname : "nowhere";
        printf("%s %s\\n", wanted[i].name, object);
    }}
}}
"""


def defined(library: Path | str) -> list[tuple[str, str]]:
    """The functions that a library defines, with their versions; the version is empty where there is none."""
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True
    )
    functions = [line.split()[2] for line in listed.stdout.splitlines() if line.split()[1] in "TWi"]
    return [(name, version) for name, _, version in (f.replace("@@", "@").partition("@") for f in functions)]


@pytest.mark.usefixtures("library")
def test_every_version_of_a_function_is_replaced(tmp_path: Path) -> None:
    """Breaks if a program that asks for an older version of a replaced function got the C library's: its
    connections would be read behind the library's back."""
    library = binaries() / "libnetacc-preload.so"
    ours = {name for name, _ in defined(library)}
    wanted = [(name, version) for name, version in defined(LIBC) if name in ours and version]
    names = [name for name, _ in wanted]
    assert {"posix_spawn", "aio_read"} <= {name for name in names if names.count(name) > 1}
    declarations = "\n".join(
        f'extern char v{i}; __asm__(".symver v{i}, {name}@{version}");'
        for i, (name, version) in enumerate(wanted)
    )
    entries = ", ".join(f'{{"{name}@{version}", &v{i}}}' for i, (name, version) in enumerate(wanted))
    source, program = tmp_path / "versions.c", tmp_path / "versions"
    source.write_text(PROGRAM.format(declarations=declarations, entries=entries))
    subprocess.run(["cc", "-fPIC", "-pie", "-o", program, source], check=True)
    env = {**os.environ, "LD_PRELOAD": str(library)}
    found = subprocess.run([program], env=env, check=True, capture_output=True, text=True).stdout.splitlines()
    assert len(found) == len(wanted)
    assert [line for line in found if not line.endswith(f" {library}")] == []


#: What the program prints: with an older glibc a file without "#!" is a script of the shell. The older
#: `lio_listio` moves the same bytes; when it returns and notifies is the C library's affair.
PRINTS = {
    (): "posix_spawn: ENOEXEC, status -1\nposix_spawnp: ENOEXEC, status -1\n"
    "lio_listio: writtenwritten\nstatus 0",
    ("-DOLDER",): "a script\nposix_spawn: started, status 0\na script\nposix_spawnp: started, status 0\n"
    "lio_listio: writtenwritten\nstatus 0",
}


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("flags", PRINTS)
def test_an_older_version_does_what_it_did(flags: tuple[str, ...], tmp_path: Path) -> None:
    """Breaks if a program that was linked before a function changed got the function of today."""
    program = compile_program(tmp_path, "versions", *flags)
    script, counted = tmp_path / "script", tmp_path / "counted"
    script.write_text("echo a script\n")
    script.chmod(0o755)
    assert run([program, script]) == PRINTS[flags]
    command: list[str | Path] = [binaries() / "netacc_run", "-F", "1", program, script]
    assert run(command, NETACC_EXIT_STATS=str(counted)) == PRINTS[flags]
    documents = [json.loads(line) for line in counted.read_text().splitlines()]
    assert sum(document["cnt"].get("tx_bytes_link", 0) for document in documents) > 0
