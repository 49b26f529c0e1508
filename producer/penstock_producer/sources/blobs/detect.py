"""A file's form is known by its name, its first bytes, or as the job says.

For what is not read there is one command that makes JSON Lines of it.
"""

from __future__ import annotations

import shlex
import stat
from pathlib import Path, PurePosixPath
from typing import Final, NamedTuple

from penstock_ledger.texts import SetOption, Text
from penstock_producer.errors import SourceError, SourceUnavailable
from penstock_producer.source_formats import FORMATS, JSONL, SourceFormat
from penstock_producer.sources.blobs.blob import Blob
from penstock_producer.sources.blobs.unpacked import CODECS

LOOKED_AT: Final = 64 * 1024  # first bytes that a format may be recognised by
_PATTERN = frozenset("*?[")


class NotRead(NamedTuple):
    """A kind of file that is not read, and the command that makes JSON Lines of it."""

    title: str
    ending: str
    magic: bytes
    command: str  # of {old} and {new}


_NOT_READ: Final = (
    NotRead(
        "Excel of before 2007",
        ".xls",
        b"\xd0\xcf\x11\xe0",
        "python3 -c 'import pandas, sys; pandas.read_excel(sys.argv[1]).to_json(sys.argv[2], "
        'orient="records", lines=True)\' {old} {new}',
    ),
    NotRead("bzip2", ".bz2", b"BZh", "bzip2 -dc < {old} > {new}"),
    NotRead("xz", ".xz", b"\xfd7zXZ", "xz -dc < {old} > {new}"),
    NotRead("zip", ".zip", b"PK\x03\x04", "unzip -p {old} > {new}"),
)
_FROM_ARRAY: Final = (
    "python3 -c 'import json, sys; [print(json.dumps(row)) for row in json.load(sys.stdin)]' "
    "< {old} > {new}"
)


class Found(NamedTuple):
    """The form that a file has."""

    format: SourceFormat
    packed: str | None  # the codec


def format_of(blob: Blob, given: str | None) -> Found:
    """Return what a file is, where ``given`` is the job's word.

    Reads only where the name says nothing. Raises SourceError for a packed file of row groups."""
    packed, _ = _endings(blob.uri)
    named = rows_by_name(blob.uri)
    if packed is None and named is None:
        packed, named = _by_content(blob)
    chosen = named or FORMATS[JSONL] if given is None else FORMATS[given]
    if packed is not None and chosen.in_groups:
        raise SourceError(
            "unsupported_format",
            f"{blob.uri} is {chosen.name} inside of {packed}, and {chosen.name} is entered by its "
            f"row groups; unpack it: {packed} -d",
        )
    return Found(chosen, packed)


def rows_by_name(name: str) -> SourceFormat | None:
    """Return the format of the rows that a file holds by its name, packed or not."""
    ending = _endings(name)[1]
    return next((one for one in FORMATS.values() if ending in one.endings and one.of_rows), None)


def is_text(name: str) -> bool:
    """Return whether a name says that the file is a text, which is one document."""
    return document_by_name(name) is not None


def has_rows(name: str) -> bool:
    """Return whether a name says that the file has rows."""
    return rows_by_name(name) is not None


def document_by_name(name: str) -> SourceFormat | None:
    """Return the format of a file of a folder that is one document by its name."""
    ending = PurePosixPath(name.lower()).suffix
    return next(
        (one for one in FORMATS.values() if ending in one.endings and not one.of_rows), None
    )


def _endings(name: str) -> tuple[str | None, str]:
    """Return the codec, and the ending of what is packed."""
    path = PurePosixPath(name.lower())
    for codec in CODECS.values():
        if path.suffix == codec.ending:
            return codec.name, path.with_suffix("").suffix
    return None, path.suffix


def _by_content(blob: Blob) -> tuple[str | None, SourceFormat | None]:
    start = next(iter(blob.chunks(0)), b"")
    for codec in CODECS.values():
        if start.startswith(codec.magic):
            return codec.name, None
    rows = [one for one in FORMATS.values() if one.of_rows]
    for one in rows:
        if one.magic and start.startswith(one.magic):
            return None, one
    whole = len(start) < LOOKED_AT
    return None, next((one for one in rows if one.is_like(start, whole=whole)), None)


# -- what is not read ------------------------------------------------------------------------------


def refuse_ending(uri: str) -> None:
    """Raise SourceError for a name that says a format that is not read."""
    for kind in _NOT_READ:
        if uri.lower().endswith(kind.ending):
            raise SourceError(
                "unsupported_format",
                f"{uri} is {kind.title}, which is not read; {_recipe(kind.command, uri)}",
            )


def refuse_magic(uri: str, start: bytes, wanted: str) -> None:
    """Raise SourceError for first bytes that are those of another format than ``wanted``.

    ``wanted`` is the format's name in words.
    """
    remedies = (
        *((one.name, one.magic, _let_end(uri, one.ending)) for one in CODECS.values()),
        *((one.title, one.magic, _recipe(one.command, uri)) for one in _NOT_READ),
        *(
            (one.title, one.magic, _let_end(uri, one.endings[0], one.name))
            for one in FORMATS.values()
            if one.magic
        ),
    )
    for title, magic, remedy in remedies:
        if magic and start.startswith(magic):
            raise SourceError("unsupported_format", f"{uri} is {title}, not {wanted}; {remedy}")


def refuse_content(uri: str, start: bytes) -> None:
    """Raise SourceError for first bytes that cannot begin JSON Lines."""
    refuse_magic(uri, start, "JSON Lines")
    if start.lstrip()[:1] == b"[":
        raise SourceError(
            "json_array",
            f"{uri} is one JSON array, and JSON Lines has one object per line; "
            f"{_recipe(_FROM_ARRAY, uri)}",
        )


def _let_end(uri: str, ending: str, form: str | None = None) -> str:
    if uri.lower().endswith(tuple(codec.ending for codec in CODECS.values())):
        return f"it is packed twice: unpack it once, and let its name end in {ending}"
    let = f"let its name end in {ending}"
    return Text(let, ", or give ", SetOption("format", form)) if form else let


def _recipe(command: str, uri: str) -> str:
    """Return one command that makes JSON Lines of a file, as the end of a sentence."""
    source = PurePosixPath(uri).name if "://" in uri else uri
    filled = command.replace("{old}", shlex.quote(source))
    return "convert it: " + filled.replace("{new}", shlex.quote(_renamed(source)))


def _renamed(source: str) -> str:
    """Return where the converted file goes.

    It is never the source itself, which the command would empty.
    """
    plain = source
    for kind in _NOT_READ:
        if plain.lower().endswith(kind.ending):
            plain = plain[: -len(kind.ending)]
            break
    stem = plain.removesuffix(".jsonl").removesuffix(".json")
    return f"{stem}.jsonl" if f"{stem}.jsonl" != source else f"{stem}-converted.jsonl"


def refuse_kind(path: str, mode: int) -> None:
    """Raise SourceError for what is not a regular file, each kind in its own words."""
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
    """Return the error for a path that does not open."""
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
