"""Notes what results are made with, before the first of them is stored and once a minute; else a
group costs some look-ups."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Sequence
from importlib import metadata
from typing import Final

from penstock_ledger import RENOTED_S, MadeWith, Provenance
from penstock_producer.job.lanes import has_own_model, packs
from penstock_workers.item.attempt import Attempt, Settled
from penstock_workers.item.outcome import Done
from penstock_workers.settings import ProviderSettings

# (job, generation, provider, model) that are noted; one that is forgotten is just written again
KEPT: Final = 2_000
# of one job, generation and provider that have entries of their own: a server may name another in
# each answer
MODELS: Final = 20

_Noted = tuple[str, int, str, str | None]


class MadeWithNotes:
    """Used in the thread that settles. ``engine`` as ``engine_in_words`` has it."""

    def __init__(self, store: Provenance, engine: str, usd_per_hour: float) -> None:
        self._store, self._engine, self._usd_per_hour = store, engine, usd_per_hour
        self._noted: OrderedDict[_Noted, float] = OrderedDict()  # monotonic
        self._models: Counter[tuple[str, int, str]] = Counter()  # of those that are noted
        self._release = metadata.version("penstock")

    def note(self, group: Sequence[Settled]) -> None:
        """In a transaction of its own, rarely."""
        fresh: dict[_Noted, MadeWith] = {}
        now = time.monotonic()
        for attempt, outcome in group:
            if not isinstance(outcome, Done) or not isinstance(attempt, Attempt):
                continue
            spec, answered = attempt.job.spec, outcome.result.model
            mark = (attempt.key.job_id, attempt.key.generation, spec.provider, answered)
            if mark not in self._noted and self._models[mark[:3]] + len(fresh) >= MODELS:
                mark = (*mark[:3], None)
            if now - self._noted.get(mark, -RENOTED_S) >= RENOTED_S and mark not in fresh:
                fresh[mark] = self._made_with(
                    mark, spec.lane, mark[3] or spec.model, attempt.job.provider
                )
        if not fresh:
            return
        self._store.note((job_id, made) for (job_id, *_), made in fresh.items())
        self._models.update(mark[:3] for mark in fresh if mark not in self._noted)
        self._noted.update(dict.fromkeys(fresh, now))
        while len(self._noted) > KEPT:
            forgotten, _ = self._noted.popitem(last=False)
            self._models[forgotten[:3]] -= 1
        self._models = +self._models  # without those of which none is left

    def _made_with(
        self, mark: _Noted, lane: str, model: str | None, provider: ProviderSettings
    ) -> MadeWith:
        _, generation, name, told = mark
        if has_own_model(lane):
            return MadeWith(
                generation,
                lane,
                "",
                self._release,
                self._engine,
                None,
                None,
                self._usd_per_hour,
                told,
            )
        prices = provider.prices_of(model)
        if prices is None:
            return MadeWith(generation, lane, name, self._release, "", model=told)
        discount = prices.batch_discount if packs(lane) else None
        return MadeWith(
            generation,
            lane,
            name,
            self._release,
            "",
            prices.input,
            prices.output,
            model=told,
            batch_discount=discount,
        )


def engine_in_words(package: str | None, server: str | None) -> str:
    """Of a lane that hosts a model: the engine's version where it computes in the worker, else
    where its server is."""
    if package is None:
        return ""
    if server is not None:
        return f"{package} at {server}"
    try:
        return f"{package} {metadata.version(package.replace('_', '-'))}"
    except metadata.PackageNotFoundError:
        return package
