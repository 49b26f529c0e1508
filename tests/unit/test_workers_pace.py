"""How soon an idle worker asks its queues again."""

from __future__ import annotations

import pytest

from penstock_ledger.model import ItemKey
from penstock_producer.feed.wire import encode_item
from penstock_workers.broker import pace
from penstock_workers.broker.claim_script import Claimed
from penstock_workers.broker.pace import IDLE_POLL_S, QUICK_FOR_S, QUICK_POLL_S, Pace


def message(*, urgent: bool, body: bytes = b"{}") -> Claimed:
    raw = encode_item(ItemKey("job_a", 1, "doc"), queue="penstock.api", body=body, ref=None, urgent=urgent)
    return Claimed("penstock.api", "tag", raw)


def test_an_urgent_message_quickens_the_pace_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an urgent message a worker asks again within milliseconds, and twenty times a second when none came for a while."""
    now = 100.0
    monkeypatch.setattr(pace, "monotonic", lambda: now)
    woken: list[float] = []

    def wake() -> bool:
        woken.append(now)
        return True

    one = Pace(wake)
    one.note(message(urgent=False, body=b'{"x":"\\"x-penstock-urgent\\":true"}'))
    assert (one.pause_s(IDLE_POLL_S), woken) == (IDLE_POLL_S, [])
    one.note(message(urgent=True))
    assert one.pause_s(IDLE_POLL_S) <= QUICK_POLL_S
    assert woken == [100.0]
    now += QUICK_FOR_S
    assert one.pause_s(IDLE_POLL_S) == IDLE_POLL_S


def test_without_an_event_loop_the_pace_stays() -> None:
    """A consumer that nothing wakes keeps to its usual pace: a shorter one would never be kept."""
    one = Pace(lambda: False)
    one.note(message(urgent=True))
    assert one.pause_s(IDLE_POLL_S) == IDLE_POLL_S
