"""For each reason why a document may wait, the sentence that a person reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from penstock_cli.show.quota import QuotaSeen, bound, troubles
from penstock_ledger import Depth, Job, JobState, LaneMove, Memory, WorkerSeen
from penstock_producer.feed.queues import Served
from penstock_producer.reporting.pauses import pause_lines
from penstock_producer.reporting.reasons import (
    SENTENCES,
    UNLED_AFTER_S,
    Standing,
    no_worker,
    waits,
    yields_line,
)
from penstock_ratelimit.shared.interactive import Yielding
from penstock_ratelimit.store.messages import Breaker
from penstock_ratelimit.watch import QuotaView

NOW = 1_790_000_000.0
JOB = Job(
    "j1",
    "reviews",
    {"lane": "api"},
    {},
    "",
    JobState.RUNNING,
    None,
    1,
    10,
    NOW - UNLED_AFTER_S - 1,
    None,
)
IDLE = Depth(0, 0, 0, 0)
TINY = Served(("tiny",)).to_text()


def worker(lane: str = "api", seconds_ago: float = 1.0, **info: str) -> WorkerSeen:
    return WorkerSeen(
        "w", seconds_ago, {"lane": lane, "concurrency": "8", "in_flight": "3", **info}
    )


def standing(**known: object) -> Standing:
    return replace(Standing(JOB, [worker()], {"penstock.api": IDLE}, at=NOW), **known)  # type: ignore[arg-type]


def hosted(**known: object) -> Standing:
    """Of the lane `gpu`, whose one worker serves the model tiny."""
    given = {
        "job": replace(JOB, spec={"lane": "gpu", "model": "tiny"}),
        "workers": [worker("gpu", serves=TINY)],
        **known,
    }
    return standing(**given)


MOVE = LaneMove("j1", 1, NOW, "batch", "api", "by_hand", "", {})
WAITS = {
    "no_worker": (
        standing(workers=[worker("gpu"), worker(seconds_ago=30)]),
        "no worker serves lane api: start one with `penstock worker`",
    ),
    "no_model": (
        hosted(job=replace(JOB, spec={"lane": "gpu", "model": "large"})),
        "no worker serves large; served here: tiny (1 worker)",
    ),
    "model_loads": (
        hosted(
            job=replace(JOB, spec={"lane": "gpu", "model": "large"}),
            workers=[
                worker("gpu", serves=TINY),
                worker("gpu", loads=Served(("large",)).to_text()),
            ],
        ),
        "no worker serves large yet, and a worker loads it; served here: tiny (1 worker)",
    ),
    "no_bound_model": (
        hosted(job=replace(JOB, spec={"lane": "gpu"}), bound="penstock.gpu.gone"),
        "no worker serves the model that began to answer this job (queue penstock.gpu.gone); "
        "served here: tiny (1 worker)",
    ),
    # the job names a model that is served, and one of its lines another (H2)
    "no_model_of_queue": (
        hosted(waiting={"penstock.gpu": 3, "penstock.gpu.other": 1}),
        "no worker serves the models of queue penstock.gpu.other; served here: tiny (1 worker)",
    ),
    "no_leader": (
        standing(is_led=False),
        "no control process leads this job: nothing of it is fed, tried again or completed; start "
        "one with `penstock control`",
    ),
    "redis_full": (
        standing(memory=Memory(80_000_000, 100_000_000, "noeviction")),
        "Redis holds 80 of 100 MB: nothing more is fed until finished documents make room, or its "
        "maxmemory is raised",
    ),
    "store_away": (
        standing(
            workers=[worker(store_away="SQL", store_s="4"), worker(store_away="SQL", store_s="75")]
        ),
        "outcomes wait in workers to be stored, the oldest for 1 min 15 s: SQL does not take them",
    ),
    "suspects": (
        standing(workers=[worker(suspects="3"), worker(suspects="1"), worker(suspects="odd")]),
        "waiting to be tried apart from others, since they were in flight when workers died: 4 "
        "documents",
    ),
    "same_request": (
        standing(equal=200),
        "waiting for the answers to equal requests that are in batches: 200 documents",
    ),
    "leaving_batches": (
        standing(moves=[MOVE]),
        "documents that went into batches of lane batch are waited for before lane api gets the "
        "others",
    ),
    "first_hundred": (
        standing(seen=42),
        "its stop-loss looks at the first hundred documents before the others are fed: 42 are done",
    ),
    "parked": (
        standing(parked=1),
        "waiting outside the queue until control puts them back: 1 document of this job",
    ),
    "all_delayed": (
        standing(queues={"penstock.api": Depth(0, 0, 7, 0)}),
        "all that is left in the queue of lane api waits for its next try: 7 documents",
    ),
    "slots_taken": (
        standing(workers=[worker(in_flight="8")], queues={"penstock.api": Depth(20, 8, 0, 0)}),
        "all 8 slots of one worker are taken; waiting for one: 20 documents",
    ),
    "set_aside": (
        standing(set_aside=2),
        "set aside in penstock:parked:unknown, since no worker could read or place them: 2 "
        "messages, of whichever job",
    ),
}


@pytest.mark.parametrize("code", SENTENCES)
def test_each_reason_for_waiting_is_said_by_name(code: str) -> None:
    """The reason is found where it holds, and alone; no reason is left without a sentence, or
    without this test (H2)."""
    known, sentence = WAITS[code]
    (wait,) = waits(known)
    assert (wait.code, wait.said) == (code, sentence)


def test_a_job_that_goes_on_waits_for_nothing() -> None:
    """Nothing is said of one that is fed and worked on, is new, or does not run; nor of models that
    other jobs wait for."""
    assert list(waits(standing())) == []
    assert list(waits(hosted(queues={"penstock.gpu.other": Depth(9, 0, 0, 0)}))) == []
    assert list(waits(standing(is_led=False, at=NOW - UNLED_AFTER_S))) == []
    assert (
        list(waits(standing(job=replace(JOB, state=JobState.PAUSED), workers=[], is_led=False)))
        == []
    )
    assert list(waits(standing(workers=[]), served=True)) == []
    assert list(waits(standing(moves=[MOVE._replace(left_at=NOW)]))) == []
    assert no_worker([worker()], "api") is None


QUOTA = QuotaView(
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


def of_quota(**changed: object) -> str:
    view = replace(QUOTA, **changed)  # type: ignore[arg-type]
    return " ".join(
        one.text for one in troubles(QuotaSeen(view, None, "penstock limits --lift openai"), NOW)
    )


def paused(reason: str, resume_at: float | None = None) -> str:
    job = replace(JOB, state=JobState.PAUSED, reason=reason, resume_at=resume_at)
    return " ".join(pause_lines(job, "", NOW))


@pytest.mark.parametrize(
    ("decided", "sentence"),
    [
        (Yielding("start", 8, 0.5), "8 calls at most until its server has said"),
        (Yielding("under", 32.2, 0.5, 0.38), "TTFT p95 0.38 s of 0.5 s, 32 calls at most, growing"),
        (Yielding("near", 32.2, 0.5, 0.44), "TTFT p95 0.44 s of 0.5 s, 32 calls at most"),
        (Yielding("over", 26.0, 0.5, 1.234), "TTFT p95 1.2 s over 0.5 s, 26 calls at most"),
        (Yielding("least", 1, 0.5, 90.0), "TTFT p95 1 min 30 s over 0.5 s although 1 call at most"),
        (
            Yielding("long", 9, 0.5, 0.9),
            "TTFT p95 0.9 s over 0.5 s, and fewer calls did not help: prompts",
        ),
        (Yielding("under", 9, 0.5, None), "9 calls at most, growing while others ask for little"),
    ],
)
def test_why_a_fleet_is_held_back_for_people_is_said(decided: Yielding, sentence: str) -> None:
    """Where what people wait for bounds it: on the screen of a run, by `penstock limits` and on the
    pages."""
    told = f"held back for interactive traffic: {sentence}"
    assert told in str(bound(replace(QUOTA, yields=replace(decided, binds=True))))
    assert yields_line(replace(decided, binds=False)) is None
    assert bound(replace(QUOTA, yields=decided)) == bound(QUOTA)


def test_figures_that_cannot_be_read_are_said_with_their_reason() -> None:
    """Also where the ceiling binds nothing now; what another program said is one line."""
    blind = Yielding("unread", 12.0, 0.5, why="it answers 401\n\x1b[2J")
    told = str(yields_line(blind))
    assert "12 calls at most while the server's figures cannot be read (it answers 401" in told
    assert not {"\n", "\x1b"} & set(told)
    assert yields_line(None) is None


@pytest.mark.parametrize(
    ("tell", "sentence"),
    [
        (lambda: bound(QUOTA), "8 in flight, climbing while answers stay good, 256 at most"),
        (
            lambda: of_quota(hold="insufficient_quota", held_s=60),
            "held for 1 min 00 s: insufficient_quota",
        ),
        (
            lambda: of_quota(breaker=Breaker.OPEN, open_left_s=9),
            "the provider fails: nothing starts until",
        ),
        (
            lambda: of_quota(breaker=Breaker.HALF_OPEN, probes_won=1),
            "1 of 3 trial requests were answered well",
        ),
        (lambda: of_quota(pause_left_s=30), "the provider said wait: nothing starts until"),
        (
            lambda: of_quota(retry_budget=0),
            "retries are put off: too many of what is sent are retries",
        ),
        (
            lambda: paused("the source is away"),
            "it waits for a person: remove the reason, then:  penstock resume reviews",
        ),
        (
            lambda: paused("rate_limited", NOW + 90),
            "(in 1 min 30 s); to go on now:  penstock resume reviews",
        ),
    ],
)
def test_a_quota_and_a_pause_say_what_is_waited_for(
    tell: Callable[[], str | None], sentence: str
) -> None:
    """What bounds a provider, and what ends a pause: an account without credit, a breaker, its own
    wish, or a person."""
    assert sentence in (tell() or "")
