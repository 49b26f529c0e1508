"""What stops requests to a provider now, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from penstock_ledger import Cause, QuotaSeen, counted
from penstock_ledger.texts import Command, Run
from penstock_producer.reporting.advice import command_line
from penstock_producer.reporting.reasons import cause_line, latest_cause
from penstock_producer.reporting.text import count, duration, one_line

__all__ = ["QuotaRow", "quota_rows", "stops"]

HOLD_CHARS: Final = 300
_FIXES: Final[Mapping[str, str]] = {
    "out_of_money": "Add credit or raise the spend limit at the provider, then:",
    "unauthorized": "Check the API key, then:",
}


_STATES: Final[Mapping[str, tuple[str, str]]] = {  # words, and the badge's colour
    "held": ("held", "bad"),
    "failing": ("provider fails", "bad"),
    "waiting": ("told to wait", "warn"),
    "open": ("open", "completed"),
}


class QuotaRow(NamedTuple):
    name: str
    state: str
    kind: str  # of the badge
    limits: Sequence[str]
    counted: Sequence[tuple[str, str]]  # number, what it counts
    stops: Sequence[tuple[str, str, str]]
    cause: str


def stops(seen: QuotaSeen, in_state: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield what stops the quota, what to do about it, and the command for that."""
    lift = f"{command_line(Run(Command.LIFT, (seen.quota_id,)))}{in_state}"
    if seen.hold:
        fix = _FIXES.get(seen.hold, "Correct the account, then:")
        yield f"held for {duration(seen.held_s)}: {one_line(seen.hold, HOLD_CHARS)}", fix, lift
    if seen.open_left_s > 0:
        yield (
            f"it fails: nothing starts for {duration(seen.open_left_s)}, then a few trial requests "
            "decide",
            "",
            "",
        )
    if seen.probing:
        yield "a few trial requests decide whether it is back", "", ""
    if seen.pause_left_s > 0:
        yield (
            f"it said wait: nothing starts for {duration(seen.pause_left_s)}",
            "End the pause early:",
            lift,
        )


def quota_rows(
    quotas: Sequence[QuotaSeen],
    causes: Mapping[str, Sequence[Cause]],
    now: float,
    in_state: str = "",
) -> list[QuotaRow]:
    """Return a row for each quota.

    ``in_state`` is what commands that are shown need to find the ledger.
    """
    return [_row(seen, causes.get(seen.quota_id, ()), now, in_state) for seen in quotas]


def _row(seen: QuotaSeen, causes: Sequence[Cause], now: float, in_state: str) -> QuotaRow:
    state, kind = _STATES[seen.state]
    cause = latest_cause(causes, now)
    return QuotaRow(
        one_line(seen.quota_id, HOLD_CHARS),
        state,
        kind,
        [_limit(name, per_second) for name, per_second in seen.limits.items()],
        [
            (count(number), what)
            for number, what in counted(seen.granted, seen.throttled, seen.failures)
        ],
        list(stops(seen, in_state)),
        "" if cause is None else cause_line(cause, now),
    )


def _limit(name: str, per_second: float) -> str:
    """Return a limit as people speak of it: per minute, or per day where it is a day's."""
    if name.endswith("_per_day"):
        return f"{per_second * 86_400:,.0f} {name.removesuffix('_per_day')} a day"
    return f"{per_second * 60:,.0f} {name.removesuffix('_per_minute')} a minute"
