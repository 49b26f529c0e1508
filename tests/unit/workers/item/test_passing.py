"""What leaves a worker of an answer that is being written, and what stays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
from attempts import make_attempt

from penstock_ledger.model import ItemKey
from penstock_producer.dialects.pieces import PIECE_BYTES, Delta, Piece, decode_piece
from penstock_producer.feed.wire import STREAM_HEADER
from penstock_workers.item.passing import Passing
from penstock_workers.item.run.passes import Passes

DOOR = "0123456789abcdef"
HEAD = {"id": "c"}


class Told:
    """A passing, and how often it had something to send."""

    def __init__(self) -> None:
        self.times = 0
        self.passing = Passing(ItemKey("job", 1, "doc"), "channel", self.note)

    def note(self, _: Passing) -> None:
        self.times += 1

    def put(self, *deltas: Delta) -> None:
        self.passing.put(lambda: HEAD, deltas)

    def piece(self) -> Piece | None:
        raw = self.passing.take()
        return None if raw is None else decode_piece(raw)


def test_what_comes_while_a_piece_leaves_makes_the_next() -> None:
    """They are numbered, and the first one says how the answer begins."""
    told = Told()
    told.put(Delta("text", "a"))
    told.put(Delta("text", "b"))
    assert told.times == 1
    first = told.piece()
    told.put(Delta("text", "c"))
    second = told.piece()
    assert first is not None
    assert second is not None
    assert [(one.number, one.head) for one in (first, second)] == [(0, HEAD), (1, None)]
    assert [[delta.text for delta in one.deltas] for one in (first, second)] == [["a", "b"], ["c"]]
    assert first.run == second.run
    assert told.piece() is None


def test_what_says_nothing_yet_waits_for_a_token() -> None:
    """So an answer that fails before its first one can be made again."""
    told = Told()
    told.put(Delta("thought", ""))
    assert (told.times, told.passing.has_begun) == (0, False)
    told.put(Delta("text", "a"))
    piece = told.piece()
    assert piece is not None
    assert [delta.text for delta in piece.deltas] == ["", "a"]


def test_a_redis_that_is_slow_fills_no_memory() -> None:
    """What waits is bounded, and the rest comes with the stored answer."""
    told = Told()
    for _ in range(1_000):
        told.put(Delta("text", "x" * 1_000))
    assert told.piece() is None
    assert PIECE_BYTES < 1_000 * 1_000


def test_a_piece_that_is_too_large_ends_it() -> None:
    """Escapes make it larger than it was counted."""
    told = Told()
    told.put(Delta("text", "\x00" * 20_000))
    assert told.piece() is None
    told.put(Delta("text", "a"))
    assert told.piece() is None


@pytest.mark.parametrize(
    ("awaited", "door", "spec"),
    [
        (True, None, {}),
        (True, "penstock:answered", {}),
        (False, DOOR, {}),
        (True, DOOR, {"response_schema": {"type": "object"}}),
        (True, DOOR, {"postprocess": "hooks:after"}),
    ],
)
def test_only_calls_that_a_door_awaits_are_passed_on(
    awaited: bool, door: str | None, spec: dict[str, Any]
) -> None:
    """And only those whose answers the job does not check: it may ask for another one."""
    passes = Passes(cast(Any, None))
    item = make_attempt(headers={STREAM_HEADER: DOOR})
    item.job = replace(item.job, awaited=True)
    found = passes.of(item)
    assert found is not None
    assert found.channel == f"penstock:passed:{DOOR}"
    item.confined = True
    assert passes.of(item) is None, "the call is made in another process"
    item = make_attempt(headers={} if door is None else {STREAM_HEADER: door}, **spec)
    item.job = replace(item.job, awaited=awaited)
    assert passes.of(item) is None
