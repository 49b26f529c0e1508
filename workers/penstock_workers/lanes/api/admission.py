"""The admission of the `api` lane: a ticket with a start time from the quota of the fleet.

What a request will cost that quota is estimated before it is sent, and learned from what answers
cost.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import orjson

from penstock_ledger import REDIS_TIMEOUT_S, RedisAddress
from penstock_producer.accepting.estimates import output_asked
from penstock_ratelimit import (
    Estimator,
    InteractiveTarget,
    Learned,
    Limiter,
    PerMinute,
    Quota,
    SharedLimiter,
    Ticket,
    Usage,
    profile_for,
)
from penstock_ratelimit.for_penstock import FLUSH_S, ScriptClient, cancel_and_wait
from penstock_workers.item.answer import Tried
from penstock_workers.item.attempt import Attempt
from penstock_workers.item.failures import Failure, Reply
from penstock_workers.item.lane import Prepared
from penstock_workers.item.run.fates import explain
from penstock_workers.lanes.api.polls import GaugeWatch
from penstock_workers.settings import ProviderSettings, WorkerSettings

# requests in flight that a worker begins with where a concurrency was named: no more than a server
# with a queue of its own takes at once; the next round trips double it
START_MOST: Final = 32

# no tokenizer packs text more tightly but for runs of blanks: what a prompt costs for sure
MOST_CHARS_PER_TOKEN = 32
# answers of a provider without limits: enough to know what items cost, should limits be found
LEARN_EVERY = 8
_NOT_TEXT = (b'"data:', b'"input_audio"', b'"file_data"', b'"inlineData"', b'"inline_data"')


class Costs:
    """One estimator per provider.

    ``share`` exchanges what they learn with the fleet, in the background."""

    def __init__(self, providers: Mapping[str, ProviderSettings]) -> None:
        self._profiles = {
            name: profile_for(provider.base_url, provider.metering)
            for name, provider in providers.items()
        }
        self._estimators = {name: Estimator() for name in providers}
        self._sharing: asyncio.Task[None] | None = None
        # answers since the last one that taught something while there were no limits
        self._unlearned = 0

    def share(self, client: ScriptClient) -> None:
        """Begin to exchange what is learned, through this Redis."""
        learned = [Learned(client, name, estimator) for name, estimator in self._estimators.items()]
        self._sharing = asyncio.create_task(_exchange(learned), name="learned costs")

    async def close(self) -> None:
        if self._sharing is not None:
            await cancel_and_wait(self._sharing)

    def of(self, attempt: Attempt) -> tuple[dict[str, float], dict[str, float]]:
        """Return the units that a request is charged at first, and those that it costs for sure."""
        name, key, asked = (
            attempt.job.spec.provider,
            _key(attempt),
            output_asked(orjson.loads(attempt.body)),
        )
        profile, estimator = self._profiles[name], self._estimators[name]
        prompt, output = (
            estimator.estimate_prompt(key, len(attempt.body)),
            estimator.expected_output(key, asked),
        )
        return profile.reserve(prompt, asked, output), profile.certain(
            _least_prompt(attempt.body), asked
        )

    def when_asked(self, attempt: Attempt) -> tuple[Mapping[str, float], Mapping[str, float]]:
        """Return the same as ``of``, worked out at the first look.

        A quota without limits never looks."""
        request = _Request(self, attempt)
        return _Part(request, 0), _Part(request, 1)

    def sample(self, attempt: Attempt, reply: Reply) -> Usage | None:
        """Return what one answer in ``LEARN_EVERY`` used, where no limits are.

        It teaches what such items cost."""
        self._unlearned += 1
        if self._unlearned >= LEARN_EVERY:
            self._unlearned = 0
            return self.observe(attempt, reply)
        if reply.completion_tokens is None:
            return None
        return Usage(reply.prompt_tokens or 0, reply.completion_tokens)

    def observe(self, attempt: Attempt, reply: Reply) -> Usage | None:
        """Learn from an answer; returns what it used, None when the provider did not say."""
        usage = None if reply.usage is None else Usage.from_body(reply.usage)
        if usage is not None:
            prompt = usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens
            estimator = self._estimators[attempt.job.spec.provider]
            estimator.observe(_key(attempt), len(attempt.body), prompt, usage.output_tokens)
        return usage


class _Request:
    """A request whose costs are worked out once, when they are asked for."""

    __slots__ = ("_attempt", "_costs", "_parts")

    def __init__(self, costs: Costs, attempt: Attempt) -> None:
        self._costs, self._attempt = costs, attempt
        self._parts: tuple[dict[str, float], dict[str, float]] | None = None

    def parts(self) -> tuple[dict[str, float], dict[str, float]]:
        if self._parts is None:
            self._parts = self._costs.of(self._attempt)
        return self._parts


class _Part(Mapping[str, float]):
    """The charge at admission (0), or the sure cost of the request (1), by dimension."""

    __slots__ = ("_number", "_request")

    def __init__(self, request: _Request, number: int) -> None:
        self._request, self._number = request, number

    def __getitem__(self, dim: str) -> float:
        return self._request.parts()[self._number][dim]

    def __iter__(self) -> Iterator[str]:
        return iter(self._request.parts()[self._number])

    def __len__(self) -> int:
        return len(self._request.parts()[self._number])


async def _exchange(learned: Iterable[Learned]) -> None:
    while True:
        await asyncio.sleep(FLUSH_S)
        for one in learned:
            await one.flush()


def _key(attempt: Attempt) -> str:
    """Return by what items are grouped: documents of one job are alike, and so are answers.

    Another generation may ask another model."""
    return f"{attempt.job.job_id}|{attempt.key.generation}"


def _least_prompt(body: bytes) -> float:
    """Return the tokens that the prompt has for sure.

    How many images and sound have, which travel as text, is not known before."""
    return 0.0 if any(mark in body for mark in _NOT_TEXT) else len(body) / MOST_CHARS_PER_TOKEN


def quotas(settings: WorkerSettings) -> list[Quota]:
    """Return one quota per provider: what its settings declare, corrected by its answers' headers.

    A lone request goes first where there is an account that may refuse it; a server without keys
    has none. Raises MissingApiKey."""
    named = "concurrency" in settings.model_fields_set
    start = min(settings.concurrency, START_MOST) if named else None
    return [
        _quota(name, provider, settings.concurrency, start)
        for name, provider in settings.providers.items()
    ]


def _quota(name: str, provider: ProviderSettings, concurrency: int, start: int | None) -> Quota:
    limits = {dim: PerMinute(amount) for dim, amount in provider.limits.items()}
    adaptive = not limits if provider.adaptive is None else provider.adaptive
    ttft_s = provider.interactive_ttft_s
    return Quota(
        name,
        limits,
        profile=profile_for(provider.base_url, provider.metering).name,
        discover=provider.discover,
        probe=provider.has_account,
        concurrency=concurrency if adaptive else None,
        start=start,
        account=_fingerprint(name, provider),
        reserve=provider.interactive_share,
        interactive=None
        if ttft_s is None
        else InteractiveTarget(ttft_s, ours_last=provider.request_priority is not None),
    )


def _fingerprint(name: str, provider: ProviderSettings) -> str:
    """Name an account without telling its key: another one lifts a hold."""
    account = f"{provider.base_url}\n{provider.api_key(name) or ''}"
    return hashlib.sha256(account.encode()).hexdigest()[:16]


class QuotaAdmission:
    """A provider's shared quota: what an item costs, whose turn it takes, how it went."""

    def __init__(
        self, limiter: Limiter, costs: Costs, closing: contextlib.AsyncExitStack | None = None
    ) -> None:
        self._limiter = limiter
        self._costs = costs
        self._closing = closing or contextlib.AsyncExitStack()

    @classmethod
    def open(cls, settings: WorkerSettings) -> QuotaAdmission:
        """Open the admission with everything that it takes in a worker.

        Call it on the event loop. Raises MissingApiKey."""
        closing = contextlib.AsyncExitStack()
        client = RedisAddress.parse(settings.redis_url).connect_async(
            socket_timeout=REDIS_TIMEOUT_S
        )
        closing.push_async_callback(client.aclose)
        limiter = SharedLimiter(client, quotas(settings))
        closing.push_async_callback(limiter.aclose)
        costs = Costs(settings.providers)
        costs.share(client)
        closing.push_async_callback(costs.close)
        pages = {
            name: provider.metrics_url
            for name, provider in settings.providers.items()
            if provider.metrics_url
        }
        gauges = GaugeWatch(
            pages,
            limiter.gauge,
            looks=limiter.looks,
            unread=limiter.unread,
            closely=[name for name, one in settings.providers.items() if one.interactive_ttft_s],
            http_client=settings.http_client,
        )
        gauges.start()
        closing.push_async_callback(gauges.close)
        return cls(limiter, costs, closing)

    def at_once(self, attempt: Attempt) -> QuotaTurn | None:
        ticket = None if attempt.retries else self._limiter.at_once(attempt.job.spec.provider)
        return None if ticket is None else QuotaTurn(ticket, attempt, self._costs)

    async def turn(self, attempt: Attempt, prepared: Prepared) -> QuotaTurn:
        costs, certain = self._costs.when_asked(attempt)
        ticket = await self._limiter.acquire(
            attempt.job.spec.provider,
            costs,
            certain=certain,
            flow=attempt.job.flow,
            retry=attempt.retries > 0,
        )
        return QuotaTurn(ticket, attempt, self._costs)

    def is_down(self, provider: str) -> bool:
        stats = self._limiter.stats().get(provider)
        return stats is not None and stats.breaker == "open"

    def may_retry(self, attempt: Attempt) -> bool:
        return self._limiter.may_retry(attempt.job.spec.provider)

    async def close(self) -> None:
        await self._closing.aclose()


class QuotaTurn:
    """A ticket of the quota, with what it takes to say afterwards what it cost."""

    __slots__ = ("_attempt", "_costs", "_ticket")

    def __init__(self, ticket: Ticket, attempt: Attempt, costs: Costs) -> None:
        self._ticket, self._attempt, self._costs = ticket, attempt, costs

    def start(self) -> None:
        self._ticket.start()

    def release(self) -> None:
        self._ticket.release()

    def conclude(self, tried: Tried, happened: Failure | Reply) -> None:
        """Settle with the quota; a failed request stays charged as the provider charges it."""
        if isinstance(happened, Reply):
            learn = self._costs.observe if self._ticket.limited else self._costs.sample
            self._ticket.answered(tried.headers, usage=learn(self._attempt, happened))
            return
        self._ticket.failed(
            happened.signal,
            retry_after_s=happened.retry_after_s,
            reason=explain(happened),
            headers=tried.headers,
        )
