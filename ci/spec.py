#!/usr/bin/env python3
"""List the clauses of core/proto/SPEC.md that no code or no test cites.

A clause is a paragraph, heading or list item that begins with its number in bold: ``**4.2.1** A sender
must ...``. One that ends with ``(informative)`` asks for nothing. Code cites it where it is obeyed::

    //= spec §4.2.1
    //# A sender must keep every byte until it was consumed.

and a test has ``//= type=test`` on the line after the first. A citation of a clause that does not exist,
and a quotation that is not in the clause, are errors too: so a changed clause is noticed where it is used.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
SPEC = REPO / "core/proto/SPEC.md"
SOURCES = ("core", "backends", "sim", "models", "tests")
SUFFIXES = {".rs", ".cc", ".h", ".c", ".py"}

CLAUSE = re.compile(r"^(?:#+\s+|[-*]\s+|>\s+)?\*\*(?P<number>\d+(?:\.\d+)*)\*\*\s*(?P<text>.*)$")
CITATION = re.compile(r"^\s*(?://|#)=\s*spec\s+(?P<numbers>§\d.*)$")
NUMBER = re.compile(r"§(\d+(?:\.\d+)*)")
KIND = re.compile(r"^\s*(?://|#)=\s*type=(?P<kind>\w+)\s*$")
QUOTE = re.compile(r"^\s*(?://|#)#\s?(?P<text>.*)$")


@dataclass
class Clause:
    """One numbered clause, with the places that cite it."""

    number: str
    line: int
    text: str
    code: list[str] = field(default_factory=list)
    tests: list[str] = field(default_factory=list)

    @property
    def informative(self) -> bool:
        return self.text.rstrip().rstrip("*_.").endswith("(informative)")


@dataclass(frozen=True)
class Citation:
    """A comment that names clauses, and its quotations."""

    place: str
    numbers: tuple[str, ...]
    is_test: bool
    quote: str


def plain(text: str) -> str:
    """The text without markup and line breaks, for comparing a quotation with its clause."""
    return " ".join(re.sub(r"[*_`]", "", text).split())


def clauses_of(text: str) -> Iterator[Clause]:
    """The clauses in the order of the document; each reaches to the next blank line, heading or clause."""
    current: Clause | None = None
    for line_number, line in enumerate(text.splitlines(), start=1):
        if match := CLAUSE.match(line):
            if current:
                yield current
            current = Clause(match["number"], line_number, match["text"])
        elif current and line.strip() and not line.startswith("#"):
            current.text += " " + line.strip()
        elif current:
            yield current
            current = None
    if current:
        yield current


def citations_of(text: str, name: str) -> Iterator[Citation]:
    """The citations in one source file."""
    lines = text.splitlines()
    for index, line in enumerate(lines):
        match = CITATION.match(line)
        if not match:
            continue
        is_test, quoted = False, []
        for following in lines[index + 1 :]:
            if kind := KIND.match(following):
                is_test = is_test or kind["kind"] == "test"
            elif quote := QUOTE.match(following):
                quoted.append(quote["text"])
            else:
                break
        yield Citation(
            place=f"{name}:{index + 1}",
            numbers=tuple(NUMBER.findall(match["numbers"])),
            is_test=is_test,
            quote=plain(" ".join(quoted)),
        )


def source_files(root: Path) -> Iterator[Path]:
    for folder in SOURCES:
        yield from sorted(path for path in (root / folder).rglob("*") if path.suffix in SUFFIXES)


def check(spec_text: str, sources: dict[str, str]) -> tuple[dict[str, Clause], list[str]]:
    """Match citations with clauses. Returns the clauses by number and one line for each problem."""
    clauses: dict[str, Clause] = {}
    problems: list[str] = []
    for clause in clauses_of(spec_text):
        if clause.number in clauses:
            problems.append(f"SPEC.md:{clause.line}: §{clause.number} is there twice")
        clauses.setdefault(clause.number, clause)
    for name, text in sources.items():
        for citation in citations_of(text, name):
            for number in citation.numbers:
                cited = clauses.get(number)
                if cited is None:
                    problems.append(f"{citation.place}: cites §{number}, which SPEC.md does not have")
                    continue
                (cited.tests if citation.is_test else cited.code).append(citation.place)
            known = " ".join(plain(clauses[n].text) for n in citation.numbers if n in clauses)
            if citation.quote and known and citation.quote not in known:
                problems.append(f"{citation.place}: the quotation is not in §{', §'.join(citation.numbers)}")
    for clause in clauses.values():
        lacks = [what for what, places in (("code", clause.code), ("test", clause.tests)) if not places]
        if lacks and not clause.informative:
            problems.append(f"SPEC.md:{clause.line}: §{clause.number} has no {' and no '.join(lacks)}")
    if not clauses:
        problems.append("SPEC.md has no clause of the form **4.2.1**")
    return clauses, problems


def main() -> int:
    parser = argparse.ArgumentParser(description="List clauses of SPEC.md with no code or no test.")
    parser.add_argument("--list", action="store_true", help="also print every clause with its citations")
    arguments = parser.parse_args()
    if not SPEC.exists():
        print(f"{SPEC.relative_to(REPO)} does not exist", file=sys.stderr)
        return 1
    # A test that holds citations as data, of this script, is not a test of the protocol.
    own_tests = REPO / "tests/ci"
    sources = {
        str(path.relative_to(REPO)): path.read_text(encoding="utf-8")
        for path in source_files(REPO)
        if own_tests not in path.parents
    }
    clauses, problems = check(SPEC.read_text(encoding="utf-8"), sources)
    if arguments.list:
        for clause in clauses.values():
            code, tests = (", ".join(places) or "-" for places in (clause.code, clause.tests))
            print(f"§{clause.number}: code {code}; tests {tests}")
    for problem in problems:
        print(problem)
    informative = sum(clause.informative for clause in clauses.values())
    print(f"{len(clauses)} clauses, {informative} of them informative; {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
