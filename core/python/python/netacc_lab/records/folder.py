"""Reads and writes the folders of records.

A folder is written beside its place and renamed, so one that has a `record.json` is whole. Whatever is wrong
with one that is read costs a RecordError, whose text is one line.
"""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json
import pyarrow.parquet as pa_parquet
from hdrh.histogram import HdrHistogram
from pydantic import ValidationError

from netacc_lab.records.model import HEADER, VERSION, Header, Table

#: Bounds and digits of histograms that are made here: a nanosecond to an hour.
BOUNDS = (1, 3_600_000_000_000, 3)


class RecordError(Exception):
    """Something that is no record, or cannot be used."""


@dataclass
class Contents:
    """A record in memory."""

    header: Header
    #: By file, as the header names them.
    histograms: dict[str, HdrHistogram] = field(default_factory=dict)
    #: By file, too. Empty in a record that was read: `read_table` reads one.
    tables: dict[str, pa.Table] = field(default_factory=dict)
    #: The text of the file that the header's `details` names; empty in a record that was read.
    details: str = ""


def is_record(path: Path) -> bool:
    """Whether there is a record of this form."""
    return (path / HEADER).exists()


def read(folder: Path) -> Contents:
    """A record and its histograms."""
    header = read_header(folder)
    runs = [run for series in header.series for run in series.runs]
    names = [name for run in runs for name in run.histograms.values()]
    histograms = {name: decoded(_bytes(folder, name), folder / name) for name in names}
    return Contents(header, histograms)


def check(folder: Path) -> Header:
    """Reads all of a record. Raises RecordError if a part of it is missing or cut short."""
    header = read(folder).header
    for table in header.tables:
        read_table(folder, table)
    if header.details:
        _bytes(folder, header.details)
    return header


def read_header(folder: Path) -> Header:
    """`record.json` alone."""
    file = folder / HEADER
    try:
        found = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise RecordError(f"{folder}: there is no {HEADER} in it") from None
    except OSError as error:
        raise RecordError(f"{file}: {error.strerror}") from None
    except ValueError as error:
        raise RecordError(f"{file}: no JSON, or cut short: {error}") from None
    version = found.get("version") if isinstance(found, dict) else None
    if not isinstance(version, int):
        raise RecordError(f"{file}: it has no version")
    if version > VERSION:
        raise RecordError(
            f"{file}: version {version}; this program knows {VERSION}: use the one that wrote it"
        )
    try:
        header = Header.model_validate(found)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise RecordError(f"{file}: {where}: {first['msg']}") from None
    for what in (header.series, header.tables):
        seen = [each.name for each in what]
        if len(set(seen)) < len(seen):
            raise RecordError(f"{file}: two have the name {max(seen, key=seen.count)!r}")
    return header


def write(folder: Path, contents: Contents) -> None:
    """Writes a record. Raises RecordError if there is something already, or it cannot be written."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RecordError(f"{folder}: there is something already; name a new folder")
    draft = folder.absolute().with_name(f".{folder.name}.{os.getpid()}")
    try:
        draft.mkdir(parents=True)
        write_into(draft, contents)
        draft.rename(folder)
    except OSError as error:
        raise RecordError(f"{folder}: {error.strerror}") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def write_into(folder: Path, contents: Contents) -> None:
    """Writes a record's files into a folder that has others, `record.json` last."""
    for name, histogram in contents.histograms.items():
        (folder / name).write_bytes(encoded(histogram))
    for name, table in contents.tables.items():
        pa_parquet.write_table(table, folder / name, compression="zstd")
    if contents.header.details and contents.details:
        (folder / contents.header.details).write_text(contents.details)
    text = contents.header.model_dump_json(indent=1, exclude_defaults=False)
    draft = folder / f".{HEADER}"
    draft.write_text(text + "\n")
    draft.rename(folder / HEADER)


def encoded(histogram: HdrHistogram) -> bytes:
    """In HdrHistogram's V2 format, compressed."""
    return base64.b64decode(histogram.encode())


def decoded(blob: bytes, where: Path) -> HdrHistogram:
    """From that format. Raises RecordError."""
    try:
        return HdrHistogram.decode(base64.b64encode(blob))
    except Exception as error:  # hdrh raises zlib's, those of struct, and its own
        raise RecordError(f"{where}: no histogram, or cut short: {error}") from None


def file_of(folder: Path, name: str) -> Path:
    """A file that a header names. Raises RecordError if it would be elsewhere."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise RecordError(f"{folder}: a file is named {name!r}")
    return folder / name


def _bytes(folder: Path, name: str) -> bytes:
    try:
        return file_of(folder, name).read_bytes()
    except OSError as error:
        raise RecordError(f"{folder / name}: {error.strerror}") from None


def read_table(folder: Path, table: Table) -> pa.Table:
    """One of a record's tables. Raises RecordError."""
    blob = _bytes(folder, table.file)
    readers: dict[str, Any] = {
        "parquet": pa_parquet.read_table,
        "jsonl": pa_json.read_json,
        "csv": pa_csv.read_csv,
    }
    where = folder / table.file
    if table.form != "parquet" and blob and not blob.endswith(b"\n"):
        raise RecordError(f"{where}: cut short: its last line has no end")
    try:
        found = readers[table.form](io.BytesIO(blob)) if blob else pa.table({})
    except pa.ArrowException as error:
        reason = str(error).splitlines()[0]
        raise RecordError(f"{where}: no table, or cut short: {reason}") from None
    if table.rows not in (None, found.num_rows):
        raise RecordError(f"{where}: cut short: it has {found.num_rows} rows of {table.rows}")
    return found
