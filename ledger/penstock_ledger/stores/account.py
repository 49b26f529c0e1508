"""The account of a job: what it has spent over all generations and lanes, which only grows.

It is a sum of four parts, and no step takes from one what it does not add to another in the same transaction:

- ``tallies``: its visible outcomes. Settling adds here, so an account costs it nothing.
- ``paid_beside``: payments that no outcome says, a row for each, so that the same one is never added twice.
- ``batch_remainders``: documents that a provider batch has left, until they have an outcome.
- ``spending``: the rest. A replay moves what its dead letters cost from the tallies to here, and a purge moves all of it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from sqlalchemy import Connection, Table, select
from sqlalchemy.dialects import postgresql, sqlite

from penstock_ledger.sql.tables import jobs, spending

__all__ = ["FORGOTTEN", "PURGED", "SUPERSEDED", "UNREAD", "add_spent", "grow"]

SHARDS: Final = 16  # more than the processes that commit at the same moment, few enough to add up

SUPERSEDED: Final = "superseded"  # dead letters that were replayed
UNREAD: Final = "unread"  # answers of provider batches that were paid for and never read
FORGOTTEN: Final = "forgotten"  # earlier attempts that the message of a document no longer told of
PURGED: Final = "purged"  # all that a job has spent that was purged

_OF: Final = ("job_id", "generation", "kind", "lane")
_FIGURES: Final = ("documents", "calls", "prompt_tokens", "completion_tokens", "cost_microusd", "unpriced")


def add_spent(
    connection: Connection,
    job_id: str,
    *,
    kind: str,
    lane: str | None = None,
    generation: int = 1,
    documents: int = 0,
    calls: int = 0,
    prompt_tokens: int = 0,
    completion_tokens: int = 0,
    cost_microusd: int = 0,
    unpriced: int = 0,
) -> None:
    """Add what was paid to a job's account, in the transaction of ``connection``. Called again it adds again: the caller's own
    row has to say that it was done. ``unpriced`` is of how many answers no price is known."""
    figures = [documents, calls, prompt_tokens, completion_tokens, cost_microusd, unpriced]
    tenant, accepted_at = _whose(connection, job_id)
    grow(
        connection, spending, _OF, _FIGURES, {(job_id, generation, kind, lane or ""): figures},
        fixed={"tenant": tenant, "accepted_at": accepted_at},
    )  # fmt: skip


def _whose(connection: Connection, job_id: str) -> tuple[str | None, float]:
    """The tenant of a job and when it was accepted. One that was purged has left both in its account."""
    known = select(jobs.c.tenant, jobs.c.created_at).where(jobs.c.job_id == job_id)
    kept = select(spending.c.tenant, spending.c.accepted_at).where(spending.c.job_id == job_id).limit(1)
    row = connection.execute(known).first() or connection.execute(kept).first()
    return (None, 0.0) if row is None else (row[0], row[1])


def grow(
    connection: Connection,
    table: Table,
    of: tuple[str, ...],
    figures: tuple[str, ...],
    sums: Mapping[Any, list[int]],
    fixed: Mapping[str, Any] | None = None,
) -> None:
    """Add ``figures`` to the rows of ``table`` that ``of`` names, in the shard of this process. A new row has ``fixed``, too."""
    if not sums:
        return
    on_sqlite = connection.dialect.name == "sqlite"
    shard = 0 if on_sqlite else os.getpid() % SHARDS
    rows = [
        {"shard": shard, **(fixed or {}), **dict(zip(of, which, strict=True)), **dict(zip(figures, more, strict=True))}
        for which, more in sorted(sums.items())
    ]
    connection.execute(_growing(on_sqlite, table, of, figures), rows)


@cache
def _growing(on_sqlite: bool, table: Table, of: tuple[str, ...], figures: tuple[str, ...]) -> Any:
    """The statement, built once: building it costs more than running it."""
    new = (sqlite if on_sqlite else postgresql).insert(table)
    return new.on_conflict_do_update(
        index_elements=["shard", *of], set_={name: table.c[name] + new.excluded[name] for name in figures}
    )
