"""Sums over settled items, counted once per committed group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from penstock_producer.job.lanes import has_own_model
from penstock_workers.item.attempt import Attempt, Settled
from penstock_workers.item.outcome import Dead, Done, Parked, Released, Retry, Skipped, Unreadable
from penstock_workers.item.same_request import SAME_REQUEST
from penstock_workers.item.spent import Spent
from penstock_workers.metrics import catalogue
from penstock_workers.metrics.samples import Sample, Spread

OUTCOMES: Final = {
    Done: "succeeded",
    Dead: "dead",
    Retry: "retried",
    Released: "requeued",
    Skipped: "skipped",
    Parked: "parked",
    Unreadable: "unreadable",
}
CAUSES: Final = ("counted", "uncounted")
REUSED: Final = ("dedup", "cache")
AGAIN: Final = ("repair", "fallback")
MICROUSD: Final = 1_000_000


class OutcomeTally:
    """Since the process started. Written on the item loop, read by any thread."""

    def __init__(self, providers: Sequence[str]) -> None:
        self.items: Counter[str] = Counter(dict.fromkeys(OUTCOMES.values(), 0))
        self._dead: Counter[str] = Counter()
        self._failed_tries: Counter[str] = Counter()  # by names of item/run/fates.py
        self._retries: Counter[str] = Counter(dict.fromkeys(CAUSES, 0))
        self._reused: Counter[str] = Counter(dict.fromkeys(REUSED, 0))
        self._throttled: Counter[str] = Counter(dict.fromkeys(providers, 0))
        self._calls: Counter[str] = Counter(dict.fromkeys(providers, 0))
        self._tokens_in: Counter[str] = Counter(dict.fromkeys(providers, 0))
        self._tokens_out: Counter[str] = Counter(dict.fromkeys(providers, 0))
        self._cost: Counter[str] = Counter(dict.fromkeys(providers, 0))
        self._unpriced: Counter[str] = Counter()  # answers of which no price is known
        self._engine_cost = 0
        self._asked_again = Counter(dict.fromkeys(AGAIN, 0))
        self._call_seconds = Spread(catalogue.CALL_SECONDS.bounds)
        self._prompt_tokens = Spread(catalogue.PROMPT_TOKENS.bounds)
        self._group_items = Spread(catalogue.COMMIT_ITEMS.bounds)
        self._store_seconds = {store: Spread(catalogue.STORE.bounds) for store in ("SQL", "Redis")}

    def stored(self, store: str, seconds: float) -> None:
        self._store_seconds[store].add(seconds)

    def settled(self, group: Sequence[Settled]) -> None:
        self._group_items.add(float(len(group)))
        for attempt, outcome in group:
            self.items[OUTCOMES[type(outcome)]] += 1
            if not isinstance(attempt, Attempt):
                continue  # no call was made for it
            if isinstance(outcome, Done | Dead) and attempt.calls and attempt.spent.prompt_tokens:
                self._prompt_tokens.add(attempt.spent.prompt_tokens / attempt.calls)
            if isinstance(outcome, Done):
                self._pay(attempt)
                if outcome.result.reason is None:
                    self._call_seconds.add(outcome.result.latency_ms / 1000)
                else:
                    self._reused[outcome.result.reason] += 1
            elif isinstance(outcome, Retry):
                if outcome.name == SAME_REQUEST:
                    continue  # nothing was tried
                self._pay(attempt)
                self._retries["counted" if outcome.counted else "uncounted"] += 1
                self._failed_tries[outcome.name] += 1
                self._throttled[attempt.job.spec.provider] += 1 if outcome.rate_limited else 0
            elif isinstance(outcome, Dead):
                self._pay(attempt)
                self._dead[outcome.letter.reason] += 1
            elif isinstance(outcome, Released) and outcome.crashed:
                self._failed_tries[outcome.crashed] += 1

    def _pay(self, attempt: Attempt) -> None:
        """Count what an attempt cost, whatever it ended in."""
        calls, spent = attempt.calls, attempt.spent
        for provider, sent, used in attempt.elsewhere:
            self._charge(attempt.job.spec.lane, provider, sent, used)
            calls, spent = calls - sent, spent.minus(used)
        self._charge(attempt.job.spec.lane, attempt.job.spec.provider, calls, spent)
        if attempt.spent.repairs or attempt.spent.fallbacks:
            self._asked_again["repair"] += attempt.spent.repairs
            self._asked_again["fallback"] += attempt.spent.fallbacks

    def _charge(self, lane: str, provider: str, calls: int, spent: Spent) -> None:
        self._calls[provider] += calls
        self._tokens_in[provider] += spent.prompt_tokens
        self._tokens_out[provider] += spent.completion_tokens
        if has_own_model(lane):
            self._engine_cost += spent.cost_microusd
        else:
            self._cost[provider] += spent.cost_microusd
            self._unpriced[provider] += spent.unpriced

    @property
    def engine_cost_usd(self) -> float:
        """The cost of the time that items have computed here, by the worker's own price."""
        return self._engine_cost / MICROUSD

    def figures(self, lane: str) -> Iterator[Sample]:
        for outcome, count in self.items.items():
            yield catalogue.ITEMS(count, lane, outcome)
        for reason, count in tuple(self._dead.items()):
            yield catalogue.DEAD(count, lane, reason)
        for reason, count in tuple(self._failed_tries.items()):
            yield catalogue.FAILED_TRIES(count, lane, reason)
        for reason, count in self._reused.items():
            yield catalogue.REUSED(count, lane, reason)
        for cause, count in self._retries.items():
            yield catalogue.RETRIES(count, lane, cause)
        for cause, count in self._asked_again.items():
            yield catalogue.ASKED_AGAIN(count, lane, cause)
        for metric, counts in (
            (catalogue.RATE_LIMITED, self._throttled),
            (catalogue.CALLS, self._calls),
        ):
            for provider, count in tuple(counts.items()):
                yield metric(count, lane, provider)
        for direction, counts in (("in", self._tokens_in), ("out", self._tokens_out)):
            for provider, count in tuple(counts.items()):
                yield catalogue.TOKENS(count, lane, provider, direction)
        for provider, microusd in tuple(self._cost.items()):
            if microusd or not self._unpriced[provider]:  # what has no known price is not free
                yield catalogue.COST(microusd / MICROUSD, lane, provider)
        yield catalogue.CALL_SECONDS(self._call_seconds, lane)
        yield catalogue.PROMPT_TOKENS(self._prompt_tokens, lane)
        yield catalogue.COMMIT_ITEMS(self._group_items, lane)
        for store, seconds in self._store_seconds.items():
            yield catalogue.STORE(seconds, lane, store.lower())
