"""Results and dead letters: the system of record.

The first outcome written for a key stays; later ones lose."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Row,
    Select,
    bindparam,
    case,
    cast,
    func,
    literal_column,
    or_,
    select,
    tuple_,
)

from penstock_ledger.model import (
    Counts,
    DeadLetter,
    ItemKey,
    LaneCounts,
    Paid,
    PaidBeside,
    Result,
    Saving,
    Spent,
)
from penstock_ledger.sql.database import Database
from penstock_ledger.sql.tables import feeds, outcomes
from penstock_ledger.stores.account import (
    NOTHING_SAVED,
    Savings,
    add_savings,
    by_rules,
    mend_replays,
    mend_retries,
    rest_of_generation,
    rest_of_job,
    savings_of,
    take_out_earlier,
)
from penstock_ledger.stores.outcome_insert import KEYS_MAX, insert_outcomes, terminal_keys
from penstock_ledger.stores.outcome_rows import (
    KEY_COLUMNS,
    RESULT_COLUMNS,
    OutcomeRow,
    dead_letter_from,
    dead_letter_row,
    key_of,
    outcome_from,
    result_from,
    result_row,
    stored_from,
    stored_result_from,
)
from penstock_ledger.stores.tallies import (
    add_kept,
    add_left,
    add_retried,
    add_second_answers,
    counts_from,
    grouped,
    lane_counts_from,
    tallied,
    tallied_by_lane,
)
from penstock_ledger.vectors import MAGIC, Vectors, unpack

STRETCHES: Final = 1_000  # of time that a job is shown in
# different ones; they are rounded, so that a day of milliseconds has fewer
LATENCIES: Final = 20_000
PROMPT_BOUNDS: Final = tuple(2**power for power in range(4, 22))  # tokens: 16 to 2 million
BEYOND_BOUNDS: Final = 2**62
LARGEST_PROMPTS: Final = 5
PAGE: Final = 1_000  # rows read at a time: with bodies of some kilobytes a page is some megabytes

_IS_RESULT: Final[ColumnElement[bool]] = literal_column("kind = 'result'")
# literal, so that the partial index is used
_IS_DEAD: Final[ColumnElement[bool]] = literal_column("kind = 'dead'")
_VISIBLE: Final = outcomes.c.superseded_by.is_(None)

_REFUSED: Final = select(outcomes.c.line, outcomes.c.doc_id).where(
    outcomes.c.job_id == bindparam("job"),
    outcomes.c.generation == 1,
    _IS_DEAD,
    outcomes.c.line.is_not(None),
)

NOTHING_EARLIER: Final[Mapping[ItemKey, Paid]] = {}

T = TypeVar("T")
Query = Select[*tuple[Any, ...]]


class PromptSizes(NamedTuple):
    """The tokens of a job's prompts, by the providers' own count."""

    # at most so many tokens (None: more than the last bound), and how many documents
    histogram: Sequence[tuple[int | None, int]]
    # documents with the longest prompts, and their tokens; the longest first
    largest: Sequence[tuple[str, int]]


class OutcomeStore:
    """Everything here reads in pages: memory stays flat however large a job is.

    ``lane``: of the process that settles."""

    def __init__(self, db: Database, lane: str | None = None) -> None:
        self._db = db
        self._lane = lane

    def settle(
        self,
        results: Sequence[Result],
        letters: Sequence[DeadLetter],
        *,
        earlier: Mapping[ItemKey, Paid] = NOTHING_EARLIER,
        retried: Sequence[tuple[str, PaidBeside]] = (),
        left: Sequence[PaidBeside] = (),
        from_batches: bool = False,
        also: Callable[[Connection], set[ItemKey]] | None = None,
        savings: Savings = NOTHING_SAVED,
    ) -> set[ItemKey]:
        """Make outcomes durable in one transaction.

        Returns the keys that were settled before (the losers).

        When one key comes twice in a call, the first one counts, and results come before letters.
        ``also`` writes what belongs to them, in the same transaction and after them, and returns
        the documents of which it noted payments. A loser that
        was paid for and is another answer than the outcome that is there is noted as such, see
        ``Counts.answered_twice``.

        ``earlier`` is what outcomes say of earlier attempts that were paid for. ``retried`` are
        attempts that were paid for and came to none, each by a name of its own; ``left`` are those
        whose messages end since their job has left the lane. Noting the same again changes nothing.
        ``from_batches``: what batches have left of the documents goes with it. ``savings``: of the
        answers that are paid for here, booked with the rows that first say so.
        """
        now = time.time()
        rows: dict[ItemKey, OutcomeRow] = {}
        done = (result_row(one, now, self._lane) for one in results)
        for row in (*done, *(dead_letter_row(one, now, self._lane) for one in letters)):
            rows.setdefault(key_of(row), row)
        ordered = [rows[key] for key in sorted(rows)]
        if not (ordered or retried or left) and also is None:
            return set()

        def write(connection: Connection) -> set[ItemKey]:
            losers = insert_outcomes(connection, ordered)
            paid_now = rows.keys() - losers
            if losers:
                paid_now |= add_second_answers(
                    connection, (row for row in ordered if key_of(row) in losers), earlier
                )
            if earlier or from_batches:
                noted = {
                    key: earlier.get(key, Paid()) for key in (rows if from_batches else earlier)
                }
                take_out_earlier(
                    connection,
                    {key: Paid() if key in losers else paid for key, paid in noted.items()},
                    remainders=from_batches,
                )
            if retried:
                paid_now |= add_retried(connection, retried)
            if left:
                add_left(connection, left)
            if also is not None:
                paid_now |= also(connection)
            if savings:
                add_savings(connection, self._lane, savings, paid_now)
            return losers

        return self._db.write(write)

    def note_cache(self, spent: PaidBeside, answer: str, cause: str) -> None:
        """Book what an explicit cache cost, in the account and against what its cause saves.

        ``spent`` names the cache in the place of a document, and ``answer`` what of it was paid
        for: noting the same again changes nothing."""

        def write(connection: Connection) -> None:
            if add_kept(connection, spent, answer):
                saving = Saving(cause, answers=0, saved_microusd=-spent.cost_microusd)
                add_savings(connection, self._lane, {spent.key: [saving]}, {spent.key})

        self._db.write(write)

    def by_rules(self, job_id: str) -> list[Saving]:
        """Return documents by the rules of a job; their cost is a saving below 0."""
        return self._db.read(lambda connection: by_rules(connection, job_id))

    def mend_replays(self, job_id: str) -> None:
        """Account for what replays by processes of the release before have left out."""
        self._db.write(lambda connection: mend_replays(connection, job_id))

    def mend_retries(self, job_id: str) -> None:
        """Count once what processes of the release before have counted again."""
        self._db.write(lambda connection: mend_retries(connection, job_id))

    def terminal(self, keys: Iterable[ItemKey]) -> set[ItemKey]:
        """Return those of ``keys`` that have an outcome, visible or superseded."""
        wanted = list(keys)
        return (
            self._db.read(lambda connection: terminal_keys(connection, wanted)) if wanted else set()
        )

    def counts(self, job_id: str) -> Counts:
        """Return visible outcomes of a job and its account, as its transactions have tallied them.

        That is as cheap for a million rows as for ten."""
        return self._counts(tallied(), job_id)

    def by_lane(self, job_id: str) -> list[LaneCounts]:
        """Return the same by the lane that was paid. What has no lane is in none of them."""
        return lane_counts_from(self._db.rows(tallied_by_lane(), {"job": job_id}))

    def savings(self, job_id: str) -> list[Saving]:
        """Return what answers of a job saved, by cause, over all generations and lanes."""
        return self._db.read(lambda connection: savings_of(connection, job_id))

    def counts_of(self, job_id: str, generation: int) -> Counts:
        """Return the outcomes of one generation, superseded ones included, by reading its rows."""
        rows = self._db.rows(
            grouped(outcomes.c.job_id == job_id, outcomes.c.generation == generation)
        )
        return counts_from(rows, self._db.rows(rest_of_generation(job_id, generation)))

    def recount(self, job_id: str) -> Counts:
        """Return the same, by reading every row of the job: the proof of the tallies."""
        return self._counts(grouped(outcomes.c.job_id == bindparam("job"), _VISIBLE), job_id)

    def _counts(self, visible: Query, job_id: str) -> Counts:
        """Count in one transaction.

        So what moves from one part of the account to another is counted once."""
        both = (visible, rest_of_job())
        return counts_from(
            *self._db.read(
                lambda connection: [connection.execute(one, {"job": job_id}).all() for one in both]
            )
        )

    def get(self, job_id: str, doc_id: str) -> Result | DeadLetter | None:
        """Return the visible outcome of a document.

        It is None while it has none (not finished, or being replayed)."""
        generations = select(feeds.c.generation).where(feeds.c.job_id == job_id)
        query = (
            select(outcomes)
            .where(
                outcomes.c.job_id == job_id,
                outcomes.c.generation.in_(generations),
                outcomes.c.doc_id == doc_id,
            )
            .where(_VISIBLE)
        )
        row = self._db.read(lambda connection: connection.execute(query).first())
        return None if row is None else outcome_from(row)

    def of_generation(
        self, job_id: str, generation: int, doc_id: str
    ) -> Result | DeadLetter | None:
        """Return the outcome of a document in one generation, visible or superseded."""
        query = select(outcomes).where(
            outcomes.c.job_id == job_id,
            outcomes.c.generation == generation,
            outcomes.c.doc_id == doc_id,
        )
        row = self._db.read(lambda connection: connection.execute(query).first())
        return None if row is None else outcome_from(row)

    def stored_results(self, keys: Iterable[ItemKey]) -> dict[ItemKey, Result]:
        """Return those of ``keys`` that have a result, embeddings as they are stored."""
        feeds: dict[tuple[str, int], list[str]] = {}
        for job_id, generation, doc_id in keys:
            feeds.setdefault((job_id, generation), []).append(doc_id)
        found: list[Result] = []
        for (job_id, generation), docs in feeds.items():
            query = select(*RESULT_COLUMNS).where(
                outcomes.c.job_id == job_id,
                outcomes.c.generation == generation,
                _IS_RESULT,
                _VISIBLE,
            )
            for start in range(0, len(docs), KEYS_MAX):
                rows = self._db.rows(
                    query.where(outcomes.c.doc_id.in_(docs[start : start + KEYS_MAX]))
                )
                found += map(stored_result_from, rows)
        return {result.key: result for result in found}

    def results(self, job_id: str, page: int = PAGE) -> Iterator[Result]:
        """Yield visible results by generation and document id."""
        query = select(*RESULT_COLUMNS).where(outcomes.c.job_id == job_id, _VISIBLE, _IS_RESULT)
        return self._paged(query, page, result_from)

    def timed_results(self, job_id: str) -> Iterator[tuple[Result, float]]:
        """Return the same, each with the Unix time at which it was stored."""
        query = select(*RESULT_COLUMNS, outcomes.c.created_at).where(
            outcomes.c.job_id == job_id, _VISIBLE, _IS_RESULT
        )
        return self._paged(query, PAGE, _timed_result)

    def vectors(self, job_id: str, page: int = PAGE) -> Iterator[tuple[ItemKey, Vectors]]:
        """Yield visible results kept as vectors, in the order of ``results``, without JSON."""
        query = select(*RESULT_COLUMNS[:KEY_COLUMNS], outcomes.c.body).where(
            outcomes.c.job_id == job_id, _VISIBLE, _IS_RESULT
        )
        for key, body in self._paged(query, page, _key_and_body):
            if body.startswith(MAGIC):
                yield key, unpack(body)

    def spent(self, job_id: str, limit: int) -> list[Spent]:
        """Return what the first ``limit`` documents took, by generation and document id.

        No bodies are read."""
        took = (
            outcomes.c.doc_id,
            outcomes.c.latency_ms,
            func.coalesce(outcomes.c.prompt_tokens, 0),
            func.coalesce(outcomes.c.completion_tokens, 0),
            outcomes.c.cost_microusd,
            outcomes.c.calls,
            func.coalesce(func.length(outcomes.c.body), 0),
            outcomes.c.created_at,
            _IS_DEAD,
            outcomes.c.lane,
        )
        query = select(*took).where(outcomes.c.job_id == job_id, _VISIBLE)
        rows = self._db.rows(query.order_by(outcomes.c.generation, outcomes.c.doc_id).limit(limit))
        return [Spent._make(row) for row in rows]

    def dead_letters(
        self,
        job_id: str,
        reason: str | None = None,
        include_superseded: bool = False,
        generation: int | None = None,
        after: tuple[int, str] | None = None,
        page: int = PAGE,
    ) -> Iterator[DeadLetter]:
        """Yield dead letters by generation and document id, those after ``after``.

        Superseded ones have been replayed since.

        ``generation`` chooses one of them, with all that it left, superseded or not.
        """
        every = include_superseded or generation is not None
        query = (
            select(outcomes).where(outcomes.c.job_id == job_id) if every else _visible(job_id)
        ).where(_IS_DEAD)
        if generation is not None:
            query = query.where(outcomes.c.generation == generation)
        if reason is not None:
            query = query.where(outcomes.c.reason == reason)
        if after is not None:
            query = query.where(tuple_(outcomes.c.generation, outcomes.c.doc_id) > after)
        return self._paged(query, page, dead_letter_from)

    def replayable(
        self, job_id: str, generation: int, *, after: str | None = None, page: int = PAGE
    ) -> Iterator[DeadLetter]:
        """Yield the dead letters that a generation sends again, by document id, after ``after``."""
        query = (
            select(outcomes)
            .where(outcomes.c.job_id == job_id, outcomes.c.superseded_by == generation)
            # spelt out, so that the partial index is used
            .where(outcomes.c.superseded_by.is_not(None))
            .order_by(outcomes.c.doc_id)
            .limit(page)
        )
        while True:
            rows = self._db.rows(query if after is None else query.where(outcomes.c.doc_id > after))
            yield from map(dead_letter_from, rows)
            if len(rows) < page:
                return
            after = rows[-1].doc_id

    def as_of(
        self,
        job_id: str,
        generation: int,
        *,
        after: tuple[int, str] | None = None,
        status: str | None = None,
    ) -> Iterator[Result | DeadLetter]:
        """Yield the outcomes visible when ``generation`` had ended, those after ``after``.

        They come by generation and document id.

        Later replays change nothing in them. ``status`` `done` or `dead` leaves the others out.
        """
        superseded = or_(_VISIBLE, outcomes.c.superseded_by > generation)
        query = select(outcomes).where(
            outcomes.c.job_id == job_id, outcomes.c.generation <= generation, superseded
        )
        if status is not None:
            query = query.where(_IS_DEAD if status == "dead" else _IS_RESULT)
        if after is not None:
            query = query.where(tuple_(outcomes.c.generation, outcomes.c.doc_id) > after)
        return self._paged(query, PAGE, outcome_from)

    def ended_in(self, job_id: str, since: float, each_s: int) -> list[tuple[int, int, int]]:
        """Count what ended in each stretch of ``each_s`` seconds.

        A stretch has its number, how many succeeded and how many are dead. Reads every row of the
        job, without its body."""
        stretch = (cast(outcomes.c.created_at, BigInteger) - int(since)) // each_s
        query = (
            select(
                stretch.label("number"),
                func.count().filter(_IS_RESULT).label("done"),
                func.count().filter(_IS_DEAD).label("dead"),
            )
            .where(outcomes.c.job_id == job_id, _VISIBLE)
            .group_by(stretch)
            .order_by(stretch)
            .limit(STRETCHES)
        )
        return [(int(row.number), int(row.done), int(row.dead)) for row in self._db.rows(query)]

    def latencies(self, job_id: str) -> list[tuple[int, int]]:
        """Return the milliseconds that answers took, and how many took so long.

        They are exact to one part in a hundred.

        The shortest first. Reads every row of the job, without its body."""
        took = outcomes.c.latency_ms
        rounded = case(
            *((took < 1_000 * size, took // size * size) for size in (1, 10, 100)),
            else_=took // 1_000 * 1_000,
        )
        query = (
            select(rounded.label("milliseconds"), func.count().label("number"))
            .where(
                outcomes.c.job_id == job_id,
                _VISIBLE,
                _IS_RESULT,
                outcomes.c.reason.is_(None),
                took > 0,
            )
            .group_by(rounded)
            .order_by(rounded)
            .limit(LATENCIES)
        )
        return [(int(row.milliseconds), int(row.number)) for row in self._db.rows(query)]

    def prompt_sizes(self, job_id: str) -> PromptSizes:
        """Return how long the prompts of a job's documents were, for each call.

        Of none that took another's answer. Reads every row of the job, without its body."""
        tokens = outcomes.c.prompt_tokens // outcomes.c.calls
        asked = (
            outcomes.c.job_id == job_id,
            _VISIBLE,
            outcomes.c.calls > 0,
            outcomes.c.prompt_tokens > 0,
        )
        up_to = case(
            *((tokens <= bound, bound) for bound in PROMPT_BOUNDS), else_=BEYOND_BOUNDS
        ).label("up_to")
        found = self._db.rows(
            select(up_to, func.count().label("number"))
            .where(*asked)
            .group_by(up_to)
            .order_by(up_to)
        )
        named = select(outcomes.c.doc_id, tokens.label("tokens")).where(*asked)
        largest = self._db.rows(
            named.order_by(tokens.desc(), outcomes.c.doc_id).limit(LARGEST_PROMPTS)
        )
        return PromptSizes(
            [
                (None if row.up_to == BEYOND_BOUNDS else int(row.up_to), int(row.number))
                for row in found
            ],
            [(row.doc_id, int(row.tokens)) for row in largest],
        )

    def refused_lines(self, job_id: str) -> frozenset[int]:
        """Return the lines of a job's source whose rows were refused when it was submitted."""
        return frozenset(self.refused_ids(job_id))

    def refused_ids(self, job_id: str) -> dict[int, str]:
        """Return the ids that those rows have got, by their lines."""
        return {row.line: row.doc_id for row in self._db.rows(_REFUSED, {"job": job_id})}

    def visible(
        self, job_id: str, docs: Sequence[str], page: int = KEYS_MAX
    ) -> Iterator[Result | DeadLetter]:
        """Yield the outcomes of these documents, embeddings as they are stored, in any order."""
        generations = select(feeds.c.generation).where(feeds.c.job_id == job_id)
        query = select(outcomes).where(
            outcomes.c.job_id == job_id, outcomes.c.generation.in_(generations), _VISIBLE
        )
        for start in range(0, len(docs), page):
            rows = self._db.rows(query.where(outcomes.c.doc_id.in_(docs[start : start + page])))
            yield from map(stored_from, rows)

    def terminal_docs(
        self, job_id: str, generation: int, page: int = PAGE
    ) -> Iterator[list[tuple[str, bool]]]:
        """Yield pages of (document id, is dead) of one generation.

        The completed set is rebuilt from them.

        Reads two indexes and no rows, so that the bodies of a whole job are not read to rebuild it.
        """
        all_of_it = (outcomes.c.job_id == job_id, outcomes.c.generation == generation)
        docs = select(outcomes.c.doc_id).where(*all_of_it).order_by(outcomes.c.doc_id).limit(page)
        dead = select(outcomes.c.doc_id).where(*all_of_it, _IS_DEAD)
        rows = self._db.rows(docs)
        while rows:
            first, last = rows[0].doc_id, rows[-1].doc_id
            died = {
                row.doc_id
                for row in self._db.rows(
                    dead.where(outcomes.c.doc_id >= first, outcomes.c.doc_id <= last)
                )
            }
            yield [(row.doc_id, row.doc_id in died) for row in rows]
            rows = self._db.rows(docs.where(outcomes.c.doc_id > last)) if len(rows) == page else []

    def _paged(self, query: Query, page: int, make: Callable[[Row[Any]], T]) -> Iterator[T]:
        place = tuple_(outcomes.c.generation, outcomes.c.doc_id)
        query = query.order_by(outcomes.c.generation, outcomes.c.doc_id).limit(page)
        rows = self._db.rows(query)
        while rows:
            yield from map(make, rows)
            last = (rows[-1].generation, rows[-1].doc_id)
            rows = self._db.rows(query.where(place > last)) if len(rows) == page else []


def _timed_result(row: Row[Any]) -> tuple[Result, float]:
    return result_from(row[:-1]), row[-1]


def _key_and_body(row: Row[Any]) -> tuple[ItemKey, bytes]:
    return ItemKey(row.job_id, row.generation, row.doc_id), row.body


def _visible(job_id: str) -> Query:
    return select(outcomes).where(outcomes.c.job_id == job_id, _VISIBLE)
