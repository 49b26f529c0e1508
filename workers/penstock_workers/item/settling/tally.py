"""Sums over settled items, counted once per committed group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from penstock_producer.job.lanes import has_own_model
from penstock_producer.prices import PROMPT_CACHE
from penstock_workers.item.attempt import Attempt, Settled
from penstock_workers.item.outcome import (
    Dead,
    Done,
    Outcome,
    Parked,
    Released,
    Retry,
    Skipped,
    Unreadable,
)
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
AGAIN: Final = ("repair", "fallback", "escalation")
MICROUSD: Final = 1_000_000


class OutcomeTally:
    """Sums since the process started, written on the item loop and read by any thread."""

    def __init__(self, providers: Sequence[str]) -> None:
        self.items: Counter[str] = Counter(dict.fromkeys(OUTCOMES.values(), 0))
        self.paid = Paid(providers)
        self._reasons = _Reasons(providers)
        self._spreads = _Spreads()

    def stored(self, store: str, seconds: float) -> None:
        self._spreads.stores[store].add(seconds)

    def settled(self, group: Sequence[Settled]) -> None:
        self._spreads.group_items.add(float(len(group)))
        for attempt, outcome in group:
            self.items[OUTCOMES[type(outcome)]] += 1
            if not isinstance(attempt, Attempt) or _is_untried(outcome):
                continue  # no call was made for it
            if isinstance(outcome, (Done, Dead, Retry)):
                self.paid.pay(attempt)
            self._reasons.add(attempt, outcome)
            self._spreads.add(attempt, outcome)

    def figures(self, lane: str) -> Iterator[Sample]:
        for outcome, count in self.items.items():
            yield catalogue.ITEMS(count, lane, outcome)
        yield from self._reasons.figures(lane)
        yield from self.paid.figures(lane)
        yield from self._spreads.figures(lane)


def _is_untried(outcome: Outcome) -> bool:
    """Return whether an item waits for the answer to the same request, so that it cost nothing."""
    return isinstance(outcome, Retry) and outcome.name == SAME_REQUEST


class _Reasons:
    """The reasons why items ended, or are tried again."""

    def __init__(self, providers: Sequence[str]) -> None:
        self._dead: Counter[str] = Counter()
        self._reused: Counter[str] = Counter(dict.fromkeys(REUSED, 0))
        self._failed_tries: Counter[str] = Counter()  # by names of item/run/fates.py
        self._retries: Counter[str] = Counter(dict.fromkeys(CAUSES, 0))
        self._throttled: Counter[str] = Counter(dict.fromkeys(providers, 0))

    def add(self, attempt: Attempt, outcome: Outcome) -> None:
        if isinstance(outcome, Done):
            if outcome.result.reason is not None:
                self._reused[outcome.result.reason] += 1
        elif isinstance(outcome, Dead):
            self._dead[outcome.letter.reason] += 1
        elif isinstance(outcome, Retry):
            self._retries["counted" if outcome.counted else "uncounted"] += 1
            self._failed_tries[outcome.name] += 1
            self._throttled[attempt.job.spec.provider] += 1 if outcome.rate_limited else 0
        elif isinstance(outcome, Released) and outcome.crashed:
            self._failed_tries[outcome.crashed] += 1

    def figures(self, lane: str) -> Iterator[Sample]:
        for metric, counts in (
            (catalogue.DEAD, self._dead),
            (catalogue.FAILED_TRIES, self._failed_tries),
            (catalogue.REUSED, self._reused),
            (catalogue.RETRIES, self._retries),
            (catalogue.RATE_LIMITED, self._throttled),
        ):
            for label, count in tuple(counts.items()):
                yield metric(count, lane, label)


@dataclass(slots=True)
class _Bill:
    """The calls to one provider. Attributes cost an item less than entries of counters."""

    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    microusd: int = 0
    unpriced: int = 0  # answers of which no price is known


class Paid:
    """The calls that attempts made, whatever they ended in: their number, tokens and cost."""

    def __init__(self, providers: Sequence[str]) -> None:
        self._bills = {provider: _Bill() for provider in providers}
        self._engine_cost = 0
        self._asked_again = Counter(dict.fromkeys(AGAIN, 0))
        # by provider, cause and effect; with a series for each provider from the beginning
        self._savings = Counter[tuple[str, str, str]](
            dict.fromkeys([(name, PROMPT_CACHE, "saved") for name in providers], 0)
        )

    def pay(self, attempt: Attempt) -> None:
        calls, spent = attempt.calls, attempt.spent
        for provider, sent, used in attempt.elsewhere:
            self._charge(attempt.job.spec.lane, provider, sent, used)
            calls, spent = calls - sent, spent.minus(used)
        self._charge(attempt.job.spec.lane, attempt.job.spec.provider, calls, spent)
        again = (attempt.spent.repairs, attempt.spent.fallbacks, attempt.spent.escalations)
        if any(again):
            self._asked_again.update(dict(zip(AGAIN, again, strict=True)))
        for one in attempt.savings:
            effect = "saved" if one.saved_microusd >= 0 else "lost"
            which = (attempt.job.spec.provider, one.cause, effect)
            self._savings[which] += abs(one.saved_microusd)

    def _charge(self, lane: str, provider: str, calls: int, spent: Spent) -> None:
        bill = self._bills.get(provider)
        if bill is None:
            bill = self._bills[provider] = _Bill()
        bill.calls += calls
        bill.tokens_in += spent.prompt_tokens
        bill.tokens_out += spent.completion_tokens
        if has_own_model(lane):
            self._engine_cost += spent.cost_microusd
        else:
            bill.microusd += spent.cost_microusd
            bill.unpriced += spent.unpriced

    @property
    def engine_usd(self) -> float:
        """The cost of the time that items have computed here, by the worker's own price."""
        return self._engine_cost / MICROUSD

    def figures(self, lane: str) -> Iterator[Sample]:
        for cause, count in self._asked_again.items():
            yield catalogue.ASKED_AGAIN(count, lane, cause)
        for provider, bill in tuple(self._bills.items()):
            yield catalogue.CALLS(bill.calls, lane, provider)
            yield catalogue.TOKENS(bill.tokens_in, lane, provider, "in")
            yield catalogue.TOKENS(bill.tokens_out, lane, provider, "out")
            if bill.microusd or not bill.unpriced:  # what has no known price is not free
                yield catalogue.COST(bill.microusd / MICROUSD, lane, provider)
        for (provider, cause, effect), microusd in tuple(self._savings.items()):
            yield catalogue.SAVINGS(microusd / MICROUSD, lane, provider, cause, effect)


class _Spreads:
    """The times of calls and stores, and the sizes of prompts and groups."""

    def __init__(self) -> None:
        self.group_items = Spread(catalogue.COMMIT_ITEMS.bounds)
        self.stores = {store: Spread(catalogue.STORE.bounds) for store in ("SQL", "Redis")}
        self._call_seconds = Spread(catalogue.CALL_SECONDS.bounds)
        self._prompt_tokens = Spread(catalogue.PROMPT_TOKENS.bounds)

    def add(self, attempt: Attempt, outcome: Outcome) -> None:
        if isinstance(outcome, (Done, Dead)) and attempt.calls and attempt.spent.prompt_tokens:
            self._prompt_tokens.add(attempt.spent.prompt_tokens / attempt.calls)
        if isinstance(outcome, Done) and outcome.result.reason is None:
            self._call_seconds.add(outcome.result.latency_ms / 1000)

    def figures(self, lane: str) -> Iterator[Sample]:
        yield catalogue.CALL_SECONDS(self._call_seconds, lane)
        yield catalogue.PROMPT_TOKENS(self._prompt_tokens, lane)
        yield catalogue.COMMIT_ITEMS(self.group_items, lane)
        for store, seconds in self.stores.items():
            yield catalogue.STORE(seconds, lane, store.lower())
