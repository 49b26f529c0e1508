"""Savings of a job: how much less its answers cost than they would have without a cause.

A cause is a service tier or the provider's prompt cache; below 0, it made them dearer. Each answer
is booked once, in the transaction that first writes a row that it was paid for by: its outcome, or
a row of ``paid_beside`` or ``batch_remainders``. What moves between these later moves nothing here,
so that the sums only grow in answers, and replays and purges change nothing in them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection, func, select

from penstock_ledger.model import ItemKey, Saving
from penstock_ledger.sql.tables import savings
from penstock_ledger.stored_values import FIGURE_MAX
from penstock_ledger.stores.account import grow

Savings = Mapping[ItemKey, Sequence[Saving]]
NOTHING_SAVED: Final[Savings] = {}

_OF: Final = ("job_id", "cause", "lane")
_FIGURES: Final = Saving._fields[1:]


def add_savings(
    connection: Connection, lane: str | None, found: Savings, paid_now: Collection[ItemKey]
) -> None:
    """Book savings of those documents whose answers ``paid_now`` says are new in the account."""
    sums = dict[tuple[str, str, str], list[int]]()
    for key, some in found.items():
        for one in some if key in paid_now else ():
            which = (key.job_id, one.cause, lane or "")
            before = sums.get(which, [0] * len(_FIGURES))
            figures = (max(-FIGURE_MAX, min(FIGURE_MAX, figure)) for figure in one[1:])
            sums[which] = [sum(both) for both in zip(figures, before, strict=True)]
    grow(connection, savings, _OF, _FIGURES, sums)


def savings_of(connection: Connection, job_id: str) -> list[Saving]:
    """Return the savings of a job by cause, those of all lanes together."""
    query = (
        select(savings.c.cause, *sums_of_savings())
        .where(savings.c.job_id == job_id)
        .group_by(savings.c.cause)
        .order_by(savings.c.cause)
    )
    return [Saving(cause, *map(int, figures)) for cause, *figures in connection.execute(query)]


def sums_of_savings() -> list[Any]:
    """Return the columns that add up rows, named and in the order of ``Saving``."""
    return [func.sum(savings.c[name]).label(name) for name in _FIGURES]
