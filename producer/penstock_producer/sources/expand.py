"""The files that a folder, a prefix or a pattern stands for, in the order of their names."""

from __future__ import annotations

import fnmatch
import glob
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from penstock_producer.errors import SourceError, SourceUnavailable
from penstock_producer.source_names import is_database
from penstock_producer.sources.blobs.convert import cannot_open, refuse_ending, refuse_kind
from penstock_producer.sources.blobs.s3 import S3Prefix
from penstock_producer.sources.databases.address import address_of
from penstock_producer.sources.readers.file_format import has_known_ending

MAX_FILES: Final = 1_000  # each has its pin in the job's row
_PATTERN: Final = frozenset("*?[")


class Found(NamedTuple):
    uri: str
    pin: Mapping[str, Any] | None = None  # of an object, as it was listed


def expand(where: str, s3_endpoint_url: str | None = None) -> list[Found] | None:
    """None where ``where`` names one file. Raises SourceError for what stands for no file, or for too many."""
    scheme = where.partition("://")[0] if "://" in where else ""
    if scheme not in ("", "s3"):
        return None
    if where.endswith("/") and not where.endswith("://"):
        files = _folder(where) if not scheme else _objects(where, "", s3_endpoint_url)
        for file in files:
            _check_rows(where, file.uri)
    elif _is_pattern(where, scheme):
        head, slash, _ = where.partition("*")[0].partition("[")[0].rpartition("/")
        files = _matches(where) if not scheme else _objects(head + slash, where[len(head + slash) :], s3_endpoint_url)
    else:
        return None
    if not files:
        raise SourceError(
            "no_such_file", f"{where} stands for no file; check the path (names with . or _ in front are left out)"
        )
    if len(files) > MAX_FILES:
        raise SourceError(
            "too_many_files",
            f"{where} stands for {len(files)} files, and a job has at most {MAX_FILES}; join some of them",
        )
    return files


def refuse_unreadable(path: str) -> None:
    """Raises SourceError for a local path, or a database's name, that is plainly no source. Reads nothing of it."""
    if is_database(path):
        address_of(path)
        return
    if expand(path) is not None:
        return
    refuse_ending(path)
    try:
        refuse_kind(path, os.stat(path).st_mode)
    except OSError as error:
        raise cannot_open(path, error) from error


def _is_pattern(where: str, scheme: str) -> bool:
    if scheme:
        return bool({"*", "["} & set(where))
    return bool(_PATTERN & set(where)) and not os.path.lexists(where)


def _folder(where: str) -> list[Found]:
    try:
        with os.scandir(where) as entries:
            names = sorted(entry.name for entry in entries if entry.is_file() and _is_data(entry.name))
    except ValueError:  # a NUL, or half a surrogate pair
        raise SourceError("invalid_path", f"{where!r} cannot be a path; check its characters") from None
    except OSError as error:
        raise SourceUnavailable(
            f"{where} cannot be listed ({error.strerror}); check the path and its rights"
        ) from error
    return [Found(str(Path(where, name).absolute())) for name in names]


def _matches(where: str) -> list[Found]:
    paths = sorted(glob.iglob(where, recursive=True))
    return [Found(str(Path(path).absolute())) for path in paths if os.path.isfile(path) and _is_data(Path(path).name)]


def _objects(prefix: str, pattern: str, s3_endpoint_url: str | None) -> list[Found]:
    below = S3Prefix(prefix, endpoint_url=s3_endpoint_url)
    chosen = [
        listed
        for listed in below.objects(MAX_FILES)
        if _is_data(listed.path.rpartition("/")[2]) and (not pattern or _fits(listed.path, pattern))
    ]
    objects = [below.object(listed) for listed in sorted(chosen)]
    return [Found(one.uri, one.pin()) for one in objects]


def _fits(path: str, pattern: str) -> bool:
    """As a shell has it: a star stays between two slashes, and two of them do not."""
    return fnmatch.fnmatchcase(path, pattern) and ("**" in pattern or path.count("/") == pattern.count("/"))


def _is_data(name: str) -> bool:
    """Not what tools leave beside data: `.DS_Store`, `_SUCCESS`."""
    return not name.startswith((".", "_"))


def _check_rows(folder: str, uri: str) -> None:
    if not has_known_ending(uri):
        raise SourceError(
            "unsupported_format",
            f"{folder} holds {uri}, whose name does not say that it has rows; name the files to read by a pattern such as "
            f"{folder}*.jsonl",
        )
