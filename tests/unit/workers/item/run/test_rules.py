"""An item whose job has rules: which model is asked, what is sent, and what is in the books."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, cast

import orjson
import pytest
from attempts import make_runner

from penstock_ledger import RULE
from penstock_ledger.model import Job, JobState
from penstock_producer.feed.wire import SPENT_HEADER
from penstock_producer.job.routing import marked, route_in
from penstock_producer.job.spec import JobSpec
from penstock_workers.item.answer import Answer
from penstock_workers.item.attempt import Attempt, Settled
from penstock_workers.item.deliveries import Delivery
from penstock_workers.item.job_view import JobView
from penstock_workers.item.lane import Prepared, Request
from penstock_workers.item.outcome import Dead, Done, Retry
from penstock_workers.item.run import reading
from penstock_workers.item.run.quarantine import SUSPECT_AFTER_CRASHES
from penstock_workers.item.run.reading import read_job
from penstock_workers.item.settling.records import _batch
from penstock_workers.item.settling.rows import savings_in
from penstock_workers.item.settling.tally import OutcomeTally
from penstock_workers.settings import ProviderSettings, WorkerSettings

BODY = b'{"model":"small","messages":[{"role":"user","content":"Score this."}],"max_tokens":50}'
SETTINGS = WorkerSettings.model_construct(
    lane="api",
    providers={
        "default": ProviderSettings(usd_per_mtok_in=1.0, usd_per_mtok_out=1.0),
        "dear": ProviderSettings(usd_per_mtok_in=100.0, usd_per_mtok_out=100.0),
    },
)
LIMITED = Answer(429, {}, b"{}", 1)
FILTERED = Answer(400, {}, b'{"error":{"code":"content_filter","message":"no"}}', 1)
OVERFLOW = Answer(400, {}, b'{"error":{"code":"context_length_exceeded","message":"long"}}', 1)
BETTER = "score<0.5 -> model=large"


def scored(score: float | None) -> Answer:
    content = orjson.dumps({} if score is None else {"score": score}).decode()
    choice = {"message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 10, "completion_tokens": 5}
    return Answer(200, {}, orjson.dumps({"choices": [choice], "usage": usage}), 1)


class Parts:
    """What stands around a runner. ``answers`` come in their order."""

    job: JobView

    def __init__(self, *answers: Answer) -> None:
        self._answers = list(answers)
        self.sent: list[Mapping[str, Any]] = []
        self.providers: list[str] = []
        self.step = self.crashes = 0
        self.waits: Callable[[], object] = bool  # what happens while an item waits for its turn
        self.refuses: dict[str, Answer] = {}  # by model, before anything is sent

    def known(self, job_id: str, endpoint: str | None = None) -> JobView:
        return self.job

    def submit(self, spec: Mapping[str, Any]) -> None:
        whole = {"model": "small", "prompt": "{text}", **spec}
        stored = JobSpec.from_json(whole).to_json()
        self._stored = Job("job", "key", stored, {}, "", JobState.RUNNING, None, 1, 1, 0.0, None)
        self.job = read_job(cast(Any, self), SETTINGS)("job")

    def get(self, _: str) -> Job:
        return self._stored

    async def prepare(self, request: Request) -> Prepared:
        return Prepared(request, refused=self.refuses.get(orjson.loads(request.body)["model"]))

    def at_once(self, attempt: Attempt) -> None:
        """Never."""

    async def turn(self, attempt: Attempt, prepared: Prepared) -> Any:
        self.waits()
        return self

    async def begin(self, attempt: Attempt, *, sends: bool = False) -> None:
        attempt.begun, attempt.crashes = True, self.crashes

    @contextlib.asynccontextmanager
    async def place(self, attempt: Attempt) -> AsyncIterator[None]:
        """Of the quarantine, in which suspects are asked."""
        yield

    async def take_back(self, attempt: Attempt) -> None:
        attempt.begun = False

    async def vouch(self, item: object, job: object, outcome: object) -> object:
        return outcome

    async def infer(self, *given: Any) -> Answer:
        """Of the lane, and of the quarantine, which is given the attempt and its turn as well."""
        [prepared] = [one for one in given if isinstance(one, Prepared)]
        self.sent.append(orjson.loads(prepared.request.body))
        self.providers.append(prepared.request.provider)
        return self._answers.pop(0)

    def is_down(self, provider: str) -> bool:
        return False

    def start(self) -> None: ...
    def conclude(self, tried: object, happened: object) -> None: ...
    def release(self) -> None: ...
    async def sure(self, *, anew: bool = False) -> None: ...
    def started(self, delivery: Delivery) -> None: ...

    def may_retry(self, attempt: Attempt) -> bool:
        return True

    @property
    def models(self) -> list[str]:
        return [sent["model"] for sent in self.sent]


async def run(
    parts: Parts, body: bytes = BODY, headers: Mapping[str, Any] | None = None, **spec: Any
) -> Settled:
    parts.submit(spec)
    runner = make_runner(parts, steps=lambda _: parts.step)
    kwargs = {"v": 1, "job": "job", "gen": 1, "doc": "doc", "body": orjson.loads(body)}
    return await runner.run(Delivery("job:doc", kwargs, headers or {}, queue="penstock.api"))


def booked(settled: Settled) -> dict[str, tuple[int, int]]:
    """What SQL adds of the attempt: documents by rule, and their cost."""
    return {
        one.cause.removeprefix(RULE): (one.answers, -one.saved_microusd)
        for found in savings_in([settled]).values()
        for one in found
    }


async def test_an_answer_that_the_rule_finds_wanting_goes_on_to_the_better_model() -> None:
    """The second answer is the one outcome; both are paid for, each at its provider's price, and
    what the better model took is counted apart."""
    parts = Parts(scored(0.2), scored(0.3))
    settled = await run(parts, escalate="score<0.5 -> model=large provider=dear max_tokens=9")
    assert isinstance(settled.outcome, Done)
    first, second = parts.sent
    assert first == orjson.loads(BODY)
    assert second == {**first, "model": "large", "max_tokens": 9}, "its answer does not go on again"
    result = settled.outcome.result
    assert (result.calls, result.attempts, result.cost_microusd) == (2, 1, 15 + 1500)
    assert orjson.loads(orjson.loads(result.body)["choices"][0]["message"]["content"]) == {
        "score": 0.3
    }
    assert booked(settled) == {"escalated": (1, 1500)}
    assert _batch([settled]).asked_again == [("job", 0, 0, 1)]
    tally = OutcomeTally(("default", "dear"))
    tally.settled([settled])
    got = {(sample.metric.name, *sample.labels): sample.value for sample in tally.figures("api")}
    assert got["penstock_asked_again_total", "api", "escalation"] == 1
    assert got["penstock_calls_total", "api", "default"] == 1
    assert got["penstock_calls_total", "api", "dear"] == 1


@pytest.mark.parametrize("score", [0.5, None])
async def test_an_answer_that_is_good_enough_or_says_no_score_is_kept(score: float | None) -> None:
    """Nothing more is asked or paid."""
    parts = Parts(scored(score))
    settled = await run(parts, escalate=BETTER)
    assert isinstance(settled.outcome, Done)
    assert (parts.models, booked(settled)) == (["small"], {})


async def test_a_retry_asks_the_better_model_alone() -> None:
    """The first answer was paid for once; its cost travels with the message, and in the outcome
    both are together."""
    parts = Parts(scored(0.2), LIMITED)
    settled = await run(parts, escalate=BETTER)
    assert isinstance(settled.outcome, Retry)
    assert not settled.outcome.counted
    [retry] = _batch([settled]).retries
    headers = orjson.loads(retry.raw)["headers"]
    assert headers[SPENT_HEADER] == [10, 5, 15, 0, 0, 0, 1]
    again = Parts(scored(0.9))
    ended = await run(again, headers=headers, escalate=BETTER)
    assert isinstance(ended.outcome, Done)
    assert again.models == ["large"]
    assert (ended.outcome.result.calls, ended.outcome.result.cost_microusd) == (3, 30)
    assert booked(settled) == {"escalated": (1, 0)}
    assert booked(ended) == {"escalated": (0, 15)}


@pytest.mark.parametrize("sent", [True, False])
async def test_a_better_model_that_fails_for_good_makes_a_dead_letter(sent: bool) -> None:
    """Its first answer was not good enough by the job's own rule; what it cost stays in the
    books."""
    parts = Parts(scored(0.2), OVERFLOW)
    parts.refuses = {} if sent else {"large": OVERFLOW}
    settled = await run(parts, escalate=BETTER)
    assert isinstance(settled.outcome, Dead)
    letter = settled.outcome.letter
    assert (letter.reason, letter.cost_microusd) == ("context_overflow", 15)
    assert letter.request == BODY


async def test_escalation_comes_before_fallback_and_a_fallbacks_answer_is_kept() -> None:
    """A better model that fails goes through the same list; a fallback was asked for what the
    first model cannot do at all."""
    parts = Parts(scored(0.2), FILTERED, scored(0.1))
    settled = await run(parts, escalate=BETTER, fallback=["other"])
    assert isinstance(settled.outcome, Done)
    assert parts.models == ["small", "large", "other"]
    parts = Parts(FILTERED, scored(0.1))
    assert isinstance((await run(parts, escalate=BETTER, fallback=["other"])).outcome, Done)
    assert parts.models == ["small", "other"]


async def test_a_document_is_asked_as_the_rule_says_that_took_it() -> None:
    """The mark in its request names the rule, is never sent, and stays with a dead letter, so that
    a replay takes the same way."""
    rules = ["lang=de -> model=german provider=dear", "stars=1 -> tier=flex"]
    parts = Parts(FILTERED)
    settled = await run(parts, marked(BODY.replace(b"small", b"german"), 1), routes=rules)
    assert (parts.models, parts.providers) == (["german"], ["dear"])
    assert "penstock_route" not in parts.sent[0]
    assert isinstance(settled.outcome, Dead)
    assert route_in(settled.outcome.letter.request) == 1
    assert booked(settled) == {"route:1": (1, 0)}
    flex = Parts(scored(1))
    await run(flex, marked(BODY, 2), routes=rules)
    assert (flex.sent[0]["service_tier"], flex.providers) == ("flex", ["default"])


@pytest.mark.parametrize("number", [0, 3, 999_999])
async def test_a_route_that_the_job_has_not_is_the_jobs_own(number: int) -> None:
    """Messages come from outside."""
    parts = Parts(scored(1))
    settled = await run(parts, marked(BODY, number), routes=["lang=de -> model=a", "b=1 -> refuse"])
    assert isinstance(settled.outcome, Done)
    assert (parts.models, parts.providers) == (["small"], ["default"])
    assert "penstock_route" not in parts.sent[0]


STEPS: dict[str, Any] = {
    "deadline_s": 100.0,
    "degrade": ["model=tiny at 50% of deadline", "max_tokens=9 at 80% of deadline"],
}


async def test_a_document_is_asked_by_the_step_that_its_job_has_taken() -> None:
    """It is counted there, and its answer does not go on to a better model."""
    parts = Parts(scored(0.1))
    parts.step = 2
    settled = await run(parts, **STEPS, escalate=BETTER)
    assert isinstance(settled.outcome, Done)
    assert (parts.models, parts.sent[0]["max_tokens"]) == (["tiny"], 9)
    assert booked(settled) == {"step:2": (1, 15)}


async def test_a_step_that_is_taken_while_an_item_waits_for_its_turn_counts_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A document begins when its call does, however long a worker has held it."""
    monkeypatch.setattr(reading, "STEPS_S", 0.0)
    parts = Parts(scored(1))
    parts.waits = lambda: setattr(parts, "step", 1)
    await run(parts, **STEPS)
    assert (parts.models, parts.sent[0]["max_tokens"]) == (["tiny"], 50)


async def test_a_document_whose_answer_went_on_before_the_step_is_asked_of_the_better_model() -> (
    None
):
    """It had begun: its first answer is paid for, and would be lost."""
    parts = Parts(scored(0.9))
    parts.step = 1
    await run(parts, headers={SPENT_HEADER: [10, 5, 15, 0, 0, 0, 1]}, **STEPS, escalate=BETTER)
    assert parts.models == ["large"]


@pytest.mark.parametrize("went_on", [True, False])
async def test_a_suspect_is_asked_apart_as_it_would_be_elsewhere(went_on: bool) -> None:
    """Its steps are taken twice, as a start that was counted before says that it may end its
    process: the request is the same."""
    parts = Parts(scored(1))
    parts.step, parts.crashes = 1, SUSPECT_AFTER_CRASHES
    headers = {SPENT_HEADER: [10, 5, 15, 0, 0, 0, 1]} if went_on else {}
    settled = await run(parts, headers=headers, **STEPS, escalate=BETTER, fallback=["other"])
    assert isinstance(settled.outcome, Done)
    assert parts.models == ["large" if went_on else "tiny"]
    assert set(booked(settled)) == {"escalated" if went_on else "step:1"}
