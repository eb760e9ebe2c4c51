"""Compiling the tests' programs in C."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.apps.lib.paths import PROGRAMS

FLAGS = ("-std=gnu17", "-O2", "-Wall", "-Wextra", "-Werror")


def compile_c(built: Path, *words: str | Path, compiler: str = "gcc") -> Path:
    """Makes a program of `words`: sources and libraries, and options, which count before the usual ones."""
    subprocess.run([compiler, *FLAGS, "-o", built, *words], check=True, timeout=300)
    return built


def compile_program(folder: Path, name: str, *options: str) -> Path:
    """`programs/NAME.c`, built in a folder."""
    return compile_c(folder / name, PROGRAMS / f"{name}.c", *options)
