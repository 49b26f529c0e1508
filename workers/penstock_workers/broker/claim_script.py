"""The typed stub of ``scripts/claim.lua``: arguments in, claimed messages out."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from kombu.utils.json import dumps

from penstock_workers.broker.lease_scripts import Keys, script_text


class Claimed(NamedTuple):
    """One message that was taken from its queue."""

    queue: str
    tag: str
    raw: bytes  # as it lay in the queue


class Claim(NamedTuple):
    """The messages of one claim."""

    score: str  # the lease time of all of them
    dropped: int  # duplicates of messages that some worker holds
    put_off: int  # retries that came before the earlier try was acknowledged
    messages: list[Claimed]


class ClaimScript:
    """One claim at a time: ``command``, then ``read`` with its answer, or ``forget`` when the
    server lost the script."""

    def __init__(self) -> None:
        self._text = script_text("claim")
        self._digest = hashlib.sha1(
            self._text.encode(), usedforsecurity=False
        ).hexdigest()  # how Redis names scripts
        self._is_loaded = False
        self._queues: list[str] = []

    def command(
        self, keys: Keys, lists: Sequence[tuple[str, str]], unrecorded: Collection[str], room: int
    ) -> list[str | int]:
        """Take up to ``room`` messages from ``lists``, pairs of queue and Redis list, in their
        order.

        Messages of ``unrecorded`` queues need no acknowledgement.
        """
        self._queues = [queue for queue, _ in lists]
        names = ["" if queue in unrecorded else str(dumps(queue)) for queue in self._queues]
        paths = [
            keys.unacked,
            keys.unacked_index,
            keys.parked,
            *(keys.prefix + path for _, path in lists),
        ]
        script = ["EVALSHA", self._digest] if self._is_loaded else ["EVAL", self._text]
        return [*script, len(paths), *paths, room, *names]

    def read(self, reply: Any) -> Claim:
        self._is_loaded = True
        score, dropped, put_off, *found = reply
        messages = [
            Claimed(self._queues[number - 1], tag.decode(), raw)
            for number, tag, raw in zip(found[::3], found[1::3], found[2::3], strict=True)
        ]
        return Claim(score.decode(), dropped, put_off, messages)

    def forget(self) -> None:
        """After a restart Redis has no scripts: the next command carries the text."""
        self._is_loaded = False
