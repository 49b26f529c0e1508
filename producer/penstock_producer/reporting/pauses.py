"""A pause as people need it: when it ends by itself, how to end it, and what else to do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock_ledger.reasons import Code, Reason, StopCode, explain
from penstock_ledger.texts import Command, Run, SetOption
from penstock_producer.prices import next_budget
from penstock_producer.reporting.advice import (
    FIXES,
    Advice,
    as_field,
    as_flag,
    command_line,
    on_terminal,
)
from penstock_producer.reporting.text import duration

__all__ = [
    "Step",
    "advice_for",
    "ends_by_itself",
    "pause_lines",
    "pause_steps",
    "serialize_pause",
]

if TYPE_CHECKING:
    from penstock_ledger.model import Job

_RESUMED: Final = "let it go on as it is: it stops for this again only where it gets clearly worse"
_RAISE: Final = "raise the budget to what all documents are expected to cost, and some more"
_OFF: Final = "let it go on, and never stop for this"
COST_STEP: Final = 2.0  # times what a document costs now: a bound that is not met again at once


class Step(NamedTuple):
    """One thing to do in a terminal; ``command`` is empty where words are all there is."""

    text: str
    command: str = ""


def advice_for(pause: Reason | None) -> tuple[Advice, ...]:
    """Return what to do about a pause, the cause first; nothing where its sentence says it all."""
    if pause is None:
        return ()
    if pause.code == Code.BUDGET_EXHAUSTED and (enough := pause.number("enough_usd")) is not None:
        budget_usd = int(enough) if enough.is_integer() else enough
        return (Advice(_RAISE, SetOption("budget_usd", budget_usd)),)
    if pause.code not in set(StopCode):
        return ()
    found = []
    if (fix := _fix_of(pause)) is not None:
        found.append(Advice(fix))
    found.append(Advice(_RESUMED))
    if pause.code == StopCode.COST:
        bound = float(f"{COST_STEP * (pause.number('usd_per_doc') or 0.0):.2g}")
        return (
            *found,
            Advice(
                "let it go on, and stop at another cost", SetOption("stop_at_usd_per_doc", bound)
            ),
        )
    return (*found, Advice(_OFF, SetOption("stop_at_dead", "off")))


def serialize_pause(pause: Reason, written: Callable[[str], str]) -> dict[str, Any]:
    """Return a pause with its sentence and what to do about it.

    ``written`` is how advice is written on the surface that shows it.
    """
    advice = [
        {
            "text": written(one.text),
            "change": None if one.action is None else as_field(one.action),
        }
        for one in advice_for(pause)
    ]
    return pause.to_json() | {"message": explain(pause), "advice": advice}


def _fix_of(pause: Reason) -> str | None:
    """Return what to do about the commonest cause."""
    cause = pause.params.get("cause")
    return FIXES.get(str(cause.get("reason"))) if isinstance(cause, dict) else None


def ends_by_itself(job: Job) -> bool:
    """Return whether a paused job resumes by itself: its provider said how long to wait."""
    return job.state == "paused" and job.resume_at is not None


def pause_lines(job: Job, option: str, now: float | None = None) -> list[str]:
    """Return what to say of a paused job below its reason; nothing of others.

    ``option`` is repeated in the command shown.
    """
    return [
        f"{one.text}:  {one.command}" if one.command else one.text
        for one in pause_steps(job, option, now)
    ]


def pause_steps(job: Job, option: str, now: float | None = None) -> list[Step]:
    """Return what to do about a paused job, each with its command; nothing of others."""
    pause = job.pause
    if job.state != "paused":
        return []
    if pause is not None and pause.code == Code.TENANT_BUDGET_EXHAUSTED:
        # resumed by hand it would find no room again
        waits = "it goes on by itself once its tenant has a larger budget"
        return [Step(waits, f"{_larger(job, pause)}{option}")]
    command = f"{command_line(Run(Command.RESUME, (job.job_key,)))}{option}"
    if job.resume_at is not None:
        left = max(0.0, job.resume_at - (time.time() if now is None else now))
        at = time.strftime("%H:%M:%S", time.localtime(job.resume_at))
        return [Step(f"it goes on by itself at {at} (in {duration(left)}); to go on now", command)]
    found = advice_for(pause)
    if pause is not None and pause.code == Code.BUDGET_EXHAUSTED and found:
        (raised,) = found
        raises = () if raised.action is None else (raised.action,)
        resume = Run(Command.RESUME, (job.job_key, *raises))
        return [Step(raised.text, f"{command_line(resume)}{option}")]
    if found:
        advised = (f"what to do: {on_terminal(one.text)}{_flag(one)}" for one in found)
        return [*map(Step, advised), Step("to go on", command)]
    return [Step("it waits for a person: remove the reason, then", command)]


def _larger(job: Job, pause: Reason) -> str:
    """Return the command that gives the tenant of a job a larger budget."""
    enough, tenant = pause.number("enough_usd"), str(job.spec.get("tenant", "TENANT"))
    usd = "USD" if enough is None else next_budget(enough)
    given = (SetOption("tenant", tenant), SetOption("budget_usd", usd))
    return command_line(Run(Command.MAKE_KEY, ("NAME", *given)))


def _flag(one: Advice) -> str:
    return "" if one.action is None else f" (repeat the command with {as_flag(one.action)})"
