"""The site's additions to Sphinx: pages made from the code, and checked links to files of the repository.

The generated pages go to `docs/reference/generated`, which is not kept in version control.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from netacc_lab._native import key_range
from sphinx.application import Sphinx
from sphinx.util import logging

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
GENERATED = DOCS / "reference" / "generated"
# Documents outside docs/ that are pages of the site.
PAGES = {
    "core/proto/SPEC.md": "reference/generated/spec.md",
    "ARCHITECTURE.md": "reference/generated/architecture.md",
    "CONTRIBUTING.md": "reference/generated/contributing.md",
    "SECURITY.md": "reference/generated/security.md",
    # The build executes these.
    **{
        f"notebooks/{path.name}": f"reference/generated/notebooks/{path.name}"
        for path in (ROOT / "notebooks").glob("*.ipynb")
    },
}
LINK = re.compile(r"(?<!!)\[([^\]\n]+)\]\(([^)#\s:]+)(#[^)\s]*)?\)")
RECORD = (
    "A record is a folder: `record.json` with the fields below, the files that it names, and whatever",
    "else the tool keeps there. `netacc bench`, `netacc lat` and `netacc_ss` write one with `--record DIR`;",
    "`netacc calibrate`, `netacc sim` and the kit for two machines always do. `netacc record convert` makes",
    "one of an older result, and `netacc report` prints one or compares two.",
    "",
    "A field that is added raises the version. A reader refuses later versions and unknown fields.",
)
logger = logging.getLogger(__name__)


def configuration() -> str:
    """The keys of the sample configuration, with the bounds that the library checks."""
    lines = ["# Configuration keys", "", "From `core/config/netacc.conf`, and the bounds from the library."]
    comment: list[str] = []
    for line in (ROOT / "core/config/netacc.conf").read_text().splitlines():
        if line.startswith("#"):
            comment.append(line.removeprefix("#").removeprefix(" "))
        elif "=" in line:
            name, default = line.split("=", 1)
            lines += ["", f"## {name}", "", "```text", *comment, "```", "", f"Default: `{default}`."]
            lines += bounds(name)
            comment = []
        elif not line:
            comment = []
    return "\n".join(lines) + "\n"


def bounds(name: str) -> list[str]:
    """A sentence about the bounds of a key, if it takes an integer."""
    try:
        least, greatest, _ = key_range(name)
    except ValueError:
        return []
    return [f"An integer from {least} to {greatest}."]


def help_text(program: Path, *words: str) -> str:
    """The help of a program."""
    # `netacc sim` starts this environment's Python; COLUMNS sets the width of its help.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    run = subprocess.run(
        [program, *words, "--help"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={**os.environ, "PATH": path, "COLUMNS": "100"},
    )
    if run.returncode != 0:
        logger.warning(
            "%s --help ends with %d: %s", " ".join([program.name, *words]), run.returncode, run.stderr
        )
    return run.stdout.rstrip()


def subcommands(text: str) -> list[str]:
    """The names in the list of commands of a help text, by clap or by argparse."""
    if part := re.search(r"^Commands:\n((?:  .*\n)+)", text + "\n", re.MULTILINE):
        return [name for name in re.findall(r"^  (\S+)", part[1], re.MULTILINE) if name != "help"]
    choice = re.search(r"^positional arguments:\n  \{([a-z,]+)\}", text, re.MULTILINE)
    return choice[1].split(",") if choice else []


def commands() -> str:
    """The help of each program and of each of its commands."""
    folder = Path(os.environ.get("NETACC_BIN_DIR") or ROOT / "target/release")
    lines = ["# Commands", "", "The output of each program with `--help`."]

    def add(program: str, *words: str) -> None:
        text = help_text(folder / program, *words)
        lines.extend(["", f"## {' '.join([program, *words])}", "", "```text", text, "```"])
        for name in subcommands(text):
            add(program, *words, name)

    for program in ("netacc", "netacc_run", "netacc_ss"):
        add(program)
    return "\n".join(lines) + "\n"


def reasons() -> str:
    """The table in chapter 9 of the specification."""
    chapter = (ROOT / "core/proto/SPEC.md").read_text().split("## 9. Reason codes\n", 1)[1]
    return f"# Reason codes\n\nChapter 9 of [the specification](spec.md).\n{chapter}"


def jobs() -> str:
    """The jobs of `ci/run.sh`, as its help lists them."""
    lines = ["# Jobs", "", "`ci/run.sh JOB` runs one.", "", "| job | what |", "| --- | --- |"]
    found = re.findall(r"^job_([a-z0-9-]+)\(\) \{ # (.*)$", (ROOT / "ci/run.sh").read_text(), re.MULTILINE)
    lines += [f"| `{name}` | {what.replace('|', chr(92) + '|')} |" for name, what in found]
    return "\n".join(lines) + "\n"


def kind(value: dict[str, Any]) -> str:
    """The type of a property of the schema, in short."""
    if "$ref" in value:
        return str(value["$ref"]).rsplit("/", 1)[-1]
    if "anyOf" in value:
        return " or ".join(kind(each) for each in value["anyOf"])
    if "enum" in value:
        return ", ".join(f"`{each}`" for each in value["enum"])
    if value.get("type") == "array" and "items" in value:
        return f"list of {kind(value['items'])}"
    return str(value.get("type", "any"))


#: Of `record.json`: the package has it, so that an installed one has it, too.
RECORD_SCHEMA = "core/python/python/netacc_lab/records/schema.json"


def schema(file: str, title: str, root: str, *more: str) -> str:
    """The tables of a JSON Schema, whose own table is called `root`."""
    whole = json.loads((ROOT / file).read_text())
    lines = [f"# {title}", "", f"From `{file}`.", *more]
    for name, table in {root: whole, **whole["$defs"]}.items():
        lines += ["", f"## {name}", "", " ".join(table.get("description", "").split())]
        if "enum" in table:
            lines += ["", "One of " + kind(table) + "."]
        if table.get("properties"):
            lines += ["", "| key | type | default | meaning |", "| --- | --- | --- | --- |"]
        for key, value in table.get("properties", {}).items():
            default = f"`{json.dumps(value['default'])}`" if "default" in value else ""
            meaning = " ".join(value.get("description", "").split())
            cells = [f"`{key}`", kind(value), default, meaning]
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def python_api() -> str:
    """Directives that take the Python package's documentation from its code."""
    lines = ["# Python API", ""]
    whole = ("netacc_lab", "netacc_lab.sim", "netacc_lab.analysis", "netacc_lab.records")
    parts = ("netacc_lab.analysis.interactive", "netacc_lab.differential", "netacc_lab.strategies")
    for module in (*whole, *parts):
        members = "   :members:\n   :imported-members:" if module in whole else "   :members:"
        if module == "netacc_lab.records":
            # It is described with the analysis, which raises it.
            members += "\n   :exclude-members: RecordError"
        lines += [f"## {module}", "", "```{eval-rst}", f".. automodule:: {module}", members, "```", ""]
    return "\n".join(lines)


def real_programs() -> str:
    """The table of `real-programs.md`, from the recorded run of `ci/run.sh apps`."""
    loads: dict[str, dict[str, dict[str, Any]]] = {}
    for row in json.loads((ROOT / "results/apps.json").read_text())["results"]:
        loads.setdefault(row["program"], {})[row["mode"]] = row
    lines = [
        "| load | bytes counted, both sides | both sides: on links | server only | client only |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, modes in loads.items():
        both = modes["shm"]
        counted = (both["link_bytes"] + both["tcp_bytes"]) / 1e6
        # Rounded down: 100 % would mean that nothing went over TCP.
        shares = [
            f"{int(1e4 * modes[mode]['link_share']) / 100:.2f} %"
            for mode in ("shm", "server-only", "client-only")
        ]
        lines.append(f"| {name} | {counted:.1f} MB | {' | '.join(shares)} |")
    return "\n".join(lines) + "\n"


def check_real_programs(_app: Sphinx) -> None:
    """GitHub shows that page as it is, so it has the table itself."""
    if real_programs() not in (DOCS / "real-programs.md").read_text():
        logger.warning(
            "the table is not that of results/apps.json:\n%s", real_programs(), location="real-programs"
        )


def write(path: Path, text: str) -> None:
    """Writes a page only if it has changed, so that Sphinx does not read it again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def generate(_app: Sphinx) -> None:
    """Makes the pages that come from the code."""
    pages = {
        "configuration": configuration(),
        "commands": commands(),
        "reasons": reasons(),
        "jobs": jobs(),
        "schema": schema("sim/scenarios/schema.json", "Scenario schema", "Scenario"),
        "record": schema(RECORD_SCHEMA, "Record schema", "Header", "", *RECORD),
        "python": python_api(),
    }
    for name, text in pages.items():
        write(GENERATED / f"{name}.md", text)
    for source, page in PAGES.items():
        write(DOCS / page, (ROOT / source).read_text())


def check_links(_app: Sphinx, name: str, content: list[str]) -> None:
    """Checks each relative link to a file of the repository; those outside docs/ become the path."""
    page = f"{name}.md"
    # A page's suffix is not in its name, and no two differ in that alone.
    origin = {target.rsplit(".", 1)[0]: source for source, target in PAGES.items()}.get(name)
    folder = (ROOT / origin).parent if origin else (DOCS / page).parent

    def replace(match: re.Match[str]) -> str:
        text, target, fragment = match[1], match[2], match[3] or ""
        path = (folder / target).resolve()
        if not path.is_relative_to(ROOT) or not path.exists():
            logger.warning("no such file in the repository: %s", target, location=name)
            return match[0]
        relative = path.relative_to(ROOT).as_posix()
        if relative in PAGES:
            path = DOCS / PAGES[relative]
        if path.is_relative_to(DOCS):
            return f"[{text}]({os.path.relpath(path, (DOCS / page).parent)}{fragment})"
        label = text.strip("`")
        return f"`{relative}`" if label in relative else f"{text} (`{relative}`)"

    # GitHub draws these; Sphinx shows their source.
    content[0] = LINK.sub(replace, content[0]).replace("```mermaid", "```text")


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("builder-inited", generate)
    app.connect("builder-inited", check_real_programs)
    app.connect("source-read", check_links)
    return {"parallel_read_safe": True}
