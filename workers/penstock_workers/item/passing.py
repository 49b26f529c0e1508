"""A streamed answer is passed on to the door that waits for it, until that stops.

A caller may read slowly, and Redis may be away: neither holds up the answer. What is not passed on
comes with the stored answer, in one piece.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock_ledger import ItemKey
from penstock_producer.dialects.pieces import PIECE_BYTES, Delta, Piece, encode_piece, size_of


class Passing:
    """Takes the deltas of one try on the item loop, and gathers them until the next piece leaves.

    ``has_begun`` decides whether a failed call is retried: what a caller has seen stays."""

    __slots__ = (
        "_deltas",
        "_head",
        "_is_due",
        "_key",
        "_notify",
        "_number",
        "_run",
        "_size",
        "_stopped",
        "channel",
    )

    def __init__(self, key: ItemKey, channel: str, notify: Callable[[Passing], None]) -> None:
        """Pass on to a channel; ``notify`` is called when something waits to leave."""
        self._key, self.channel, self._notify = key, channel, notify
        self._run = secrets.token_hex(4)
        self._number = 0
        self._deltas: list[Delta] = []
        self._size = 0  # of them, in bytes
        self._head: Mapping[str, Any] | None = None
        self._is_due = False  # ``notify`` was called; what says nothing yet waits for the next
        self._stopped = False

    @property
    def has_begun(self) -> bool:
        return self._number > 0

    def put(self, head: Callable[[], Mapping[str, Any]], deltas: Sequence[Delta]) -> None:
        """Take what an event adds; ``head`` says how the answer began."""
        if self._stopped or not deltas:
            return
        if self._head is None:
            self._head = head()
        self._deltas += deltas
        self._size += size_of(deltas)
        if self._size > PIECE_BYTES:  # Redis takes them more slowly than they come
            self.stop()
        elif not self._is_due and any(one.text or one.kind == "call" for one in deltas):
            self._is_due = True
            self._notify(self)

    def take(self) -> bytes | None:
        """Return the next piece as it travels; None where there is none, or it is too large."""
        deltas, self._deltas, self._size = self._deltas, [], 0
        self._is_due = False
        if self._stopped or not deltas:
            return None
        job_id, _, doc_id = self._key
        head = None if self._number else self._head
        piece = encode_piece(Piece(job_id, doc_id, self._run, self._number, deltas, head))
        if piece is None:
            self.stop()
        else:
            self._number += 1
        return piece

    def stop(self) -> None:
        """Pass nothing on any more."""
        self._stopped, self._deltas = True, []

    def unheard(self) -> None:
        """Note that no door got the piece that left last; the first one shows nothing then."""
        self.stop()
        if self._number == 1:
            self._number = 0
