"""Compare a run of a schedule with the run before: what has moved beyond what chance explains.

Shares are compared by the interval of Newcombe for the difference of two proportions (Interval
estimation for the difference between independent proportions, Statistics in Medicine 17, 1998,
method 10), means by that of Welch. Both at ``Z`` standard deviations: by chance one figure in
16,000 moves so far. A million documents show differences that matter to no one, so that what has
moved has also moved by ``LEAST_SHARE`` or ``LEAST_RATIO``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from penstock_ledger import DriftRule, OnDrift, RunFigures, Spread
from penstock_producer.errors import ScheduleError, seen
from penstock_producer.tables.columns import parsed, text_of

__all__ = [
    "MEANS",
    "SAMPLE",
    "SHARES",
    "Compared",
    "Labels",
    "Moved",
    "compare",
    "drift_rule",
    "labels_of",
]

Z: Final = 4.0
LEAST_DOCUMENTS: Final = 100  # in both runs: fewer say too little
LEAST_SHARE: Final = 0.01  # of documents
LEAST_RATIO: Final = 0.05  # of a mean
SAMPLE: Final = 20_000  # answers that are read for their labels: some 100 MB at most, one at a time
LABELS_MAX: Final = 50  # that are compared, the most frequent; the others are one
LABEL_CHARS: Final = 60  # of a value that is shown
FIELD_CHARS: Final = 200
OTHER: Final = "other values"
NO_VALUE: Final = "no value"

SHARES: Final = ("dead", "withheld", "cut")
MEANS: Final = ("tokens", "cost")


class Moved(NamedTuple):
    """A figure that has moved. Shares are of 1, costs in millionths of a dollar."""

    figure: str  # of SHARES or MEANS, or `label`
    label: str | None
    before: float
    now: float
    low: float  # the interval of the difference
    high: float

    def to_json(self) -> dict[str, Any]:
        return self._asdict()


class Labels(NamedTuple):
    """The values of a field in the answers that were read."""

    number: int
    counts: Counter[str]


class Compared(NamedTuple):
    """A run as it is compared."""

    figures: RunFigures
    labels: Labels | None


def drift_rule(then: str | None, field: str | None) -> DriftRule | None:
    """Return the rule that is asked for; None where runs are not to be compared.

    Raises ScheduleError."""
    if then is None or then == "off":
        if field is None:
            return None
        raise ScheduleError(
            "a field is named whose values are to be compared, and runs are not; give drift report "
            "or pause as well"
        )
    try:
        rule = DriftRule(OnDrift(then), field)
    except ValueError:
        raise ScheduleError(
            f"drift {seen(then)} is refused: write {', '.join(OnDrift)} or off"
        ) from None
    if field is not None and (
        not all(field.removeprefix("answer.").split(".")) or len(field) > FIELD_CHARS
    ):
        raise ScheduleError(
            f"the field {seen(field)} is refused: write the name of one in answers that are JSON, "
            f"of at most {FIELD_CHARS} characters, with dots for what lies in another: label, "
            "ticket.kind"
        )
    return rule


def labels_of(field: str, endpoint: str, answers: Iterable[tuple[str | None, bytes]]) -> Labels:
    """Count the values of a field in answers, whose endpoint is the job's where it is None."""
    counts = Counter[str]()
    for own, body in answers:
        counts[_label(field, text_of(own or endpoint, body))] += 1
    return Labels(counts.total(), counts)


def _label(field: str, text: str | None) -> str:
    found = parsed(text)
    for part in field.removeprefix("answer.").split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    if found is None or isinstance(found, Mapping | list):
        return NO_VALUE
    return str(found)[:LABEL_CHARS]


def compare(before: Compared, now: Compared) -> list[Moved] | None:
    """Return what has moved; None where a run has too few documents."""
    if min(before.figures.documents, now.figures.documents) < LEAST_DOCUMENTS:
        return None
    was, is_now = before.figures, now.figures
    found = [
        _share(
            name, None, getattr(was, name), was.documents, getattr(is_now, name), is_now.documents
        )
        for name in SHARES
    ]
    found += [_mean(name, getattr(was, name), getattr(is_now, name)) for name in MEANS]
    if before.labels is not None and now.labels is not None:
        found += _labels(before.labels, now.labels)
    return [one for one in found if one is not None]


def _labels(before: Labels, now: Labels) -> list[Moved | None]:
    if min(before.number, now.number) < LEAST_DOCUMENTS:
        return []
    both = before.counts + now.counts
    names = [name for name, _ in both.most_common(LABELS_MAX)]
    counts = [(name, before.counts[name], now.counts[name]) for name in names]
    was, is_now = (of.number - sum(of.counts[name] for name in names) for of in (before, now))
    if was or is_now:
        counts.append((OTHER, was, is_now))
    return [
        _share("label", name, was, before.number, number, now.number)
        for name, was, number in counts
    ]


def _share(
    figure: str, label: str | None, was: int, of_before: int, number: int, of_now: int
) -> Moved | None:
    first, second = was / of_before, number / of_now
    low_1, high_1 = _wilson(was, of_before)
    low_2, high_2 = _wilson(number, of_now)
    difference = second - first
    low = difference - math.hypot(second - low_2, high_1 - first)
    high = difference + math.hypot(high_2 - second, first - low_1)
    if low <= 0 <= high or abs(difference) < LEAST_SHARE:
        return None
    return Moved(figure, label, first, second, low, high)


def _wilson(number: int, of: int) -> tuple[float, float]:
    """Return Wilson's interval of a share (Journal of the American Statistical Association 22)."""
    share, square = number / of, Z * Z / of
    middle = (share + square / 2) / (1 + square)
    half = Z * math.sqrt(share * (1 - share) / of + square / of / 4) / (1 + square)
    return middle - half, middle + half


def _mean(figure: str, before: Spread, now: Spread) -> Moved | None:
    if min(before.number, now.number) < LEAST_DOCUMENTS:
        return None
    first, second = before.total / before.number, now.total / now.number
    half = Z * math.sqrt(_of_mean(before) + _of_mean(now))
    difference = second - first
    if abs(difference) <= max(half, LEAST_RATIO * abs(first)):
        return None
    return Moved(figure, None, first, second, difference - half, difference + half)


def _of_mean(spread: Spread) -> float:
    """Return the variance of a mean."""
    number, total, squares = spread
    return max(0.0, squares - total * total / number) / (number - 1) / number
