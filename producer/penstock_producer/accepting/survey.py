"""The one whole reading of a source before its job is accepted.

It counts the rows, finds those that cannot be used and ids that come twice, guesses the tokens,
notes where the source can be split, and finds the beginnings that prompts share. Memory stays flat:
the ids lie on disk, in a private file of SQLite that the system removes with the connection. They
are appended unsorted and sorted once at the end, which is several times faster than asking an index
about each row.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import pairwise
from typing import Any, Final, NamedTuple, Protocol, Self

import orjson

from penstock_ledger.model import Shard
from penstock_producer.accepting.estimates import Estimate, Measure, TokenMeter, meter_of
from penstock_producer.dialects.prompt_caches import has_cached_prompts
from penstock_producer.errors import Problem, SourceError, SpecError, TooManyBadRows
from penstock_producer.job.repeats import answers_alike
from penstock_producer.job.routing import DISAGREE, REFUSED_BY_ROUTE, route_in
from penstock_producer.job.spec import JobSpec
from penstock_producer.pins import PREPARED, ROUTES
from penstock_producer.planning.prefixes import PrefixFinder
from penstock_producer.refusals import DUPLICATE
from penstock_producer.rows import MISSING_FIELD, BadRow, Document, Place, Tally
from penstock_producer.sources.forms.row_forms import no_route_column

__all__ = ["Check", "SplitPoints", "Survey", "Surveyed", "survey"]

_ROWS_PER_INSERT = 5_000
_CACHE_KIB = 16_000  # the most memory SQLite may use; what is more goes to its temporary files


class Duplicate(NamedTuple):
    line: int
    first_line: int
    doc_id: str


class SeenIds:
    """``add`` every accepted id, then ask for ``duplicates()``."""

    def __init__(self) -> None:
        self._db = sqlite3.connect("", isolation_level=None)
        for pragma in (
            "journal_mode=OFF",
            "synchronous=OFF",
            "temp_store=FILE",
            f"cache_size=-{_CACHE_KIB}",
        ):
            self._db.execute(f"PRAGMA {pragma}")
        self._db.execute("CREATE TABLE ids (doc TEXT NOT NULL, line INTEGER NOT NULL)")
        self._waiting: list[tuple[str, int]] = []
        self._sorted = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def add(self, doc_id: str, line: int) -> None:
        self._waiting.append((doc_id, line))
        if len(self._waiting) >= _ROWS_PER_INSERT:
            self._flush()

    def duplicates(self) -> Iterator[Duplicate]:
        """Yield every row after the first of its id, in the order of lines."""
        self._sort()
        rows = self._db.execute(
            "SELECT ids.line, met.first, ids.doc FROM ids JOIN (SELECT doc, min(line) AS first "
            "FROM ids GROUP BY doc HAVING count(*) > 1) AS met ON ids.doc = met.doc WHERE ids.line "
            "> met.first ORDER BY ids.line"
        )
        for row in rows:
            yield Duplicate(*row)

    def repeats(self) -> int:
        """Return how many were added whose like had been added before."""
        self._flush()
        query = "SELECT count(*) - count(DISTINCT doc) FROM ids"
        return int(self._db.execute(query).fetchone()[0])

    def __contains__(self, doc_id: str) -> bool:
        self._sort()
        return (
            self._db.execute("SELECT 1 FROM ids WHERE doc = ? LIMIT 1", (doc_id,)).fetchone()
            is not None
        )

    def _sort(self) -> None:
        if not self._sorted:
            self._flush()
            self._db.execute("CREATE INDEX by_doc ON ids (doc, line)")
            self._sorted = True

    def _flush(self) -> None:
        self._db.execute("BEGIN")
        self._db.executemany("INSERT INTO ids VALUES (?, ?)", self._waiting)
        self._db.execute("COMMIT")
        self._waiting.clear()


POINTS_KEPT: Final = 1_024
"""Far more than a source has shards, so that these differ by a few per cent in size."""


class SplitPoints:
    """Cursors by the number of rows before them.

    Each time there are too many, every second one goes."""

    def __init__(self) -> None:
        self._kept: dict[int, dict[str, Any]] = {}
        self._spacing = 1

    def note(self, rows: int, cursor: Mapping[str, Any]) -> int:
        """Keep the cursor of row number ``rows``; return the next row whose cursor is wanted."""
        self._kept[rows] = dict(cursor)
        if len(self._kept) > POINTS_KEPT:
            self._spacing *= 2
            self._kept = {
                before: kept for before, kept in self._kept.items() if before % self._spacing == 0
            }
        return rows - rows % self._spacing + self._spacing

    def split(self, rows: int, number: int) -> tuple[Shard, ...]:
        """Split a source with ``rows`` into ``number`` shards of nearly equal size.

        A small source has fewer, and none where it would be one.
        """
        within = [before for before in self._kept if before < rows]
        if number < 2 or not within:
            return ()
        ends = {
            min(within, key=lambda before: abs(before - place))
            for place in (rows * part / number for part in range(1, number))
        }
        remote_limits = [{}, *(self._kept[before] for before in sorted(ends)), None]
        return tuple(Shard(begin or {}, end) for begin, end in pairwise(remote_limits))


# Refused rows become dead letters in the transaction that creates the job, so they are held in
# memory until then.
MAX_BAD_ROWS_HELD = 100_000
FIRST_ROWS = 100  # when all of these lack the same column, the prompt is wrong, not the rows
NOTHING = Estimate(0, 0, True)
_ROWS_PER_PROGRESS = 5_000  # calls it some ten times a second


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """A bad row with the document id that its dead letter will have."""

    row: BadRow
    doc_id: str


class Routed(NamedTuple):
    """The documents that take one route."""

    documents: int
    estimate: Estimate


@dataclass(frozen=True, slots=True)
class Survey:
    """The content of a source, counted."""

    total: int  # documents and bad rows together
    refused: Sequence[RefusedRow]  # in the order of lines
    pin: dict[str, Any]
    estimate: Estimate = NOTHING  # of its documents, from the first of them
    size: int = 0  # bytes of all request bodies
    split_points: SplitPoints = field(default_factory=SplitPoints)  # where it can be split
    # by the number of the rule that takes them, 0 for the job's own model; empty without rules
    routes: Mapping[int, Routed] = field(default_factory=dict)
    prefixes: PrefixFinder | None = None  # the beginnings that prompts share, where that counts
    repeats: int = 0  # documents that are not sent, as they ask what others do

    @property
    def sent(self) -> float:
        """The part of its documents that is sent, and that estimates are of."""
        documents = self.total - len(self.refused)
        return 1 - self.repeats / documents if self.repeats else 1.0

    @property
    def prompts(self) -> Self:
        """Return it as if answers had no tokens."""
        return replace(
            self,
            estimate=self.estimate._replace(tokens_out=0),
            routes={
                number: Routed(one.documents, one.estimate._replace(tokens_out=0))
                for number, one in self.routes.items()
            },
        )


Check = Callable[[Document], BadRow | None]


class Surveyed(Protocol):
    """A source that can be submitted."""

    uri: str
    id_field: str  # the field that names a document

    @property
    def tally(self) -> Tally: ...

    def pin(self) -> dict[str, Any]: ...

    def place(self, line: int) -> Place: ...

    def documents(self, cursor: Mapping[str, Any]) -> Iterator[Document | BadRow]: ...


def survey(
    source: Surveyed,
    spec: JobSpec,
    progress: Callable[[int], None] | None = None,
    meter: TokenMeter | None = None,
    check: Check | None = None,
    first: int | None = None,
) -> Survey:
    """Read the whole source once, in flat memory.

    ``progress`` is called now and then with the number of rows read; ``meter`` counts the tokens of
    its first documents, the job's own where none is given. ``check`` says of a document why it is
    refused all the same, None where it is not. With ``first`` only so many rows are
    read, and nothing is pinned where there may be more.

    Raises TooManyBadRows beyond the spec's ``max_bad_rows``, SourceError `empty_source` when there
    is no row at all, and whatever reading raises.
    """
    most = (
        min(spec.max_bad_rows, MAX_BAD_ROWS_HELD)
        if isinstance(spec.max_bad_rows, int)
        else MAX_BAD_ROWS_HELD
    )
    bad: list[BadRow] = []
    split_points = SplitPoints()
    total = size = 0
    next_point = 1
    meter = meter or job_meter(spec)
    measure = Measure(meter)
    routes = {number: _Route(meter) for number in range(len(spec.routes) + 1 if spec.routes else 0)}
    prefixes, is_deduped = None, None if spec.dedup != "off" else False
    if spec.prompt_cache != "off" and spec.asks_a_provider and has_cached_prompts(spec.endpoint):
        prefixes = PrefixFinder(spec.endpoint)
    with SeenIds() as ids, SeenIds() as requests:
        add = ids.add
        for row in itertools.islice(source.documents({}), first):
            total += 1
            if progress is not None and total % _ROWS_PER_PROGRESS == 0:
                progress(total)
            if check is not None and isinstance(row, Document):
                row = check(row) or row
            if isinstance(row, BadRow):
                _keep(bad, row, most, source.uri)
            else:
                add(row.doc_id, row.line)
                size += len(row.body)
                if is_deduped is None:
                    is_deduped = _is_deduped(spec, row)
                if is_deduped:
                    requests.add(blake2b(row.body, digest_size=16).hexdigest(), row.line)
                if routes:
                    routes[route_in(row.body)].add(row.body)
                if not measure.enough:
                    measure.add(row.body)
                if prefixes is not None and row.endpoint is None:
                    prefixes.add(row.body)
            if total == next_point:
                next_point = split_points.note(total, row.cursor)
            if total == FIRST_ROWS and len(bad) == FIRST_ROWS > spec.bad_rows_allowed(FIRST_ROWS):
                _refuse_column(bad)
        if total == 0:
            raise SourceError(
                "empty_source", f"{source.uri} holds no document; give a file with at least one row"
            )
        before = len(bad)
        for duplicate in ids.duplicates():
            _keep(bad, _duplicate(duplicate, source), most, source.uri)
        # rows of one id are most likely one document, written twice: of these one is sent, too
        repeats = max(0, requests.repeats() - (len(bad) - before))
        bad.sort(key=lambda row: row.line)
        check_bad_rows(source.uri, spec, total, bad)
        is_whole = first is None or total < first
        tally = source.tally
        if is_whole:
            _check_route_columns(source.uri, spec, tally)
        prepared = {PREPARED: tally.to_json()} if tally.cut or tally.saved_chars else {}
        sent = 1 - repeats / max(1, total - len(bad))
        taken = {number: route.routed(sent) for number, route in routes.items()}
        taken |= {number: Routed(rows, NOTHING) for number, rows in tally.refused.items()}
        if taken:
            prepared[ROUTES] = {str(number): one.documents for number, one in taken.items()}
        estimate = measure.of(total - len(bad) - repeats, round(size * sent))
        pin = source.pin() if is_whole else {}
        return Survey(
            total,
            _named(bad, ids),
            pin | prepared,
            estimate,
            size,
            split_points,
            routes=taken,
            prefixes=prefixes,
            repeats=repeats,
        )


def _is_deduped(spec: JobSpec, first: Document) -> bool:
    """Return whether equal requests are sent once, as the first of them says."""
    if spec.dedup == "always":
        return True
    body = orjson.loads(first.body)
    return isinstance(body, dict) and answers_alike(first.endpoint or spec.endpoint, body)


class _Route:
    """Counts the documents that take one route."""

    def __init__(self, meter: TokenMeter) -> None:
        self._measure = Measure(meter)
        self._documents = self._size = 0

    def add(self, body: bytes) -> None:
        self._documents += 1
        self._size += len(body)
        if not self._measure.enough:
            self._measure.add(body)

    def routed(self, sent: float) -> Routed:
        """Return them; estimates are of the part that is ``sent``."""
        documents, size = round(self._documents * sent), round(self._size * sent)
        return Routed(self._documents, self._measure.of(documents, size))


def _check_route_columns(uri: str, spec: JobSpec, tally: Tally) -> None:
    """Raise SourceError for a column that a rule looks at and no row has."""
    for name in spec.routing.columns if spec.routes else ():
        if name not in tally.met:
            raise no_route_column(uri, name, "no row has it")


def check_bad_rows(uri: str, spec: JobSpec, total: int, bad: Sequence[BadRow]) -> None:
    """Raise TooManyBadRows where more of ``total`` rows are bad than the spec allows.

    Those that a rule of the job refuses are not bad."""
    if spec.routes:
        bad = [row for row in bad if row.code != REFUSED_BY_ROUTE]
    allowed = min(spec.bad_rows_allowed(total), MAX_BAD_ROWS_HELD)
    if len(bad) > allowed:
        raise TooManyBadRows(uri, allowed, bad, counted=len(bad), whole=True)


def job_meter(spec: JobSpec) -> TokenMeter:
    """Return the meter of a job's tokens: its own tokenizer where it is at hand."""
    try:
        return meter_of(spec.model, spec.tokenizer)
    except ValueError:
        # another machine has the job's tokenizer; reading the source says so where it matters
        return TokenMeter()


def _keep(bad: list[BadRow], row: BadRow, most: int, uri: str) -> None:
    if row.code == DISAGREE:
        name = row.uri.rpartition("/")[2]  # doors show no places of this machine
        why = f"{name} {row.place}: {row.message.rstrip('.')}"
        raise SpecError([Problem("invalid_value", "/routes", why, row.fix)])
    bad.append(row)
    most = MAX_BAD_ROWS_HELD if row.code == REFUSED_BY_ROUTE else most
    if len(bad) > most:
        in_order = sorted(bad, key=lambda row: row.line)
        raise TooManyBadRows(uri, most, in_order, counted=len(bad), whole=False)


def _refuse_column(rows: list[BadRow]) -> None:
    """Raise SourceError when the rows lack the same column of the prompt.

    The rest need not be read then.
    """
    first = rows[0]
    if all((row.code, row.field) == (MISSING_FIELD, first.field) for row in rows):
        raise SourceError(
            "missing_column",
            f"none of the first {len(rows)} rows has the column {first.field!r} of the prompt. "
            f"{first}",
            public=(
                f"none of the first {len(rows)} rows has the column {first.field!r} of the prompt"
            ),
        )


def _duplicate(duplicate: Duplicate, source: Surveyed) -> BadRow:
    uri, line, unit = source.place(duplicate.line)
    earlier = source.place(duplicate.first_line)
    first = f"{earlier.unit} {earlier.line}" + ("" if earlier.uri == uri else f" of {earlier.uri}")
    return BadRow(
        uri,
        duplicate.line,
        DUPLICATE,
        source.id_field,
        f"The id of {unit} {line} was already used in {first}; the first one counts.",
        repr(duplicate.doc_id),
        "give every row an id of its own",
        None,
        {},
        line_in_file=line,
        unit=unit,
    )


def _named(bad: list[BadRow], ids: SeenIds) -> list[RefusedRow]:
    """Give each refused row an id that no document has.

    It is the row's own when that is free, else `line-<n>` (`row-<n>`, `file-<n>`).
    """
    taken: set[str] = set()
    refusals = []
    for row in bad:
        doc_id = row.doc_id if row.doc_id is not None else f"{row.unit}-{row.line}"
        if doc_id in taken or doc_id in ids:
            doc_id = f"{row.unit}-{row.line}"
        while doc_id in taken or doc_id in ids:
            doc_id += "~"  # a document that is really called line-7
        taken.add(doc_id)
        refusals.append(RefusedRow(row, doc_id))
    return refusals
