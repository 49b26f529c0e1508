"""The rows of a table or a query as documents.

In the survey all keys are read in the order of the database, and the rows by their keys, in one
snapshot. The keys are then kept with the job: its documents are the rows with these keys, whatever
is added to the table later. Values are those that the row has when it is read. A position is the
key, a cursor the number of rows before.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson
from sqlalchemy import Connection, Executable

from penstock_ledger import SourceKeys
from penstock_ledger.model import Job
from penstock_ledger.texts import SetOption, Text
from penstock_producer.errors import BadReference, RowChanged, SourceError, SourceUnavailable, seen
from penstock_producer.job.spec import JobSpec
from penstock_producer.refusals import SOURCE_LOST
from penstock_producer.rows import (
    ROW,
    ROW_ID,
    BadRow,
    Cursor,
    Document,
    FiniteSource,
    Kind,
    Kinds,
    Place,
    Record,
    Tally,
)
from penstock_producer.rows import Column as TableColumn
from penstock_producer.settings import ProducerSettings
from penstock_producer.sources.databases import relation as reading
from penstock_producer.sources.databases.address import KIND, address_of
from penstock_producer.sources.databases.columns import (
    Column,
    Gathered,
    Key,
    KeyOrder,
    StoredKeys,
    key_of,
    plain,
)
from penstock_producer.sources.databases.connection import ReadOnly, Wording
from penstock_producer.sources.databases.portable import PortableRelation, relation_of
from penstock_producer.sources.databases.relation import Relation, Row, RowsByKey, named
from penstock_producer.sources.forms.media import media_of
from penstock_producer.sources.forms.row_forms import (
    ANOTHER_ID,
    check_columns,
    check_doc_id,
    form_of,
)
from penstock_producer.sources.forms.strict_json import RowFault

__all__ = ["TableSource", "accepted", "key_pages"]

log = logging.getLogger(__name__)

AnyRelation = Relation | PortableRelation


class TableSource(FiniteSource):
    """A table, view or query of a database whose rows are documents.

    ``pin`` and ``keys`` are those of a job that was accepted; without them the source is surveyed.
    """

    kinds: Kinds = "by_value"  # where the database's types do not say it

    def __init__(
        self,
        where: str,
        spec: JobSpec,
        settings: ProducerSettings,
        *,
        pin: Mapping[str, Any] | None = None,
        keys: StoredKeys | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Take in what to read; connect to nothing.

        Raises SourceError for what cannot be read, and SpecError for a spec that makes no requests.
        """
        if spec.id_field == ROW_ID:
            raise SourceError(
                "unsupported_source",
                Text(
                    "the rows of a database have no order that stays, so none has a number; name a "
                    "column whose values are unique (",
                    SetOption("id_field"),
                    "), or make one in a query: SELECT row_number() OVER (ORDER BY …) AS id, …",
                ),
            )
        address = address_of(where)
        self._address = address
        self._what = named(address, spec)
        self.uri = self._what.words
        self.id_field = spec.id_field
        limits = pin or {
            "max_line_bytes": settings.max_line_bytes,
            "max_body_bytes": settings.max_body_bytes,
        }
        self._max_line_bytes, self._max_body_bytes = (
            int(limits["max_line_bytes"]),
            int(limits["max_body_bytes"]),
        )
        self._form = form_of(spec, self._max_body_bytes, media_of(spec, None, self._max_body_bytes))
        self._pin = dict(pin) if pin is not None else None
        self._keys = keys
        self._gathered: Gathered | None = None
        wording = Wording(
            self.uri, accepted=pin is not None, timeout_s=settings.source_query_timeout_s
        )
        self._database = ReadOnly(address, wording)
        self._reader: RowsByKey | None = None
        self._ends_at = None if timeout_s is None else time.monotonic() + timeout_s

    def pin(self) -> dict[str, Any]:
        """Complete once it was surveyed."""
        if self._pin is not None:
            return dict(self._pin)
        pin = {
            "kind": KIND,
            "uri": self._address.name,
            "max_line_bytes": self._max_line_bytes,
            "max_body_bytes": self._max_body_bytes,
        }
        if self._reader is not None:
            pin["columns"] = {column.name: column.type for column in self._reader.columns}
        if self._gathered is not None:
            pin |= {"rows": self._gathered.rows, "keys_sha256": self._gathered.sha256()}
        return pin

    def key_pages(self) -> Iterable[bytes]:
        """Return what has to be kept with the job. Complete once it was surveyed."""
        return () if self._gathered is None else self._gathered

    def documents(self, cursor: Mapping[str, Any]) -> Iterator[Document | BadRow]:
        line = int(cursor.get("line", 0))
        if self._keys is not None:
            yield from self._accepted_rows(line, self._keys)
        else:
            yield from self._surveyed_rows(line)

    def fetch(self, position: str) -> Document:
        """Read one document. Raises RowChanged where the row is gone or cannot be used any more."""
        key = _key_at(position)
        if key is None:
            raise BadReference(f"{seen(position)} is not the position of a document in {self.uri}")
        reader = self._looked_up()
        found = self._read(reader, key, reader.one(self._asked, key), 0)
        if isinstance(found, BadRow):
            raise RowChanged(f"{found}")
        return found

    @property
    def tally(self) -> Tally:
        return self._form.tally

    def place(self, line: int) -> Place:
        return Place(self.uri, line, ROW)

    def columns(self) -> Sequence[TableColumn]:
        with self._database.transaction() as connection:
            relation = relation_of(self._what, connection, self.id_field)
        found = relation.columns.values()
        return [TableColumn(one.name, _KINDS.get(one.type, "text")) for one in found]

    def records(self) -> Iterator[Record]:
        """Yield the rows with the keys of then and the values of now."""
        assert self._keys is not None, "a job that was accepted has its keys"
        with self._database.transaction() as connection:
            relation = relation_of(self._what, connection, self.id_field)
        columns = list(relation.columns.values())
        reader = RowsByKey(relation, columns, self._max_line_bytes)
        for line, key, row in self._keyed(reader, 0, self._keys):
            values = {} if row is None or row.values is None else _values(columns, row.values)
            yield Record(line, values or ({} if key is None else {self.id_field: key}))

    # -- whole passes ------------------------------------------------------------------------------

    def _surveyed_rows(self, skip: int) -> Iterator[Document | BadRow]:
        with self._database.transaction() as connection:
            relation, reader = self._known(connection)
            self._warn(relation, connection)

            def ask(statement: Executable, values: Mapping[str, Any]) -> Sequence[Any]:
                return connection.execute(statement, values).all()

            gathered, order, line = Gathered(), KeyOrder(self.uri, self.id_field), 0
            for part in relation.key_parts(connection, reading.ROWS):
                self._check_time()
                keys = [key_of(value) for value, _ in part]
                order.check(keys)
                gathered.add(keys)
                for given, key, row in zip(part, keys, reader.some(ask, keys), strict=True):
                    line += 1
                    if line > skip:
                        yield (
                            self._read(reader, key, row, line)
                            if key is not None
                            else self._without_key(given[0], given[1], line)
                        )
            gathered.finish()
            self._gathered = gathered

    def _accepted_rows(self, line: int, stored: StoredKeys) -> Iterator[Document | BadRow]:
        reader = self._looked_up()
        for number, key, row in self._keyed(reader, line, stored):
            yield (
                self._read(reader, key, row, number)
                if key is not None
                else self._without_key(None, None, number)
            )

    def _keyed(
        self, reader: RowsByKey, line: int, stored: StoredKeys
    ) -> Iterator[tuple[int, Key, Row | None]]:
        """Yield each row behind ``line`` by its key: None where it is gone."""
        for before, keys in stored.pages(line):
            for start in range(0, len(keys), reading.ROWS):
                some = keys[start : start + reading.ROWS]
                rows = zip(some, reader.some(self._asked, some), strict=True)
                for number, (key, row) in enumerate(rows, before + start + 1):
                    yield number, key, row

    # -- rows --------------------------------------------------------------------------------------

    def _asked(self, statement: Executable, values: Mapping[str, Any]) -> Sequence[Any]:
        with self._database.transaction() as connection:
            return connection.execute(statement, values).all()

    def _read(self, reader: RowsByKey, key: Key, row: Row | None, line: int) -> Document | BadRow:
        cursor: Cursor = {"line": line}
        try:
            if row is None:
                raise RowFault(
                    SOURCE_LOST,
                    "The row that was here at submit is gone.",
                    fix="put it back, and submit it again",
                    field=self.id_field,
                    doc_id=str(key),
                )
            if row.values is None:
                raise RowFault(
                    "line_too_long",
                    f"The row has {row.size} bytes, and max_line_bytes allows "
                    f"{self._max_line_bytes}.",
                    fix="leave the long column out of the prompt, or raise max_line_bytes",
                    doc_id=str(key),
                )
            record = {
                column.name: plain(value, column)
                for column, value in zip(reader.columns, row.values, strict=True)
            }
            doc_id, body, endpoint = self._form.read(record)
        except RowFault as fault:
            fault.doc_id = fault.doc_id or str(key)
            return self._bad(line, fault, cursor, f"{self.id_field} {key!r}")
        return Document(doc_id, body, orjson.dumps(key).decode(), line, cursor, endpoint)

    def _without_key(self, value: Any, size: int | None, line: int) -> BadRow:
        """Return the refusal of a row by what cannot be an id.

        ``value`` is None where it is null, or has more bytes than are asked for.
        """
        try:
            if value is None:
                what = "null" if size is None else f"of {size} bytes"
                raise RowFault(
                    "invalid_id",
                    f"The column {self.id_field!r} is {what} in this row.",
                    fix=ANOTHER_ID,
                    field=self.id_field,
                )
            check_doc_id(value, self.id_field)
            raise RowFault(
                "invalid_id",
                "This cannot be an id.",
                fix=Text("name another id column (", SetOption("id_field"), ")"),
            )
        except RowFault as fault:
            return self._bad(line, fault, {"line": line}, f"row {line}")

    def _bad(self, line: int, fault: RowFault, cursor: Cursor, place: str) -> BadRow:
        row = fault.row(self.uri, line, cursor)
        return replace(row, named=place, is_new=self._keys is not None)

    # -- what is read ------------------------------------------------------------------------------

    def _looked_up(self) -> RowsByKey:
        if self._reader is None:
            with self._database.transaction() as connection:
                return self._known(connection)[1]
        return self._reader

    def _known(self, connection: Connection) -> tuple[AnyRelation, RowsByKey]:
        """Return the relation, and the rows by their keys.

        Raises SourceError for what cannot be a source; where the job was accepted, it waits until
        that is put right.
        """
        try:
            relation = relation_of(self._what, connection, self.id_field)
            self._check_types(relation)
            check_columns(self.uri, self._form, list(relation.columns), nested=True)
        except SourceUnavailable:
            raise
        except SourceError as error:
            if self._pin is None:
                raise
            raise SourceUnavailable(
                f"{error}; restore it, then resume the job", code="source_changed"
            ) from error
        self._reader = RowsByKey(relation, self._needed(relation), self._max_line_bytes)
        return relation, self._reader

    def _needed(self, relation: AnyRelation) -> list[Column]:
        """Return the columns that are read.

        `user.name` may be a column, or a field of the column `user`.
        """
        used = self._form.read_columns
        if used is None:
            return list(relation.columns.values())
        parts = {part for name in used for part in (name, name.partition(".")[0])}
        return [column for name, column in relation.columns.items() if name in parts]

    def _check_types(self, relation: AnyRelation) -> None:
        was: Mapping[str, str] = {} if self._pin is None else self._pin["columns"]
        for name, type_ in was.items():
            now = relation.columns[name].type if name in relation.columns else "gone"
            if now != type_:
                raise SourceUnavailable(
                    f"{self.uri} is not what it was at submit: the column {seen(name)} was {type_} "
                    f"and is {now}; restore it, then resume the job",
                    code="source_changed",
                )

    def _warn(self, relation: AnyRelation, connection: Connection) -> None:
        if not relation.has_index(connection):
            log.warning(
                "%s has no index that begins with %r, so that the database looks through all of it "
                "for each %d rows; make one: it is used at once",
                self.uri,
                self.id_field,
                reading.ROWS,
            )

    def _check_time(self) -> None:
        if self._ends_at is not None and time.monotonic() > self._ends_at:
            raise SourceError(
                "source_too_slow",
                f"{self.uri} was not read and checked in the time that this submit may take; split "
                "it by a query",
            )


_KINDS: Mapping[str, Kind] = {
    "bool": "boolean",
    "int2": "integer",
    "int4": "integer",
    "int8": "integer",
    "float4": "number",
    "float8": "number",
    "numeric": "decimal",
    "date": "date",
    "timestamp": "timestamp",
    "timestamptz": "instant",
}
"""Of PostgreSQL's types. SQLite's columns have none: their values say it."""


def _values(columns: Sequence[Column], values: Sequence[Any]) -> dict[str, Any]:
    """Return a row as JSON has it; what JSON cannot hold is null there."""
    found: dict[str, Any] = {}
    for column, value in zip(columns, values, strict=True):
        try:
            found[column.name] = plain(value, column)
        except RowFault:
            found[column.name] = None
    return found


def _key_at(position: str) -> Key:
    try:
        key = orjson.loads(position)
    except ValueError:
        return None
    return key if type(key) in (int, str) else None


def accepted(job: Job, spec: JobSpec, keys: SourceKeys, settings: ProducerSettings) -> TableSource:
    """Return the source of a job, whose pin is of KIND."""
    stored = StoredKeys(lambda page: keys.page(job.job_id, page), int(job.source["rows"]))
    return TableSource(str(job.source["uri"]), spec, settings, pin=job.source, keys=stored)


def key_pages(source: object) -> Iterable[bytes]:
    """Return what has to be kept with the job of a source that was surveyed."""
    return source.key_pages() if isinstance(source, TableSource) else ()
