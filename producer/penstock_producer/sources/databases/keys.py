"""The keys of the rows that a job has: gathered in the survey, kept in pages with the job, read
page by page.

A key is a whole number or a text. One that is no document's id (null, or too long) has None in its
place: its row was refused in the survey, and is not asked for again.
"""

from __future__ import annotations

import hashlib
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import orjson

from penstock_producer.doc_ids import id_fault
from penstock_producer.errors import SourceChanged, SourceError, seen

__all__ = ["PAGE_ROWS", "Gathered", "Key", "KeyOrder", "StoredKeys", "equal_keys", "key_of"]

Key = int | str | None
PAGE_ROWS: Final = 5_000  # of every page but the last; a row's number says which page it is in
MAX_PAGE_BYTES: Final = (
    16 * 1024 * 1024
)  # unpacked: 5,000 keys of 512 bytes, each written as JSON at its longest
_LENGTH_BYTES: Final = 4


def key_of(value: Any) -> Key:
    """What a row is found by; None for what is no document's id: also a number that JSON cannot
    keep."""
    if type(value) is int:
        return value if -(2**63) <= value < 2**64 else None
    return value if isinstance(value, str) and id_fault(value) is None else None


def equal_keys(uri: str, id_field: str, key: object) -> SourceError:
    """Two rows that the database takes for one by this key."""
    return SourceError(
        "duplicate_key",
        f"{uri} has two rows whose {id_field!r} is {seen(key)}; name a column whose values are "  # noqa: S608  # words
        "unique "
        "(--id-field), or make one of several by a query: --query \"SELECT a || '-' || b AS id, "
        '… FROM …"',
    )


class KeyOrder:
    """Looks at the keys in the order of the database, where equal ones are neighbours."""

    def __init__(self, uri: str, id_field: str) -> None:
        self._uri = uri
        self._id_field = id_field
        self._last: Key = None

    def check(self, keys: Sequence[Key]) -> None:
        """Raises SourceError for two rows with one key, and for keys that are numbers and texts."""
        for key in keys:
            if key is None:
                continue
            if key == self._last:
                raise equal_keys(self._uri, self._id_field, key)
            if self._last is not None and type(key) is not type(self._last):
                raise SourceError(
                    "invalid_key",
                    f"{self._uri}: the column {self._id_field!r} holds numbers and texts, as "  # noqa: S608  # words
                    f"{seen(self._last)} and {seen(key)}; "
                    'make one kind of them: --query "SELECT CAST(id AS text) AS id, … FROM …"',
                )
            self._last = key


class Gathered:
    """Pages in a file that the system removes: a hundred million keys take no memory.

    May be read more than once."""

    def __init__(self) -> None:
        self.rows = 0
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  # it lives as long as this does
        self._waiting: list[Key] = []
        self._digest = hashlib.sha256()

    def add(self, keys: Sequence[Key]) -> None:
        self.rows += len(keys)
        self._waiting += keys
        while len(self._waiting) >= PAGE_ROWS:
            self._write(self._waiting[:PAGE_ROWS])
            del self._waiting[:PAGE_ROWS]

    def finish(self) -> None:
        if self._waiting:
            self._write(self._waiting)
            self._waiting = []

    def sha256(self) -> str:
        """Of all keys in their order."""
        return self._digest.hexdigest()

    def __iter__(self) -> Iterator[bytes]:
        place = 0
        while True:
            self._file.seek(place)
            length = int.from_bytes(self._file.read(_LENGTH_BYTES), "big")
            if not length:
                return
            page = self._file.read(length)
            place = self._file.tell()
            yield page

    def _write(self, keys: Sequence[Key]) -> None:
        plain = orjson.dumps(keys)
        self._digest.update(plain)
        page = zlib.compress(plain, 1)
        self._file.seek(0, 2)
        self._file.write(len(page).to_bytes(_LENGTH_BYTES, "big") + page)


class StoredKeys:
    """Those of a job. ``page`` gives a page as it was stored, or None where there is none."""

    def __init__(self, page: Callable[[int], bytes | None], rows: int) -> None:
        self._page = page
        self._rows = rows

    def pages(self, line: int) -> Iterator[tuple[int, list[Key]]]:
        """The keys of the rows after ``line``, page by page, each with the rows before it.

        Raises SourceChanged."""
        while line < self._rows:
            number, within = divmod(line, PAGE_ROWS)
            stored = self._page(number)
            if stored is None:
                raise SourceChanged(
                    f"the ledger has lost which rows of the table this job has (page {number} of "
                    "source_keys); restore it"
                )
            keys: list[Key] = orjson.loads(zlib.decompressobj().decompress(stored, MAX_PAGE_BYTES))
            yield line, keys[within:]
            line += len(keys) - within
