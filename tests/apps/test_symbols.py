"""Programs that were linked on an older system ask for older versions of the C library's functions: the
library replaces those, too."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.apps.lib.paths import binaries

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
