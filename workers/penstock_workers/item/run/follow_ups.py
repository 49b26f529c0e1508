"""Asking once more within an attempt: the model whose answer was refused, or another model.

No retry: the item keeps its slot, and the request goes through the quota as any other, is counted
and paid for. Its start is counted anew, so that it ends where a pause or the budget stops its job.
How often it was asked again travels with its message; the conversation does not, so a worker that
dies over it makes the item start from its own request.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import orjson

from penstock_producer.dialects.prompt_caches import without_marks
from penstock_producer.job.endpoints import CHAT, CONVERSE, GENERATE, MESSAGES
from penstock_producer.job.params import as_sent
from penstock_producer.job.request_body import nested_of
from penstock_producer.job.routing import route_in
from penstock_producer.job.targets import Target
from penstock_producer.job.tiers import FLEX, TIER_FIELDS, in_the_standard_tier, in_tier
from penstock_ratelimit import Signal
from penstock_workers.item.answer import excerpt
from penstock_workers.item.attempt import Attempt
from penstock_workers.item.failures import (
    Failure,
    RefusedAnswer,
    Reply,
    TurnedAway,
    failure_of,
    outcome_of,
)
from penstock_workers.item.job_view import JobView
from penstock_workers.item.lane import Admission, Prepared, Turn
from penstock_workers.item.outcome import Dead, Released, Retry
from penstock_workers.item.run.cost import whole
from penstock_workers.item.run.fates import RetryPolicy, decide
from penstock_workers.item.settling.rows import RESPONSE_EXCERPT_BYTES
from penstock_workers.item.spent import NOTHING_SPENT, Spent

REPAIR = Spent(repairs=1)
FALLBACK = Spent(fallbacks=1)
ESCALATION = Spent(escalations=1)
GOES_ON: Final = Failure("escalated", "its first answer goes on to a better model", 200)
"""In the place of an answer that goes on; an outcome only where the next request was not sent."""
# why another model is asked before anything was sent
PROVIDER_DOWN: Final = "provider_down"
LOOK_S = 0.5  # between looks at the breaker of a provider whose turn is waited for
_CONVERSATIONS: Final[Mapping[str, str]] = {
    CHAT: "messages",
    MESSAGES: "messages",
    GENERATE: "contents",
    CONVERSE: "messages",
}  # field by endpoint
# What a provider says against the conversation, which is longer than the document's own request:
# that is not at fault.
_OF_THE_CONVERSATION = frozenset(
    {"bad_request", "context_overflow", "request_too_large", "unprocessable"}
)


def has_follow_up(attempt: Attempt, failure: Failure, policy: RetryPolicy) -> bool:
    """Choose the next request of an item that failed; False where ``failure`` stands."""
    if failure is GOES_ON:
        return _to_better_model(attempt)
    body = _in_standard(attempt, failure)
    if body is not None:
        attempt.first_body = body
        return _next(attempt, body, NOTHING_SPENT)
    if _has_no_cache(attempt, failure):
        attempt.first_body = _restored(attempt)
        return _next(attempt, attempt.first_body, NOTHING_SPENT)
    body = _repair(attempt, failure)
    if body is not None:
        return _next(attempt, body, REPAIR)
    view = attempt.job.fallback
    if view is None or failure.name not in attempt.job.spec.falls_back_on:
        return False
    if not isinstance(decide(attempt, failure, policy), Dead):
        return False
    _leave_model(attempt, view)
    body = in_the_standard_tier(_first(attempt), attempt.job.spec.endpoint) or _first(attempt)
    attempt.first_body = with_model(body, view.spec.model)
    return _next(attempt, attempt.first_body, FALLBACK)


def of_its_tier(attempt: Attempt, happened: Failure | Reply) -> Failure | Reply:
    """Return what happened; that the flex tier is full says nothing of the server."""
    if isinstance(happened, Failure) and _in_standard(attempt, happened) is not None:
        return replace(happened, signal=Signal.REFUSED)
    return happened


def _in_standard(attempt: Attempt, failure: Failure) -> bytes | None:
    """Return the request at the standard price, where the flex tier has no room for it now.

    None for all other failures and requests. Such a refusal costs nothing."""
    spec = attempt.job.spec
    if spec.tier != FLEX or failure.name != "overloaded":
        return None
    return in_the_standard_tier(attempt.body, spec.endpoint)


def _has_no_cache(attempt: Attempt, failure: Failure) -> bool:
    """Return whether a request is refused as it is behind a cache: it is asked again whole.

    Other refusals say nothing of the cache, and say the same of the whole request, at no cost."""
    behind = attempt.behind
    if behind is None or behind.whole is None or failure.status not in (400, 403, 404):
        return False
    behind.is_gone = _OF_A_CACHE.search(failure.detail) is not None
    return True


_OF_A_CACHE: Final = re.compile("cached ?content", re.IGNORECASE)


def _restored(attempt: Attempt) -> bytes:
    """Return the request without the explicit cache that it begins with; it has none any more."""
    body, attempt.behind = whole(attempt), None
    return body


def to_current_model(attempt: Attempt, is_down: Callable[[str], bool]) -> None:
    """Turn the attempt to the model that earlier ones came to, in its job's tier, for its cache.

    While its provider is down, to the next one that is up. Each model is given up once, however
    often its steps are taken."""
    while attempt.models_left < attempt.spent_in_all.fallbacks and attempt.job.fallback is not None:
        _leave_model(attempt, attempt.job.fallback)
    for _ in range(_models_down(attempt.job, is_down)):
        assert attempt.job.fallback is not None, "they were counted"
        _leave_model(attempt, attempt.job.fallback)
        attempt.spent = attempt.spent.plus(FALLBACK)
    spec = attempt.job.spec
    if attempt.models_left:
        attempt.body = with_model(attempt.body, spec.model)
    if spec.tier is not None:
        attempt.body = in_tier(attempt.body, spec.endpoint, spec.tier)
    cached = attempt.job.cached
    if cached is not None:
        if spec.preprocess is not None:  # which has changed the request since
            attempt.levels = tuple(cached.levels(attempt.body))
        attempt.body = cached.laid_out(attempt.body, attempt.levels)
        if attempt.behind is not None:
            attempt.body = attempt.behind.asked(cached, attempt.body, attempt.levels)


def routed(job: JobView, body: bytes) -> JobView:
    """Return the job as the document of this request is asked, by the rule that took it."""
    number = route_in(body)
    view = job.routes[number - 1] if 0 < number <= len(job.routes) else None
    return view or job


Steps = Callable[[str], Awaitable[int]]  # the latest step that a job has taken, by its id


async def by_rules(attempt: Attempt, step_of: Steps) -> None:
    """Turn the attempt to the better model, where an earlier one's answer went on to it.

    Else to the latest step of its job's `degrade`. Each is turned to once, however often the steps
    of an attempt are taken."""
    for target in attempt.targets:
        attempt.body = as_asked(attempt.body, target, attempt.job)
    if attempt.spent_in_all.escalations and attempt.job.escalation is not None:
        for target, view in turns(attempt.job, escalated=True, steps=0):
            _turn_to_target(attempt, target, view)
    else:
        await gave_way(attempt, step_of)


async def gave_way(attempt: Attempt, step_of: Steps) -> bool:
    """Ask as the latest step of the job says; False where there is none that is not asked by.

    So it is when an item is made ready, and again when its turn has come: it begins then."""
    before = attempt.step
    if attempt.job.next_step is None or attempt.next_body is not None:
        return False
    more = await step_of(attempt.key.job_id) - before
    for target, view in turns(attempt.job, escalated=False, steps=more):
        _turn_to_target(attempt, target, view)
        attempt.step += 1
    return attempt.step > before


def turns(job: JobView, *, escalated: bool, steps: int) -> Iterator[tuple[Target, JobView]]:
    """Yield what a document is turned to: the better model, or one step after the other."""
    if escalated and job.escalation is not None:
        yield job.escalation.rule.target, job.escalation.view
        return
    for _ in range(steps):
        if job.next_step is None:
            return
        yield job.next_step
        job = job.next_step[1]


def _turn_to_target(attempt: Attempt, target: Target, view: JobView) -> None:
    attempt.job, attempt.body = view, as_asked(_restored(attempt), target, view)
    attempt.targets += (target,)


def wanting(attempt: Attempt, happened: Failure | Reply) -> Failure | Reply:
    """Return what happened; that an answer goes on where the job's `escalate` finds it wanting.

    Each document does once at most: neither the better model's answer goes on, nor that of a
    fallback, which was asked for what the first model cannot do."""
    better, before = attempt.job.escalation, attempt.spent_in_all
    if (
        better is None
        or not isinstance(happened, Reply)
        or before.escalations
        or before.fallbacks
        or not better.rule.applies(happened.content, happened.body)
    ):
        return happened
    return GOES_ON


async def turn_of(admission: Admission, attempt: Attempt, prepared: Prepared) -> Turn:
    """Return the turn of an item whose job has `fallback`.

    Where its provider goes down meanwhile, and that of another model is not, the item is another
    attempt, which asks that model: raises TurnedAway. Nothing was sent, so no attempt is counted.
    """
    if attempt.next_body is not None:
        return await admission.turn(attempt, prepared)
    waiting = asyncio.ensure_future(admission.turn(attempt, prepared))
    try:
        while not waiting.done():
            await asyncio.wait({waiting}, timeout=LOOK_S)
            if not waiting.done() and _models_down(attempt.job, admission.is_down):
                waiting.cancel()
                await asyncio.wait({waiting})
        if waiting.cancelled():
            provider = attempt.job.spec.provider
            raise TurnedAway(
                Retry(0.0, PROVIDER_DOWN, f"{provider}; another model is asked", counted=False)
            )
        return waiting.result()
    finally:
        waiting.cancel()  # which costs nothing, and is nothing where it has ended


def instead_of(
    attempt: Attempt, before: Failure, error: BaseException, policy: RetryPolicy
) -> Failure:
    """Return what the item comes to whose next request was not sent.

    Raises TurnedAway where that is no failure.

    Answers were paid for, so it ends in an outcome that keeps their price in the books: another
    attempt, where whatever stopped this one is found again. Where the next model is another
    worker's, that attempt is made at once in its queue."""
    outcome = outcome_of(error) if isinstance(error, Exception) else None
    if isinstance(outcome, Released) and outcome.to is not None:
        if not attempt.calls:  # refused before it was sent: there is nothing to keep
            raise error
        raise TurnedAway(
            Retry(0.0, before.name, before.detail, counted=False, to=outcome.to)
        ) from error
    name = failure_of(error).name if outcome is None and isinstance(error, Exception) else ""
    if isinstance(outcome, Dead):
        name = outcome.letter.reason
    if name in _OF_THE_CONVERSATION and before is not GOES_ON:
        return stands(before, name)
    if isinstance(outcome, Dead):
        raise error
    wait_s = policy.wait_s(attempt.retries, None)
    raise TurnedAway(Retry(wait_s, before.name, before.detail, counted=False)) from error


def after(before: Failure, now: Failure) -> Failure:
    """Return what two failures in a row come to.

    A conversation that is refused leaves the mismatch as it was."""
    if before.refused is not None and now.name in _OF_THE_CONVERSATION:
        return stands(before, now.name)
    return now


def stands(before: Failure, now: str) -> Failure:
    return Failure(
        before.name, f"{before.detail}; asking again failed: {now}", before.status, final=True
    )


def note_escalated(attempt: Attempt) -> None:
    """Note that the answer of an attempt goes on: what it has cost until now was the first's."""
    attempt.first_microusd = attempt.spent.cost_microusd
    attempt.spent = attempt.spent.plus(ESCALATION)


def let_go(attempt: Attempt) -> None:
    """Keep only the beginning of a large answer that is refused, and give back its room."""
    attempt.last_answer = excerpt(attempt.last_answer, RESPONSE_EXCERPT_BYTES)
    if attempt.room is not None:
        attempt.room.release()


def with_model(body: bytes, model: str | None) -> bytes:
    return orjson.dumps({**orjson.loads(without_marks(body)), "model": model})


def _to_better_model(attempt: Attempt) -> bool:
    better = attempt.job.escalation
    assert better is not None, "its rule has decided"
    note_escalated(attempt)
    attempt.first_body = as_asked(_first(attempt), better.rule.target, better.view)
    _turn_to(attempt, better.view)
    return _next(attempt, attempt.first_body, NOTHING_SPENT)


def as_asked(body: bytes, target: Target, view: JobView) -> bytes:
    """Return a request as it is for a target of the job's rules."""
    request, spec = orjson.loads(without_marks(body)), view.spec
    if target.model is not None:
        request["model"] = target.model
    params, nested = as_sent(dict(target.params)), nested_of(spec.endpoint)
    request = request | params if nested is None else nested.with_params(request, params)
    if target.tier is not None or target.provider is not None:
        for name in TIER_FIELDS:
            request.pop(name, None)
    found: bytes = orjson.dumps(request)
    return found if spec.tier is None else in_tier(found, spec.endpoint, spec.tier)


def _leave_model(attempt: Attempt, following: JobView) -> None:
    _turn_to(attempt, following)
    attempt.models_left += 1


def _turn_to(attempt: Attempt, following: JobView) -> None:
    provider = attempt.job.spec.provider
    if provider != following.spec.provider and attempt.calls:
        calls, spent = attempt.calls, attempt.spent
        for _, sent, used in attempt.elsewhere:
            calls, spent = calls - sent, spent.minus(used)
        attempt.elsewhere += ((provider, calls, spent),)
    attempt.job = following


def _models_down(view: JobView, is_down: Callable[[str], bool]) -> int:
    """Count the models from here on with an open breaker, before one without.

    0 where all have one."""
    following: JobView | None = view
    down = 0
    while following is not None and is_down(following.spec.provider):
        following, down = following.fallback, down + 1
    return 0 if following is None else down


def _repair(attempt: Attempt, failure: Failure) -> bytes | None:
    """Return the conversation that shows the model what is wrong; None where none is due."""
    if failure.refused is None or attempt.repairs_left <= 0:
        return None
    place = _CONVERSATIONS.get(attempt.job.spec.endpoint)
    request = orjson.loads(_first(attempt))
    before = None if place is None else request.get(place)
    if place is None or not isinstance(before, list):
        return None  # the provider has taken it, whatever it is
    told = _messages(failure.refused)
    write = _WRITERS.get(attempt.job.spec.endpoint)
    request[place] = [*before, *(told if write is None else map(write, told))]
    return orjson.dumps(request)


# A message in the form of APIs whose content is a list of parts.
_WRITERS: Final[Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]]] = {
    GENERATE: lambda message: {
        "role": "model" if message["role"] == "assistant" else "user",
        "parts": [{"text": message["content"]}],
    },
    CONVERSE: lambda message: {"role": message["role"], "content": [{"text": message["content"]}]},
}


def _messages(refused: RefusedAnswer) -> list[dict[str, Any]]:
    told = {
        "role": "user",
        "content": "Your answer does not fulfil the JSON schema that it must follow. At "
        f"{refused.rule}. Answer again with the corrected JSON only, without any other "
        "text.",
    }
    return [{"role": "assistant", "content": refused.answer}, told] if refused.answer else [told]


def _first(attempt: Attempt) -> bytes:
    """Return the request without earlier answers: only the last one is shown."""
    return attempt.first_body if attempt.first_body is not None else _restored(attempt)


def _next(attempt: Attempt, body: bytes, used: Spent) -> bool:
    attempt.first_body = _first(attempt)
    attempt.next_body = body
    attempt.spent = attempt.spent.plus(used)
    return True
