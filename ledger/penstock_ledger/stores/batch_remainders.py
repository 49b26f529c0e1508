"""Documents that a provider batch left without an outcome, until a later one has them.

A document has one row at most. Reading the same answers twice changes nothing: a row is only added
for a document that has neither an outcome nor a row, and only the batch that has a document now may
give it back.

Of equal requests one is packed, and the other documents wait with its name. Which was packed is
written with the batches and the cursor of their feed, so that a worker that dies, or a Redis that
forgets, sends no request again; whatever takes remainders elsewhere takes those that wait as well.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Row, and_, bindparam, delete, func, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite

from penstock_ledger.model import ItemKey
from penstock_ledger.provider_batch import EqualRequests, Remainder, Waiting
from penstock_ledger.sql.database import Database
from penstock_ledger.sql.tables import batch_remainders as table
from penstock_ledger.sql.tables import batch_requests, outcomes, paid_beside
from penstock_ledger.stored_values import bounded_count, bounded_figure
from penstock_ledger.stores.account import by_feed
from penstock_ledger.stores.outcome_insert import terminal_keys
from penstock_ledger.stores.outcome_rows import DEAD

IDS_MAX: Final = 500  # per statement
PAGE: Final = 1_000

# the others wait for the answers to equal requests
_TO_BE_PACKED: Final = (table.c.tag.is_(None), table.c.same_as.is_(None))
_KEY: Final = tuple(table.c[name] for name in ItemKey._fields)
_MOVE: Final = (
    update(table).where(table.c.tag == bindparam("from_tag")).values(tag=bindparam("to_tag"))
)
_AGAIN: Final = (
    update(table)
    .where(
        table.c.job_id == bindparam("job"),
        table.c.generation == bindparam("nth"),
        table.c.doc_id == bindparam("doc"),
        table.c.tag == bindparam("from_tag"),
    )
    .values(
        tag=None,
        attempts=bindparam("now_attempts"),
        calls=bindparam("now_calls"),
        prompt_tokens=bindparam("now_in"),
        completion_tokens=bindparam("now_out"),
        cost_microusd=bindparam("now_cost"),
        reason=bindparam("why"),
        since=bindparam("now"),
        most=bindparam("now_most"),
        unpriced=table.c.unpriced + bindparam("more_unpriced"),
        escalations=bindparam("now_escalations"),
    )
)


class RemainderStore:
    """Of all jobs."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def waiting(self, job_ids: Collection[str]) -> list[Waiting]:
        """Count documents of these jobs that are in no batch and go into one.

        They are counted by feed and by how many of them may be in one."""
        query = (
            select(
                table.c.job_id,
                table.c.generation,
                func.count(),
                func.min(table.c.since),
                table.c.most,
            )
            .where(table.c.job_id.in_(job_ids), *_TO_BE_PACKED)
            .group_by(table.c.job_id, table.c.generation, table.c.most)
            .order_by(table.c.job_id, table.c.generation, table.c.most)
        )
        return [Waiting(*row) for row in self._db.rows(query)] if job_ids else []

    def elsewhere(self, keys: Collection[ItemKey], tag: str) -> set[ItemKey]:
        """Return those of ``keys`` that wait, or that another batch than ``tag`` has by now."""
        found = set[ItemKey]()
        for (job_id, generation), docs in by_feed(keys).items():
            query = select(table.c.doc_id).where(
                table.c.job_id == job_id, table.c.generation == generation
            )
            query = query.where(or_(table.c.tag.is_(None), table.c.tag != tag))
            for start in range(0, len(docs), IDS_MAX):
                rows = self._rows(query.where(table.c.doc_id.in_(docs[start : start + IDS_MAX])))
                found.update(ItemKey(job_id, generation, row.doc_id) for row in rows)
        return found

    def known(self, keys: Collection[ItemKey]) -> set[ItemKey]:
        """Return those of ``keys`` that wait, or that a batch has."""
        return self.elsewhere(keys, "")

    def add(self, waiting: Sequence[Remainder]) -> None:
        """Add documents that no batch has and that have to go on.

        Those that have an outcome, or wait already, are left out. A document whose paid answer had
        gone on to a better model is asked of that one."""

        def write(connection: Connection) -> None:
            gone_on = _gone_on(connection, [one.key for one in waiting])
            known = (one._replace(escalations=1) if one.key in gone_on else one for one in waiting)
            put_back(connection, "", list(known))

        self._db.write(write)

    def unclaimed(self, job_id: str, generation: int, page: int = PAGE) -> Iterator[Remainder]:
        """Yield those of a feed that are in no batch, by document id; read in pages."""
        return self._paged(
            page, table.c.job_id == job_id, table.c.generation == generation, table.c.tag.is_(None)
        )

    def alike(
        self, job_id: str, generation: int, most: int | None, page: int = PAGE
    ) -> Iterator[Remainder]:
        """Yield those of a feed that go into a batch and have the same ``most``."""
        of_feed = (table.c.job_id == job_id, table.c.generation == generation, *_TO_BE_PACKED)
        return self._paged(
            page, *of_feed, table.c.most.is_(None) if most is None else table.c.most == most
        )

    def of_batch(self, tag: str, page: int = PAGE) -> Iterator[Remainder]:
        """Yield those that a batch has, by document id; read in pages."""
        return self._paged(page, table.c.tag == tag)

    def _paged(self, page: int, *conditions: Any) -> Iterator[Remainder]:
        query = select(table).where(*conditions).order_by(table.c.doc_id).limit(page)
        rows = self._rows(query)
        while rows:
            yield from map(_remainder_of, rows)
            rows = (
                self._rows(query.where(table.c.doc_id > rows[-1].doc_id))
                if len(rows) == page
                else []
            )

    def _rows(self, query: Any) -> Sequence[Row[Any]]:
        return self._db.rows(query)


def claim(connection: Connection, keys: Sequence[ItemKey], tag: str) -> bool:
    """Give waiting documents of one feed to a batch, as part of a larger transaction.

    It is False where another has some of them."""
    claimed = 0
    for start in range(0, len(keys), IDS_MAX):
        some = keys[start : start + IDS_MAX]
        claimed += connection.execute(
            update(table)
            .where(table.c.job_id == some[0].job_id, table.c.generation == some[0].generation)
            .where(table.c.doc_id.in_([key.doc_id for key in some]), table.c.tag.is_(None))
            .values(tag=tag)
        ).rowcount
    return claimed == len(keys)


def put_back(connection: Connection, tag: str, left: Sequence[Remainder]) -> set[ItemKey]:
    """Note what batch ``tag`` left without an outcome, as part of a larger transaction.

    Returns those that were noted now: doing it again notes none."""
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    now, fresh, noted = time.time(), list[Remainder](), set[ItemKey]()
    for one in left:
        if connection.execute(_AGAIN, _again(one, tag, now)).rowcount == 0:
            fresh.append(one)
        else:
            noted.add(one.key)
    done = terminal_keys(connection, [one.key for one in fresh])
    rows = [_row(one, now) for one in fresh if one.key not in done]
    if rows:
        new = dialect.insert(table).on_conflict_do_nothing().returning(*_KEY)
        noted.update(ItemKey(*row) for row in connection.execute(new, rows))
    return noted


def _gone_on(connection: Connection, keys: Iterable[ItemKey]) -> set[ItemKey]:
    """Return those of ``keys`` whose answer had gone on in an attempt that was paid for."""
    found = set[ItemKey]()
    for (job_id, generation), docs in by_feed(keys).items():
        query = select(paid_beside.c.doc_id).where(
            paid_beside.c.job_id == job_id,
            paid_beside.c.generation == generation,
            paid_beside.c.escalations > 0,
        )
        for start in range(0, len(docs), IDS_MAX):
            some = query.where(paid_beside.c.doc_id.in_(docs[start : start + IDS_MAX]))
            found.update(ItemKey(job_id, generation, one) for (one,) in connection.execute(some))
    return found


def take_waiting(connection: Connection, keys: Iterable[ItemKey]) -> list[Remainder]:
    """Take those of ``keys`` that are in no batch, as part of a larger transaction.

    Their rows go.
    """
    taken: list[Remainder] = []
    for (job_id, generation), docs in by_feed(keys).items():
        of_feed = delete(table).where(
            table.c.job_id == job_id, table.c.generation == generation, table.c.tag.is_(None)
        )
        for start in range(0, len(docs), IDS_MAX):
            some = of_feed.where(table.c.doc_id.in_(docs[start : start + IDS_MAX])).returning(
                *table.c
            )
            taken += map(_remainder_of, connection.execute(some))
    return taken


def move(connection: Connection, from_tag: str, to_tag: str | None) -> None:
    """Give what one batch had to another one, as part of a larger transaction.

    None: it waits for one."""
    connection.execute(_MOVE, {"from_tag": from_tag, "to_tag": to_tag})


def _again(one: Remainder, tag: str, now: float) -> dict[str, Any]:
    return {
        "job": one.key.job_id,
        "nth": one.key.generation,
        "doc": one.key.doc_id,
        "from_tag": tag,
        "now_attempts": bounded_count(one.attempts),
        "now_calls": bounded_count(one.calls),
        "now_in": bounded_figure(one.prompt_tokens),
        "now_out": bounded_figure(one.completion_tokens),
        "now_cost": bounded_figure(one.cost_microusd),
        "why": one.reason,
        "now": now,
        "now_most": one.most,
        "more_unpriced": bounded_count(one.unpriced),
        "now_escalations": one.escalations,
    }


def _row(one: Remainder, now: float) -> dict[str, Any]:
    return {
        "job_id": one.key.job_id,
        "generation": one.key.generation,
        "doc_id": one.key.doc_id,
        "position": one.position,
        "tag": None,
        "attempts": bounded_count(one.attempts),
        "calls": bounded_count(one.calls),
        "prompt_tokens": bounded_figure(one.prompt_tokens),
        "completion_tokens": bounded_figure(one.completion_tokens),
        "cost_microusd": bounded_figure(one.cost_microusd),
        "reason": one.reason,
        "since": now,
        "most": one.most,
        "unpriced": bounded_count(one.unpriced),
        "same_as": one.same_as,
        "escalations": one.escalations,
    }


def _remainder_of(row: Row[Any]) -> Remainder:
    return Remainder(
        ItemKey(row.job_id, row.generation, row.doc_id),
        row.position,
        row.attempts,
        row.calls,
        row.prompt_tokens,
        row.completion_tokens,
        row.cost_microusd,
        row.reason,
        row.most,
        row.unpriced,
        row.same_as,
        row.escalations,
    )


# -- equal requests --------------------------------------------------------------------------------

_WAITS: Final = (table.c.tag.is_(None), table.c.same_as.is_not(None))
_FOLLOW: Final = (
    update(table)
    .where(
        *(table.c[name] == bindparam(f"its_{name}") for name in ItemKey._fields),
        table.c.tag.is_(None),
    )
    .values(same_as=bindparam("other"), reason=bindparam("why"))
)


class SentRequest(NamedTuple):
    """The document that was sent for a request, and what it came to."""

    key: ItemKey
    is_dead: bool | None  # None: it has no outcome yet
    made_at: float = 0.0  # Unix seconds, of its outcome
    size: int = 0  # bytes of its answer


class EqualRequestStore:
    """Of all jobs."""

    def __init__(self, db: Database) -> None:
        self._db = db

    def sent(self, job_id: str, digests: Sequence[str]) -> dict[str, SentRequest]:
        """Return those of ``digests`` that a batch of the job has had."""
        found = dict[str, SentRequest]()
        query = (
            select(
                batch_requests.c.digest,
                batch_requests.c.generation,
                batch_requests.c.doc_id,
                outcomes.c.kind,
                outcomes.c.created_at,
                func.coalesce(func.length(outcomes.c.body), 0),
            )
            .outerjoin(
                outcomes,
                and_(
                    *(outcomes.c[name] == batch_requests.c[name] for name in ItemKey._fields),
                ),
            )
            .where(batch_requests.c.job_id == job_id)
        )
        for start in range(0, len(digests), IDS_MAX):
            some = digests[start : start + IDS_MAX]
            for digest, generation, doc_id, kind, at, size in self._db.rows(
                query.where(batch_requests.c.digest.in_(some))
            ):
                key, is_dead = ItemKey(job_id, generation, doc_id), kind == DEAD
                found[digest] = (
                    SentRequest(key, None)
                    if kind is None
                    else SentRequest(key, is_dead, at, int(size))
                )
        return found

    def answered(
        self, job_id: str, generation: int, most: int
    ) -> list[tuple[Remainder, SentRequest]]:
        """Return documents that wait, where the one that was sent has its outcome."""
        sent = ItemKey(job_id, generation, "")
        query = (
            select(
                table,
                outcomes.c.kind,
                outcomes.c.created_at.label("at"),
                func.coalesce(func.length(outcomes.c.body), 0).label("size"),
            )
            .join(
                outcomes,
                and_(
                    outcomes.c.job_id == table.c.job_id,
                    outcomes.c.generation == table.c.generation,
                    outcomes.c.doc_id == table.c.same_as,
                ),
            )
            .where(
                table.c.job_id == job_id,
                table.c.generation == generation,
                *_WAITS,
            )
            .order_by(table.c.doc_id)
            .limit(most)
        )
        return [
            (
                _remainder_of(row),
                SentRequest(
                    sent._replace(doc_id=row.same_as), row.kind == DEAD, row.at, int(row.size)
                ),
            )
            for row in self._db.rows(query)
        ]

    def let_go(self, keys: Collection[ItemKey]) -> None:
        """Let these documents go into batches of their own: there is no answer to wait for."""

        def write(connection: Connection) -> None:
            for (job_id, generation), docs in by_feed(keys).items():
                for start in range(0, len(docs), IDS_MAX):
                    connection.execute(
                        update(table)
                        .where(
                            table.c.job_id == job_id,
                            table.c.generation == generation,
                            table.c.doc_id.in_(docs[start : start + IDS_MAX]),
                            *_WAITS,
                        )
                        .values(same_as=None)
                    )

        self._db.write(write)

    def count(self, job_id: str) -> int:
        """Count the documents of a job that wait for the answers to others."""
        query = select(func.count()).where(table.c.job_id == job_id, *_WAITS)
        return int(self._db.rows(query)[0][0])

    def waiting(self, keys: Collection[ItemKey]) -> set[ItemKey]:
        """Return those of ``keys`` that wait for the answers to others."""
        found = set[ItemKey]()
        for (job_id, generation), docs in by_feed(keys).items():
            query = select(table.c.doc_id).where(
                table.c.job_id == job_id,
                table.c.generation == generation,
                *_WAITS,
            )
            for start in range(0, len(docs), IDS_MAX):
                some = query.where(table.c.doc_id.in_(docs[start : start + IDS_MAX]))
                found.update(ItemKey(job_id, generation, row.doc_id) for row in self._db.rows(some))
        return found


def note_equal(connection: Connection, equal: EqualRequests) -> None:
    """Note what was found while a feed was packed, as part of a larger transaction.

    A request that an earlier generation has sent is this one's from now on."""
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    if equal.sent:
        new = dialect.insert(batch_requests)
        rows = [
            {
                "job_id": equal.job_id,
                "digest": digest,
                "generation": equal.generation,
                "doc_id": doc_id,
            }
            for digest, doc_id in sorted(equal.sent.items())
        ]
        connection.execute(
            new.on_conflict_do_update(
                index_elements=["job_id", "digest"],
                set_={"generation": new.excluded.generation, "doc_id": new.excluded.doc_id},
                where=batch_requests.c.generation < new.excluded.generation,
            ),
            rows,
        )
    put_back(connection, "", equal.waiting)
    known = [_following(one) for one in equal.waiting]
    if known:  # those that have waited for a batch of their own until now
        connection.execute(_FOLLOW, known)


def _following(one: Remainder) -> dict[str, object]:
    key = {f"its_{name}": value for name, value in one.key._asdict().items()}
    return {**key, "other": one.same_as, "why": one.reason}
