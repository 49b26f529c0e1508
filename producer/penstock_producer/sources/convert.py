"""What to do about a source that is not a JSON Lines file: its kind, and one command that makes such a file of it."""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path, PurePosixPath
from typing import Final

from penstock_producer.errors import SourceError, SourceUnavailable

_BY_ENDING: Final = {
    ".csv": "CSV", ".tsv": "TSV", ".parquet": "Parquet", ".xlsx": "Excel", ".gz": "gzip", ".zst": "zstd", ".bz2": "bzip2",
    ".xz": "xz", ".zip": "zip",
}  # fmt: skip
_BY_MAGIC: Final = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"PAR1": "Parquet",
                    b"PK\x03\x04": "zip"}  # fmt: skip
_ROWS = "import csv, json, sys; [print(json.dumps(row)) for row in csv.DictReader(sys.stdin{how})]"
_PATTERN = frozenset("*?[")


def refuse_ending(uri: str) -> None:
    """Raises SourceError for a name that says another format."""
    for ending, kind in _BY_ENDING.items():
        if uri.lower().endswith(ending):
            raise SourceError(
                "unsupported_format", f"{uri} is {kind}, and only JSON Lines is read; {recipe(kind, uri)}"
            )


def refuse_content(uri: str, start: bytes) -> None:
    """Raises SourceError for first bytes that are those of another format."""
    for magic, kind in _BY_MAGIC.items():
        if start.startswith(magic):
            raise SourceError("unsupported_format", f"{uri} is {kind}, not JSON Lines; {recipe(kind, uri)}")
    if start.lstrip()[:1] == b"[":
        raise SourceError(
            "json_array",
            f"{uri} is one JSON array, and JSON Lines has one object per line; {recipe('a JSON array', uri)}",
        )


def recipe(kind: str, uri: str) -> str:
    """One command that makes JSON Lines of a file, as the end of a sentence."""
    source = PurePosixPath(uri).name if "://" in uri else uri
    old, new = shlex.quote(source), shlex.quote(_renamed(source))
    match kind:
        case "CSV" | "TSV":
            rows = _ROWS.format(how="" if kind == "CSV" else ', delimiter="\\t"')
            command = f"python3 -c '{rows}' < {old} > {new}"
        case "Parquet" | "Excel":
            read = "read_parquet" if kind == "Parquet" else "read_excel"
            code = f'import pandas, sys; pandas.{read}(sys.argv[1]).to_json(sys.argv[2], orient="records", lines=True)'
            command = f"python3 -c '{code}' {old} {new}"
        case "a JSON array":
            rows = "import json, sys; [print(json.dumps(row)) for row in json.load(sys.stdin)]"
            command = f"python3 -c '{rows}' < {old} > {new}"
        case "zip":
            command = f"unzip -p {old} > {new}"
        case _:
            command = f"{kind} -dc < {old} > {new}"
    return f"convert it: {command}"


def refuse_unreadable(path: str) -> None:
    """Raises SourceError for a local path that is plainly no source. Reads nothing of it."""
    refuse_ending(path)
    try:
        refuse_kind(path, os.stat(path).st_mode)
    except OSError as error:
        raise cannot_open(path, error) from error


def refuse_kind(path: str, mode: int) -> None:
    """Raises SourceError for what is not a regular file, each kind in its own words."""
    if stat.S_ISREG(mode):
        return
    quoted = shlex.quote(path)
    if stat.S_ISDIR(mode):
        words = f"{path} is a folder; name one file, or join them first: cat {quoted}/*.jsonl > all.jsonl"
    elif stat.S_ISFIFO(mode):
        words = (
            f"{path} is a pipe, and a source is read more than once; keep it as a file: cat {quoted} > documents.jsonl"
        )
    else:
        words = f"{path} is a device or socket; name a JSON Lines file"
    raise SourceError("not_a_regular_file", words)


def cannot_open(path: str, error: OSError) -> SourceError:
    """The error for a path that does not open."""
    if isinstance(error, FileNotFoundError) and _PATTERN & set(path):
        return SourceError(
            "no_such_file",
            f"{path} is a pattern, and one file is read; join what it stands for first: cat {path} > all.jsonl",
        )
    if isinstance(error, FileNotFoundError) and Path(path).name == "-":
        return SourceError(
            "no_such_file", "- is not a source: it is read more than once; keep it as a file: cat > documents.jsonl"
        )
    if isinstance(error, FileNotFoundError):
        return SourceUnavailable(f"{path}: there is no such file; check the path, or name an object as s3://bucket/key")
    return SourceUnavailable(f"{path} cannot be opened ({error.strerror}); check the path and its rights")


def _renamed(source: str) -> str:
    """Where the converted file goes; never the source itself, which the command would empty."""
    plain = source
    for ending in _BY_ENDING:
        if plain.lower().endswith(ending):
            plain = plain[: -len(ending)]
            break
    stem = plain.removesuffix(".jsonl").removesuffix(".json")
    return f"{stem}.jsonl" if f"{stem}.jsonl" != source else f"{stem}-converted.jsonl"
