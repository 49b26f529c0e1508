"""Notes what results are made with, before the first of them is stored; after that a group costs a look into a set."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from importlib import metadata
from typing import Final

from penstock_ledger import MadeWith, Provenance
from penstock_producer.job.lanes import has_own_model, packs
from penstock_workers.item.attempt import Attempt, Settled
from penstock_workers.item.outcome import Done
from penstock_workers.settings import ProviderSettings

KEPT: Final = (
    2_000  # (job, generation, provider) that are noted; one that is forgotten is written again, which changes nothing
)

_Noted = tuple[str, int, str]


class MadeWithNotes:
    """Used in the thread that settles. ``engine`` as ``engine_in_words`` has it."""

    def __init__(self, store: Provenance, engine: str, usd_per_hour: float) -> None:
        self._store, self._engine, self._usd_per_hour = store, engine, usd_per_hour
        self._noted: OrderedDict[_Noted, None] = OrderedDict()
        self._release = metadata.version("penstock")

    def note(self, group: Sequence[Settled]) -> None:
        """In a transaction of its own, rarely."""
        fresh: dict[_Noted, MadeWith] = {}
        for attempt, outcome in group:
            if not isinstance(outcome, Done) or not isinstance(attempt, Attempt):
                continue
            spec = attempt.job.spec
            mark = (attempt.key.job_id, attempt.key.generation, spec.provider)
            if mark not in self._noted and mark not in fresh:
                fresh[mark] = self._made_with(
                    attempt.key.generation,
                    spec.lane,
                    spec.provider,
                    outcome.result.model or spec.model,
                    attempt.job.provider,
                )
        if not fresh:
            return
        self._store.note((job_id, made) for (job_id, _, _), made in fresh.items())
        self._noted.update(dict.fromkeys(fresh))
        while len(self._noted) > KEPT:
            self._noted.popitem(last=False)

    def _made_with(
        self, generation: int, lane: str, name: str, model: str | None, provider: ProviderSettings
    ) -> MadeWith:
        if has_own_model(lane):
            return MadeWith(generation, lane, "", self._release, self._engine, usd_per_hour=self._usd_per_hour)
        prices = provider.prices_of(model)
        if prices is None:
            return MadeWith(generation, lane, name, self._release, "")
        discount = prices.batch_discount if packs(lane) else None
        return MadeWith(generation, lane, name, self._release, "", prices.input, prices.output, batch_discount=discount)


def engine_in_words(package: str | None, server: str | None) -> str:
    """Of a lane that hosts a model: the engine's version where it computes in the worker, else where its server is."""
    if package is None:
        return ""
    if server is not None:
        return f"{package} at {server}"
    try:
        return f"{package} {metadata.version(package.replace('_', '-'))}"
    except metadata.PackageNotFoundError:
        return package
