"""Outcomes as rows of a table in a database.

They are written in the order of commits, each row by its id, from where the last writer stopped. A
table that is made here has the columns of the job's source as well: these are filled when the job
has ended, in one pass over the source, which writes each row whole.

Rows and the place that they lead to are one transaction, in a small table beside them. So a process
that dies repeats nothing and leaves nothing out, and of two that write the same job into the same
table one stops.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import SQLAlchemyError

from penstock_producer.errors import SinkError, SinkTaken, SinkUnfit
from penstock_producer.tables import sql
from penstock_producer.tables.columns import FLOAT32_BYTES, Row, Table
from penstock_producer.tables.fitting import Fit, Rows, fit_of
from penstock_producer.tables.reading import Reading
from penstock_producer.tables.sql import (
    ID,
    Statements,
    Target,
    for_postgresql,
    for_sqlite,
    opened,
    shown_url,
)
from penstock_producer.tables.with_source import WithSource

__all__ = ["Filled", "TableSink"]

PROGRESS: Final = "penstock_progress"
# in the place of a job's id: the table was made here
MADE: Final = ""
# behind a place: the rows up to it have the source's columns, too
WHOLE: Final = "=whole"
ROWS: Final = 500  # in one transaction
BYTES: Final = 8 * 1024 * 1024  # of texts and vectors in one transaction


class Filled(NamedTuple):
    """The rows that one call has written."""

    rows: int
    # documents that the table has no row for: it can be changed but not added to, or its ids are
    # numbers, and a row that was refused has none
    missing: int


class TableSink:
    """One table of a database on SQLite or PostgreSQL."""

    def __init__(
        self,
        url: str,
        named: str,
        table: Table,
        *,
        id_column: str = ID,
        source: WithSource | None = None,
    ) -> None:
        """``table`` is what the job's outcomes look like, ``source`` its rows with their answers.

        An ``id_column`` of another name than `id` is that of a table that is made, too.

        Nothing is connected yet. Raises SinkUnfit for other URLs."""
        self._engine = opened(url)
        self._named = named
        self._table = table
        self._source = source
        self._rows = Rows(table.columns, 0, table.dimensions)
        self._named_id = None if id_column == ID else id_column
        self._id_column = id_column
        self._sqlite = self._engine.dialect.name == "sqlite"
        self._statements = Statements(named, self._id_column, is_sqlite=self._sqlite)
        self._fit = Fit((), False, None)
        self._copies = False
        self._was_whole = False  # as ``place`` found it

    def close(self) -> None:
        """End the connections; the next call opens one anew."""
        self._engine.dispose()

    def prepare(self) -> list[str]:
        """Make the table where there is none, or see that rows will fit.

        Returns the columns that are written. To be called before the job starts. Raises SinkUnfit,
        which names the column and what to change, and SinkError.
        """
        with self._usable(), self._engine.begin() as connection:
            self._prepare(connection)
        return [target.name for target in self._fit.targets]

    def try_out(self) -> None:
        """Return whether ``prepare`` would work; nothing of it stays in the database.

        Of a table that was made here the columns are looked at when it is filled.

        Raises as that does."""
        with self._usable(), self._engine.connect() as connection:
            self._prepare(connection)
            connection.rollback()

    def place(self, job_id: str) -> str | None:
        """Return the cursor up to which the table has the outcomes of a job; None before the first.

        Raises SinkError.
        """
        found = self._kept_place(job_id)
        self._was_whole = found is not None and found.endswith(WHOLE)
        return None if found is None else found.removesuffix(WHOLE)

    def fill(self, job_id: str, reading: Reading, end: str | None) -> Filled:
        """Write what is new, and all of it where the job has ended: call ``prepare`` first.

        ``reading`` begins at ``place``; ``end`` is the cursor behind the last outcome of a job that
        has ended, None while it runs. Raises SinkError.
        """
        if end is None or self._source is None:
            return self.write(job_id, reading)
        if self._kept_place(job_id) == end + WHOLE:
            return Filled(0, 0)
        changed = offered = 0
        for rows in _by_size(self._source.with_ids()):
            known = [
                row for doc_id, is_refused, row in rows if self._takes(row, doc_id, is_refused)
            ]
            try:
                with self._engine.begin() as connection:
                    changed += self._write(connection, known, self._fit.targets) if known else 0
            except SQLAlchemyError as error:
                raise self._refused(f"does not take a row after {offered}", error) from error
            offered += len(rows)
        with self._usable(), self._engine.begin() as connection:
            self._set(connection, job_id, end + WHOLE)
        return Filled(changed, offered - changed)

    def _takes(self, row: Row, doc_id: str, is_refused: bool) -> bool:
        """Give a row that was refused the id of its dead letter; return whether it has one then."""
        if is_refused:
            row[self._rows.id_at] = self._as_id(doc_id)
        return row[self._rows.id_at] is not None

    def _as_id(self, doc_id: str) -> Any:
        """Return an id for the table's column, None for a text where that has numbers."""
        if self._rows.columns[self._rows.id_at].kind != "integer":
            return doc_id
        try:
            return int(doc_id)
        except ValueError:
            return None

    def _kept_place(self, job_id: str) -> str | None:
        try:
            with self._engine.connect() as connection:
                return self._place(connection, job_id)
        except SQLAlchemyError as error:
            raise self._refused("cannot be read", error) from error

    def write(self, job_id: str, reading: Reading) -> Filled:
        """Write the rows of ``reading``, which begins at ``place``. Call ``prepare`` first.

        What was written stays when it fails. Raises SinkError.
        """
        targets = self._fit.targets
        if self._source is not None:  # what is there of the source's columns stays
            kept = self._source.kept_columns
            targets = [one for one in targets if one.at >= kept or one.at == self._rows.id_at]
        begun = before = reading.cursor
        if before is not None and self._was_whole:
            before += WHOLE
        changed = offered = 0
        for rows, cursor in _portions(reading):
            try:
                with self._engine.begin() as connection:
                    if not self._move(connection, job_id, before, cursor):
                        raise SinkTaken(
                            f"table {self._named} gets the results of job {job_id} from another "
                            "process at this moment: let that one go on, or end it and repeat "
                            "this"
                        )
                    known = self._placed(rows)
                    changed += self._write(connection, known, targets) if known else 0
            except SQLAlchemyError as error:
                raise self._refused(
                    f"does not take a row after {offered}, from {begun or 'the start'} on", error
                ) from error
            before = cursor
            offered += len(rows)
        return Filled(changed, offered - changed)

    def _placed(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Return rows of outcomes as the table has them, the source's columns empty."""
        if self._source is None:
            return rows
        placed = []
        for row in rows:
            whole = self._source.placed(row)
            whole[self._rows.id_at] = self._as_id(row[0])
            if whole[self._rows.id_at] is not None:
                placed.append(whole)
        return placed

    @contextmanager
    def _usable(self) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            raise self._refused("cannot be used for results", error) from error

    def _prepare(self, connection: Connection) -> None:
        connection.exec_driver_sql(
            f"CREATE TABLE IF NOT EXISTS {PROGRESS} (job_id VARCHAR(64) NOT NULL, target "
            "VARCHAR(300) NOT NULL, place TEXT NOT NULL, PRIMARY KEY (job_id, target))"
        )
        there = inspect(connection).has_table(self._statements.name, self._statements.schema)
        if there and self._place(connection, MADE) is None:
            self._source = None  # a table of the user's own: its columns are not the source's
        elif there and self._source is None:
            self._id_column = self._named_id or self._key(connection)
            self._statements = Statements(self._named, self._id_column, is_sqlite=self._sqlite)
        if self._source is not None:
            columns = list(self._source.columns)
            id_at = self._source.id_at
            self._id_column = self._named_id or columns[id_at].name
            columns[id_at] = columns[id_at]._replace(name=self._id_column)
            self._rows = Rows(columns, id_at, self._table.dimensions)
            self._statements = Statements(self._named, self._id_column, is_sqlite=self._sqlite)
        taken = {
            column.name for at, column in enumerate(self._rows.columns) if at != self._rows.id_at
        }
        if self._id_column in taken:
            raise SinkUnfit(
                f"results have a column {self._id_column!r} of their own: name another for the id"
            )
        if not there:
            self._make(connection)
        found = inspect(connection)
        self._fit = fit_of(
            connection, found, self._statements, self._named, self._id_column, self._rows
        )
        self._try(connection)

    def _key(self, connection: Connection) -> str:
        """Return the column that a table made here finds its rows by."""
        found = inspect(connection).get_pk_constraint(
            self._statements.name, self._statements.schema
        )
        return next(iter(found["constrained_columns"]), ID)

    def _make(self, connection: Connection) -> None:
        vectors = [column.name for column in self._table.columns if column.kind == "vector"]
        type_ = (
            sql.embedding_type(connection, self._table) if vectors and not self._sqlite else None
        )
        connection.exec_driver_sql(
            self._statements.create(self._rows.columns, type_, self._rows.id_at)
        )
        if self._source is not None:
            self._set(connection, MADE, "made")
        if type_ is not None and "(" not in type_:
            for name in vectors:
                connection.exec_driver_sql(self._statements.comment(name, sql.UNSIZED))

    def _write(self, connection: Connection, rows: Sequence[Row], targets: Sequence[Target]) -> int:
        """Return how many rows the table has of them now."""
        unsized = self._fit.unsized
        if unsized is not None and (dimensions := _dimensions(rows, unsized)):
            for statement in self._statements.size(unsized, dimensions):
                connection.exec_driver_sql(statement)
            self._fit = self._fit._replace(unsized=None)
        values = [self._values(row, targets) for row in rows]
        if not self._fit.updates_only:
            self._upsert(connection, values, targets)
            return len(rows)
        return connection.exec_driver_sql(self._statements.update(targets), values).rowcount

    def _try(self, connection: Connection) -> None:
        targets = self._fit.targets
        trial = self._statements.update if self._fit.updates_only else self._statements.trial_upsert
        connection.exec_driver_sql(trial(targets), (None,) * len(targets))
        self._copies = (
            not self._sqlite and not self._fit.updates_only and sql.is_allowed(connection)
        )

    def _upsert(
        self,
        connection: Connection,
        values: Sequence[tuple[Any, ...]],
        targets: Sequence[Target],
    ) -> None:
        if self._copies:
            sql.upsert(connection, self._statements, targets, values)
        else:
            connection.exec_driver_sql(self._statements.upsert(targets), list(values))

    def _place(self, connection: Connection, job_id: str) -> str | None:
        query = text(f"SELECT place FROM {PROGRESS} WHERE job_id = :job AND target = :target")  # noqa: S608  # a constant
        found: str | None = connection.execute(
            query, {"job": job_id, "target": self._named}
        ).scalar()
        return found

    def _move(self, connection: Connection, job_id: str, before: str | None, after: str) -> bool:
        """Move the cursor of a job; return False when another process has moved it."""
        values = {"job": job_id, "target": self._named, "before": before, "after": after}
        if before is None:
            statement = (
                f"INSERT INTO {PROGRESS} VALUES (:job, :target, :after) ON CONFLICT DO "  # noqa: S608
                "NOTHING"
            )
        else:
            statement = (
                f"UPDATE {PROGRESS} SET place = :after"  # noqa: S608  # a constant
                " WHERE job_id = :job AND target = :target AND place = :before"
            )
        return connection.execute(text(statement), values).rowcount == 1

    def _set(self, connection: Connection, job_id: str, place: str) -> None:
        statement = (
            f"INSERT INTO {PROGRESS} VALUES (:job, :target, :place) ON CONFLICT (job_id, target) "  # noqa: S608  # a constant
            "DO UPDATE SET place = excluded.place"
        )
        values = {"job": job_id, "target": self._named, "place": place}
        connection.execute(text(statement), values)

    def _values(self, row: Row, targets: Sequence[Target]) -> tuple[Any, ...]:
        convert = for_sqlite if self._sqlite else for_postgresql
        return tuple(convert(row[target.at], target.type) for target in targets)

    def _refused(self, what: str, error: SQLAlchemyError) -> SinkError:
        """Return the error without the statement and its values."""
        said = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
        return SinkError(f"table {self._named} of {shown_url(self._engine.url)} {what}: {said}")


def _dimensions(rows: Sequence[Row], target: Target) -> int:
    """Return the dimensions of the first vector; 0 where there is none."""
    return next(
        (len(row[target.at]) // FLOAT32_BYTES for row in rows if row[target.at] is not None), 0
    )


def _by_size(rows: Iterable[tuple[str, bool, Row]]) -> Iterator[list[tuple[str, bool, Row]]]:
    """Yield as many rows at a time as one transaction takes."""
    some: list[tuple[str, bool, Row]] = []
    size = 0
    for one in rows:
        some.append(one)
        size += sum(len(value) for value in one[2] if isinstance(value, str | bytes))
        if len(some) == ROWS or size > BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some


def _portions(reading: Reading) -> Iterator[tuple[list[Row], str]]:
    rows: list[Row] = []
    size = 0
    cursor = ""
    for row in reading:
        row_size = sum(len(value) for value in row if isinstance(value, str | bytes))
        if rows and (len(rows) == ROWS or size + row_size > BYTES):
            yield rows, cursor
            rows, size = [], 0
        rows.append(row)
        size += row_size
        cursor = reading.cursor or ""
    if rows:
        yield rows, cursor
