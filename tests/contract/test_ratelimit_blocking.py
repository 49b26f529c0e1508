"""The limiter for threads: the same promises, kept by a loop in a thread of its own.

Real threads, real forks."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from servers import RedisServer

from penstock_ratelimit import (
    BadCost,
    Flow,
    LimiterClosed,
    LocalLimiter,
    NeverFits,
    PerSecond,
    Quota,
    QuotaHeld,
    Signal,
    Ticket,
    UnknownQuota,
    Usage,
)
from penstock_ratelimit import blocking as blocking_limiter
from penstock_ratelimit.blocking import BlockingLimiter
from penstock_ratelimit.limiter import StartRequest
from penstock_ratelimit.local import LocalQuota
from penstock_ratelimit.tickets import TicketState

QUICK = Quota("quick", {"requests": PerSecond(100_000), "tokens": PerSecond(1e9)})
STUCK = Quota("stuck", {"requests": PerSecond(0.001)}, burst_s=60)
"""Its first start is a minute away, because buckets start empty and a request takes all that this
one holds."""
FREE = Quota("free")
QUOTAS = [QUICK, STUCK, FREE]

SOON_S = 0.05
PATIENCE_S = 20.0
"""What takes longer is stuck."""


@pytest.fixture(params=["local", "shared"])
def limiter(request: pytest.FixtureRequest) -> Iterator[BlockingLimiter]:
    url = request.getfixturevalue("redis_server").url if request.param == "shared" else None
    with BlockingLimiter(QUOTAS, url) as limiter:
        yield limiter


def wait_until(true: Callable[[], bool]) -> None:
    """For another thread: asks again and again, which no test does for longer than the other thread
    needs."""
    pause = threading.Event()
    for _ in range(2000):
        if true():
            return
        pause.wait(0.01)
    raise AssertionError("it never became true")


def test_a_ticket_is_charged_when_its_block_ends(limiter: BlockingLimiter) -> None:
    """A ticket settled inside its block is charged what it used, and nothing of it stays in
    flight."""
    with limiter.ticket("quick", {"requests": 1, "tokens": 500}, timeout=PATIENCE_S) as ticket:
        assert ticket.charged == {"requests": 1, "tokens": 500}
        ticket.settle({"tokens": 300})
    assert limiter.stats()["quick"].used == {"requests": 1, "tokens": 300}
    assert limiter.stats()["quick"].in_flight == 0


def test_a_released_ticket_costs_nothing(limiter: BlockingLimiter) -> None:
    """A ticket that is released before it was used gives all its units back."""
    ticket = limiter.acquire("quick", {"requests": 1, "tokens": 500}, timeout=PATIENCE_S)
    ticket.release()
    assert ticket.state is TicketState.RELEASED
    assert limiter.stats()["quick"].used == {"requests": 0, "tokens": 0}


def test_an_answer_settles_by_the_profile(limiter: BlockingLimiter) -> None:
    """`answered` with a usage charges its tokens, input and output together, as the quota's profile
    says."""
    ticket = limiter.quota("quick").ticket(requests=1, tokens=500, timeout=PATIENCE_S)
    with ticket as one:
        one.answered({}, usage=Usage(70, 30))
    assert limiter.stats()["quick"].used["tokens"] == 100


def test_a_wait_that_takes_too_long_raises_and_costs_nothing(limiter: BlockingLimiter) -> None:
    """The error names the quota and the time; afterwards no caller waits, and nothing was
    charged."""
    with pytest.raises(TimeoutError, match=r"quota 'stuck': no start within 0\.05 s"):
        limiter.acquire("stuck", {"requests": 1}, timeout=SOON_S)
    with pytest.raises(TimeoutError), limiter.ticket("stuck", {"requests": 1}, timeout=SOON_S):
        raise AssertionError("it cannot start")
    stats = limiter.stats()["stuck"]
    assert (stats.waiting, stats.granted, stats.used.get("requests", 0.0)) == (0, 0, 0.0)


def test_many_threads_share_one_limiter(limiter: BlockingLimiter) -> None:
    """Every thread gets its tickets and every ticket is charged once."""

    def work(number: int) -> None:
        for _ in range(10):
            with limiter.ticket(
                "quick", {"requests": 1, "tokens": number}, timeout=PATIENCE_S
            ) as ticket:
                ticket.settle({"tokens": 2 * number})

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(16)))
    stats = limiter.stats()["quick"]
    assert (stats.granted, stats.in_flight) == (160, 0)
    assert stats.used == {"requests": 160, "tokens": 20 * sum(range(16))}


def test_one_ticket_may_be_told_from_many_threads(limiter: BlockingLimiter) -> None:
    """However many end it at once, it ends once."""
    tickets = [limiter.acquire("quick", {"requests": 1}, timeout=PATIENCE_S) for _ in range(5)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda number: tickets[number % 5].release(), range(100)))
    stats = limiter.stats()["quick"]
    assert (stats.refunded, stats.in_flight, stats.used["requests"]) == (5, 0, 0.0)


def test_errors_reach_the_thread_that_asked(limiter: BlockingLimiter) -> None:
    """An unknown quota, a request that never fits and an impossible cost are raised in the calling
    thread."""
    with pytest.raises(UnknownQuota):
        limiter.acquire("undeclared", {})
    with pytest.raises(UnknownQuota):
        limiter.quota("undeclared")
    with pytest.raises(NeverFits):
        limiter.acquire("quick", {"requests": 1}, certain={"tokens": 1e12})
    ticket = limiter.acquire("quick", {"requests": 1}, timeout=PATIENCE_S)
    with pytest.raises(BadCost):
        ticket.settle({"requests": -1})


def test_a_held_account_stops_every_thread_until_it_is_lifted(limiter: BlockingLimiter) -> None:
    """An account without money refuses every ticket with its reason, and grants them again once it
    is lifted."""
    limiter.acquire("free", {}, timeout=PATIENCE_S).failed(Signal.OUT_OF_MONEY, reason="no credit")
    wait_until(lambda: limiter.stats()["free"].held == "no credit")
    with pytest.raises(QuotaHeld, match="no credit"):
        limiter.acquire("free", {}, timeout=PATIENCE_S)
    limiter.quota("free").lift()
    limiter.acquire("free", {}, timeout=PATIENCE_S).release()


def test_a_refusal_keeps_other_threads_from_starting(limiter: BlockingLimiter) -> None:
    """A 429 with a wait that one thread reports holds back the tickets of the others."""
    with limiter.quota("quick").ticket(requests=1, timeout=PATIENCE_S) as ticket:
        ticket.failed(Signal.THROTTLED, retry_after_s=3600)
    with pytest.raises(TimeoutError):
        limiter.acquire("quick", {"requests": 1}, timeout=SOON_S)
    assert limiter.stats()["quick"].throttled == 1
    assert limiter.may_retry("quick")


def test_a_pause_is_told_from_outside_of_a_ticket(limiter: BlockingLimiter) -> None:
    """`not_before` pauses the quota without a ticket."""
    limiter.quota("quick").not_before(3600)
    with pytest.raises(TimeoutError):
        limiter.acquire("quick", {"requests": 1}, timeout=SOON_S)


def test_closing_turns_waiting_threads_away(limiter: BlockingLimiter) -> None:
    """Callers that wait, and those that come later, get LimiterClosed; tickets that are out end
    without an error."""
    ticket = limiter.acquire("quick", {"requests": 1}, timeout=PATIENCE_S)
    with ThreadPoolExecutor(4) as pool:
        waits = [pool.submit(limiter.acquire, "stuck", {"requests": 1}) for _ in range(4)]
        wait_until(lambda: "stuck" in (stats := limiter.stats()) and stats["stuck"].waiting == 4)
        limiter.close()
        assert {type(wait.exception(PATIENCE_S)) for wait in waits} == {LimiterClosed}
    with pytest.raises(LimiterClosed):
        limiter.acquire("quick", {"requests": 1})
    ticket.settle({"requests": 2})
    ticket.release()
    assert limiter.stats() == {}
    limiter.close()


def test_a_signal_ends_the_wait_and_nothing_is_charged(limiter: BlockingLimiter) -> None:
    """Ctrl-C, or the soft time limit of a Celery task: the wait is over and the place in line is
    given up."""

    class Stop(Exception):
        pass

    def stop(number: int, frame: object) -> None:
        raise Stop

    def interrupt(main: int) -> None:
        wait_until(lambda: "stuck" in (stats := limiter.stats()) and stats["stuck"].waiting == 1)
        signal.pthread_kill(main, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, stop)
    try:
        thread = threading.Thread(target=interrupt, args=(threading.get_ident(),))
        thread.start()
        with pytest.raises(Stop):
            limiter.acquire("stuck", {"requests": 1})
        thread.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    wait_until(lambda: limiter.stats()["stuck"].waiting == 0)
    assert limiter.stats()["stuck"].used.get("requests", 0.0) == 0.0


def test_what_is_asked_goes_on_to_the_limiter_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flow, certain part and retry decide there, not here."""
    asked: list[StartRequest] = []

    class Spying(LocalLimiter):
        def _quota_limiter(self, quota_id: str) -> LocalQuota:
            lane = super()._quota_limiter(quota_id)
            acquire = lane.acquire

            async def spy(ask: StartRequest) -> Ticket:
                asked.append(ask)
                return await acquire(ask)

            lane.acquire = spy  # type: ignore[method-assign]
            return lane

    monkeypatch.setattr(blocking_limiter, "LocalLimiter", Spying)
    flow = Flow(tenant="search", job="nightly")
    with BlockingLimiter([QUICK]) as limiter:
        limiter.acquire(
            "quick", {"requests": 1}, certain={"tokens": 5}, flow=flow, retry=True
        ).release()
        with limiter.quota("quick").ticket(requests=1, flow=flow, retry=True):
            pass
    assert asked[0] == StartRequest({"requests": 1}, {"tokens": 5}, flow, True)
    assert asked[-1] == StartRequest({"requests": 1}, None, flow, True)


FORKS = """
import os, sys
from penstock_ratelimit import PerSecond, Quota
from penstock_ratelimit.blocking import BlockingLimiter

limiter = BlockingLimiter([Quota("q", {"requests": PerSecond(1000)})], sys.argv[1])
mine = limiter.acquire("q", {"requests": 1}, timeout=20)
seen, told = os.pipe()
until, over = os.pipe()
child = os.fork()
if not child:
    mine.release()  # the parent's: this process cannot give it back
    assert limiter.stats() == {}
    limiter.acquire("q", {"requests": 1}, timeout=20).start()
    os.write(told, b"x")  # and then stay, as a worker would, until our parent has worked too
    os.read(until, 1)
    limiter.close()
    os._exit(0)
os.read(seen, 1)
limiter.acquire("q", {"requests": 1}, timeout=20).start()
print(limiter.stats()["q"].used["requests"], flush=True)
sys.stdin.read(1)
os.write(over, b"x")
assert os.waitpid(child, 0)[1] == 0
mine.settle({"requests": 3})
limiter.close()
"""


def test_a_forked_child_has_its_own_thread_and_connections(redis_server: RedisServer) -> None:
    """Both work on after the fork and count as two processes; the parent's tickets stay the
    parent's."""
    # Since 3.12 Python warns of a fork beside threads, which is what is tried here.
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKS, redis_server.url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "2.0\n"
    assert redis_server.client().zcard("penstock:{q:q}:w") == 2
    _, complaints = process.communicate("x", PATIENCE_S)
    assert (process.returncode, complaints) == (0, "")
    assert redis_server.client().hget("penstock:{q:q}", "k:requests") == b"5.000"
    assert redis_server.client().zcard("penstock:{q:q}:w") == 0


FORGETS_TO_CLOSE = """
import logging
import sys
from penstock_ratelimit import PerSecond, Quota
from penstock_ratelimit.blocking import BlockingLimiter

logging.getLogger("asyncio").setLevel(logging.ERROR)  # below it, development mode tells of steps that a busy machine took
limiter = BlockingLimiter([Quota("q", {"requests": PerSecond(1000)})], sys.argv[1])
limiter.acquire("q", {"requests": 1}, timeout=20).settle({"requests": 7})
"""


def test_the_end_of_the_interpreter_closes_what_nobody_closed(redis_server: RedisServer) -> None:
    """What was used is reported, the process leaves the quota, and nothing is printed."""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", FORGETS_TO_CLOSE, redis_server.url],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert redis_server.client().hget("penstock:{q:q}", "k:requests") == b"7.000"
    assert redis_server.client().zcard("penstock:{q:q}:w") == 0


def test_nothing_runs_before_the_first_use() -> None:
    """A module may make one while it is imported, before its server forks."""
    before = threading.active_count()
    with BlockingLimiter([QUICK]) as limiter:
        assert limiter.stats() == {}
        limiter.quota("quick")
        assert threading.active_count() == before


def test_a_url_that_cannot_be_is_said_to_whoever_asks() -> None:
    """A URL that is none of Redis fails the first call with the forms that are possible."""
    with (
        BlockingLimiter([QUICK], "http://nowhere") as limiter,
        pytest.raises(ValueError, match="redis://"),
    ):
        limiter.acquire("quick", {"requests": 1})
