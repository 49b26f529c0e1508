"""An item uses up tokens and money, and counts the ways in which it was asked once more."""

from __future__ import annotations

from typing import NamedTuple

from penstock_ledger.model import ItemKey, Paid, PaidBeside

MOST_SPENT = 10**15  # of one item: what a message says beyond that is not believed
# of the header in every message; repairs and fallbacks follow where there are any, then what has no
# price, then escalations
_SUMS = 3
_AGAIN = 5
_UNPRICED = 6


class Spent(NamedTuple):
    """The cost of answers, whether the job accepted them or not."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_microusd: int = 0
    repairs: int = 0  # requests that showed the model what was wrong with its answer
    fallbacks: int = 0  # models that were given up; the next of the job's `fallback` is asked
    unpriced: int = 0  # answers of which no price is known: the cost is that of the others
    escalations: int = 0  # answers that went on to the better model of the job's `escalate`

    def plus(self, other: Spent) -> Spent:
        return Spent(*(one + another for one, another in zip(self, other, strict=True)))

    def minus(self, other: Spent) -> Spent:
        return Spent(*(one - another for one, another in zip(self, other, strict=True)))

    @property
    def as_header(self) -> tuple[int, ...]:
        """The sums as a message carries them.

        Workers of earlier releases know the three sums, five or six; escalations are in jobs that
        these cannot read."""
        if self.escalations:
            return self
        if self.unpriced:
            return self[:_UNPRICED]
        return self[:_AGAIN] if self.repairs or self.fallbacks else self[:_SUMS]

    def paid(self, calls: int) -> Paid:
        """Return what was paid as the job's account has it."""
        return Paid(
            calls, self.prompt_tokens, self.completion_tokens, self.cost_microusd, self.unpriced
        )

    def beside(self, key: ItemKey, calls: int) -> PaidBeside:
        """Return what was paid for a document beside its outcome."""
        return PaidBeside(key, *self.paid(calls), escalations=self.escalations)


NOTHING_SPENT = Spent()
NOTHING_PAID = Paid()


def spent_before(header: object) -> Spent:
    """Return what a message's header says that earlier attempts used up.

    Headers come from outside."""
    if (
        not isinstance(header, list)
        or len(header) not in (_SUMS, _AGAIN, _UNPRICED, len(NOTHING_SPENT))
        or not all(map(_is_sum, header))
    ):
        return NOTHING_SPENT
    return Spent(*header)


def _is_sum(value: object) -> bool:
    return type(value) is int and 0 <= value <= MOST_SPENT
