"""Equal requests of provider batches: which documents were sent for them, and which wait.

All of it is in SQL, written with the batches and the cursor of their feed, so that a worker that
dies, or a Redis that forgets, sends no request again. A document waits as a remainder does, with
the name of the one that was sent; whatever takes remainders elsewhere takes it as well.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from sqlalchemy import Connection, and_, bindparam, func, select, update
from sqlalchemy.dialects import postgresql, sqlite

from penstock_ledger.model import ItemKey
from penstock_ledger.provider_batch import EqualRequests, Remainder
from penstock_ledger.sql.database import Database
from penstock_ledger.sql.tables import batch_remainders, batch_requests, outcomes
from penstock_ledger.stores.account import by_feed
from penstock_ledger.stores.batch_remainders import put_back, remainder_of
from penstock_ledger.stores.outcome_rows import DEAD

DIGESTS_MAX: Final = 500  # in one statement

_WAITS: Final = (batch_remainders.c.tag.is_(None), batch_remainders.c.same_as.is_not(None))
_FOLLOW: Final = (
    update(batch_remainders)
    .where(
        *(batch_remainders.c[name] == bindparam(f"its_{name}") for name in ItemKey._fields),
        batch_remainders.c.tag.is_(None),
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
        for start in range(0, len(digests), DIGESTS_MAX):
            some = digests[start : start + DIGESTS_MAX]
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
                batch_remainders,
                outcomes.c.kind,
                outcomes.c.created_at.label("at"),
                func.coalesce(func.length(outcomes.c.body), 0).label("size"),
            )
            .join(
                outcomes,
                and_(
                    outcomes.c.job_id == batch_remainders.c.job_id,
                    outcomes.c.generation == batch_remainders.c.generation,
                    outcomes.c.doc_id == batch_remainders.c.same_as,
                ),
            )
            .where(
                batch_remainders.c.job_id == job_id,
                batch_remainders.c.generation == generation,
                *_WAITS,
            )
            .order_by(batch_remainders.c.doc_id)
            .limit(most)
        )
        return [
            (
                remainder_of(row),
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
                for start in range(0, len(docs), DIGESTS_MAX):
                    connection.execute(
                        update(batch_remainders)
                        .where(
                            batch_remainders.c.job_id == job_id,
                            batch_remainders.c.generation == generation,
                            batch_remainders.c.doc_id.in_(docs[start : start + DIGESTS_MAX]),
                            *_WAITS,
                        )
                        .values(same_as=None)
                    )

        self._db.write(write)

    def waiting(self, keys: Collection[ItemKey]) -> set[ItemKey]:
        """Return those of ``keys`` that wait for the answers to others."""
        found = set[ItemKey]()
        for (job_id, generation), docs in by_feed(keys).items():
            query = select(batch_remainders.c.doc_id).where(
                batch_remainders.c.job_id == job_id,
                batch_remainders.c.generation == generation,
                *_WAITS,
            )
            for start in range(0, len(docs), DIGESTS_MAX):
                some = query.where(batch_remainders.c.doc_id.in_(docs[start : start + DIGESTS_MAX]))
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
