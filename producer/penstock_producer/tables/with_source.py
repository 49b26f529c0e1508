"""A job's outcomes as one table: in its source's order, behind those columns of it that are kept.

The source's columns keep their names, their order and their values. The columns of the outcomes
(tables/columns.py) go behind them, under names that the source does not have; their `id` is left
out, since the source has its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

from penstock_ledger import CommitOrder, Database, OutcomeStore
from penstock_ledger.model import DeadLetter, Job, Result
from penstock_ledger.texts import SetOption, Text
from penstock_producer.errors import SinkError, SinkUnfit, SourceError, SourceUnavailable
from penstock_producer.job.sinks import form_named
from penstock_producer.rows import ROW_ID
from penstock_producer.settings import ProducerSettings
from penstock_producer.sources.kept import ALL, NONE, Kept, KeptRow, kept_rows
from penstock_producer.storage import Writer, discarded_on_error, open_sink
from penstock_producer.tables.columns import Column, Row, Table
from penstock_producer.tables.reading import Reading

__all__ = [
    "ANSWER",
    "DONE",
    "SOURCE",
    "Added",
    "WithSource",
    "Written",
    "added_columns",
    "joined",
    "reading_of",
    "source_beside",
    "table_pieces",
    "write_rows",
    "write_table",
]


ANSWER: Final = "answer"
"""What the column `text` of the outcomes is called beside a source's, which has texts itself."""

PAGE: Final = 500  # rows whose outcomes are looked up at once


class Added(NamedTuple):
    """One column that a joined table has beside the source's."""

    at: int  # its place in a row of the outcomes
    column: Column  # under the name that it has in the joined table


def added_columns(source: Iterable[str], outcomes: Sequence[Column]) -> list[Added]:
    """Return the columns of the outcomes as a table has them that begins with the source's.

    A name that the source has, upper and lower case alike, gets `answer_` in front.
    """
    taken = {name.casefold() for name in source}
    added = []
    for at, column in enumerate(outcomes):
        if column.name == "id":
            continue
        name = ANSWER if column.name == "text" else column.name
        while name.casefold() in taken:
            name = f"answer_{name}"
        taken.add(name.casefold())
        added.append(Added(at, Column(name, column.kind)))
    return added


def joined(
    rows: Iterable[tuple[str, Sequence[Any]]],
    added: Sequence[Added],
    look_up: Callable[[Sequence[str]], Mapping[str, Row]],
    page: int = PAGE,
) -> Iterator[Row]:
    """Yield each row of the source, in the source's order, with what became of it behind it.

    ``rows`` are ids and values; ``look_up`` returns the outcomes of some ids, as rows of the
    outcomes' table. A row without an outcome has nulls. At most ``page`` rows are held.
    """
    source = iter(rows)
    while some := list(islice(source, page)):
        found = look_up([doc_id for doc_id, _ in some])
        for doc_id, values in some:
            outcome = found.get(doc_id)
            yield [*values, *(None if outcome is None else outcome[one.at] for one in added)]


SOURCE: Final = "source"
DONE: Final = "done"
ROW: Final = "row"
"""What the number of a row is called in a table, where rows have no other id."""

PAGE_BYTES: Final = 8 * 1024 * 1024  # of their texts


class WithSource:
    """A row for each row of the source that has an outcome by now, read once."""

    cursor: None = None  # there is none to go on from: another reading begins anew

    def __init__(
        self,
        database: Database,
        job: Job,
        kept: Kept,
        letter: Callable[[DeadLetter], DeadLetter] | None = None,
    ) -> None:
        """``letter``: a dead letter as its reader may see it; None for as it is."""
        self.number = 0
        self._job_id = job.job_id
        self._database = database
        self._outcomes = OutcomeStore(database)
        self._kept = kept
        self._letter = letter
        self._table = Table(job.spec)
        own: Sequence[Column] = self._table.columns
        self._is_numbered = kept.id_field == ROW_ID
        if self._is_numbered:
            own = [Column(ROW, "integer"), *own[1:]]
        added = added_columns((column.name for column in kept.columns), own)
        self._taken = [one.at for one in added]
        self.columns: Sequence[Column] = [*kept.columns, *(one.column for one in added)]
        self.kept_columns = len(kept.columns)
        if not kept.columns:
            self._taken, self.columns = list(range(len(own))), self._table.columns
            self._is_numbered = False

    @property
    def id_at(self) -> int:
        """Return the place of the column that names the document."""
        name = self._kept.id_field
        if name == ROW_ID:
            return self.kept_columns
        return next(at for at, one in enumerate(self.columns) if one.name == name)

    def placed(self, outcome: Row) -> Row:
        """Return a row of outcomes as one of this table, before its source was read."""
        return [*[None] * self.kept_columns, *(outcome[at] for at in self._taken)]

    def __iter__(self) -> Iterator[Row]:
        return (row for _, _, row in self.with_ids())

    def with_ids(self) -> Iterator[tuple[str, bool, Row]]:
        """Yield each row with the id of its outcome, and whether it was refused at the submit."""
        try:
            for page in _pages(self._kept):
                yield from self._joined(page)
            counts = self._outcomes.counts(self._job_id)
            if self.number < counts.succeeded + counts.dead:
                yield from self._others()
        except SourceError as error:
            raise unreadable(error) from error

    def _others(self) -> Iterator[tuple[str, bool, Row]]:
        """Yield outcomes that belong to no row of the source: none is left out in silence.

        Of ids hashes are kept, a million in some 60 MiB, and only where there is such an outcome.
        """
        known = {hash(row.doc_id) for row in self._kept}
        for _, outcome in CommitOrder(self._database).read(self._job_id, as_stored=True):
            doc_id = outcome.key.doc_id
            if hash(doc_id) not in known:
                own = self._row(outcome)
                if self._is_numbered:
                    own[0] = None
                row = self.placed(own)
                if self.kept_columns and self.columns[self.id_at].kind == "text":
                    row[self.id_at] = doc_id
                self.number += 1
                yield doc_id, True, row

    def _row(self, outcome: Result | DeadLetter) -> Row:
        if self._letter is not None and isinstance(outcome, DeadLetter):
            outcome = self._letter(outcome)
        return self._table.row(outcome)

    def _joined(self, page: Sequence[KeptRow]) -> Iterator[tuple[str, bool, Row]]:
        ids = [row.doc_id for row in page]
        found = {one.key.doc_id: one for one in self._outcomes.visible(self._job_id, ids)}
        for row in page:
            outcome = found.get(row.doc_id)
            if outcome is None:
                continue
            own = self._row(outcome)
            if self._is_numbered:
                own[0] = row.number
            self.number += 1
            whole = [*row.values, *(own[at] for at in self._taken)]
            yield row.doc_id, row.is_refused, whole


def reading_of(
    database: Database,
    job: Job,
    settings: ProducerSettings,
    *,
    keep: str = ALL,
    order: str = SOURCE,
    form: str = "",
    whole: bool = False,
    letter: Callable[[DeadLetter], DeadLetter] | None = None,
) -> Reading | WithSource:
    """Return the rows of a job's table: in the source's order, or in that of completion.

    The second has the answers alone, and so has a job whose documents were pushed. ``form`` is that
    of the file: parquet has the types of Arrow, csv the texts of a CSV as they were written.
    Raises SinkError where the source cannot be read, and OutcomesHeldBack where all is wanted.
    """
    if order != DONE:
        if whole:
            next(iter(Reading(database, job, whole=True)), None)
        try:
            kept = kept_rows(
                database,
                job,
                keep,
                settings,
                in_arrow=form == "parquet",
                as_written=form == "csv",
            )
        except SourceError as error:
            raise unreadable(error) from error
        if kept is not None:
            return WithSource(database, job, kept, letter)
    return Reading(database, job, whole=whole, letter=letter)


def source_beside(
    database: Database, job: Job, settings: ProducerSettings, *, keep: str, order: str
) -> WithSource | None:
    """Return what a table of a database has beside the answers; None where that is nothing.

    Raises SinkError where the source cannot be read.
    """
    if keep == NONE or order == DONE:
        return None
    found = reading_of(database, job, settings, keep=keep)
    return found if isinstance(found, WithSource) and found.kept_columns else None


def unreadable(error: SourceError) -> SinkError:
    """Return what to say of a source that cannot be read again, and how to do without it."""
    make = SinkError if isinstance(error, SourceUnavailable) else SinkUnfit
    return make(
        Text(
            "the table has the columns and the order of the source, which cannot be read: ",
            error.text,
            ". Put that right, or take the answers alone, as they came (",
            SetOption("order", "done"),
            ")",
        )
    )


def _pages(rows: Iterable[KeptRow]) -> Iterator[list[KeptRow]]:
    page: list[KeptRow] = []
    size = 0
    for row in rows:
        page.append(row)
        size += sum(len(value) for value in row.values if isinstance(value, str | bytes))
        if len(page) == PAGE or size >= PAGE_BYTES:
            yield page
            page, size = [], 0
    if page:
        yield page


class Written(NamedTuple):
    place: str
    rows: int
    cursor: str | None  # of the last row, to go on behind it; what was given where there was none


def write_table(
    reading: Reading | WithSource,
    destination: str | Path,
    name: str,
    form: str,
    *,
    escape_formulas: bool = False,
    s3_endpoint_url: str | None = None,
) -> Written:
    """Write ``name`` into a folder or a prefix of a bucket; it appears when it is complete.

    Raises SinkError."""
    form_named(form)
    sink = open_sink(destination, s3_endpoint_url=s3_endpoint_url)
    with discarded_on_error(sink.create(name)) as writer:
        write_rows(writer, reading, reading.columns, form, escape_formulas=escape_formulas)
        writer.finish()
        return Written(writer.publish(), reading.number, reading.cursor)


def write_rows(
    writer: Writer,
    rows: Iterable[Row],
    columns: Sequence[Column],
    form: str,
    *,
    escape_formulas: bool = False,
) -> None:
    for piece in table_pieces(rows, columns, form, escape_formulas=escape_formulas):
        writer.write(piece)


def table_pieces(
    rows: Iterable[Row], columns: Sequence[Column], form: str, *, escape_formulas: bool = False
) -> Iterator[bytes]:
    """Yield the bytes of the file, in their order.

    Raises SinkError where what the form needs is missing.
    """
    found = form_named(form)
    more = {"escape_formulas": escape_formulas} if found.escapes else {}
    pieces: Iterator[bytes] = found.load()(rows, columns, **more)
    return pieces
