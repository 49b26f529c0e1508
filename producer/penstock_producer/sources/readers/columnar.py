"""Parquet and Arrow over any blob: rows of columns, entered by group and row."""

from __future__ import annotations

import datetime
import decimal
import math
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from penstock_ledger.texts import SetOption, Text
from penstock_producer.errors import BadReference, SourceError, seen
from penstock_producer.job.spec import JobSpec
from penstock_producer.rows import ROW, BadRow, Column, Cursor, Document, Kind, Kinds, Record
from penstock_producer.sources.blobs.blob import Blob
from penstock_producer.sources.forms.row_forms import check_columns
from penstock_producer.sources.forms.strict_json import MAX_DEPTH, RowFault, check_text
from penstock_producer.sources.readers.groups import Groups, damaged, open_groups
from penstock_producer.sources.readers.rows import PinnedRows, RowOptions

# "group:row", and the number of the row where that is its id
_POSITION = re.compile(r"(\d{1,9}):(\d{1,12})(?::(\d{1,12}))?", re.ASCII)
# of a batch that become Python objects at a time: rows may hold images
PIECE_BYTES: Final = 32 * 1024 * 1024
_BYTES_FIX: Final = Text(
    "write it as text; a column of images or sounds is named by ",
    SetOption("image_fields"),
    " or ",
    SetOption("audio_fields"),
)
# of a group, for the next fetch: documents come nearly in order
KEPT_BYTES: Final = 64 * 1024 * 1024


class ColumnarSource(PinnedRows):
    """Documents of one file.

    A position is "group:row", a cursor the next one's group, row and number in the file."""

    unit = ROW
    kinds: Kinds = "known"

    def __init__(self, blob: Blob, spec: JobSpec, options: RowOptions) -> None:
        super().__init__(blob, spec, options)
        self._size = options.size
        self._opened: Groups | None = None
        self._columns: list[str] = []
        self._window = _Window()
        self._lock = threading.Lock()

    def documents(self, cursor: Mapping[str, Any]) -> Iterator[Document | BadRow]:
        begin, skip, number = (int(cursor.get(name, 0)) for name in ("group", "row", "rows"))
        groups = self._groups()
        for group in range(begin, groups.count()):
            row = 0
            for batch in self._batches(group):
                wanted = batch.slice(max(0, skip - row))
                row += batch.num_rows - wanted.num_rows
                for record in _in_pieces(wanted):
                    number += 1
                    yield self._read(
                        record,
                        self._at(group, row, number),
                        number,
                        {"group": group, "row": row + 1, "rows": number},
                    )
                    row += 1
            skip = 0

    def fetch(self, position: str) -> Document:
        """Read one document.

        Raises BadReference for a position that the survey cannot have given: the pinned bytes have
        not changed.
        """
        span = _POSITION.fullmatch(position)
        with self._lock:
            if span is None or int(span[1]) >= self._groups().count():
                raise BadReference(
                    f"{seen(position)} is not the position of a document in {self.uri}"
                )
            group, row = int(span[1]), int(span[2])
            if not self._window.reaches(group, row):
                self._window.restart(group, self._batches(group))
            found = self._window.row(row)
        if found is None:
            raise BadReference(f"{self.uri} has no row {row} in its group {group}")
        document = self._read(next(_records(found)), position, int(span[3] or 0), {})
        if isinstance(document, BadRow):
            raise self._no_document(position, document.code, document.message)
        return document._replace(line=0)

    def columns(self) -> Sequence[Column]:
        groups = self._groups()
        return [Column(name, kind_of(type_), type_) for name, type_ in groups.types.items()]

    def records(self) -> Iterator[Record]:
        groups = self._groups()
        number = 0
        for group in range(groups.count()):
            for batch in self._batches(group, groups.names):
                for record in _in_pieces(_readable(batch)):
                    number += 1
                    yield Record(number, {} if isinstance(record, RowFault) else record)

    def _read(
        self, record: dict[str, Any] | RowFault, position: str, number: int, cursor: Cursor
    ) -> Document | BadRow:
        try:
            if isinstance(record, RowFault):
                raise record
            media = self._form.media_columns
            row = {
                name: plain(value, name, takes_bytes=name in media)
                for name, value in record.items()
            }
            doc_id, body, endpoint = self._form.read(self._with_number(row, number))
        except RowFault as fault:
            return self._bad(number, fault, cursor)
        return Document(doc_id, body, position, number, cursor, endpoint)

    def _batches(self, group: int, columns: Sequence[str] | None = None) -> Iterator[Any]:
        import pyarrow

        try:
            yield from self._groups().batches(group, self._columns if columns is None else columns)
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
            raise damaged(self.uri, self._written_as, error) from error

    def _groups(self) -> Groups:
        if self._opened is None:
            size = int(self._blob.pin()["size"]) if self._size is None else self._size
            groups = open_groups(self._blob, size, self._written_as)
            twice = {name for name in groups.names if list(groups.names).count(name) > 1}
            if twice:
                raise SourceError(
                    "duplicate_column",
                    f"{self.uri} has two columns {seen(min(twice))}; rename one of them",
                )
            check_columns(self.uri, self._form, groups.names, nested=True, id_field=self.id_field)
            self._columns = _needed(groups.names, self._form.read_columns)
            for name in self._columns:
                if groups.depth(name) > MAX_DEPTH:
                    raise SourceError(
                        "nesting_too_deep",
                        f"{self.uri}: the column {seen(name)} nests deeper than {MAX_DEPTH} "
                        "levels; flatten it",
                    )
            self._opened = groups
        return self._opened


def _needed(names: Sequence[str], used: tuple[str, ...] | None) -> list[str]:
    """Return the columns to read; `user.name` may be one, or a field of the column `user`."""
    if used is None:
        return list(names)
    parts = {part for name in used for part in (name, name.partition(".")[0])}
    return [name for name in names if name in parts]


def kind_of(type_: Any) -> Kind:
    """Return what a column of this type is in a table of another form: text, where it has lists."""
    from pyarrow import types

    kinds: tuple[tuple[Kind, Any], ...] = (
        ("boolean", types.is_boolean),
        ("integer", types.is_integer),
        ("number", types.is_floating),
        ("decimal", types.is_decimal),
        ("date", types.is_date),
    )
    if types.is_dictionary(type_):
        return kind_of(type_.value_type)
    if types.is_uint64(type_):  # which may hold more than a signed integer
        return "decimal"
    if types.is_timestamp(type_):
        return "timestamp" if type_.tz is None else "instant"
    for kind, is_it in kinds:
        if is_it(type_):
            return kind
    return "text"


def _readable(batch: Any) -> Any:
    """Return a batch whose times Python can hold, which has no nanoseconds: these are numbers."""
    from pyarrow import types

    for at, field in enumerate(batch.schema):
        if getattr(field.type, "unit", "") == "ns" and (
            types.is_temporal(field.type) or types.is_duration(field.type)
        ):
            batch = batch.set_column(at, field.name, batch.column(at).view("int64"))
    return batch


def _in_pieces(batch: Any) -> Iterator[dict[str, Any] | RowFault]:
    """Yield all rows of a batch, of which few are Python objects at a time.

    They are as many as come to ``PIECE_BYTES``.
    """
    rows = max(1, batch.num_rows * PIECE_BYTES // max(1, batch.nbytes))
    for start in range(0, batch.num_rows, rows):
        yield from _records(batch.slice(start, rows))


def _records(batch: Any) -> Iterator[dict[str, Any] | RowFault]:
    """Yield the rows of a record batch as Python objects.

    A row whose text is not UTF-8, which writers do not check, is a fault.
    """
    try:
        yield from batch.to_pylist()
    except UnicodeDecodeError as error:
        if batch.num_rows > 1:
            for row in range(batch.num_rows):
                yield from _records(batch.slice(row, 1))
        else:
            yield RowFault(
                "invalid_encoding",
                "A text of this row is not UTF-8.",
                fix="write the column as text, not as bytes",
                value=seen(error.object[:40]),
            )


def plain(value: Any, column: str, *, takes_bytes: bool = False) -> Any:
    """Return a value of a column as JSON has it, or with the bytes of images and sounds.

    Raises RowFault.
    """
    match value:
        case bytes() if takes_bytes:
            return value
        case str():
            check_text(value, column)
            return value
        case None | bool() | int():
            return value
        case float():
            if math.isfinite(value):
                return value
            raise RowFault(
                "invalid_number",
                f"The column {column!r} holds a number that is not finite.",
                fix="write null where there is no number",
                field=column,
                value=seen(value),
            )
        case dict():
            return {
                name: plain(part, column, takes_bytes=takes_bytes) for name, part in value.items()
            }
        case list() | tuple():
            return [plain(part, column, takes_bytes=takes_bytes) for part in value]
        case datetime.date() | datetime.time():  # a datetime is a date
            return value.isoformat()
        case decimal.Decimal():
            return str(value)
    raise RowFault(
        "invalid_type",
        f"The column {column!r} holds {type(value).__name__}, which is no text, number or list.",
        fix=_BYTES_FIX if isinstance(value, bytes) else "write it as text",
        field=column,
        value=seen(value),
    )


class _Window:
    """The last batches of a group that is read forward."""

    def __init__(self) -> None:
        self._group = -1
        self._start = 0  # the first row that is kept
        self._kept: list[Any] = []
        self._batches: Iterator[Any] = iter(())

    def reaches(self, group: int, row: int) -> bool:
        return group == self._group and row >= self._start

    def restart(self, group: int, batches: Iterator[Any]) -> None:
        self._group, self._start, self._kept, self._batches = group, 0, [], batches

    def row(self, row: int) -> Any | None:
        """Return one row as a batch; None beyond the end.

        Raises what reading raises, and then starts anew at the next fetch.
        """
        group, self._group = self._group, -1
        end = self._start + sum(batch.num_rows for batch in self._kept)
        while row >= end and (batch := next(self._batches, None)) is not None:
            self._kept.append(batch)
            end += batch.num_rows
            while len(self._kept) > 1 and sum(kept.nbytes for kept in self._kept) > KEPT_BYTES:
                self._start += self._kept.pop(0).num_rows
        self._group = group
        start = self._start
        for batch in self._kept:
            if row < start + batch.num_rows:
                return batch.slice(row - start, 1)
            start += batch.num_rows
        return None
