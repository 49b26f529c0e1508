"""Runs of 404s, 403s, redirects and pages: one is the document's own, many without a success pause
the job."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest
from attempts import make_attempt

from penstock_ledger.reasons import explain
from penstock_ratelimit.testing import run_virtual
from penstock_workers.item.attempt import Attempt
from penstock_workers.item.failures import Failure, Reply, TurnedAway
from penstock_workers.item.outcome import Parked
from penstock_workers.item.run.runs import PROBE_S, PROVEN_WAIT_S, UNPROVEN_WAIT_S, Runs
from penstock_workers.settings import ProviderSettings

PAUSES_AT = 20
GOOD = Reply(b"{}", 200, None, None, "stop", 1, 1, "text", 5)
NOT_FOUND = Failure("not_found", "HTTP 404: no such route", 404)
FORBIDDEN = Failure("forbidden", "HTTP 403: <html>blocked", 403, page=True)
SERVER_ERROR = Failure("server_error", "HTTP 500: oh", 500)

Weighed = asyncio.Task[Parked | None]


class Job:
    """One job's requests, as a runner tells of them."""

    def __init__(self, runs: Runs, name: str = "job", **spec: Any) -> None:
        self._runs, self._name, self._spec = runs, name, spec

    def attempt(self, sent_at: float | None = None) -> Attempt:
        attempt = make_attempt(
            job_id=self._name, settings=ProviderSettings(base_url="http://gateway/v2"), **self._spec
        )
        attempt.sent_at = now() if sent_at is None else sent_at
        return attempt

    def answered(
        self, happened: Failure | Reply, sent_at: float | None = None, *, on: str | None = None
    ) -> Weighed:
        """``on``: the path that the line names, where it is not the job's."""
        attempt = self.attempt(sent_at)
        attempt.job = replace(attempt.job, named_endpoint=on)
        return asyncio.create_task(self._weigh(attempt, happened))

    async def _weigh(self, attempt: Attempt, happened: Failure | Reply) -> Parked | None:
        try:
            if self._runs.note(attempt, happened):
                await self._runs.weigh(attempt, happened)
        except TurnedAway as away:
            return away.outcome if isinstance(away.outcome, Parked) else None
        return None

    def may_start(self) -> bool:
        try:
            self._runs.check(self.attempt())
        except TurnedAway:
            return False
        return True


def now() -> float:
    return asyncio.get_running_loop().time()


def play(body: Callable[[Runs], Coroutine[None, None, None]], pauses_at: int = PAUSES_AT) -> None:
    async def main() -> None:
        await body(Runs(pauses_at))

    run_virtual(main())


async def settled() -> None:
    await asyncio.sleep(0.001)


NO_FORMAT = Failure(
    "bad_request",
    "HTTP 400: Invalid parameter: 'response_format' of type 'json_schema' is not supported",
    400,
)


def said_of(outcome: Parked | None) -> str:
    assert outcome is not None
    assert outcome.pauses is not None
    return explain(outcome.pauses)


def test_a_provider_that_takes_no_schemas_pauses_the_job_with_the_fix() -> None:
    """All requests carry the job's format, so 400s that name it are not the documents' fault: the
    pause says what to do."""

    async def body(runs: Runs) -> None:
        job = Job(runs, response_schema={"type": "object"})
        weigheds = await asyncio.gather(*(job.answered(NO_FORMAT) for _ in range(PAUSES_AT)))
        assert all(weighed is not None and weighed.pauses for weighed in weigheds)
        why = said_of(weigheds[0])
        assert (
            "with response_format=json_object or none, and say in the prompt which JSON is wanted"
            in why
        )

    play(body)


def test_lines_for_a_path_that_the_provider_has_not_cost_themselves_alone() -> None:
    """However many there are, where it answers the job otherwise.

    Else the address may be wrong, and the job pauses."""

    async def body(runs: Runs) -> None:
        job, elsewhere = Job(runs), Job(runs, "elsewhere")
        await job.answered(GOOD)
        lines = (job.answered(NOT_FOUND, on="/v1/embeddings") for _ in range(3 * PAUSES_AT))
        assert set(await asyncio.gather(*lines)) == {None}
        blocked = await asyncio.gather(
            *(job.answered(FORBIDDEN, on="/v1/embeddings") for _ in range(PAUSES_AT))
        )
        assert all(one is not None and one.pauses for one in blocked)
        lines = (elsewhere.answered(NOT_FOUND, on="/v1/embeddings") for _ in range(PAUSES_AT))
        assert all(one is not None and one.pauses for one in await asyncio.gather(*lines))

    play(body)


def test_a_path_that_was_answered_before_is_no_unknown_one() -> None:
    """A provider whose routes are gone pauses the job as before."""

    async def body(runs: Runs) -> None:
        job = Job(runs)
        await job.answered(GOOD)
        await job.answered(GOOD, on="/v1/embeddings")
        lost = await asyncio.gather(
            *(job.answered(NOT_FOUND, on="/v1/embeddings") for _ in range(PAUSES_AT))
        )
        assert all(one is not None and one.pauses for one in lost)

    play(body)


@pytest.mark.parametrize(
    ("failure", "spec"),
    [
        (NO_FORMAT, {}),
        (NO_FORMAT, {"response_schema": {"type": "object"}, "response_format": "none"}),
        (
            Failure("bad_request", "HTTP 400: no such message", 400),
            {"response_schema": {"type": "object"}},
        ),
    ],
)
def test_other_400s_are_the_documents_own(failure: Failure, spec: dict[str, Any]) -> None:
    """A format that a line brings itself, and a 400 about something else, cost their document
    only."""

    async def body(runs: Runs) -> None:
        job = Job(runs, **spec)
        assert set(await asyncio.gather(*(job.answered(failure) for _ in range(PAUSES_AT)))) == {
            None
        }

    play(body)


@pytest.mark.parametrize("failure", [NOT_FOUND, FORBIDDEN], ids=["404", "403"])
def test_a_wrong_url_pauses_the_job_and_kills_no_document(failure: Failure) -> None:
    """Of 256 requests that are all answered 404, or 403 by a firewall, none is a dead letter: the
    job pauses (A7)."""

    async def body(runs: Runs) -> None:
        job = Job(runs)
        weigheds = await asyncio.gather(*(job.answered(failure) for _ in range(256)))
        assert all(weighed is not None and weighed.pauses for weighed in weigheds)
        why = said_of(weigheds[0])
        assert why.startswith(f"the last 20 answers were all {failure.status} ({failure.name}")
        assert failure.detail in why
        assert "http://gateway/v2" in why
        assert "resume" in why

    play(body)


def test_a_single_404_among_successes_is_the_documents_own() -> None:
    """It waits no longer than for the next good answer (A7)."""

    async def body(runs: Runs) -> None:
        job = Job(runs)
        await job.answered(GOOD)
        await asyncio.sleep(1)
        weighed = job.answered(NOT_FOUND)
        await settled()
        assert not weighed.done()
        await job.answered(GOOD)
        assert await weighed is None
        assert now() == pytest.approx(1.0, abs=0.01)

    play(body)


def test_a_url_that_breaks_in_mid_job_kills_no_document() -> None:
    """Good answers to requests from before the break prove nothing of those sent after it (A7)."""

    async def body(runs: Runs) -> None:
        job = Job(runs)
        weigheds = []
        for n in range(40):  # every second answer is a late success of a request sent before
            await asyncio.sleep(0.01)
            await job.answered(GOOD, sent_at=-1.0 + n / 100)
            weigheds.append(job.answered(NOT_FOUND))
        parked = await asyncio.gather(*weigheds)
        assert all(weighed is not None and weighed.pauses for weighed in parked)

    play(body)


@pytest.mark.parametrize(
    ("first", "wait_s"), [(None, UNPROVEN_WAIT_S), (GOOD, PROVEN_WAIT_S)], ids=["new", "proven"]
)
def test_the_last_document_of_a_job_does_not_wait_for_ever(
    first: Reply | None, wait_s: float
) -> None:
    """Where no other answer comes, a 404 is the document's own after a while (A7)."""

    async def body(runs: Runs) -> None:
        job = Job(runs)
        if first is not None:
            await job.answered(first)
            await asyncio.sleep(1)
        began = now()
        assert await job.answered(NOT_FOUND) is None
        assert now() - began == pytest.approx(wait_s, abs=0.01)

    play(body)


def test_answers_far_apart_make_a_run_all_the_same() -> None:
    """Twenty without a success in between are a run, however slowly they come (A7)."""

    async def body(runs: Runs) -> None:
        job = Job(runs)
        for _ in range(PAUSES_AT - 1):
            assert await job.answered(NOT_FOUND) is None
            await asyncio.sleep(60)
        assert await job.answered(NOT_FOUND) is not None

    play(body)


def test_after_a_run_one_document_goes_first() -> None:
    """A resumed job is tried with one document at a time until one succeeds, and then runs at full
    speed (A7)."""

    async def body(runs: Runs) -> None:
        job = Job(runs)
        await asyncio.gather(*(job.answered(NOT_FOUND) for _ in range(PAUSES_AT)))
        assert [job.may_start() for _ in range(5)] == [True, False, False, False, False]
        again = await job.answered(NOT_FOUND)
        assert again is not None
        assert again.pauses
        await asyncio.sleep(PROBE_S)
        assert [job.may_start() for _ in range(3)] == [True, False, False]
        await job.answered(GOOD)
        assert [job.may_start() for _ in range(3)] == [True, True, True]

    play(body)


def test_other_failures_neither_make_nor_break_a_run() -> None:
    """A 500 in between says nothing of the address (A7)."""

    async def body(runs: Runs) -> None:
        job = Job(runs)
        weigheds = []
        for _ in range(PAUSES_AT):
            weigheds.append(job.answered(NOT_FOUND))
            assert await job.answered(SERVER_ERROR) is None
        assert all(await asyncio.gather(*weigheds))

    play(body)


def test_jobs_do_not_share_their_runs() -> None:
    """One tenant's forbidden model pauses no other tenant's job (A3)."""

    async def body(runs: Runs) -> None:
        forbidden, other = Job(runs, "forbidden"), Job(runs, "other")
        await asyncio.gather(*(forbidden.answered(FORBIDDEN) for _ in range(PAUSES_AT)))
        assert not (forbidden.may_start() and forbidden.may_start())
        assert other.may_start()
        assert await other.answered(GOOD) is None

    play(body)


def test_what_is_undecided_goes_back_when_the_worker_drains() -> None:
    """A worker that ends keeps no document for a weighed (A9)."""

    async def body(runs: Runs) -> None:
        weighed = Job(runs).answered(NOT_FOUND)
        await settled()
        runs.close()
        with pytest.raises(asyncio.CancelledError):
            await weighed
        with pytest.raises(asyncio.CancelledError):
            await Job(runs).answered(NOT_FOUND)

    play(body)


def test_runs_can_be_switched_off() -> None:
    """With pause_after_run = 0 each answer is its document's own at once (A7)."""

    async def body(runs: Runs) -> None:
        job = Job(runs)
        assert await asyncio.gather(*(job.answered(NOT_FOUND) for _ in range(100))) == [None] * 100
        assert job.may_start()
        assert now() == pytest.approx(0, abs=0.01)

    play(body, pauses_at=0)
