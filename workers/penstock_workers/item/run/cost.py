"""An item's next call may cost so much, and so do the items of a hosted model.

For the budget of its job a call is counted at the dearest that its prices allow. An engine of the
worker's own is paid by the hour: what its calls cost is known when they have ended, and nothing is
reserved.

While k items compute, each pays a k-th of the price. So the items of a worker together cost what it
cost while it computed, however they overlap, in O(1) per item. Time in which nothing computes
belongs to no item; the metrics show it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from math import ceil
from typing import Final

import orjson

from penstock_ledger import FIGURE_MAX, MayCost
from penstock_producer.accepting.estimates import (
    DEFAULT_OUTPUT_TOKENS,
    answers_asked,
    output_asked,
    sound_bytes,
)
from penstock_producer.job.lanes import has_own_model
from penstock_producer.job.tiers import tier_named
from penstock_producer.prices import ModelPrices, TokensUsed
from penstock_workers.errors import PricesMissing
from penstock_workers.item.answer import Tried
from penstock_workers.item.attempt import Attempt
from penstock_workers.item.failures import Failure, Reply
from penstock_workers.item.lane import Admission, Prepared, Turn
from penstock_workers.item.settling.rows import has_budget, prices_of
from penstock_workers.item.spent import Spent
from penstock_workers.settings import CostSettings

HOUR: Final = b'"1h"'
"""In every request that asks for a prompt cache of an hour, whose tokens cost more to write."""
BYTES_PER_TOKEN: Final = 2
"""Of the whole request. English has four bytes a token, compact JSON two and a half, Chinese four;
only noise has fewer than two. The event loop waits for this, so no text is looked into."""
EXPECTED_BYTES: Final = 4
"""Of a token, where an estimate is wanted that is near and no bound."""
MEDIA_BYTES: Final = 1_000
MEDIA_LOOKED_FOR: Final = 64
"""An inlined file has more bytes than the first; of a request that has more of them than the
second, the others count as text."""
MEDIA_TOKENS: Final = 2_000
"""Of an inlined file: more than an image has. A long sound or document has more; the answer's own
figures say so."""
LEAST_SOUND_BYTES_PER_S: Final = 4_000
"""Of a recording that is paid by the minute: 32 kbit/s, as of speech that is packed well."""
_MEDIA_MARKS: Final = (b";base64,", b'"data":"')


def may_cost(attempt: Attempt) -> MayCost | None:
    """Return what the next call may cost; None in a job without a budget.

    ``attempt.body`` is the request that is sent next, of the model that is asked.

    Raises PricesMissing where its tenant has a budget, and the price is not known: the call would
    count as free.
    """
    job, paid = attempt.job, attempt.spent.cost_microusd
    if not has_budget(job):
        return None
    if has_own_model(job.spec.lane):
        return MayCost(paid=paid)
    named, tier = _named_in(attempt.body)
    model = named or job.spec.model  # a line may name a dearer one than its job, or another tier
    prices = job.provider.prices_of(model, tier=tier)
    if prices is None and job.tenant_usd is not None:
        raise PricesMissing(job.spec.provider, model, job.tenant_usd, job.spec.tenant, tier=tier)
    prices = prices or prices_of(job, model, tier=tier)
    if prices is None:
        return MayCost(paid=paid)
    asked = whole(attempt)
    return MayCost(*dearest(prices, asked, prompt_bound(asked)), paid)


def dearest(
    prices: ModelPrices, body: bytes, tokens_in: int, *, in_batch: bool = False
) -> tuple[int, bool]:
    """Return millionths of a dollar, and whether the request bounds its answer.

    Where it does not, the answer is as long as first estimates have it. ``tokens_in`` are those of
    its prompt."""
    request = orjson.loads(body)
    most = output_asked(request)
    tokens_out = answers_asked(request) * (DEFAULT_OUTPUT_TOKENS if most is None else most)
    for_hour = tokens_in if HOUR in body else 0
    ways = (
        TokensUsed(tokens_in, tokens_out),
        TokensUsed(tokens_in, tokens_out, cache_written=tokens_in, cache_written_hour=for_hour),
        TokensUsed(tokens_in, tokens_out, 0, tokens_in, tokens_out, for_hour),
    )
    seconds = sound_bytes(body) / LEAST_SOUND_BYTES_PER_S if prices.minute else 0.0
    cost = max(prices.microusd(used._replace(seconds=seconds), in_batch=in_batch) for used in ways)
    return min(FIGURE_MAX, max(1, cost)), most is not None


def _named_in(body: bytes) -> tuple[str | None, str | None]:
    """Return the model and the service tier that a request names, to Gemini as well."""
    found = orjson.loads(body)
    if not isinstance(found, dict):
        return None, None
    model = found.get("model")
    return model.removeprefix("models/") if isinstance(model, str) else None, tier_named(found)


def prompt_bound(body: bytes) -> int:
    """Return more tokens than nearly every prompt has, by its length alone."""
    files, size = _media(body)
    return ceil((len(body) - size) / BYTES_PER_TOKEN) + files * MEDIA_TOKENS


def estimated_prompt(body: bytes) -> int:
    """Return the tokens to expect of a request's prompt.

    They are a quarter of its bytes, without images and sounds. The same on every machine and in
    every lane, before anything is known of the model: it finds prompts that explode, and is no
    measure of the others.
    """
    return ceil((len(body) - _media(body)[1]) / EXPECTED_BYTES)


def whole(attempt: Attempt) -> bytes:
    """Return the request with all that its model reads: what an explicit cache holds of it, too."""
    behind = attempt.behind
    return attempt.body if behind is None or behind.whole is None else behind.whole


def too_long(body: bytes, most: int | None) -> str | None:
    """Return why a request is longer than its job's ``max_prompt_tokens``; None of others."""
    if (
        most is None
        or len(body) <= most * EXPECTED_BYTES
        or (tokens := estimated_prompt(body)) <= most
    ):
        return None
    return (
        f"its prompt has about {tokens:,} tokens by estimate; the job's max_prompt_tokens is "
        f"{most:,}, and nothing was sent"
    )


def _media(body: bytes) -> tuple[int, int]:
    """Return how many inlined files a request has, and their bytes."""
    files = size = 0
    for mark in _MEDIA_MARKS:
        start = body.find(mark)
        for _ in range(MEDIA_LOOKED_FOR):
            if start < 0:
                break
            start += len(mark)
            end = body.find(b'"', start)
            if (
                end - start > MEDIA_BYTES
                and body.find(b" ", start, end) < 0
                and body[start : start + 5] != b"data:"
            ):
                files, size = files + 1, size + end - start
            start = body.find(mark, max(start, end))
    return files, size


MICROUSD_PER_USD = 1_000_000
SECONDS_PER_HOUR = 3_600


class SharedTime:
    """Shares computing time among items, on the item loop; ``busy_s`` is read by any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at = clock()
        self._inside = 0
        self._share_s = 0.0  # what one that computes since the beginning would have been given
        self.busy_s = 0.0

    def enter(self) -> float:
        """Enter, and return what ``leave`` is to be given."""
        self._pass()
        self._inside += 1
        return self._share_s

    def leave(self, entered: float) -> float:
        """Return the seconds of the worker that this one used."""
        self._pass()
        self._inside -= 1
        return self._share_s - entered

    def _pass(self) -> None:
        now = self._clock()
        if self._inside:
            self.busy_s += now - self._at
            self._share_s += (now - self._at) / self._inside
        self._at = now


class PricedAdmission:
    """Implements ``Admission`` around that of the lane: a turn is charged until it concludes."""

    def __init__(self, inner: Admission, prices: CostSettings, shared: SharedTime) -> None:
        self._inner = inner
        self._microusd_per_s = prices.usd_per_hour * MICROUSD_PER_USD / SECONDS_PER_HOUR
        self._shared = shared

    def at_once(self, attempt: Attempt) -> Turn | None:
        turn = self._inner.at_once(attempt)
        return (
            None if turn is None else PricedTurn(turn, attempt, self._shared, self._microusd_per_s)
        )

    async def turn(self, attempt: Attempt, prepared: Prepared) -> Turn:
        return PricedTurn(
            await self._inner.turn(attempt, prepared), attempt, self._shared, self._microusd_per_s
        )

    def is_down(self, provider: str) -> bool:
        return self._inner.is_down(provider)

    def may_retry(self, attempt: Attempt) -> bool:
        return self._inner.may_retry(attempt)

    async def close(self) -> None:
        await self._inner.close()


class PricedTurn:
    """The turn of one item, charged by the time that it computes.

    It computes from ``start`` on, until the first of ``conclude`` and ``release``."""

    __slots__ = ("_attempt", "_entered", "_inner", "_microusd_per_s", "_shared")

    def __init__(
        self, inner: Turn, attempt: Attempt, shared: SharedTime, microusd_per_s: float
    ) -> None:
        self._inner = inner
        self._attempt = attempt
        self._shared = shared
        self._microusd_per_s = microusd_per_s
        self._entered: float | None = None

    def start(self) -> None:
        self._inner.start()
        self._entered = self._shared.enter()

    def conclude(self, tried: Tried, happened: Failure | Reply) -> None:
        """Charge the time of an answer, also of a refused or failed one."""
        self._charge()
        self._inner.conclude(tried, happened)

    def release(self) -> None:
        self._charge()
        self._inner.release()

    def _charge(self) -> None:
        if self._entered is None:
            return
        cost = round(self._shared.leave(self._entered) * self._microusd_per_s)
        self._entered = None
        self._attempt.spent = self._attempt.spent.plus(
            Spent(cost_microusd=cost, unpriced=0 if self._microusd_per_s else 1)
        )
