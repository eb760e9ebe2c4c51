#!/usr/bin/env python3
"""Check the structure of the Rust crates: no circles of modules, no upward arrows, no way around a front.

Module A depends on module B if A names something that B defines, by a path or through an import. A re-export
counts as the module that defines the item, and tests inside the crates are left out. Method calls are not
seen, because that would take type inference. A module may use the modules around it freely, because it is a
part of them; what these use of it counts.

A front is the one crate below a folder on which crates outside of it may depend, in their tests and build
scripts, too. The list may name others that are open to all.

``ci/structure.toml`` lists the circles that stay, each with its reason, the layers of crates, and the fronts.

Exit status: 0 if the structure is as listed, 1 if not, 2 if a source or the list cannot be read.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import networkx
import tree_sitter_rust
from tree_sitter import Language, Node, Parser

REPO = Path(__file__).resolve().parent.parent
LISTED = REPO / "ci/structure.toml"

PARSER = Parser(Language(tree_sitter_rust.language()))
ITEMS = {
    "function_item", "function_signature_item", "struct_item", "enum_item", "union_item", "trait_item",
    "const_item", "static_item", "type_item", "macro_definition",
}  # fmt: skip
PATHS = {"scoped_identifier", "scoped_type_identifier"}
# Macros get tokens, in which paths are not parsed.
PATH_IN_TOKENS = re.compile(r"(?<![\w:])[a-z_]\w*(?:\s*::\s*\w+)+")

Path_ = tuple[str, ...]


@dataclass
class Module:
    """A module of a crate: its file, its definitions and its imports."""

    path: Path_
    file: Path
    inline: bool
    defined: set[str] = field(default_factory=set)
    children: set[str] = field(default_factory=set)
    imports: dict[str, Path_] = field(default_factory=dict)
    globs: list[Path_] = field(default_factory=list)
    uses: list[Path_] = field(default_factory=list)


@dataclass(frozen=True)
class Arrow:
    """A module names something that another one of its crate defines: paths from the crate's root."""

    crate: str
    source: Path_
    target: Path_
    name: str

    @property
    def counts(self) -> bool:
        """Not if a module uses one that it is a part of."""
        return self.source[: len(self.target)] != self.target


@dataclass(frozen=True, order=True)
class Circle:
    """Modules of a crate that depend on each other."""

    crate: str
    modules: tuple[str, ...]

    def describe(self, arrows: set[Arrow]) -> Iterator[str]:
        yield f"circle of {len(self.modules)} modules of {self.crate}:"
        names = defaultdict(set)
        for arrow in arrows:
            ends = "::".join(arrow.source), "::".join(arrow.target)
            if arrow.crate == self.crate and arrow.counts and set(ends) <= set(self.modules):
                names[ends].add(arrow.name)
        for (source, target), used in sorted(names.items()):
            more = f" and {len(used) - 5} more" if len(used) > 5 else ""
            yield f"    {source} -> {target}: {', '.join(sorted(used)[:5])}{more}"


def text(node: Node | None) -> str:
    return "" if node is None or node.text is None else node.text.decode()


def is_test(attributes: list[str]) -> bool:
    return any(re.search(r"cfg\(\s*(?:all\(\s*)?test\b", a) or a == "#[test]" for a in attributes)


def items(node: Node) -> Iterator[tuple[Node, list[str]]]:
    """The items of a module, with their attributes; not those of tests."""
    attributes: list[str] = []
    for child in node.named_children:
        if child.type == "attribute_item":
            attributes.append(text(child))
        elif child.type not in {"line_comment", "block_comment"}:
            if not is_test(attributes):
                yield child, attributes
            attributes = []


class Crate:
    """All modules of one target, from its root file on."""

    def __init__(self, name: str, root: Path) -> None:
        self.name = name
        self.modules: dict[Path_, Module] = {}
        self._load((), root, inline=False)

    def _load(self, path: Path_, file: Path, *, inline: bool) -> None:
        tree = PARSER.parse(file.read_bytes())
        self._fill(Module(path, file, inline), tree.root_node)

    def _fill(self, module: Module, body: Node) -> None:
        self.modules[module.path] = module
        for item, attributes in items(body):
            name = text(item.child_by_field_name("name"))
            if item.type == "mod_item":
                module.children.add(name)
                self._child(module, name, item.child_by_field_name("body"), attributes)
                continue
            if item.type in ITEMS:
                module.defined.add(name)
            if item.type == "use_declaration":
                self._import(module, item.child_by_field_name("argument"), ())
            else:
                self._collect(module, item)

    def _child(self, module: Module, name: str, body: Node | None, attributes: list[str]) -> None:
        path = (*module.path, name)
        if body is not None:
            self._fill(Module(path, module.file, inline=True), body)
            return
        folder = module.file.parent
        if module.path and module.file.name != "mod.rs":
            folder /= module.file.stem
        named = next((m[1] for a in attributes if (m := re.search(r'path\s*=\s*"(.+?)"', a))), None)
        places = [module.file.parent / named] if named else [folder / f"{name}.rs", folder / name / "mod.rs"]
        file = next((place for place in places if place.exists()), None)
        if file is None:
            raise FileNotFoundError(f"{module.file}: no file of `mod {name}`")
        self._load(path, file, inline=False)

    def _import(self, module: Module, node: Node | None, before: Path_) -> None:
        if node is None:
            return
        match node.type:
            case "use_list":
                for child in node.named_children:
                    self._import(module, child, before)
            case "scoped_use_list":
                path = before + segments(text(node.child_by_field_name("path")))
                self._import(module, node.child_by_field_name("list"), path)
            case "use_as_clause":
                path = before + segments(text(node.child_by_field_name("path")))
                self._bind(module, text(node.child_by_field_name("alias")), path)
            case "use_wildcard":
                module.globs.append(before + segments(text(node).removesuffix("*").rstrip(": \n")))
            case "self":
                self._bind(module, before[-1], before)
            case _:
                path = before + segments(text(node))
                self._bind(module, path[-1], path)

    @staticmethod
    def _bind(module: Module, name: str, path: Path_) -> None:
        module.imports[name] = path
        module.uses.append(path)

    def _collect(self, module: Module, node: Node) -> None:
        """Every path in an item. A path is taken whole, not its parts."""
        if node.type in PATHS:
            module.uses.append(segments(re.sub(r"<.*", "", text(node), flags=re.DOTALL)))
        elif node.type == "token_tree":
            module.uses.extend(segments(m[0]) for m in PATH_IN_TOKENS.finditer(text(node)))
            return
        elif node.type == "use_declaration":
            self._import(module, node.child_by_field_name("argument"), ())
            return
        for child in node.named_children:
            self._collect(module, child)

    def absolute(self, module: Module, path: Path_) -> Path_ | None:
        """A path from the crate's root on; ``None`` if it leaves the crate, or names something local."""
        match path[:1]:
            case ("crate",):
                return path[1:]
            case ("self",):
                return module.path + path[1:]
            case ("super",):
                at = module.path
                while path[:1] == ("super",):
                    at, path = at[:-1], path[1:]
                return at + path
        first = path[:1][0] if path else ""
        if first in module.imports and module.imports[first][:1] != (first,):
            return self.absolute(module, module.imports[first] + path[1:])
        if first in module.children or (len(path) > 1 and first in module.defined):
            return module.path + path
        return None

    def definition(self, path: Path_, depth: int = 0) -> Module | None:
        """The module that defines the item of an absolute path; ``None`` for a module itself."""
        at = self.modules[()]
        for i, segment in enumerate(path):
            if segment in at.children:
                child = self.modules.get((*at.path, segment))
                if child is None:
                    return None
                at = child
                continue
            if segment in at.defined or depth > 8:
                return at
            rest = path[i + 1 :]
            if segment in at.imports:
                whole = self.absolute(at, at.imports[segment])
                return None if whole is None else self.definition(whole + rest, depth + 1)
            for glob in at.globs:
                whole = self.absolute(at, glob)
                found = None if whole is None else self.definition((*whole, segment), depth + 1)
                if found is not None and segment in found.defined:
                    return found
            return at
        return None

    def arrows(self) -> set[Arrow]:
        found = set()
        for module in self.modules.values():
            for path in module.uses:
                whole = self.absolute(module, path)
                target = None if whole is None else self.definition(whole)
                if target is not None and target.path != module.path:
                    found.add(Arrow(self.name, module.path, target.path, "::".join(path)))
        return found


def segments(path: str) -> Path_:
    return tuple(part.strip() for part in path.split("::") if part.strip())


def workspace() -> list[dict[str, Any]]:
    """The packages of the workspace, as cargo describes them."""
    command = ["cargo", "metadata", "--no-deps", "--offline", "--format-version", "1"]
    ran = subprocess.run(command, cwd=REPO, check=True, capture_output=True, text=True)
    packages: list[dict[str, Any]] = json.loads(ran.stdout)["packages"]
    return packages


def crates(packages: list[dict[str, Any]]) -> list[Crate]:
    """The libraries and programs of the workspace; not its tests, benchmarks and build scripts."""
    wanted = {"lib", "bin", "cdylib", "rlib", "staticlib", "proc-macro"}
    return [
        Crate(package["name"], Path(target["src_path"]))
        for package in packages
        for target in package["targets"]
        if wanted & set(target["kind"])
    ]


def circles(arrows: set[Arrow]) -> list[Circle]:
    counting = (arrow for arrow in arrows if arrow.counts)
    graph = networkx.DiGraph(((a.crate, a.source), (a.crate, a.target)) for a in counting)
    parts = (sorted(c) for c in networkx.strongly_connected_components(graph) if len(c) > 1)
    return sorted(Circle(c[0][0], tuple("::".join(path) for _, path in c)) for c in parts)


@dataclass(frozen=True)
class Layers:
    """The layers of a crate, from the lowest on: lists of modules, which stand for all that they contain."""

    crate: str
    layers: list[list[str]]

    def number(self, module: Path_) -> int | None:
        """Of the layer that lists the module, or the nearest module around it."""
        for length in range(len(module), 0, -1):
            name = "::".join(module[:length])
            for number, layer in enumerate(self.layers):
                if name in layer:
                    return number
        return None

    def check(self, arrows: set[Arrow]) -> tuple[list[Arrow], list[str]]:
        """Arrows to a higher layer, and modules that are in none."""
        up, homeless = [], set()
        for arrow in (a for a in arrows if a.crate == self.crate and a.source and a.target):
            source, target = self.number(arrow.source), self.number(arrow.target)
            homeless |= {m for m, n in ((arrow.source, source), (arrow.target, target)) if n is None}
            if source is not None and target is not None and source < target:
                up.append(arrow)
        return sorted(up, key=lambda a: (a.source, a.target, a.name)), sorted("::".join(m) for m in homeless)


@dataclass(frozen=True)
class Front:
    """The one crate below a folder on which crates outside of the folder may depend."""

    folder: Path
    crate: str
    direct: frozenset[str] = frozenset()
    """Crates below the folder on which others may depend all the same."""

    def check(self, packages: list[dict[str, Any]]) -> list[str]:
        """The dependencies that go around it."""
        return sorted(
            f"around {self.crate}: {package['name']} depends on {dependency['name']}"
            for package in packages
            if not Path(package["manifest_path"]).is_relative_to(self.folder)
            for dependency in package["dependencies"]
            if dependency["name"] not in self.direct | {self.crate}
            and self.folder in Path(dependency.get("path") or "/").parents
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print all circles and upward arrows as JSON")
    parser.add_argument("--all", action="store_true", help="describe the circles that are listed, too")
    args = parser.parse_args()
    try:
        listed = tomllib.loads(LISTED.read_text())
        packages = workspace()
        arrows: set[Arrow] = set().union(*(crate.arrows() for crate in crates(packages)))
        known = {Circle(c["crate"], tuple(c["modules"])) for c in listed.get("circle", [])}
        layered = [Layers(c["crate"], c["layers"]) for c in listed.get("layered", [])]
        fronts = [
            Front(REPO / f["folder"], f["crate"], frozenset(f.get("direct", ())))
            for f in listed.get("front", [])
        ]
    except (OSError, KeyError, subprocess.CalledProcessError, tomllib.TOMLDecodeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    found = circles(arrows)
    checked = [layers.check(arrows) for layers in layered]
    up = [arrow for upward, _ in checked for arrow in upward]
    if args.all:
        for line in (line for c in found if c in known for line in c.describe(arrows)):
            print(line)
    problems = [line for c in found if c not in known for line in c.describe(arrows)]
    gone = sorted(known - set(found))
    problems += [f"listed, but not a circle any more: {c.crate}: {', '.join(c.modules)}" for c in gone]
    problems += [f"upward: {'::'.join(a.source)} uses {a.name} of {'::'.join(a.target)}" for a in up]
    problems += [f"in no layer: {module}" for _, homeless in checked for module in homeless]
    problems += [line for front in fronts for line in front.check(packages)]
    for line in problems:
        print(line, file=sys.stderr)
    if args.json:
        print(json.dumps({"circles": [vars(c) for c in found], "upward": [vars(a) for a in up]}, indent=1))
    else:
        both = len(known & set(found))
        print(f"{len(found)} circles of modules, of which {both} are listed; {len(up)} upward arrows")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
