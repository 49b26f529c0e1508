"""The lease keeper against scripted answers: what it keeps, retries, reports and never mixes up."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from unittest.mock import AsyncMock

import pytest
from celery_worker import until
from redis.exceptions import ConnectionError as RedisGone

from penstock_workers.broker import leases as module
from penstock_workers.broker.lease_scripts import Keys, Lease
from penstock_workers.broker.leases import BrokerAction, Leases
from penstock_workers.celery_app import engine_thread

LONG_S, SHORT_S = 3600.0, 0.03


class Scripts:
    """Answers like Redis would; notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, list[Lease]]] = []
        self.lost: set[str] = set()
        self.broken: dict[str, int] = {}  # step -> how many calls still fail
        self.renewed = threading.Event()

    def _answer(self, step: str, group: Sequence[Lease]) -> list[str]:
        if self.broken.get(step, 0) > 0:
            self.broken[step] -= 1
            raise RedisGone("gone")
        self.asked.append((step, list(group)))
        return [lease.tag for lease in group if lease.tag in self.lost]

    def ack(self, group: Sequence[Lease]) -> list[str]:
        return self._answer("ack", group)

    def give_back(self, group: Sequence[Lease]) -> list[str]:
        return self._answer("give_back", group)

    def set_aside(self, group: Sequence[Lease]) -> list[str]:
        return self._answer("set_aside", group)

    def renew(self, group: Sequence[Lease]) -> tuple[str, list[str]]:
        lost = self._answer("renew", group)
        self.renewed.set()
        return "2.0", lost

    def restore(self, next_sweep_s: float) -> int:
        return 0


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Scripts:
    scripts = Scripts()
    monkeypatch.setattr(module, "LeaseScripts", lambda _client, _keys: scripts)
    monkeypatch.setattr(module, "RETRY_FIRST_S", 0.01)
    monkeypatch.setattr(module, "RETRY_MAX_S", 0.01)
    return scripts


class Owner:
    """Notes what it hears of its leases."""

    def __init__(self) -> None:
        self.lost_tags: list[str] = []
        self.late_tags: list[tuple[BrokerAction, list[str]]] = []
        self.has_lost = threading.Event()
        self.asked = threading.Event()
        self.is_turning = True

    def may_renew(self) -> bool:
        self.asked.set()
        return self.is_turning

    def lost(self, tags: Sequence[str]) -> None:
        self.lost_tags += tags
        self.has_lost.set()

    def late(self, action: BrokerAction, tags: Sequence[str]) -> None:
        self.late_tags.append((action, list(tags)))


@pytest.fixture
def owner(leases: Leases) -> Owner:
    owner = Owner()
    leases.serve(owner)
    return owner


@pytest.fixture
def leases(scripts: Scripts) -> Iterator[Leases]:
    leases = Leases()
    yield leases
    leases.close(timeout_s=2)


def open_for(leases: Leases, timeout_s: float) -> None:
    leases.open(lambda: None, Keys("u", "i", timeout_s))  # type: ignore[arg-type,return-value]  # never used


def test_conclusions_go_out_in_groups_with_the_score_seen(leases: Leases, scripts: Scripts) -> None:
    """Acknowledged tags leave with the lease time under which they were claimed; what is not held
    is passed over."""
    leases.claimed(["a", "b"], "1.0")
    leases.conclude(["a", "b", "stranger"], BrokerAction.ACK)
    assert len(leases) == 2
    open_for(leases, LONG_S)
    assert leases.flush(5)
    assert scripts.asked == [("ack", [Lease("a", "1.0"), Lease("b", "1.0")])]
    assert len(leases) == 0


def test_doubted_leases_are_renewed_at_once(leases: Leases, scripts: Scripts, owner: Owner) -> None:
    """They count as kept again when the owner has heard which are lost, and not before."""
    assert leases.are_kept(), "of who keeps no leases"
    leases.doubt()
    assert leases.are_kept()
    leases.claimed(["a", "b"], "1.0")
    open_for(leases, LONG_S)
    assert leases.are_kept()
    scripts.lost = {"b"}
    owner.is_turning = False  # a renewal that may not be made settles no doubt
    leases.doubt()
    assert owner.asked.wait(5)
    assert not leases.are_kept()
    owner.is_turning = True
    leases.doubt()
    assert owner.has_lost.wait(5)
    until(leases.are_kept)
    assert (owner.lost_tags, leases.losses) == (["b"], 1)
    assert [step for step, _ in scripts.asked] == ["renew"]


def test_conclusions_outlive_an_outage(leases: Leases, scripts: Scripts) -> None:
    """What could not be written to Redis is written when it answers again, and counts as held until
    then."""
    scripts.broken["ack"] = 3
    leases.claimed(["a"], "1.0")
    open_for(leases, LONG_S)
    leases.conclude(["a"], BrokerAction.ACK)
    assert leases.flush(5)
    assert scripts.asked == [("ack", [Lease("a", "1.0")])]


def test_a_conclusion_that_came_too_late_is_reported(
    leases: Leases, scripts: Scripts, owner: Owner
) -> None:
    """The owner hears the action and the tags whose lease was lost, once."""
    scripts.lost = {"b"}
    leases.claimed(["a", "b"], "1.0")
    open_for(leases, LONG_S)
    leases.conclude(["a", "b"], BrokerAction.ACK)
    assert leases.flush(5)
    assert owner.late_tags == [(BrokerAction.ACK, ["b"])]


def test_renewals_keep_what_is_held_and_report_what_is_lost(
    leases: Leases, scripts: Scripts, owner: Owner
) -> None:
    """A lost lease is let go and reported; the others carry their new time from then on."""
    scripts.lost = {"b"}
    leases.claimed(["a", "b"], "1.0")
    open_for(leases, SHORT_S)
    assert owner.has_lost.wait(5)
    assert owner.lost_tags == ["b"]
    assert leases.tags() == ["a"]
    leases.conclude(["a"], BrokerAction.GIVE_BACK)
    assert leases.flush(5)
    assert ("give_back", [Lease("a", "2.0")]) in scripts.asked


def test_renewals_do_not_wait_for_failing_conclusions(leases: Leases, scripts: Scripts) -> None:
    """While a step fails again and again, leases are renewed all the same."""
    scripts.broken["give_back"] = 10**6
    leases.claimed(["a", "b"], "1.0")
    leases.conclude(["b"], BrokerAction.GIVE_BACK)
    open_for(leases, SHORT_S)
    assert scripts.renewed.wait(5)
    scripts.broken.clear()


def test_nothing_is_renewed_while_the_items_stand_still(
    leases: Leases, scripts: Scripts, owner: Owner, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker whose item loop is stuck lets its leases end, says so, and renews again when the
    loop turns (A13)."""
    owner.is_turning = False
    leases.claimed(["a"], "1.0")
    open_for(leases, SHORT_S)
    for _ in range(2):
        assert owner.asked.wait(5)
        owner.asked.clear()
    assert scripts.asked == []
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == [
        "the item loop is stuck: 1 leases are not renewed, so that other workers take those items"
    ]
    owner.is_turning = True
    assert scripts.renewed.wait(5)


def test_a_loop_that_stands_still_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """From another thread, by the time at which it turned last (A13)."""
    monkeypatch.setattr(engine_thread, "LOOP_BEAT_S", 0.01)
    monkeypatch.setattr(engine_thread, "LOOP_STUCK_S", 0.2)
    engine = AsyncMock()
    engine.stats = dict
    hosting = engine_thread.EngineThread(lambda: engine)
    hosting.start(AsyncMock())
    assert hosting.is_turning()
    gate, stuck = threading.Event(), threading.Event()

    def stand_still() -> None:
        stuck.set()
        gate.wait(10)

    hosting.call(stand_still)
    assert stuck.wait(5)
    while hosting.is_turning():
        stuck.wait(0.01)
    gate.set()
    while not hosting.is_turning():
        gate.wait(0.01)
    assert hosting.stop(5)


def test_a_message_claimed_anew_is_not_lost_by_an_older_renewal(leases: Leases) -> None:
    """A renewal's answer about an older claim of the same tag changes nothing."""
    leases.claimed(["a"], "1.0")
    group = [Lease("a", "1.0")]
    leases.claimed(["a"], "5.0")
    assert leases._note_renewal(group, "2.0", {"a"}) == []
    assert leases._note_renewal(group, "2.0", set()) == []
    leases.conclude(["a"], BrokerAction.ACK)
    assert leases._take(BrokerAction.ACK) == [Lease("a", "5.0")]
    leases._settled()


def test_closing_gives_back_what_is_held(scripts: Scripts) -> None:
    """Nothing waits for its lease to end when the process could say so."""
    leases = Leases()
    leases.claimed(["a"], "1.0")
    open_for(leases, LONG_S)
    leases.close(timeout_s=5)
    assert scripts.asked == [("give_back", [Lease("a", "1.0")])]
