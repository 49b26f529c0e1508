"""What to do about a source that is not read: its kind, and one command that makes JSON Lines of
it."""

from __future__ import annotations

import shlex
import stat
from pathlib import Path, PurePosixPath
from typing import Final

from penstock_producer.errors import SourceError, SourceUnavailable

_BY_ENDING: Final = {".xlsx": "Excel", ".bz2": "bzip2", ".xz": "xz", ".zip": "zip"}
_BY_MAGIC: Final = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"PAR1": "Parquet",
    b"ARROW1": "Arrow",
    b"PK\x03\x04": "zip",
}
_READ: Final = {"gzip": ".gz", "zstd": ".zst", "Parquet": ".parquet", "Arrow": ".arrow"}
_PATTERN = frozenset("*?[")


def refuse_ending(uri: str) -> None:
    """Raises SourceError for a name that says a format that is not read."""
    for ending, kind in _BY_ENDING.items():
        if uri.lower().endswith(ending):
            raise SourceError(
                "unsupported_format", f"{uri} is {kind}, which is not read; {recipe(kind, uri)}"
            )


def refuse_magic(uri: str, start: bytes, wanted: str) -> None:
    """Raises SourceError for first bytes that are those of another format than ``wanted``, its name
    in words."""
    for magic, kind in _BY_MAGIC.items():
        if start.startswith(magic):
            raise SourceError(
                "unsupported_format", f"{uri} is {kind}, not {wanted}; {_remedy(kind, uri)}"
            )


def refuse_content(uri: str, start: bytes) -> None:
    """Raises SourceError for first bytes that cannot begin JSON Lines."""
    refuse_magic(uri, start, "JSON Lines")
    if start.lstrip()[:1] == b"[":
        raise SourceError(
            "json_array",
            f"{uri} is one JSON array, and JSON Lines has one object per line; "
            f"{recipe('a JSON array', uri)}",
        )


def _remedy(kind: str, uri: str) -> str:
    ending = _READ.get(kind)
    if ending is None:
        return recipe(kind, uri)
    if uri.lower().endswith((".gz", ".zst")):
        return f"it is packed twice: unpack it once, and let its name end in {ending}"
    return f"let its name end in {ending}" + (
        f", or give --format {kind.lower()}" if ending in (".parquet", ".arrow") else ""
    )


def recipe(kind: str, uri: str) -> str:
    """One command that makes JSON Lines of a file, as the end of a sentence."""
    source = PurePosixPath(uri).name if "://" in uri else uri
    old, new = shlex.quote(source), shlex.quote(_renamed(source))
    match kind:
        case "Excel":
            code = (
                "import pandas, sys; pandas.read_excel(sys.argv[1]).to_json(sys.argv[2], "
                'orient="records", lines=True)'
            )
            command = f"python3 -c '{code}' {old} {new}"
        case "a JSON array":
            rows = "import json, sys; [print(json.dumps(row)) for row in json.load(sys.stdin)]"
            command = f"python3 -c '{rows}' < {old} > {new}"
        case "zip":
            command = f"unzip -p {old} > {new}"
        case _:
            command = f"{kind} -dc < {old} > {new}"
    return f"convert it: {command}"


def refuse_kind(path: str, mode: int) -> None:
    """Raises SourceError for what is not a regular file, each kind in its own words."""
    if stat.S_ISREG(mode):
        return
    quoted = shlex.quote(path)
    if stat.S_ISDIR(mode):
        words = (
            f"{path} is a folder; write {quoted}/ to read its files as one job, or name files by a "
            f"pattern: {quoted}/*.jsonl"
        )
    elif stat.S_ISFIFO(mode):
        words = (
            f"{path} is a pipe, and a source is read more than once; keep it as a file: cat "
            f"{quoted} > documents.jsonl"
        )
    else:
        words = f"{path} is a device or socket; name a file of rows"
    raise SourceError("not_a_regular_file", words)


def cannot_open(path: str, error: OSError) -> SourceError:
    """The error for a path that does not open."""
    if isinstance(error, FileNotFoundError) and _PATTERN & set(path):
        return SourceError(
            "no_such_file",
            f"{path} is a pattern, and a remote door takes one file; join what it stands for "
            f"first: cat {path} > all.jsonl",
        )
    if isinstance(error, FileNotFoundError) and Path(path).name == "-":
        return SourceError(
            "no_such_file",
            "- is not a source: it is read more than once; keep it as a file: cat > "
            "documents.jsonl",
        )
    if isinstance(error, FileNotFoundError):
        return SourceUnavailable(
            f"{path}: there is no such file; check the path, or name an object as s3://bucket/key"
        )
    return SourceUnavailable(
        f"{path} cannot be opened ({error.strerror}); check the path and its rights"
    )


def _renamed(source: str) -> str:
    """Where the converted file goes; never the source itself, which the command would empty."""
    plain = source
    for ending in _BY_ENDING:
        if plain.lower().endswith(ending):
            plain = plain[: -len(ending)]
            break
    stem = plain.removesuffix(".jsonl").removesuffix(".json")
    return f"{stem}.jsonl" if f"{stem}.jsonl" != source else f"{stem}-converted.jsonl"
