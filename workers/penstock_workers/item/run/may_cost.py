"""What the next call of an item may cost: the dearest that its prices allow, for the budget of its
job.

An engine of the worker's own is paid by the hour: what its calls cost is known when they have
ended, and nothing is reserved.
"""

from __future__ import annotations

from math import ceil
from typing import Final

import orjson

from penstock_ledger import FIGURE_MAX, MayCost
from penstock_producer.accepting.estimates import DEFAULT_OUTPUT_TOKENS, answers_asked, output_asked
from penstock_producer.job.lanes import has_own_model
from penstock_producer.prices.token_prices import ModelPrices, TokensUsed
from penstock_workers.errors import PricesMissing
from penstock_workers.item.attempt import Attempt
from penstock_workers.item.settling.rows import has_budget, prices_of

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
_MEDIA_MARKS: Final = (b";base64,", b'"data":"')


def may_cost(attempt: Attempt) -> MayCost | None:
    """None in a job without a budget.

    ``attempt.body`` is the request that is sent next, of the model that is asked.

    Raises PricesMissing where its tenant has a budget, and the price is not known: the call would
    count as free.
    """
    job, paid = attempt.job, attempt.spent.cost_microusd
    if not has_budget(job):
        return None
    if has_own_model(job.spec.lane):
        return MayCost(paid=paid)
    model = _model_in(attempt.body) or job.spec.model  # a line may name a dearer one than its job
    prices = job.provider.prices_of(model)
    if prices is None and job.tenant_usd is not None:
        raise PricesMissing(job.spec.provider, model, job.tenant_usd, job.spec.tenant)
    prices = prices or prices_of(job, model)
    if prices is None:
        return MayCost(paid=paid)
    return MayCost(*dearest(prices, attempt.body, prompt_bound(attempt.body)), paid)


def dearest(
    prices: ModelPrices, body: bytes, tokens_in: int, *, in_batch: bool = False
) -> tuple[int, bool]:
    """Millionths of a dollar, and whether the request says how long its answer may be; where it
    does not, that is as long as first estimates have it. ``tokens_in`` are those of its prompt."""
    request = orjson.loads(body)
    most = output_asked(request)
    tokens_out = answers_asked(request) * (DEFAULT_OUTPUT_TOKENS if most is None else most)
    for_hour = tokens_in if HOUR in body else 0
    ways = (
        TokensUsed(tokens_in, tokens_out),
        TokensUsed(tokens_in, tokens_out, cache_written=tokens_in, cache_written_hour=for_hour),
        TokensUsed(tokens_in, tokens_out, 0, tokens_in, tokens_out, for_hour),
    )
    cost = max(prices.microusd(used, in_batch=in_batch) for used in ways)
    return min(FIGURE_MAX, max(1, cost)), most is not None


def _model_in(body: bytes) -> str | None:
    found = orjson.loads(body)
    model = found.get("model") if isinstance(found, dict) else None
    return (
        model.removeprefix("models/") if isinstance(model, str) else None
    )  # as requests to Gemini may have it


def prompt_bound(body: bytes) -> int:
    """More tokens than nearly every prompt has, by its length alone."""
    files, size = _media(body)
    return ceil((len(body) - size) / BYTES_PER_TOKEN) + files * MEDIA_TOKENS


def estimated_prompt(body: bytes) -> int:
    """Tokens to expect of a request's prompt: a quarter of its bytes, without images and sounds.

    The same on every machine and in every lane, before anything is known of the model: it finds
    prompts that explode, and is no measure of the others."""
    return ceil((len(body) - _media(body)[1]) / EXPECTED_BYTES)


def too_long(body: bytes, most: int | None) -> str | None:
    """Return what to say of a request whose prompt is longer than its job's ``max_prompt_tokens``;
    None of others."""
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
    """How many inlined files a request has, and their bytes."""
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
