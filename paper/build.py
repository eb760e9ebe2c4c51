"""Makes the paper: `python -m paper.build` writes target/paper/netacc.pdf, all numbers from records.

A number that the text names, a record or a key that is not there ends the build with status 1, and so does a
paper that has become too long. `--png` writes the pages as pictures, too.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

import typst

from paper import figures, tables, values
from paper.reading import ROOT, MissingError, Reader

TEXT = ROOT / "paper"
#: `v("NAME")` in the text, and `ratio("NAME")`, which prints three numbers.
USE = re.compile(r'\b(v|ratio)\("([^"]+)"\)')
PAGES_MOST = 14


def prepare(reader: Reader, out: Path) -> None:
    """Writes the numbers, the tables and the figures; and which is from where."""
    out.mkdir(parents=True, exist_ok=True)
    texts, sources = values.names(reader).read(used())
    cells, of_cells = tables.everything(reader)
    data = {"values": texts, "tables": cells}
    (out / "data.json").write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", "utf-8")
    drawn = figures.draw(reader, out / "figures")
    (out / "claims.md").write_text(claims(texts, sources, of_cells | drawn), "utf-8")


def used() -> list[str]:
    """The names in the text, in their order."""
    texts = "\n".join(file.read_text("utf-8") for file in sorted(TEXT.rglob("*.typ")))
    names: dict[str, None] = {}
    for macro, name in USE.findall(texts):
        parts = (".median", ".min", ".max") if macro == "ratio" else ("",)
        names |= dict.fromkeys(name + part for part in parts)
    return list(names)


def claims(texts: dict[str, str], sources: dict[str, list[str]], others: dict[str, list[str]]) -> str:
    """Markdown: each number of the text, each table and figure, and the records that they are from."""
    lines = ["# Numbers of the paper and their records", "", "| name | printed | from |", "| - | - | - |"]
    for name, text in texts.items():
        places = "<br>".join(source.replace("|", "\\|") for source in sources[name])
        lines.append(f"| {name} | {text} | {places} |")
    lines += ["", "| table or figure | from |", "| - | - |"]
    lines += [f"| {name} | {', '.join(records)} |" for name, records in others.items()]
    return "\n".join(lines) + "\n"


def compiled(out: Path, pages_most: int, png: bool) -> int:
    """Compiles the text, and returns the number of its pages."""
    compiler = typst.Compiler(
        TEXT / "netacc.typ",
        root=ROOT,
        ignore_system_fonts=True,
        sys_inputs={"out": f"/{out.relative_to(ROOT)}", "pages-most": str(pages_most)},
    )
    compiler.compile(output=out / "netacc.pdf", format="pdf")
    pages = compiler.compile(format="png", ppi=110 if png else 20)
    pages = [pages] if isinstance(pages, bytes) else pages or []
    for number, page in enumerate(pages if png else [], 1):
        (out / f"page-{number:02}.png").write_bytes(page)
    return len(pages)


def build(out: Path, root: Path = ROOT, pages_most: int = PAGES_MOST, png: bool = False) -> int:
    """The number of pages. Raises MissingError, or typst.TypstError."""
    prepare(Reader(root), out)
    return compiled(out, pages_most, png)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m paper.build", description=__doc__)
    parser.add_argument("--png", action="store_true", help="the pages as pictures, too")
    parser.add_argument("--records", type=Path, default=ROOT, help="a tree with other records")
    given = parser.parse_args()
    out = ROOT / "target/paper"
    try:
        pages = build(out, given.records, png=given.png)
    except MissingError as missing:
        print(f"paper: {missing}", file=sys.stderr)
        return 1
    except typst.TypstError as error:
        print(f"paper: {error.diagnostic or error.message}", file=sys.stderr)
        return 1
    print(f"{(out / 'netacc.pdf').relative_to(ROOT)}: {pages} pages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
