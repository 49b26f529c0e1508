"""A campaign of faults: the plan that a seed gives, its course on the screen, and its table."""

from __future__ import annotations

import difflib
import json
import random
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from penstock_cli.chaos.arena import Arena
from penstock_cli.chaos.play import Verdict, play
from penstock_cli.chaos.stage import Fault, Lane
from penstock_cli.chaos.table import FAULTS, GROUPS
from penstock_cli.errors import UsageProblem


class Stroke(NamedTuple):
    """The faults that one job meets: one, or two of them with no time between."""

    faults: tuple[Fault, ...]
    seed: int

    @property
    def name(self) -> str:
        return " + ".join(fault.name for fault in self.faults)


def chosen(names: str | None, lane: str) -> list[Fault]:
    """Return the faults of a lane that are asked for by name or group, or all of them.

    Raises UsageProblem for a name that is none."""
    there = [fault for fault in FAULTS if lane in fault.lanes]
    if names is None:
        return there
    wanted = [name.strip() for name in names.split(",")]
    known = [*(fault.name for fault in FAULTS), *GROUPS]
    for name in wanted:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]!r}? " if close else ""
            raise UsageProblem(
                f"--faults: there is no fault or group {name!r}; {hint}`penstock chaos --list` "
                "shows all"
            )
    found = [fault for fault in there if fault.name in wanted or fault.group in wanted]
    if not found:
        raise UsageProblem(
            f"--faults: none of {', '.join(wanted)} is of lane {lane}; `penstock chaos --lane "
            f"{lane} --list` shows those that are"
        )
    return found


def plan(faults: Sequence[Fault], seed: int) -> Iterator[Stroke]:
    """Yield what is done, without an end: each fault alone, then pairs in ever new orders.

    The seed of a stroke follows from the campaign's seed and its names, so that
    ``--faults NAME`` with the same seed repeats it."""
    luck = random.Random(seed)
    order = luck.sample(faults, len(faults))
    yield from (_stroke((fault,), seed, 1) for fault in order)
    turn = 1
    while faults:
        turn += 1
        # what waits for a person would leave the second fault without work
        free = [fault for fault in faults if fault.waits_for is None] or faults
        for fault in luck.sample(free, len(free)):
            others = [other for other in free if other.group != fault.group]
            pair = (fault, luck.choice(others)) if others else (fault,)
            yield _stroke(pair, seed, turn)


def _stroke(faults: tuple[Fault, ...], seed: int, turn: int) -> Stroke:
    name = f"{seed}:{turn}:{','.join(fault.name for fault in faults)}"
    return Stroke(faults, zlib.crc32(name.encode()))


@dataclass
class Campaign:
    """Holds what was done and what came of it."""

    seed: int
    lane: str
    verdicts: list[Verdict] = field(default_factory=list)
    not_tried: dict[str, str] = field(default_factory=dict)  # fault -> why
    interrupted: bool = False
    more: str = ""  # of the command line

    @property
    def words(self) -> str:
        """Return the words of a command line that play the same again."""
        return f"--lane {self.lane} --seed {self.seed}{self.more}"

    @property
    def broken(self) -> list[Verdict]:
        return [verdict for verdict in self.verdicts if not verdict.holds]

    def rows(self) -> list[tuple[str, ...]]:
        """Return the table: a row for each fault that was tried, and for each that was not."""
        by_name: dict[str, list[Verdict]] = {}
        for verdict in self.verdicts:
            by_name.setdefault(" + ".join(verdict.faults), []).append(verdict)
        rows = [_row(name, verdicts) for name, verdicts in by_name.items()]
        left = sorted(self.not_tried.items())
        return rows + [(name, "0", "", "", "", "not tried", why) for name, why in left]

    def as_json(self) -> str:
        found: dict[str, Any] = {
            "seed": self.seed,
            "lane": self.lane,
            "holds": not self.broken,
            "interrupted": self.interrupted,
            "again": f"penstock chaos {self.words}",
            "faults": [
                {**asdict(one), "calls": dict(one.calls), "holds": one.holds}
                for one in self.verdicts
            ],
            "not_tried": self.not_tried,
            "table": [HEADINGS, *self.rows()],
        }
        return json.dumps(found, indent=1)


HEADINGS = ("fault", "times", "went on after", "twice", "not booked", "promises", "what was done")


def _row(name: str, verdicts: Sequence[Verdict]) -> tuple[str, ...]:
    waits = [one.resumed_s for one in verdicts if one.resumed_s is not None]
    broken = sum(not one.holds for one in verdicts)
    lost = [one.lost_tokens for one in verdicts if one.lost_tokens is not None]
    return (
        name,
        str(len(verdicts)),
        f"{max(waits):.1f} s" if waits else "never",
        f"{sum(one.twice for one in verdicts)} of {sum(one.allowed for one in verdicts)}",
        str(sum(lost)) if lost else "",
        "hold" if not broken else f"BROKEN {broken} times" if broken > 1 else "BROKEN",
        verdicts[-1].did,
    )


def fight(
    campaign: Campaign,
    place: Arena,
    faults: Sequence[Fault],
    lane: Lane,
    *,
    seconds: float | None,
    documents: int | None,
    say: Callable[[str], None],
) -> None:
    """Play the plan until the time is over, or once each where no time is given."""
    able = []
    for fault in faults:
        why = place.why_not(fault)
        if why is None:
            able.append(fault)
        else:
            campaign.not_tried[fault.name] = why
    end = None if seconds is None else time.monotonic() + seconds
    campaign.not_tried |= dict.fromkeys((fault.name for fault in able), "there was no time for it")
    for number, stroke in enumerate(plan(able, campaign.seed), 1):
        if (number > len(able)) if end is None else (time.monotonic() >= end):
            break
        say(_begun(stroke, number, len(able) if end is None else None, end))
        verdict = play(
            stroke.faults,
            place.fleet,
            stroke.seed,
            lane=lane,
            proxies=place.proxies,
            documents=documents,
        )
        campaign.verdicts.append(verdict)
        for fault in stroke.faults:
            campaign.not_tried.pop(fault.name, None)
        say(_ended(verdict))


def _begun(stroke: Stroke, number: int, of: int | None, end: float | None) -> str:
    place = f"{number}/{of}" if of is not None else f"{number}"
    rest = "" if end is None else f" ({max(end - time.monotonic(), 0):.0f} s left)"
    does = ", then ".join(fault.does for fault in stroke.faults)
    return f"[{place}]{rest} {stroke.name}: {does}"


def _ended(verdict: Verdict) -> str:
    if verdict.holds:
        lost = ""
        if verdict.lost_tokens:
            lost = f", {verdict.lost_tokens} of {verdict.billed} billed tokens not in the books"
        went = "" if verdict.resumed_s is None else f"went on after {verdict.resumed_s:.1f} s, "
        return (
            f"      holds: {went}the job ended {verdict.took_s:.1f} s after the fault; "
            f"{verdict.twice} calls made twice ({verdict.allowed} allowed), "
            f"{verdict.dead} dead letters{lost}"
        )
    return "\n".join(f"      BROKEN: {problem}" for problem in verdict.problems)
