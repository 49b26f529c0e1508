"""Provider batches of a job: how many are how far, and how many of their requests are answered where the provider says so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock_ledger import CANCEL_WAIT_S
from penstock_producer.reporting.text import count, duration, one_line, safe

__all__ = ["batches_line", "batches_of"]

if TYPE_CHECKING:
    from penstock_ledger import BatchSum

_WAITING = frozenset({"packed", "uploaded"})
_WHY_CHARS = 200
_CUT_SHORT = frozenset({"expired", "cancelled", "failed"})  # ends of a batch that leave documents to others


def batches_line(sums: Sequence[BatchSum], *, is_cancelled: bool = False) -> str:
    """``batches: 2 in_progress (1,200 of 4,000 answered), 1 packed, 3 settled, 1 settled (expired)``

    ``is_cancelled``: the job is being cancelled, and waits for them.
    """
    if not sums:
        return "batches: none yet"
    numbers: Counter[str] = Counter()
    for one in sums:
        numbers[_words(one)] += one.batches
    line = "batches: " + ", ".join(f"{count(number)} {words}" for words, number in numbers.items())
    open_ones = [one for one in sums if one.state != "settled"]
    waiting: Counter[str] = Counter()
    for one in open_ones:
        if one.led is not None and one.led < one.batches:
            waiting[safe(one.provider)] += one.batches - one.led
    for provider, number in waiting.items():
        line += (
            f"; no worker leads {count(number)} of them, which wait for one with the settings of provider {provider}"
        )
    if is_cancelled and open_ones:
        line += (
            f"; the job ends when its providers have ended them, after {duration(CANCEL_WAIT_S)} at the latest, and then has no "
            "more answers of theirs"
        )
    return line


def batches_of(sums: Sequence[BatchSum]) -> list[dict[str, Any]]:
    """For programs. Counts are null where the provider does not tell them."""
    return [one._asdict() | {"state": str(one.state)} for one in sums]


def _words(one: BatchSum) -> str:
    """What is said of each of them: batches that only differ in what is not said are counted together."""
    if one.state == "created":
        named = safe(one.status or "created")
        because = f"; {one_line(one.why, _WHY_CHARS)}" if one.why else ""
        if one.succeeded is None:
            return f"{named} (the provider does not say how many of {count(one.requests)} are answered{because})"
        return f"{named} ({count(one.succeeded + (one.failed or 0))} of {count(one.requests)} answered{because})"
    if one.state in _WAITING:
        return f"{one.state} (waits: {one_line(one.why, _WHY_CHARS)})" if one.why else str(one.state)
    end = (one.status or "").rpartition("_")[2].lower()
    return f"{one.state} ({end})" if end in _CUT_SHORT else str(one.state)
