"""Provider batches of a job: how many are how far, and how many of their requests are answered where the provider says so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock_cli.show.text import count, one_line, safe

if TYPE_CHECKING:
    from penstock_ledger import BatchSum

_WAITING = frozenset({"packed", "uploaded"})
_WHY_CHARS = 200


def batches_line(sums: Sequence[BatchSum]) -> str:
    """``batches: 2 in_progress (1,200 of 4,000 answered), 1 packed, 3 settled``"""
    if not sums:
        return "batches: none yet"
    return "batches: " + ", ".join(map(_words, sums))


def batches_of(sums: Sequence[BatchSum]) -> list[dict[str, Any]]:
    """For programs. Counts are null where the provider does not tell them."""
    return [one._asdict() | {"state": str(one.state)} for one in sums]


def _words(one: BatchSum) -> str:
    if one.state == "created":
        named = f"{count(one.batches)} {safe(one.status or 'created')}"
        if one.succeeded is None:
            return f"{named} (the provider does not say how many of {count(one.requests)} are answered)"
        return f"{named} ({count(one.succeeded + (one.failed or 0))} of {count(one.requests)} answered)"
    waits = f" (waits: {one_line(one.why, _WHY_CHARS)})" if one.why and one.state in _WAITING else ""
    return f"{count(one.batches)} {one.state}{waits}"
