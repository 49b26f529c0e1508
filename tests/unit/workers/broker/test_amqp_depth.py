"""How many messages are kept ready in RabbitMQ, and when those that it should have are given up."""

from __future__ import annotations

from penstock_workers.broker.amqp.lane_shovel import READY_MAX, READY_MIN, Losses, ReadyMessages


def test_a_lane_that_empties_its_queue_gets_twice_as_much() -> None:
    """The target doubles up to its bound, so that a fast fleet is fed within a few looks."""
    depth = ReadyMessages()
    rooms = [depth.room(0) for _ in range(8)]
    assert rooms == [32, 64, 128, 256, 512, READY_MAX, READY_MAX, READY_MAX]


def test_a_lane_that_leaves_its_queue_full_gets_less() -> None:
    """The target falls to its least, so that urgent messages wait behind few; what lies there is
    not taken back."""
    depth = ReadyMessages()
    for _ in range(8):
        depth.room(0)
    for _ in range(60):
        assert depth.room(READY_MAX) == 0
    assert READY_MIN <= depth.target < READY_MIN + 8


def test_a_lane_that_uses_half_keeps_its_target() -> None:
    """Between the two nothing changes, and the room is what is missing."""
    depth = ReadyMessages()
    depth.room(0)
    assert (depth.room(10), depth.target) == (22, 32)


def test_old_messages_are_lost_at_the_second_look() -> None:
    """Only with nothing ready at both looks, and only those that were old at the first."""
    losses = Losses(after_s=60, between_s=20)
    assert losses.look(oldest=900, ready=0, now=1000) is None
    assert losses.look(oldest=900, ready=0, now=1019) is None
    assert losses.look(oldest=900, ready=0, now=1020) == 940
    assert losses.look(oldest=900, ready=0, now=1021) is None, "and then it begins anew"


def test_a_queue_with_something_ready_has_lost_nothing() -> None:
    """Workers are just busy; neither are messages lost that are young, or none."""
    losses = Losses(after_s=60, between_s=0)
    assert losses.look(oldest=900, ready=0, now=1000) == 940
    losses = Losses(after_s=60, between_s=20)
    for oldest, ready in ((900.0, 1), (990.0, 0), (None, 0)):
        losses.look(oldest=900, ready=0, now=1000)
        assert losses.look(oldest, ready, now=1030) is None
        assert losses.look(oldest=900, ready=0, now=1040) is None, "the suspicion was dropped"
