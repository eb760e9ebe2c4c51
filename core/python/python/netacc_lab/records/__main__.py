"""`netacc record`: converts older results, checks records, and prints the schema."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from netacc_lab.records import converting, folder
from netacc_lab.records.folder import RecordError
from netacc_lab.records.model import Header

EPILOG = """\
Exit codes: 0 done, 2 no record, or wrong arguments.

examples:
  netacc record convert results/redis-c100.json redis      the JSON of a tool, as a record
  netacc record check redis                                whether all of it can be read
  netacc record schema >schema.json                        of record.json
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    options = _parser().parse_args(arguments)
    try:
        if options.command == "convert":
            convert(options.old, options.new)
        elif options.command == "check":
            for path in options.record:
                header = folder.check(path)
                print(f"{path}: {header.title}, {header.status}, version {header.version}")
        else:
            print(json.dumps(Header.model_json_schema(), indent=1))
    except RecordError as error:
        print(f"netacc record: {error}", file=sys.stderr)
        return 2
    return 0


def convert(old: Path, new: Path) -> None:
    """Writes the record of an older result."""
    if folder.is_record(old):
        raise RecordError(f"{old}: a record already")
    contents = converting.convert(old)
    if old.is_dir():
        # The tool's own files belong to it.
        if new.exists():
            raise RecordError(f"{new}: there is something already; name a new folder")
        try:
            shutil.copytree(old, new)
        except OSError as error:
            raise RecordError(f"{new}: {error}") from None
        folder.write_into(new, contents)
    else:
        folder.write(new, contents)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="netacc record",
        description="Records of measurements and simulations: folders with a record.json.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, dest="command")
    one = commands.add_parser("convert", help="make a record of an older result, or of a tool's JSON")
    one.add_argument("old", type=Path, metavar="OLD", help="a file, or the folder of a run")
    one.add_argument("new", type=Path, metavar="NEW", help="the new folder")
    two = commands.add_parser("check", help="read whole records; say what is wrong with the first bad one")
    two.add_argument("record", nargs="+", type=Path, metavar="RECORD")
    commands.add_parser("schema", help="the JSON Schema of record.json")
    return parser


if __name__ == "__main__":
    sys.exit(main())
