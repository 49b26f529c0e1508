"""A pause as people need it: when it ends by itself, how to end it, and what else to do.

What to do is a sentence and, where an option of the job does it, its field and value. Each surface
writes the action in its own way: a terminal as a flag, HTTP as a field, a page in words.
"""

from __future__ import annotations

import shlex
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock_ledger.pause import Pause, StopCode
from penstock_producer.job.options import OPTIONS
from penstock_producer.prices.spent_budget import tenant_fix
from penstock_producer.reporting.fixes import FIXES
from penstock_producer.reporting.text import duration

__all__ = [
    "Advice",
    "SetOption",
    "advice_for",
    "as_field",
    "as_flag",
    "ends_by_itself",
    "pause_lines",
]

if TYPE_CHECKING:
    from penstock_ledger.model import Job

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
        return (
            *found,
            Advice(
                "let it go on, and stop at another cost", SetOption("stop_at_usd_per_doc", bound)
            ),
        )
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


def ends_by_itself(job: Job) -> bool:
    """Return whether a paused job resumes by itself: its provider said how long to wait."""
    return job.state == "paused" and job.resume_at is not None


def pause_lines(job: Job, option: str, now: float | None = None) -> list[str]:
    """Return what to say of a paused job below its reason; nothing of others.

    ``option`` is repeated in the command shown.
    """
    if job.state != "paused":
        return []
    if (fix := tenant_fix(job.reason)) is not None:  # resumed by hand it would find no room again
        return [f"it goes on by itself once its tenant has a larger budget:  {fix}{option}"]
    command = f"penstock resume {shlex.quote(job.job_key)}{option}"
    if (found := advice_for(job.pause)) and job.resume_at is None:
        return [*(f"what to do: {one.text}{_flag(one)}" for one in found), f"to go on:  {command}"]
    if job.resume_at is None:
        return [f"it waits for a person: remove the reason, then:  {command}"]
    left = max(0.0, job.resume_at - (time.time() if now is None else now))
    at = time.strftime("%H:%M:%S", time.localtime(job.resume_at))
    return [f"it goes on by itself at {at} (in {duration(left)}); to go on now:  {command}"]


def _flag(one: Advice) -> str:
    return "" if one.action is None else f" (repeat the command with {as_flag(one.action)})"
