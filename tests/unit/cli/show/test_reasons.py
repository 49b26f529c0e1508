"""What `status`, `limits` and the panel say of a job that is slow or stands still."""

from __future__ import annotations

import io
import time
from dataclasses import replace

import pytest
from rich.console import Console

from penstock_cli.run.watch import STALL_NOTICE_S, Stall
from penstock_cli.show.figures import JobFigures
from penstock_cli.show.progress import CAUSE_EVERY_S, LINE_EVERY_S, Lines, panel, reason_lines
from penstock_cli.show.quota import QuotaSeen, bound, lines, troubles
from penstock_ledger import Account, Cause, Job, JobState, TenantAccount, WorkerSeen
from penstock_producer.feed.queues import missing_provider
from penstock_producer.reporting.reasons import (
    CAUSE_FRESH_S,
    cause_line,
    held_budget,
    held_by_calls,
    held_by_tenant,
    in_hooks,
    latest_cause,
    retried_by_reason,
    retried_line,
)
from penstock_ratelimit.store.messages import Breaker
from penstock_ratelimit.watch import QuotaView
from penstock_workers.item.run.job_code import HooksUnderWay

NOW = 1_790_000_000.0
CAUSE = Cause(
    "openai",
    "job1",
    "connect_failed",
    "certificate verify failed\x1b[31m\nfake",
    1234,
    NOW - 60,
    NOW - 4,
)
VIEW = QuotaView(
    quota_id="openai",
    at=NOW,
    dimensions=(),
    processes=1,
    waiting=248,
    in_flight=8,
    concurrency=8,
    concurrency_most=256,
    climbing=True,
    granted=10,
    throttled=0,
    ramps=0,
    failures=0,
    holds=0,
    margin=0.995,
    declared_margin=0.995,
    share=1.0,
    breaker=Breaker.CLOSED,
    open_left_s=0.0,
    probes_won=0,
    hold="",
    held_s=0.0,
    pause_left_s=0.0,
    answered_ago_s=1.0,
    retry_budget=100.0,
    learned=(),
)


def test_why_attempts_were_followed_by_others_is_one_line() -> None:
    """The most frequent reasons first, few of them, with figures; nothing where nothing was retried
    (H6)."""
    stats = {"retried:engine_died": 3, "retried:timeout": 87, "retried:odd": 0}
    assert retried_line(retried_by_reason(stats)) == "retried: timeout 87, engine_died 3"
    assert retried_line(retried_by_reason({"calls": 0})) is None
    many = {f"retried:reason{n}": 10 - n for n in range(9)}
    assert str(retried_line(retried_by_reason(many))).endswith("reason5 5, and 3 more reasons")
    assert "retried: timeout 87, engine_died 3" in reason_lines(
        JobFigures(total=1, retried_by_reason=retried_by_reason(stats))
    )


def test_a_cause_tells_class_count_since_when_and_the_words() -> None:
    """On one line, its control characters as escapes (A9)."""
    since = time.strftime("%H:%M:%S", time.localtime(NOW - 60))
    told = cause_line(CAUSE, NOW)
    assert told.startswith(
        f"connect_failed (1,234 times since {since}, last 4.0 s ago): certificate verify failed"
    )
    assert "\x1b" not in told
    assert "\n" not in told


def test_a_hook_that_hangs_is_named() -> None:
    """While a document is only "claimed", the job's own hook is said to have it, in how many calls
    and for how long."""
    slow = WorkerSeen("w1", 1.0, {"hook": "mine:clean", "hook_s": "41", "hook_calls": "2"})
    other = WorkerSeen("w2", 1.0, {"hook": "another:job", "hook_s": "50", "hook_calls": "1"})
    silent = WorkerSeen("w3", 99.0, {"hook": "mine:clean", "hook_s": "90", "hook_calls": "1"})
    (told,) = in_hooks([slow, other, silent], (None, "mine:clean"))
    assert told.startswith("2 documents are in the hook mine:clean, the longest for 41 s")
    assert list(in_hooks([other], ("mine:clean", None))) == []


def test_batches_that_hold_what_calls_wait_for_are_named() -> None:
    """A job whose calls have no room beside a batch that runs on at its provider does not stand
    still without a reason."""
    account = Account(spent=3_000_000, reserved=6_500_000, lacking=600_000)
    told = held_budget(10.0, account, {"t-1": 6_500_000})
    assert told == (
        "calls wait for the budget of 10 USD: 6.5 USD of it are held by batch t-1 until the "
        "provider ends it"
    )
    assert "held by 2 batches (t-1 and others) until" in (
        held_budget(10.0, account, {"t-2": 1, "t-1": 2}) or ""
    )
    assert held_budget(11.0, account, {"t-1": 6_500_000}) is None
    assert held_budget(10.0, account, {}) is None
    assert held_budget(10.0, account._replace(lacking=None), {"t-1": 6_500_000}) is None
    assert held_budget(10.0, None, {"t-1": 6_500_000}) is None


def test_calls_that_hold_what_others_wait_for_are_told_of() -> None:
    """A worker that died holds its part of a budget for a while: the job does not stand still
    without a reason."""
    account = Account(spent=3_000_000, reserved=6_500_000, lacking=600_000)
    told = held_by_calls(10.0, account, {})
    assert told == (
        "calls wait for the budget of 10 USD: 6.5 USD of it are held by calls that have begun; "
        "what a worker held that died is given back within two minutes"
    )
    assert held_by_calls(10.0, account, {"t-1": 6_000_000}) is None
    assert held_by_calls(11.0, account, {}) is None
    assert held_by_calls(10.0, account._replace(lacking=None), {}) is None
    assert held_by_calls(10.0, account._replace(reserved=0), {}) is None
    assert held_by_calls(10.0, None, {}) is None


def test_calls_that_wait_for_the_budget_of_their_tenant_are_told_of() -> None:
    """With the month, what is spent, what happens next, and when new jobs have money again."""
    account = Account(1_000_000, 200_000, 600_000, TenantAccount(5_000_000, 4_800_000, 900_000))
    job = Job(
        "j1", "j", {"tenant": "shop"}, {}, "", JobState.RUNNING, None, 1, 10, 1_764_500_000.0, None
    )
    told = held_by_tenant(job, account)
    assert told == (
        "calls wait for the budget of tenant shop, 5 USD for jobs of 2025-11: 3.9 USD are spent, "
        "and 0.9 may be needed by calls under way. Where these leave too little the job pauses, "
        "until a newer key of the tenant names a larger budget; new jobs have the budget of the "
        "next month, from 2025-12-01 (UTC)"
    )
    assert held_by_tenant(job, account._replace(lacking=100_000)) is None
    assert held_by_tenant(job, account._replace(lacking=None)) is None
    assert held_by_tenant(job, account._replace(tenant=None)) is held_by_tenant(job, None) is None


def test_only_hooks_that_take_long_are_told_of() -> None:
    """A worker's heartbeat names the hook that has run longest, and none while all of them answer
    soon."""
    now = [100.0]
    under_way = HooksUnderWay(lambda: now[0])
    with under_way.call("m:slow"), under_way.call("m:slow"), under_way.call("m:fast"):
        assert under_way.described() == {}
        now[0] += 30.0
        assert under_way.described() == {"hook": "m:slow", "hook_s": "30", "hook_calls": "2"}
    assert under_way.described() == {}


def test_an_old_failure_says_nothing_of_now() -> None:
    """What failed long ago is not shown as the cause of anything (A9)."""
    assert latest_cause([CAUSE], NOW) == CAUSE
    assert latest_cause([CAUSE], NOW + CAUSE_FRESH_S) is None
    assert latest_cause([], NOW) is None


def test_the_stall_notice_says_why() -> None:
    """Who watches a job that stands still reads the words of the last failure, not only a number of
    tries (A9)."""
    clock = [0.0]
    stall = Stall(lambda: clock[0])
    stall.notice(JobFigures(total=10))
    clock[0] = STALL_NOTICE_S
    notice = stall.notice(JobFigures(total=10, retries=10, cause=cause_line(CAUSE, NOW)))
    assert notice is not None
    assert "10 attempts have failed since" in notice
    assert "connect_failed" in notice
    assert "certificate verify failed" in notice


def test_limits_shows_why_calls_of_a_provider_fail() -> None:
    """`penstock limits` names the job and the words (A9)."""
    text = "\n".join(lines(QuotaSeen(VIEW, None, "lift", causes=[CAUSE]), NOW))
    assert "! calls of job job1 fail: connect_failed (1,234 times since" in text
    assert not list(troubles(QuotaSeen(VIEW, None, "lift"), NOW))


def test_the_panel_and_the_lines_show_reasons_and_the_last_failure() -> None:
    """A log has each reason when it is new, and the failure once a minute; the panel always
    (A9)."""
    figures = JobFigures(
        total=10, reasons=("no worker serves lane api",), cause="timeout (once): no answer"
    )
    clock, console = [0.0], Console(file=io.StringIO(), width=200)
    shown = Lines(console, lambda: clock[0])
    while clock[0] < CAUSE_EVERY_S:
        shown.show(figures)
        clock[0] += LINE_EVERY_S
    shown.show(figures)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert (text.count("no worker serves lane api"), text.count("the last failure: timeout")) == (
        1,
        2,
    )
    box = Console(file=io.StringIO(), width=100)
    box.print(panel(figures, "job"))
    assert isinstance(box.file, io.StringIO)
    assert "no worker serves lane api" in box.file.getvalue()
    assert "the last failure: timeout" in box.file.getvalue()


@pytest.mark.parametrize(
    ("workers", "is_missing"),
    [
        ([{"lane": "batch", "providers": "openai,other"}, {"lane": "api"}], False),
        ([{"lane": "batch", "providers": "other"}, {"lane": "batch", "providers": ""}], True),
        # of an earlier release: it does not say
        ([{"lane": "batch", "providers": "other"}, {"lane": "batch"}], False),
        # no worker of the lane at all is another sentence
        ([{"lane": "api", "providers": "other"}], False),
    ],
)
def test_a_provider_that_no_worker_has_is_named(
    workers: list[dict[str, str]], is_missing: bool
) -> None:
    """Its documents would never be packed."""
    seen = [WorkerSeen(f"w{number}", 1.0, info) for number, info in enumerate(workers)]
    told = missing_provider(seen, "batch", "openai")
    assert told == (
        "no worker of lane batch has the settings of provider openai" if is_missing else None
    )


@pytest.mark.parametrize(
    ("view", "told"),
    [
        (VIEW, "8 in flight, climbing while answers stay good, 256 at most"),
        (
            replace(VIEW, climbing=False),
            "8 in flight: more made the provider no faster, or were refused",
        ),
        (
            replace(VIEW, concurrency=None, share=0.25),
            "starting gently after a stop: 25% of the provider's limits",
        ),
        (replace(VIEW, waiting=0), None),
        (replace(VIEW, pause_left_s=5.0), None),
        (replace(VIEW, concurrency=256), None),
    ],
)
def test_a_slow_start_says_what_bounds_it(view: QuotaView, told: str | None) -> None:
    """Eight in flight of 256 slots is explained, and a quota without waiters is not named (D21)."""
    found = bound(view)
    assert found == told or (told is not None and found is not None and found.startswith(told))
