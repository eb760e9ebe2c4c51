"""The build of the package: maturin's, with the ready scenarios and the profiles in the package.

They stay where they are in the repository, and maturin does not follow links to folders, so a build copies
them into `netacc_lab/shipped`. Editable installations use the repository's own.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import maturin
from maturin import (
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_wheel",
]

HERE = Path(__file__).resolve().parent
SHIPPED = HERE / "python/netacc_lab/shipped"
#: Folders of the repository, by their names in the package.
FOLDERS = {"scenarios": "sim/scenarios", "profiles": "models/profiles"}


@contextmanager
def shipped() -> Iterator[None]:
    """The copies, while the package is built. A source distribution has them already."""
    repository = HERE.parents[1]
    if not all((repository / folder).is_dir() for folder in FOLDERS.values()):
        yield
        return
    shutil.rmtree(SHIPPED, ignore_errors=True)
    try:
        for name, folder in FOLDERS.items():
            shutil.copytree(repository / folder, SHIPPED / name)
        yield
    finally:
        shutil.rmtree(SHIPPED, ignore_errors=True)


def build_wheel(folder: str, settings: dict[str, object] | None = None, metadata: str | None = None) -> str:
    """As PEP 517 has it."""
    with shipped():
        built: str = maturin.build_wheel(folder, settings, metadata)
    return built


def build_sdist(folder: str, settings: dict[str, object] | None = None) -> str:
    """As PEP 517 has it."""
    with shipped():
        built: str = maturin.build_sdist(folder, settings)
    return built
