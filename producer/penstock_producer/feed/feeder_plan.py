"""How many feeders read a job's source at once, and why so many."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from penstock_producer.feed.prefix_order import wants_order
from penstock_producer.job.lanes import packs
from penstock_producer.job.spec import JobSpec
from penstock_producer.sources.entries import entries

__all__ = ["FeederPlan", "is_worth_telling", "plan_feeders"]

ROWS_PER_FEEDER: Final = 1_000_000
"""Read, rendered and queued by one feeder in less than a minute: a smaller part is not worth a
leader of its own."""
BYTES_PER_FEEDER: Final = 1024**3
"""Of request bodies, where documents are large."""
MOST_BY_ITSELF: Final = 4
"""One Redis takes what two or three feeders publish of small documents; more are of use where rows
cost more to read."""


class FeederPlan(NamedTuple):
    feeders: int
    why: str

    def __str__(self) -> str:
        return f"{self.feeders} feeder{'' if self.feeders == 1 else 's'}: {self.why}"


def plan_feeders(
    spec: JobSpec, rows: int, size: int, pin: Mapping[str, Any], *, one_machine: bool
) -> FeederPlan:
    """Of a source with so many ``rows``, and so many bytes of request bodies (``size``).

    ``one_machine``: the database of the job is a file of SQLite.
    """
    if any(map(packs, spec.permitted_lanes)):
        return FeederPlan(
            1, "one worker packs documents into batches, and batches are what several of them share"
        )
    if wants_order(spec):
        return FeederPlan(1, "prefix order sorts what one feeder reads")
    if spec.budget_usd is not None:
        return FeederPlan(
            1,
            "no more is fed than the rest of the budget pays for, and one feeder knows how much "
            "that is",
        )
    if spec.feeders is None and one_machine:
        return FeederPlan(
            1,
            "one control process leads a job whose database is a SQLite file (--feeders N splits "
            "it)",
        )
    plan = (
        _by_size(rows, size)
        if spec.feeders is None
        else FeederPlan(min(spec.feeders, rows), "as the job says")
    )
    places = entries(pin)
    if places is not None and plan.feeders > places:
        return FeederPlan(
            places,
            "a compressed file is read from the start of a member; compress it in parts (bgzip, "
            "pzstd) for more",
        )
    return plan


def _by_size(rows: int, size: int) -> FeederPlan:
    worth = max(rows // ROWS_PER_FEEDER, size // BYTES_PER_FEEDER)
    per = f"one for each {ROWS_PER_FEEDER:,} documents, or GiB of requests"
    return FeederPlan(max(1, min(worth, MOST_BY_ITSELF)), f"{per}, and at most {MOST_BY_ITSELF}")


def is_worth_telling(spec: JobSpec, plan: FeederPlan, rows: int) -> bool:
    """Whether a person who looks at the job may ask."""
    return spec.feeders is not None or plan.feeders > 1 or rows >= ROWS_PER_FEEDER
