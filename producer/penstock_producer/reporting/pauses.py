"""A pause as people need it: when it ends by itself, how to end it, and what else to do."""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING, Final

from penstock_ledger.pause import Pause, StopCode
from penstock_ledger.texts import SetOption
from penstock_producer.prices.spent_budget import tenant_fix
from penstock_producer.reporting.advice import Advice, as_flag, on_terminal
from penstock_producer.reporting.fixes import FIXES
from penstock_producer.reporting.text import duration

__all__ = ["advice_for", "ends_by_itself", "pause_lines"]

if TYPE_CHECKING:
    from penstock_ledger.model import Job

_RESUMED: Final = "let it go on as it is: it stops for this again only where it gets clearly worse"
_OFF: Final = "let it go on, and never stop for this"
COST_STEP: Final = 2.0  # times what a document costs now: a bound that is not met again at once


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
        advised = (f"what to do: {on_terminal(one.text)}{_flag(one)}" for one in found)
        return [*advised, f"to go on:  {command}"]
    if job.resume_at is None:
        return [f"it waits for a person: remove the reason, then:  {command}"]
    left = max(0.0, job.resume_at - (time.time() if now is None else now))
    at = time.strftime("%H:%M:%S", time.localtime(job.resume_at))
    return [f"it goes on by itself at {at} (in {duration(left)}); to go on now:  {command}"]


def _flag(one: Advice) -> str:
    return "" if one.action is None else f" (repeat the command with {as_flag(one.action)})"
