"""The ledger and the queue keep an attempt field by field, and what it cost."""

from __future__ import annotations

from collections.abc import Iterable

from penstock_ledger import ItemKey, Saving, SettledDead, SettledDone, SettledRetry
from penstock_ledger.model import DeadLetter, Result
from penstock_producer.feed.tracing import TRACEPARENT_HEADER, parse_traceparent
from penstock_producer.feed.wire import FED_HEADER, URGENT_HEADER, door_of, encode_item
from penstock_producer.job.endpoints import MEDIA
from penstock_producer.job.lanes import has_own_model, packs
from penstock_producer.job.routing import route_in
from penstock_producer.prices import ModelPrices, saved
from penstock_producer.reporting.by_rules import ESCALATED, route_cause, step_cause
from penstock_workers.item.answer import excerpt
from penstock_workers.item.answer_forms import seconds_of, tier_of, tokens_used
from penstock_workers.item.attempt import Attempt, Item, Settled
from penstock_workers.item.failures import Failure, Reply
from penstock_workers.item.job_view import JobView
from penstock_workers.item.outcome import Dead, Done, Outcome, Retry
from penstock_workers.item.same_request import SAME_REQUEST
from penstock_workers.item.spent import NOTHING_SPENT, Spent

RESPONSE_EXCERPT_BYTES = 2_000  # of the provider's last answer kept in a dead letter


def result_of(attempt: Attempt, reply: Reply) -> Result:
    """Make the result that SQL keeps."""
    spent = attempt.spent_in_all
    return Result(
        key=attempt.key,
        status_code=reply.status,
        body=reply.body,
        request_id=reply.request_id,
        model=reply.model,
        finish_reason=reply.finish_reason,
        prompt_tokens=spent.prompt_tokens or reply.prompt_tokens,  # None where no answer said any
        completion_tokens=spent.completion_tokens or reply.completion_tokens,
        cost_microusd=spent.cost_microusd,
        latency_ms=reply.latency_ms,
        attempts=attempt.number,
        calls=attempt.calls_in_all,
        endpoint=attempt.message.endpoint,
        unpriced=spent.unpriced,
    )


def dead_letter(attempt: Attempt, failure: Failure) -> DeadLetter:
    """Return what tells a person what failed, and holds the request for a replay."""
    spent = attempt.spent_in_all
    return DeadLetter(
        key=attempt.key,
        reason=failure.name,
        attempts=attempt.number,
        calls=attempt.calls_in_all,
        last_error=failure.detail,
        status_code=failure.status,
        request=attempt.given,
        response=excerpt(attempt.last_answer, RESPONSE_EXCERPT_BYTES),
        prompt_tokens=spent.prompt_tokens,
        completion_tokens=spent.completion_tokens,
        cost_microusd=spent.cost_microusd,
        endpoint=attempt.message.endpoint,
        unpriced=spent.unpriced,
    )


def settled_done(attempt: Attempt, result: Result) -> SettledDone:
    return SettledDone(
        key=attempt.key,
        buckets=attempt.job.buckets,
        after_retry=attempt.retries > 0 or attempt.crashes > 0,
        prompt_tokens=attempt.spent.prompt_tokens,
        completion_tokens=attempt.spent.completion_tokens,
        cost_microusd=attempt.spent.cost_microusd,
        calls=attempt.calls,
        keep=attempt.keep,
        reused=result.reason,
        has_budget=has_budget(attempt.job),
    )


def settled_dead(attempt: Attempt, letter: DeadLetter, *, refused_first: bool) -> SettledDead:
    return SettledDead(
        key=attempt.key,
        buckets=attempt.job.buckets,
        reason=letter.reason,
        prompt_tokens=attempt.spent.prompt_tokens,
        completion_tokens=attempt.spent.completion_tokens,
        cost_microusd=attempt.spent.cost_microusd,
        calls=attempt.calls,
        refused_first=refused_first,
        has_budget=has_budget(attempt.job),
    )


def settled_retry(
    attempt: Attempt, retry: Retry, queue: str, *, refused_first: bool
) -> SettledRetry:
    return SettledRetry(
        key=attempt.key,
        buckets=attempt.job.buckets,
        queue=queue,
        tag=attempt.tag,
        raw=_message(attempt, queue, attempt.number if retry.counted else attempt.retries),
        after_s=retry.after_s,
        rate_limited=retry.rate_limited,
        # for that one nothing was tried
        reason="" if retry.name == SAME_REQUEST else retry.name,
        prompt_tokens=attempt.spent.prompt_tokens,
        completion_tokens=attempt.spent.completion_tokens,
        cost_microusd=attempt.spent.cost_microusd,
        calls=attempt.calls,
        has_budget=has_budget(attempt.job),
        refused_first=refused_first,
    )


def is_awaited(settled: Settled) -> bool:
    """Return whether a caller waits for what became of the item."""
    item = settled[0]
    return isinstance(item, Attempt) and item.job.awaited


def has_budget(job: JobView) -> bool:
    """Return whether money may be reserved for its calls: it has a budget, or its tenant has."""
    return job.tenant_usd is not None or job.spec.budget_usd is not None


def message_again(item: Item, retries: int) -> bytes:
    """Return the item's message for another attempt.

    It travels as it came, with its body or by reference."""
    return _message(item, item.delivery.queue, retries)


def message_to(item: Item, queue: str) -> bytes:
    """Return the item's message as it came, for another queue."""
    return _message(item, queue, item.retries)


def _message(item: Item, queue: str, retries: int) -> bytes:
    message, headers = item.message, item.delivery.headers
    fed, trace = headers.get(FED_HEADER), headers.get(TRACEPARENT_HEADER)
    return encode_item(
        message.key,
        queue=queue,
        body=message.body,
        ref=message.ref,
        retries=retries,
        calls=item.calls_in_all,
        spent=item.spent_in_all.as_header,
        urgent=headers.get(URGENT_HEADER) is True,
        fed=fed if type(fed) is int else None,
        trace=trace if parse_traceparent(trace) is not None else None,
        endpoint=message.endpoint,
        stream=door_of(headers),
    )


def charge(attempt: Attempt, happened: Failure | Reply) -> None:
    """Note what an answer cost, whether the job accepts it or not, and what it saved.

    What a model of the worker's own costs, its turn says. Another cause of a saving is booked by
    what ``saved`` returns of it."""
    prompt, completion = happened.prompt_tokens, happened.completion_tokens
    if prompt is None and completion is None and not seconds_of(happened.usage):
        if isinstance(happened, Reply) and attempt.job.spec.endpoint in MEDIA:  # paid by the image
            attempt.spent = attempt.spent.plus(Spent(unpriced=1))
        return
    used, spec = tokens_used(happened.usage, prompt, completion), attempt.job.spec
    cost, unpriced = 0, 0
    if not has_own_model(spec.lane):
        in_batch = packs(spec.lane)
        tier = None if in_batch else tier_of(happened.usage)
        ordinary = prices_of(attempt.job, happened.model)
        prices = None if ordinary is None else ordinary.of_tier(tier)
        if prices is None:
            unpriced = 1
        else:
            cost = prices.microusd(used, in_batch=in_batch)
        attempt.savings += tuple(saved(ordinary, used, tier=tier, in_batch=in_batch))
    spent = Spent(used.prompt, used.completion, cost, unpriced=unpriced)
    attempt.spent = spent if attempt.spent is NOTHING_SPENT else attempt.spent.plus(spent)


def savings_in(group: Iterable[Settled]) -> dict[ItemKey, tuple[Saving, ...]]:
    """Return what answers of attempts saved, and what they cost by rules of their job.

    Most saved nothing, and have none."""
    return {
        item.key: (*item.savings, *(_by_rules(item, outcome) if item.job.has_rules else ()))
        for item, outcome in group
        if isinstance(item, Attempt) and (item.savings or item.job.has_rules)
    }


def prices_of(job: JobView, answered: str | None, *, tier: str | None = None) -> ModelPrices | None:
    """Return the prices of the model that ``answered``, else of the one asked; None if unknown.

    ``tier`` is the answer's. None, too, where the model is the worker's."""
    if has_own_model(job.spec.lane):
        return None
    return job.provider.prices_of(answered, job.spec.model, tier=tier)


def _by_rules(attempt: Attempt, outcome: Outcome) -> tuple[Saving, ...]:
    """Return what an attempt cost by each rule of its job, as a saving below 0.

    A document counts where it ends."""
    spent, spec, found = attempt.spent, attempt.job.spec, list[Saving]()
    ends = isinstance(outcome, Done | Dead)
    if spec.routes and attempt.given:  # of an equal request's answer in a batch nothing is read
        found.append(_of_rule(route_cause(route_in(attempt.given)), ends, spent))
    if attempt.step:
        found.append(_of_rule(step_cause(attempt.step), ends, spent))
    if spec.escalate is not None and attempt.spent_in_all.escalations:
        better = spent._replace(cost_microusd=spent.cost_microusd - attempt.first_microusd)
        found.append(_of_rule(ESCALATED, spent.escalations, better))
    return tuple(found)


def _of_rule(cause: str, documents: int, spent: Spent) -> Saving:
    return Saving(
        cause, int(documents), saved_microusd=-spent.cost_microusd, unpriced=spent.unpriced
    )
