"""A fleet that holds back for others at a server: who looks, what each may have in flight, and what
is left of a key's limits, on a real Redis."""

from __future__ import annotations

import pytest
from one_quota import Redis, run, without_limits
from servers import RedisServer

from penstock_ratelimit import PerSecond, Quota
from penstock_ratelimit.shared.interactive import Yielding
from penstock_ratelimit.watch import read_quotas

LASTS_S = 5.0
BUSY = '{"in_flight": 3, "waiting": 9}'


def fleet(server: RedisServer, *names: str) -> Redis:
    """A quota with these processes, which have said what they have to do."""
    quota = Redis(server, without_limits())
    for name in names:
        run(quota.hash.heartbeat(name, 15, BUSY))
    return quota


def test_one_process_of_all_looks(redis_server: RedisServer) -> None:
    """The first that asks, for as long as it gives signs; after five seconds without, another."""
    quota = fleet(redis_server, "a", "b")
    first = run(quota.hash.look("a", LASTS_S))
    assert (first.looks, first.part) == (True, None)
    assert first.said == {"a": BUSY, "b": BUSY}
    assert not run(quota.hash.look("b", LASTS_S)).looks
    quota.sleep(4.9)
    assert run(quota.hash.look("a", LASTS_S)).looks
    quota.sleep(4.9)
    assert not run(quota.hash.look("b", LASTS_S)).looks
    quota.sleep(0.2)
    assert run(quota.hash.look("b", LASTS_S)).looks
    assert not run(quota.hash.look("a", LASTS_S)).looks


def test_a_clock_that_steps_back_leaves_no_fleet_without_eyes(redis_server: RedisServer) -> None:
    """A lease that would last longer than any lease is none."""
    quota = fleet(redis_server, "a", "b")
    assert run(quota.hash.look("a", LASTS_S)).looks
    quota.sleep(-3_600)
    assert run(quota.hash.look("b", LASTS_S)).looks


def test_each_hears_its_part_and_only_who_looks_decides(redis_server: RedisServer) -> None:
    """A decision replaces all parts; one that comes from a process which no longer looks is
    dropped."""
    quota = fleet(redis_server, "a", "b")
    run(quota.hash.look("a", LASTS_S))
    run(quota.hash.look("a", LASTS_S, Yielding(ceiling=7).to_json(), {"a": 3, "b": 4}))
    assert run(quota.hash.look("b", LASTS_S)).part == 4
    quota.sleep(6)
    taken = run(quota.hash.look("b", LASTS_S))
    assert taken.looks
    assert Yielding.from_json(taken.decided) == Yielding(ceiling=7)
    late = run(quota.hash.look("a", LASTS_S, Yielding(ceiling=99).to_json(), {"a": 99}))
    assert (late.looks, late.part) == (False, 3)
    run(quota.hash.look("b", LASTS_S, Yielding(ceiling=2).to_json(), {"b": 2}))
    assert run(quota.hash.look("a", LASTS_S)).part is None


def test_a_decision_is_seen_while_it_is_fresh(redis_server: RedisServer) -> None:
    """Screens show it for a quarter of a minute; odd texts in Redis are none."""
    quota = fleet(redis_server, "a")
    decided = Yielding("over", 12.0, 0.5, 1.25, binds=True)
    run(quota.hash.look("a", LASTS_S, decided.to_json(), {"a": 12}))

    def seen() -> Yielding | None:
        (view,) = read_quotas(quota.raw, quota_ids=[quota.quota.id], clock_us=quota.clock)
        return view.yields

    assert seen() == decided
    quota.sleep(16)
    assert seen() is None
    run(quota.hash.look("a", LASTS_S, "{odd", {"a": 1}))
    assert seen() is None


# --- the same key
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("margin", "reserve"), [(1.0, 0.2), (0.995, 0.05), (0.9, 0.5)])
def test_the_reserve_holds_within_a_hundredth(
    redis_server: RedisServer, margin: float, reserve: float
) -> None:
    """In ten minutes of more work than there is room for, the fleet starts what is left of the
    limit, and neither time nor refusals move what others were promised."""
    limits = {"tokens": PerSecond(1000)}
    quota = Redis(redis_server, Quota(f"r{reserve}", limits, margin=margin, reserve=reserve))
    started = 0.0
    for _ in range(600):
        started += 100.0 * len(quota.reserve(*[(100.0,)] * 20, ahead_s=1.0).waits_s)
        quota.sleep(1.0)
    left = 600 * 1000 * (1 - reserve)
    assert started <= 1.003 * left  # with the second ahead
    assert started >= 0.99 * left * min(1.0, margin + 0.005)


def test_headers_that_lower_a_limit_leave_the_same_part_of_it(redis_server: RedisServer) -> None:
    """Other terms have their own part left to others, and terms without one have none."""
    quota = Redis(redis_server, Quota("lowered", {"tokens": PerSecond(1000)}, margin=1.0))

    def allowed() -> float:
        (view,) = read_quotas(quota.raw, quota_ids=["lowered"], clock_us=quota.clock)
        (one,) = view.dimensions
        return one.allowed

    assert allowed() == pytest.approx(1000)
    quota.adopt(Quota("lowered", {"tokens": PerSecond(500)}, margin=1.0, reserve=0.2))
    assert allowed() == pytest.approx(400)
    quota.adopt(Quota("lowered", {"tokens": PerSecond(500)}, margin=1.0))
    assert allowed() == pytest.approx(500)
