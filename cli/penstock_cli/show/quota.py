"""`penstock limits` shows a quota as a panel or lines, and says what to do about troubles."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from penstock_ledger import counted
from penstock_producer.reporting.reasons import cause_line, latest_cause, yields_line
from penstock_producer.reporting.text import count, duration, one_line, rate
from penstock_ratelimit.for_penstock import RETRIES_LEAVE, Breaker

if TYPE_CHECKING:
    from rich.console import RenderableType

    from penstock_ledger import Cause
    from penstock_ratelimit.for_penstock import DimensionView, LearnedView, QuotaView, Traffic

PANEL_WIDTH = 78
BAR_WIDTH = 18
KEY_CHARS = 34  # of a learned key, so that its figures stay on the same line
# of all quotas at once; a quota that is asked for by name shows all that were read
LEARNED_SHOWN = 3
LONG_PAUSE_S = 60.0  # longer than a limit per minute asks for: worth a hint how to end it
NOTABLE_MARGIN = 0.02  # below the declared one: two cuts by 429s that have not grown back
NOTABLE_OTHERS = 0.05  # of a limit that other clients of the key use
FULL = 0.9995  # shown as 100 %
USED = 0.9  # of what may be in flight: more than that is all of it

_FIXES = {  # of reasons that come without one, because the caller gave none
    "out_of_money": "add credit or raise the spend limit at the provider",
    "unauthorized": "check the API key",
}


@dataclass(frozen=True, slots=True)
class QuotaProblem:
    """A trouble of a quota, and a command or a word for it."""

    text: str
    fix: str = ""
    grave: bool = False


@dataclass(frozen=True, slots=True)
class QuotaSeen:
    """One quota at one moment, with what went through it lately."""

    view: QuotaView
    traffic: Traffic | None
    lift: str
    """The command that ends a hold of it."""
    learned_shown: int = LEARNED_SHOWN
    causes: Sequence[Cause] = ()
    """Why calls of it failed lately, the latest first."""


def lift_command(quota_id: str, option: str) -> str:
    return f"penstock limits --lift {shlex.quote(quota_id)}{option}"


def state(look: QuotaSeen) -> tuple[str, str]:
    """Return the state of the quota in one word, with its colour.

    It is the first thing that keeps requests from starting."""
    view = look.view
    if view.hold:
        return "held", "bold red"
    if view.breaker is Breaker.OPEN:
        return "provider fails", "bold red"
    if view.breaker is Breaker.HALF_OPEN:
        return "trying the provider", "yellow"
    if view.pause_left_s > 0:
        return f"paused {duration(view.pause_left_s)}", "yellow"
    if view.share < FULL:
        return "starting gently", "yellow"
    if not view.processes:
        return "no worker", "dim"
    moving = look.traffic is not None and look.traffic.granted > 0
    return ("at work", "green") if moving or view.in_flight or view.waiting else ("idle", "dim")


def troubles(look: QuotaSeen, now: float | None = None) -> Iterator[QuotaProblem]:
    """Yield what is wrong, the most serious first.

    ``now`` is unix time, for the clock times shown.
    """
    view, at = look.view, time.time() if now is None else now
    if view.hold:
        reason = one_line(view.hold, 300)
        fix = f"; {_FIXES[view.hold]}" if view.hold in _FIXES else ""
        yield QuotaProblem(
            f"held for {duration(view.held_s)}: {reason}{fix}", f"then:  {look.lift}", grave=True
        )
    if view.breaker is Breaker.OPEN:
        yield QuotaProblem(
            f"the provider fails: nothing starts {_until(view.open_left_s, at)}, then 3 trial "
            "requests decide",
            grave=True,
        )
    if view.breaker is Breaker.HALF_OPEN:
        yield QuotaProblem(
            f"seeing whether the provider is back: {view.probes_won} of 3 trial requests were "
            "answered well"
        )
    if view.pause_left_s > 0:
        long = view.pause_left_s > LONG_PAUSE_S
        early = f"end it early:  {look.lift}" if long else ""
        yield QuotaProblem(
            f"the provider said wait: nothing starts {_until(view.pause_left_s, at)}",
            early,
            grave=long,
        )
    if (cause := latest_cause(look.causes, at)) is not None:
        yield QuotaProblem(f"calls of job {one_line(cause.job_id)} fail: {cause_line(cause, at)}")
    if view.share < FULL:
        yield QuotaProblem(
            f"starting gently after a stop: {view.share:.0%} of the rate for now, and growing"
        )
    if view.margin < view.declared_margin - NOTABLE_MARGIN:
        yield QuotaProblem(
            f"429s below the limits: working at {view.margin:.1%} of them",
            "are they declared too high, or is the key used elsewhere?",
        )
    yield from _others(view)
    if view.retry_budget <= RETRIES_LEAVE:
        yield QuotaProblem(
            f"retries are put off: too many of what is sent are retries ({view.retry_budget:.0f} "
            "of 100 left)"
        )


def _others(view: QuotaView) -> Iterator[QuotaProblem]:
    for one in view.dimensions:
        if one.others > NOTABLE_OTHERS * one.limit:
            amount, unit = _per_unit(one.name, one.others)
            yield QuotaProblem(f"others use this key: about {amount} {one.name}{unit}")


def _until(seconds: float, now: float) -> str:
    return f"until {time.strftime('%H:%M:%S', time.localtime(now + seconds))} ({duration(seconds)})"


# --- figures
# --------------------------------------------------------------------------------------------------


def bound(view: QuotaView, option: str = "") -> str | None:
    """Return what bounds the requests of a provider while some wait for their turn.

    It is None when none wait.

    ``option``: as of commands."""
    if not view.waiting or view.hold or view.breaker is not Breaker.CLOSED or view.pause_left_s > 0:
        return None
    if (held_back := yields_line(view.yields)) is not None:
        return held_back
    if view.concurrency is not None and view.in_flight >= USED * view.concurrency:
        if view.climbing:
            most = f", {count(view.concurrency_most)} at most" if view.concurrency_most else ""
            return f"{count(view.in_flight)} in flight, climbing while answers stay good{most}"
        return (
            f"{count(view.in_flight)} in flight: more made the provider no faster, or were refused"
        )
    if view.share < 1:
        return (
            f"starting gently after a stop: {view.share:.0%} of the provider's limits for now, and "
            "growing"
        )
    if view.dimensions:
        return f"bound by the provider's limits; their use:  penstock limits{option}"
    return None


def people(view: QuotaView) -> list[str]:
    """Say how many calls are in flight."""
    under_way = f"{count(view.in_flight)} in flight"
    if view.concurrency is not None:
        under_way += f" of {count(view.concurrency)}"
    processes = "1 process" if view.processes == 1 else f"{count(view.processes)} processes"
    return [processes, f"{count(view.waiting)} waiting", under_way]


def tallies(look: QuotaSeen) -> list[str]:
    """Return what has happened since Redis has known the quota."""
    view = look.view
    numbers = counted(view.granted, view.throttled + view.ramps, view.failures)
    parts = [f"{count(number)} {what}" for number, what in numbers]
    if look.traffic is not None:
        parts[0] += f" ({rate(look.traffic.granted)})"
    if view.ramps:
        parts.append(f"{count(view.ramps)} of the 429s for a rise too fast")
    if view.holds:
        parts.append(f"account stopped {count(view.holds)} times")
    if view.dimensions:
        others = f", {view.reserve:.0%} of them left to others" if view.reserve else ""
        parts.append(f"using {view.margin * (1 - view.reserve):.1%} of the limits{others}")
    return parts


def used(look: QuotaSeen, one: DimensionView) -> tuple[float | None, str, str]:
    """Return the part of what is allowed that was used lately, in per cent, and both in units."""
    allowed, unit = _per_unit(one.name, one.allowed)
    if look.traffic is None:
        return None, "", f"{allowed}{unit}"
    spent = max(0.0, look.traffic.units.get(one.name, 0.0))
    part = spent / one.allowed if one.allowed > 0 else 0.0
    return part, f"{part:.0%}", f"{_per_unit(one.name, spent)[0]} of {allowed}{unit}"


def _per_unit(name: str, per_second: float) -> tuple[str, str]:
    """Return an amount and its unit as people speak of limits.

    It is per minute, or per day where the limit is a day's.
    """
    seconds, unit = (86_400.0, "/day") if name.endswith("_per_day") else (60.0, "/min")
    amount = per_second * seconds
    return (f"{amount:,.0f}" if amount >= 10 or amount == round(amount) else f"{amount:,.1f}"), unit


def learned(look: QuotaSeen) -> Iterator[tuple[str, str]]:
    """Yield kinds of requests, and what they turned out to cost."""
    shown = look.view.learned[: look.learned_shown]
    for one in shown:
        yield one_line(one.key, KEY_CHARS), _costs(one)
    hidden = len(look.view.learned) - len(shown)
    if hidden > 0:
        yield f"and {count(hidden)} more kinds", ""


def _costs(one: LearnedView) -> str:
    answers = (
        "no answer yet" if one.output_p75 is None else f"answers up to {one.output_p75:,.0f} tokens"
    )
    return f"prompts cost {one.ratio:.2f} of their estimate, {answers}"


# --- shown
# --------------------------------------------------------------------------------------------------


def lines(look: QuotaSeen, now: float | None = None) -> list[str]:
    """Return plain text, for pipes and logs."""
    shown = [f"{look.view.quota_id}: {state(look)[0]}"]
    for one in look.view.dimensions:
        _, share, amounts = used(look, one)
        shown.append(f"  {one.name}: {amounts}{f' ({share})' if share else ''}")
    for parts in (people(look.view), tallies(look)):
        shown += wrap(" · ".join(parts), PANEL_WIDTH, initial_indent="  ", subsequent_indent="  ")
    if (bounds := bound(look.view)) is not None:
        shown.append(f"  {bounds}")
    shown += [f"  learned {key}{': ' if costs else ''}{costs}" for key, costs in learned(look)]
    for trouble in troubles(look, now):
        shown.append(f"  ! {trouble.text}")
        if trouble.fix:
            shown.append(f"    {trouble.fix}")
    return shown


def panel(look: QuotaSeen, now: float | None = None) -> RenderableType:
    """Return the quota as a box of 78 columns."""
    from rich.console import Group
    from rich.panel import Panel
    from rich.text import Text

    word, colour = state(look)
    found = list(troubles(look, now))
    body: list[RenderableType] = []
    if look.view.dimensions:
        body.append(_bars(look))
    body += [_row("  ·  ".join(people(look.view))), _row("  ·  ".join(tallies(look)))]
    if (bounds := bound(look.view)) is not None:
        body.append(Text(bounds))
    body += [_row(f"{key}  {costs}", style="dim") for key, costs in learned(look)]
    for trouble in found:
        body.append(Text(f"! {trouble.text}", style="bold red" if trouble.grave else "yellow"))
        if trouble.fix:
            body.append(Text(f"  {trouble.fix}", style="bold" if trouble.grave else "default"))
    title = Text.assemble((look.view.quota_id, "bold"), "  ", (word, colour))
    border = "red" if any(trouble.grave for trouble in found) else "default"
    return Panel(
        Group(*body),
        title=title,
        title_align="left",
        width=PANEL_WIDTH,
        padding=(0, 1),
        border_style=border,
    )


def _row(text: str, style: str = "") -> RenderableType:
    from rich.text import Text

    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _bars(look: QuotaSeen) -> RenderableType:
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    table = Table.grid(padding=(0, 2, 0, 0), expand=True)
    for justify in ("left", "left", "right", "right"):
        table.add_column(justify=justify, no_wrap=True)
    for one in look.view.dimensions:
        part, share, amounts = used(look, one)
        bar = ProgressBar(
            1.0,
            min(1.0, part or 0.0),
            width=BAR_WIDTH,
            complete_style="cyan",
            finished_style="green",
        )
        table.add_row(one.name, bar, share, amounts)
    return table


def as_json(look: QuotaSeen) -> dict[str, Any]:
    """Return everything there is, with units in the names; see ``penstock_ratelimit.watch``."""
    traffic = look.traffic
    return asdict(look.view) | {
        "breaker": look.view.breaker.name.lower(),
        "state": state(look)[0],
        "traffic": None if traffic is None else asdict(traffic),
        "troubles": [trouble.text for trouble in troubles(look)],
        "last_failures": [asdict(cause) for cause in look.causes],
    }


def panels(looks: Sequence[QuotaSeen]) -> RenderableType:
    from rich.console import Group

    return Group(*(panel(look) for look in looks))
