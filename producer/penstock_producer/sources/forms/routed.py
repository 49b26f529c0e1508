"""Each row's request is made as the rule that takes it says, see job/routing.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from penstock_producer.job.routing import DISAGREE, REFUSED_BY_ROUTE, Disagreement, column_of
from penstock_producer.job.spec import JobSpec
from penstock_producer.rows import Tally
from penstock_producer.sources.forms.strict_json import RowFault

__all__ = ["RoutedBodies"]

Builder = TypeVar("Builder")


class RoutedBodies(Generic[Builder]):
    """The job's own builder of request bodies, and one for each of its rules.

    Raises SpecError, as ``make`` does, where the job cannot ask as a rule says."""

    def __init__(self, spec: JobSpec, tally: Tally, make: Callable[[JobSpec], Builder]) -> None:
        self._own = make(spec)
        self._table = spec.routing
        self._tally = tally
        self._unmet = set(self._table.columns)
        self._builders = {
            rule.number: make(spec.asked_as(rule.target))
            for rule in self._table.rules
            if rule.target is not None
        }

    @property
    def has_rules(self) -> bool:
        return bool(self._table.rules)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the rules look at."""
        return self._table.columns

    def of(self, record: Mapping[str, Any], length: int) -> tuple[int, Builder]:
        """Return the number of the rule that takes a row, 0 for none, and what makes its body.

        ``length`` is that of its prompt, in characters. Raises RowFault for a row that a rule
        refuses, and for one that two rules want elsewhere."""
        if not self._table.rules:
            return 0, self._own
        if self._unmet:
            self._note(record)
        taken = self._table.taken(record, length)
        if taken is None:
            return 0, self._own
        if isinstance(taken, Disagreement):
            raise RowFault(DISAGREE, f"{taken.message}.", fix=taken.fix)
        if taken.target is None:
            self._tally.refused[taken.number] = self._tally.refused.get(taken.number, 0) + 1
            raise RowFault(
                REFUSED_BY_ROUTE,
                f"The job's {taken.named} refuses this row.",
                fix="send it with a job that takes such rows",
            )
        return taken.number, self._builders[taken.number]

    def _note(self, record: Mapping[str, Any]) -> None:
        """Note which of the columns that rules look at there are."""
        met = {
            name for name in self._unmet if name in record or column_of(record, name) is not None
        }
        self._unmet -= met
        self._tally.met |= met
