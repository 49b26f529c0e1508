"""What a person can do about a pause: a sentence and, where an option of the job does it, its field and value.

Each surface writes the action in its own way: a terminal as a flag, HTTP as a field, a page in words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from penstock_ledger.pause import Pause, StopCode
from penstock_producer.job.options import OPTIONS
from penstock_producer.reporting.fixes import FIXES

__all__ = ["Advice", "SetOption", "advice_for", "as_field", "as_flag"]

_RESUMED: Final = "let it go on as it is: it stops for this again only where it gets clearly worse"
_OFF: Final = "let it go on, and never stop for this"
COST_STEP: Final = 2.0  # times what a document costs now: a bound that is not met again at once


@dataclass(frozen=True, slots=True)
class SetOption:
    """Give the job another value of one of its options."""

    field: str
    value: Any


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing to do. ``action`` is None where words are all there is."""

    text: str
    action: SetOption | None = None


def advice_for(pause: Pause | None) -> tuple[Advice, ...]:
    """Return what to do about a pause, the cause first; nothing for pauses that are no data yet."""
    if pause is None or pause.code not in set(StopCode):
        return ()
    found = []
    if (fix := _fix_of(pause)) is not None:
        found.append(Advice(fix))
    found.append(Advice(_RESUMED))
    if pause.code == StopCode.COST:
        bound = float(f"{COST_STEP * float(pause.params.get('usd_per_doc', 0.0)):.2g}")
        return (*found, Advice("let it go on, and stop at another cost", SetOption("stop_at_usd_per_doc", bound)))
    return (*found, Advice(_OFF, SetOption("stop_at_dead", "off")))


def as_flag(action: SetOption) -> str:
    """Return the action as it is typed behind the command that made the job."""
    return f"--{OPTIONS[action.field].name} {action.value}"


def as_field(action: SetOption) -> dict[str, Any]:
    """Return the action as the body of a request that changes the job."""
    return {action.field: action.value}


def _fix_of(pause: Pause) -> str | None:
    """Return what to do about the commonest cause."""
    cause = pause.params.get("cause")
    return FIXES.get(cause.get("reason", "")) if isinstance(cause, dict) else None
