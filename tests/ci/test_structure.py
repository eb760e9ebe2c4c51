"""The check of the crates' structure sees circles, upward arrows and ways around a front."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ci.structure import Arrow, Circle, Crate, Front, Layers, circles


def arrows_of(folder: Path, files: dict[str, str]) -> set[Arrow]:
    """Make a crate of these files, and read it."""
    for name, source in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(source)
    return Crate("made", folder / "lib.rs").arrows()


def ends(arrows: set[Arrow]) -> set[tuple[str, str]]:
    return {("::".join(a.source), "::".join(a.target)) for a in arrows if a.counts}


ROOT = "mod low; mod high; pub use low::Thing as Renamed;"


@pytest.mark.parametrize(
    "use",
    [
        "use crate::low::f; fn g() { f() }",
        "use crate::low; fn g() { low::f() }",
        "use crate::{low::{self as below}}; fn g() { below::f() }",
        "fn g() { super::low::f() }",
        "mod h { pub fn k() { crate::low::f() } }",
        'fn g() { println!("{}", crate::low::f()) }',
        "fn g() -> crate::low::Thing<u8> { todo!() }",
        "use crate::Renamed; fn g(_: Renamed) {}",
    ],
)
def test_every_way_to_name_an_item_is_an_arrow(tmp_path: Path, use: str) -> None:
    low = "pub fn f() {} pub struct Thing<T>(T);"
    found = ends(arrows_of(tmp_path, {"lib.rs": ROOT, "low.rs": low, "high.rs": use}))
    assert {(source.partition("::")[0], target) for source, target in found if source} == {("high", "low")}


@pytest.mark.parametrize(
    "use",
    [
        "fn g() { local::f() } mod local { pub fn f() {} }",
        "use std::io; fn g() { io::stdin(); }",
        "#[cfg(test)] mod tests { use crate::low::f; }",
        "// crate::low::f()",
        "use log::log; fn g() { log::f(); }",
    ],
)
def test_outside_local_and_test_items_are_no_arrows(tmp_path: Path, use: str) -> None:
    low = "pub fn f() {} pub struct Thing;"
    found = ends(arrows_of(tmp_path, {"lib.rs": ROOT, "low.rs": low, "high.rs": use}))
    assert not any(target == "low" for source, target in found if source.startswith("high"))


def test_a_circle_is_found_through_a_re_export(tmp_path: Path) -> None:
    files = {
        "lib.rs": "mod a; mod b; mod c; pub use b::g;",
        "a.rs": "use crate::g; pub fn f() { g() }",
        "b/mod.rs": "mod inner; pub use inner::g;",
        "b/inner.rs": "pub fn g() { crate::c::h() }",
        "c.rs": "pub fn h() { crate::a::f() }",
    }
    assert circles(arrows_of(tmp_path, files)) == [Circle("made", ("a", "b::inner", "c"))]


def test_a_part_may_use_the_whole(tmp_path: Path) -> None:
    files = {
        "lib.rs": "mod a;",
        "a.rs": "mod part; pub struct S; pub fn f() { part::g() }",
        "a/part.rs": "use super::S; pub fn g() { drop(S) }",
    }
    assert circles(arrows_of(tmp_path, files)) == []


def test_arrows_to_higher_layers_are_found(tmp_path: Path) -> None:
    files = {
        "lib.rs": "mod low; mod high; mod lost;",
        "low.rs": "pub fn f() { crate::high::part::g() }",
        "high.rs": "pub mod part; pub fn h() { crate::low::f() }",
        "high/part.rs": "pub fn g() {}",
        "lost.rs": "pub fn k() { crate::high::h() }",
    }
    arrows = arrows_of(tmp_path, files)
    upward, homeless = Layers("made", [["low"], ["high"]]).check(arrows)
    assert [(a.source, a.target) for a in upward] == [(("low",), ("high", "part"))]
    assert homeless == ["lost"]
    # A part may be in another layer than the whole.
    assert Layers("made", [["high::part"], ["low"], ["high", "lost"]]).check(arrows) == ([], [])


def package(folder: str, *dependencies: str) -> dict[str, Any]:
    """A package as ``cargo metadata`` describes it; a dependency without a slash is from a registry."""
    return {
        "name": folder.rpartition("/")[2],
        "manifest_path": f"/repo/{folder}/Cargo.toml",
        "dependencies": [
            {"name": path.rpartition("/")[2]} | ({"path": f"/repo/{path}"} if "/" in path else {})
            for path in dependencies
        ],
    }


def test_a_dependency_around_the_front_is_found() -> None:
    packages = [
        package("core/cli", "backends/registry", "backends/shm", "core/config", "libc"),
        package("backends-old/lib", "backends/verbs"),
        package("backends/registry", "backends/shm", "backends/verbs"),
        package("backends/shm", "core/device"),
    ]
    around = ["around registry: cli depends on shm", "around registry: lib depends on verbs"]
    front = Front(Path("/repo/backends"), "registry")
    assert front.check(packages) == around
    assert front.check(packages[2:]) == []
    assert Front(Path("/repo/backends"), "registry", frozenset({"verbs"})).check(packages) == around[:1]
