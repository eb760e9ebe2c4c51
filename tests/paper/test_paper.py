"""The paper is made of records alone: without one of them, or a key of it, there is no paper."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typst

from paper import build, figures, tables, values
from paper.reading import ROOT, MissingError, Reader

#: Numbers of the text that are no results: constants of the protocol, aims, parameters of a load.
CONSTANTS = ROOT / "paper/constants.txt"


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """A copy of the records, to be spoilt."""
    for folder in ("results", "paper/records"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("local"))
    return tmp_path


@pytest.fixture(scope="module")
def out() -> Iterator[Path]:
    """What the text needs, in a folder below the tree, because the text reads nothing outside of it."""
    folder = ROOT / f"target/paper-test-{os.getpid()}"
    build.prepare(Reader(), folder)
    yield folder
    shutil.rmtree(folder)


def test_the_copied_records_are_enough(records: Path) -> None:
    """What the other tests take away is missed for no other reason."""
    used = build.used()
    assert len(used) > 100
    assert values.names(Reader(records)).read(used) == values.names(Reader()).read(used)
    assert tables.everything(Reader(records)) == tables.everything(Reader())


def test_a_missing_record_ends_the_build(records: Path, out: Path) -> None:
    (records / "results/connect.json").unlink()
    with pytest.raises(MissingError, match=r"connect\.json"):
        build.build(out, records)


def test_a_missing_key_ends_the_build(records: Path, out: Path) -> None:
    record = records / "paper/records/model.json"
    content = json.loads(record.read_text())
    del content["states"]
    record.write_text(json.dumps(content))
    with pytest.raises(MissingError, match=r"model\.json: there is no states"):
        build.build(out, records)


@pytest.mark.parametrize(
    ("heading", "row", "column"),
    [
        ("Failures", "the device explodes", "SoftRoCE"),
        ("Failures", "the peer is killed", "InfiniBand"),
        ("Nothing", "the peer is killed", "SoftRoCE"),
    ],
)
def test_a_missing_row_column_or_heading_is_an_error(heading: str, row: str, column: str) -> None:
    with pytest.raises(MissingError):
        Reader().cell("results/README.md", heading, row, column)


def test_a_sentence_that_has_changed_is_an_error() -> None:
    with pytest.raises(MissingError, match="0 matches"):
        Reader().said("results/transparency.md", r"all (\d+) tests of Minix passed")


def test_a_missing_histogram_ends_a_figure(records: Path) -> None:
    (records / "results/busy/0/latency-tcp-1.hdr").unlink()
    with pytest.raises(MissingError, match=r"latency-tcp-1\.hdr"):
        figures.FIGURES["busy"](Reader(records))


def test_a_name_that_is_nowhere_ends_the_build(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "used", lambda: ["no.such.number"])
    with pytest.raises(MissingError, match=r"no\.such\.number"):
        build.prepare(Reader(), out)


def test_the_paper_has_no_more_pages_than_permitted(out: Path) -> None:
    pages = build.compiled(out, build.PAGES_MOST, png=False)
    assert 8 <= pages <= build.PAGES_MOST == 14
    assert (out / "netacc.pdf").read_bytes().startswith(b"%PDF")
    with pytest.raises(typst.TypstError, match=f"the paper has {pages} pages"):
        build.compiled(out, pages - 1, png=False)


def test_a_text_that_names_a_missing_number_does_not_compile(out: Path) -> None:
    """Also by a name that the list of names does not find, because it is put together."""
    text = out / "text.typ"
    text.write_text('#import "/paper/template.typ": v\n#v("no." + "such")\n')
    inputs = {"out": f"/{out.relative_to(ROOT)}"}
    compiler = typst.Compiler(text, root=ROOT, sys_inputs=inputs, ignore_system_fonts=True)
    with pytest.raises(typst.TypstError, match="no value named"):
        compiler.compile(format="pdf")


def test_the_command_reports_what_is_missing(records: Path) -> None:
    (records / "results/stream.json").unlink()
    command = [sys.executable, "-m", "paper.build", "--records", str(records)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert run.stderr == "paper: results/stream.json: No such file or directory\n"


def literals() -> Iterator[tuple[str, str]]:
    """Numbers that stand in the text itself, with the file."""
    code = (
        r"^#import.*|//.*",
        r"columns: \([^)]*\)|column-gutter: \([^)]*\)|stroke: \S+|align: \([^)]*\)|colspan: \d|\.at\([^)]*\)",
        r"`[^`]*`|@[\w-]+|<[\w-]+>|#v\(\"[^\"]*\"\)|#ratio\(\"[^\"]*\"\)|rows\(\"[^\"]*\"\)",
    )
    for file in sorted((ROOT / "paper/sections").glob("*.typ")):
        text = file.read_text("utf-8")
        for pattern in code:
            text = re.sub(pattern, "", text, flags=re.MULTILINE)
        for number in re.findall(r"(?<![\w.-])\d[\d,.]*(?<![,.])", text):
            yield number, file.name


def test_numbers_of_the_text_are_from_records_or_listed() -> None:
    """Breaks when somebody types a result in place of naming its record."""
    allowed = {line.split("#")[0].strip() for line in CONSTANTS.read_text("utf-8").splitlines()} - {""}
    found = list(literals())
    assert {f"{number} in {file}" for number, file in found if number not in allowed} == set()
    assert allowed - {number for number, _ in found} == set()
