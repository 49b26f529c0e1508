"""Provider batches of a job: how many are how far, with what the provider says is answered."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock_ledger import CANCEL_WAIT_S
from penstock_producer.reporting.money import MICRO
from penstock_producer.reporting.text import count, duration, one_line, safe

__all__ = ["batch_troubles", "batches_line", "batches_of"]

if TYPE_CHECKING:
    from penstock_ledger import BatchSum, BatchTrouble

_WAITING = frozenset({"packed", "uploaded"})
_WHY_CHARS = 200
_CALLS = {
    "upload": "upload",
    "create": "create",
    "look": "look at its state",
    "answers": "download of answers",
    "delete": "removal of its files",
}
_MISSING = {
    "batch_missing": "the provider does not know the batch, which is looked for",
    "answers_missing": (
        "the provider does not give out the answers that it has counted, which may come"
    ),
    "answers_short": (
        "the output holds fewer answers than the provider has counted, and is read again"
    ),
}
TROUBLES_SHOWN = 3
# ends of a batch that leave documents to others
_CUT_SHORT = frozenset({"expired", "cancelled", "failed"})


def batches_line(sums: Sequence[BatchSum], *, is_cancelled: bool = False) -> str:
    """Return one line about the batches of a job.

    ``batches: 2 in_progress (1,200 of 4,000 answered), 1 packed, 3 settled, 1 settled (expired)``

    ``is_cancelled``: the job is being cancelled, and waits for them.
    """
    if not sums:
        return "batches: none yet"
    numbers: Counter[str] = Counter()
    for one in sums:
        numbers[_words(one)] += one.batches
    line = (
        "batches: "
        + ", ".join(f"{count(number)} {words}" for words, number in numbers.items())
        + _unread(sums)
    )
    open_ones = [one for one in sums if one.state != "settled"]
    waiting: Counter[str] = Counter()
    for one in open_ones:
        if one.led is not None and one.led < one.batches:
            waiting[safe(one.provider)] += one.batches - one.led
    for provider, number in waiting.items():
        line += (
            f"; no worker leads {count(number)} of them, which wait for one with the settings of "
            f"provider {provider}"
        )
    if is_cancelled and open_ones:
        line += (
            f"; the job ends when its providers have ended them, after {duration(CANCEL_WAIT_S)} "
            "at the latest, and then has no more answers of theirs"
        )
    return line


def batches_of(sums: Sequence[BatchSum]) -> list[dict[str, Any]]:
    """Return the batches for programs; counts are null where the provider does not give them."""
    return [
        one._asdict()
        | {
            "state": str(one.state),
            "troubles": [
                {"batches": number, **trouble._asdict()} for number, trouble in one.troubles
            ],
        }
        for one in sums
    ]


def batch_troubles(sums: Sequence[BatchSum], now: float | None = None) -> list[str]:
    """Return a sentence for each kind of trouble of open batches.

    It says what they wait for, since when, and when it is tried again.
    """
    at = time.time() if now is None else now
    found = [(one, number, trouble) for one in sums for number, trouble in one.troubles]
    lines = [_trouble(one, number, trouble, at) for one, number, trouble in found[:TROUBLES_SHOWN]]
    more = len(found) - len(lines)
    return [*lines, f"and {count(more)} more kinds of trouble with batches"] if more else lines


def _trouble(one: BatchSum, number: int, trouble: BatchTrouble, now: float) -> str:
    batches = "a batch waits" if number == 1 else f"{count(number)} batches wait"
    call = _CALLS.get(trouble.call, one_line(trouble.call))
    what = _MISSING.get(trouble.name, f"{one_line(trouble.name)} at the {call}")
    status = "" if trouble.status is None else f"HTTP {trouble.status}, "
    times = "once" if trouble.times == 1 else f"{count(trouble.times)} times in a row"
    since = time.strftime("%H:%M:%S", time.localtime(trouble.since))
    again = time.strftime("%H:%M:%S", time.localtime(trouble.again_at))
    due = (
        f"it is tried again at {again}" if trouble.again_at > now else "it is due to be tried again"
    )
    return (
        f"{batches} for provider {safe(one.provider)}: {what} ({status}{times}, since {since}): "
        f"{one_line(trouble.said, _WHY_CHARS)}; {due}"
    )


def _unread(sums: Sequence[BatchSum]) -> str:
    """Return a clause on answers that were paid for and never came."""
    unread = [one for one in sums if one.unread]
    if not unread:
        return ""
    number, costs = sum(one.unread for one in unread), [one.unread_microusd for one in unread]
    priced = [cost for cost in costs if cost is not None]
    cost = (
        f"up to ${sum(priced) / MICRO:.4f}"
        if len(priced) == len(costs)
        else "their cost is unknown"
    )
    return f"; {count(number)} answers ({cost}) were paid for and could not be read"


def _words(one: BatchSum) -> str:
    """Return what is said of each batch.

    Batches that only differ in what is not said are counted together.
    """
    if one.state == "created":
        named = safe(one.status or "created")
        because = f"; {one_line(one.why, _WHY_CHARS)}" if one.why else ""
        if one.succeeded is None:
            return (
                f"{named} (the provider does not say how many of {count(one.requests)} are "
                f"answered{because})"
            )
        return (
            f"{named} ({count(one.succeeded + (one.failed or 0))} of {count(one.requests)} "
            f"answered{because})"
        )
    if one.state in _WAITING:
        return (
            f"{one.state} (waits: {one_line(one.why, _WHY_CHARS)})" if one.why else str(one.state)
        )
    end = (one.status or "").rpartition("_")[2].lower()
    return f"{one.state} ({end})" if end in _CUT_SHORT else str(one.state)
