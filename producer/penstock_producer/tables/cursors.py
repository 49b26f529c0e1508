"""Where a reader of outcomes stopped, as one text that it can keep anywhere."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import NamedTuple

import orjson

from penstock_ledger import Place
from penstock_ledger.errors import PlaceLost
from penstock_ledger.model import DeadLetter, Result
from penstock_producer.errors import ContentError, seen

__all__ = ["Committed", "cursor_text", "place_in"]

VERSION = 1
MAX_CHARS = 2_000  # an id of a document has at most 512 bytes


class Committed(NamedTuple):
    """One outcome of a stream, and its place in it."""

    outcome: Result | DeadLetter
    place: Place

    @property
    def cursor(self) -> str:
        """Give it as ``after`` to go on behind this outcome.

        Keep it together with what was made of the outcome."""
        return cursor_text(self.outcome.key.job_id, self.place)


def cursor_text(job_id: str, place: Place) -> str:
    return urlsafe_b64encode(orjson.dumps([VERSION, job_id, *place])).decode().rstrip("=")


def place_in(job_id: str, cursor: str) -> Place:
    """Raises ContentError for a text that is no cursor, PlaceLost for one of another job."""
    try:
        raw = urlsafe_b64decode(cursor[:MAX_CHARS] + "=" * (-len(cursor) % 4))
        version, its_job, number, generation, doc_id = orjson.loads(raw)
        if version != VERSION or not (isinstance(number, int) and isinstance(generation, int)):
            raise ValueError("of another kind")
    except (ValueError, TypeError):
        message = f"{seen(cursor)} is not a cursor; give one that a reading has returned"
        raise ContentError("invalid_cursor", message) from None
    if its_job != job_id:
        raise PlaceLost(job_id)
    return Place(number, generation, str(doc_id))
