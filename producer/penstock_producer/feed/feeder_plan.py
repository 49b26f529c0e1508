"""A source is fed by one feeder or several, and in an order.

Documents with the same beginning go next to each other: what an engine has computed for one serves
the next. An engine keeps the beginnings of recent prompts (its prefix cache), and a worker claims a
run of messages at a time. In the order of most files a shared beginning is pushed out before it
comes again; sorted by prompt it is used by its whole run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple

import orjson

from penstock_producer.job.lanes import LANES, packs
from penstock_producer.job.request_body import text_field
from penstock_producer.job.spec import JobSpec
from penstock_producer.rows import Document
from penstock_producer.sources.several import entries

__all__ = ["is_worth_telling", "plan_feeders"]

# Rendered before the text wherever they stand in the body. Rare: only bodies that have one of them
# are parsed.
_FIRST = {
    "messages": ("tools", "system"),
    "input": ("instructions", "tools"),
    "contents": ("systemInstruction", "tools"),
}

Key = Callable[[bytes], bytes]


def wants_order(spec: JobSpec) -> bool:
    """Return whether the job's documents are ordered before they are published."""
    if spec.prefix_order is not None:
        return spec.prefix_order
    if spec.prompt_cache != "off":
        return True
    return spec.takes_records and LANES[spec.first_lane].orders_prompts


def in_prefix_order(documents: Sequence[Document], endpoint: str) -> list[Document]:
    """Return the documents with those that share the longest beginnings side by side.

    Equal prompts stay in their order.
    """
    key = _key_of(text_field(endpoint))
    keyed = [(key(document.body), document) for document in documents]
    keyed.sort(key=itemgetter(0))
    return [document for _, document in keyed]


def _key_of(field: str | None) -> Key:
    """Return the function that cuts a body to its bytes from the text on.

    JSON writes equal beginnings as equal bytes, so they sort as the text would.
    """
    if field is None:
        return _whole
    # cannot be matched inside a text: there the quotes are escaped
    start = b'"%b":' % field.encode()
    rendered_first = _FIRST.get(field, ())
    names = [b'"%b":' % name.encode() for name in rendered_first]

    def key(body: bytes) -> bytes:
        text = body[max(0, body.find(start)) :]
        if any(name in body for name in names):
            parsed = orjson.loads(body)
            return orjson.dumps([parsed.get(name) for name in rendered_first]) + text
        return text

    return key


def _whole(body: bytes) -> bytes:
    return body


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
    """Plan the feeders of a source with so many ``rows``.

    ``size`` is how many bytes its request bodies have together.

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
            "one control process leads a job whose database is a SQLite file (feeders splits it)",
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
    """Return whether a person who looks at the job may ask."""
    return spec.feeders is not None or plan.feeders > 1 or rows >= ROWS_PER_FEEDER
