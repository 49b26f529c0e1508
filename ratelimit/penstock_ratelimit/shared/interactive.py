"""Interactive traffic goes first at a server that others share.

Others send their requests to the same server. Its own histogram of the time to the first token says
how long they wait there, and what it says decides how many requests our fleet has in flight:

over    The 95th percentile is above the target, or what waits in the server's queue will be. 30 %
        come off, or as many as wait there, where these are more; and once those above the new
        ceiling have ended, it is looked at anew. One call stays: batch work goes on, however slow.
near    Above four fifths of the target nothing grows.
under   The ceiling grows while it is what bounds and requests hardly wait in the server's queue,
        which makes nothing faster: by a third at first, then by a tenth, and where it was too much
        before it is tried only now and then.
long    Above the target, and a cut did not help: prompts are long. What others cannot have
        is no reason to stand still, so what was measured then, and a tenth, is the target for some
        minutes.

The histogram has our requests among the others. A server that takes them in the order of arrival
lets all of them wait alike, so that the whole of it says what someone who comes now would meet, and
holds room for them before they come. One that puts ours last (``ours_last``, vLLM's priorities)
lets only ours wait: as many of the slowest as ours are left out.

Figures that make no sense, or none at all, change nothing: the ceiling stays where it is.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Final, Literal, NamedTuple, get_args

from penstock_ratelimit.limiter import ServerGauges
from penstock_ratelimit.quota import InteractiveTarget

QUANTILE: Final = 0.95
START: Final = 8
"""Calls of a fleet before the first figure, and after a rest."""
LEAST: Final = 1
"""Calls of a fleet that no target takes away: else a job would stand still for as long as a server
is slow for reasons of its own."""
CUT: Final = 0.7
NEAR: Final = 0.8
"""Of the target: what is above wavers across it by chance."""
CLIMB: Final = 1.3
STEP: Final = 1.1
TOO_MUCH: Final = 0.9
"""Of the ceiling that was last too much: beyond it a step is a trial."""
TRY_S: Final = 30.0
"""Between two trials: each may cost others a few slow answers."""
FORGET_S: Final = 600.0
"""After so long a ceiling that was too much is tried like any other: traffic comes and goes."""
HELPED: Final = 0.9
"""Of the percentile before a cut: above, the cut did not help."""
LONG: Final = 1.1
"""Times what no cut helped against: ours make it no worse than that."""
LONG_S: Final = 300.0
"""After so long it is tried again whether a cut helps."""
USED: Final = 0.8
"""Of the ceiling in flight: below, it is not what bounds."""
QUEUED: Final = 0.1
"""Of the target, that requests wait in the queue on average: below, it is not the queue that makes
them late."""
ENOUGH: Final = 20
"""First tokens in a window: the slowest of so many is about the 95th percentile."""
WINDOW_MIN_S: Final = 2.0
WINDOW_MAX_S: Final = 15.0
"""A window that has few first tokens is rated after so long."""
DRAIN_MAX_S: Final = 120.0
"""Calls above a new ceiling end within so long, or are looked at with the others."""
REST_S: Final = 30.0
"""After so long without our own requests, nothing is known of the server any more."""
MOST: Final = 1 << 20
"""Calls in flight that a ceiling may reach: a fleet has less."""
WHY_CHARS: Final = 200

Code = Literal["start", "under", "near", "over", "least", "long", "unread"]
CODES: Final = get_args(Code)


class Ours(NamedTuple):
    """The fleet's own requests at the server."""

    in_flight: int = 0
    ended: float = 0.0
    """Since any time."""


@dataclass(frozen=True, slots=True)
class Yielding:
    """The ceiling of a fleet, and why it is where it is."""

    code: Code = "start"
    ceiling: float = START
    """Calls that the fleet may have in flight."""
    target_s: float = 0.0
    ttft_s: float | None = None
    """The percentile of the latest window; None = there were no first tokens."""
    queued_s: float = 0.0
    """Seconds that a request waited in the server's queue, on average."""
    requests: int = 0
    """First tokens of the window, without our own where the server puts those last."""
    why: str = ""
    """Why the figures could not be read; of another program, to be escaped."""
    binds: bool = False
    """The fleet has about as many in flight as it may."""
    climbing: bool = True
    too_much: float | None = None
    """The ceiling that was last above the target."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Yielding | None:
        """Read what another process wrote; None where it makes no sense."""
        try:
            stored = json.loads(text)
            read = cls(**{name: stored[name] for name in cls.__slots__})
            unknown = (read.ttft_s, read.too_much)
            figures = [float(one) for one in unknown if one is not None]
            figures += map(float, (read.ceiling, read.target_s, read.queued_s, read.requests))
        except (ValueError, TypeError, KeyError):
            return None
        is_usable = (
            all(math.isfinite(one) and one >= 0 for one in figures)
            and read.ceiling >= LEAST
            and read.code in CODES
            and isinstance(read.why, str)
        )
        return read if is_usable else None


class _Look(NamedTuple):
    at: float
    gauges: ServerGauges
    ours: Ours


class InteractiveControl:
    """Moves the ceiling with each look at the server.

    Owned by one task; ``clock`` gives seconds that never step back."""

    def __init__(self, target: InteractiveTarget, clock: Callable[[], float]) -> None:
        self._target, self._clock = target, clock
        self.state = Yielding(target_s=target.ttft_s)
        self._looks: deque[_Look] = deque()
        self._looked_at = self._moved_at = self._too_much_at = clock()
        self._drains = False
        self._before: tuple[float, float] | None = None  # percentile and ceiling before a trial cut
        self._least_s, self._least_at = 0.0, -math.inf  # the percentile that no cut helped against

    def adopt(self, state: Yielding) -> None:
        """Go on where another process left off."""
        self.state = replace(state, target_s=self._target.ttft_s)
        self._begin(self._clock())

    def unread(self, why: str) -> Yielding:
        """Note that the server's figures could not be read. The ceiling stays."""
        self._looks.clear()
        self._looked_at = self._clock()
        self.state = replace(self.state, code="unread", why=why[:WHY_CHARS], ttft_s=None)
        return self.state

    def look(self, gauges: ServerGauges, ours: Ours) -> Yielding:
        """Take the server's figures and our own at one moment."""
        if fault := gauges.fault:
            return self.unread(fault)
        now = self._clock()
        if now - self._looked_at > REST_S:
            self._rest(now)
        self._looked_at = now
        binds = ours.in_flight >= USED * self.state.ceiling
        self.state = replace(self.state, binds=binds, why="")
        if self._drains:
            late = now - self._moved_at > DRAIN_MAX_S
            if ours.in_flight > self.state.ceiling and not late:
                return self.state
            self._drains = False
            self._looks.clear()
        if self._looks and _began_anew(self._looks[-1].gauges, gauges):
            self._looks.clear()
        self._looks.append(_Look(now, gauges, ours))
        while now - self._looks[0].at > WINDOW_MAX_S:
            self._looks.popleft()
        self._rate(now)
        return self.state

    def _rest(self, now: float) -> None:
        """Begin small again: what was right is no longer known."""
        ceiling = min(self.state.ceiling, START)
        self.state = Yielding(ceiling=ceiling, target_s=self._target.ttft_s)
        self._begin(now)

    def _begin(self, now: float) -> None:
        self._looks.clear()
        self._moved_at, self._drains = now, False

    def _rate(self, now: float) -> None:
        first, last = self._looks[0], self._looks[-1]
        span_s = last.at - first.at
        counts = _between(first.gauges, last.gauges)
        requests = counts[-1][1]
        if span_s < WINDOW_MIN_S or (requests < ENOUGH and span_s < WINDOW_MAX_S - 1):
            return
        left_out = 0.0
        if self._target.ours_last:
            left_out = min(requests, max(0.0, last.ours.ended - first.ours.ended))
        ttft_s = quantile(counts, QUANTILE * (requests - left_out))
        queued_s = self._queued_s(requests / span_s)
        self.state = replace(
            self.state,
            ttft_s=ttft_s,
            queued_s=queued_s,
            requests=round(requests - left_out),
        )
        self._move(now, last)

    def _queued_s(self, per_second: float) -> float:
        """Return the seconds that a request waits in the server's queue, on average.

        The histogram has them once an answer has ended; the queue's own length says it earlier
        (Little's law)."""
        first, last = self._looks[0].gauges, self._looks[-1].gauges
        ended = last.queued - first.queued
        told = (last.queue_s - first.queue_s) / ended if ended >= 1 else 0.0
        waiting = sum(look.gauges.waiting for look in self._looks) / len(self._looks)
        return max(0.0, told, waiting / per_second if per_second > 0 else waiting)

    def _move(self, now: float, last: _Look) -> None:
        target, state = self._target, self.state
        span_s, waiting = now - self._looks[0].at, last.gauges.waiting
        # of someone who comes now: behind all that wait, at the pace of late
        coming_s = waiting * span_s / max(state.requests, 1)
        is_long = now - self._least_at <= LONG_S
        bar_s = max(target.ttft_s, LONG * self._least_s) if is_long else target.ttft_s
        ttft_s = state.ttft_s or 0.0
        queues = not target.ours_last and state.queued_s >= QUEUED * target.ttft_s
        floods = not target.ours_last and coming_s > target.ttft_s
        trial, self._before = self._before, None
        if floods or (ttft_s > target.ttft_s and (queues or target.ours_last)):
            self._cut(now, last)
        elif ttft_s > bar_s:
            self._try_fewer(now, last, ttft_s, trial)
        elif ttft_s > target.ttft_s:
            self._grow("long", now, last, queues=queues)
        elif ttft_s > NEAR * target.ttft_s:
            self.state = replace(state, code="near", climbing=False)
        else:
            self._grow("under", now, last, queues=queues)

    def _try_fewer(
        self, now: float, last: _Look, ttft_s: float, trial: tuple[float, float] | None
    ) -> None:
        """Cut once to see whether that helps, where no queue shows that it does."""
        if trial is not None and ttft_s > HELPED * trial[0]:
            self._least_s, self._least_at = ttft_s, now
            self._set("long", trial[1], now)
            self.state = replace(self.state, too_much=None)  # it was not
            return
        self._before = (ttft_s, self.state.ceiling)
        self._cut(now, last)

    def _say(self, code: Code) -> None:
        self.state = replace(self.state, code=code)

    def _cut(self, now: float, last: _Look) -> None:
        state = self.state
        if state.ceiling <= LEAST:
            self._say("least")
            return
        had = min(state.ceiling, max(float(LEAST), float(last.ours.in_flight)))
        queued = 0.0 if self._target.ours_last else last.gauges.waiting
        self._too_much_at = now
        self._set("over", max(float(LEAST), min(CUT * had, had - queued)), now)
        self.state = replace(self.state, climbing=False, too_much=had)
        self._drains = True

    def _grow(self, code: Code, now: float, last: _Look, *, queues: bool) -> None:
        state = self.state
        if now - self._too_much_at > FORGET_S:
            state = replace(state, too_much=None)
        self.state = replace(state, code=code, climbing=state.climbing and not queues)
        if queues or last.ours.in_flight < USED * state.ceiling:
            return
        wanted = max(state.ceiling + 1, state.ceiling * (CLIMB if state.climbing else STEP))
        is_trial = state.too_much is not None and wanted > TOO_MUCH * state.too_much
        if not is_trial or now - self._moved_at >= TRY_S:
            self._set(code, min(wanted, float(MOST)), now)

    def _set(self, code: Code, ceiling: float, now: float) -> None:
        self.state = replace(self.state, code=code, ceiling=ceiling)
        self._begin(now)


def _began_anew(before: ServerGauges, now: ServerGauges) -> bool:
    """Return whether the server's counters began anew, or are other ones."""
    if [bound for bound, _ in before.ttft] != [bound for bound, _ in now.ttft]:
        return True
    pairs = zip(before.ttft, now.ttft, strict=True)
    fell = any(late < early for (_, early), (_, late) in pairs)
    return fell or now.queued < before.queued or now.queue_s < before.queue_s


def _between(first: ServerGauges, last: ServerGauges) -> list[tuple[float, float]]:
    """Return the histogram of what came between two looks."""
    pairs = zip(first.ttft, last.ttft, strict=True)
    return [(bound, late - early) for (bound, early), (_, late) in pairs]


def quantile(counts: Iterable[tuple[float, float]], rank: float) -> float | None:
    """Return the value at a rank of a cumulative histogram; None where the rank is below one.

    Inside a bucket it is between its bounds; in the last one it is the bound before, as Prometheus
    has it."""
    if rank <= 0:
        return None
    below, lower = 0.0, 0.0
    for bound, count in counts:
        if count >= rank:
            if math.isinf(bound):
                return lower
            part = (rank - below) / max(count - below, 1e-9)
            return lower + (bound - lower) * part
        below, lower = count, bound
    return lower


def shares(ceiling: float, wanted: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    """Part a ceiling among processes, by the calls that each has in flight and has waiting.

    None gets more than it can use while another lacks; what is left over is spread, for those that
    come. Places that one is too few for go to those whose calls are under way, so that one that
    ends makes room for the next there."""
    left = max(LEAST, int(ceiling))
    parts = dict.fromkeys(wanted, 0)
    open_ones = sorted(wanted, key=lambda name: (-min(1, wanted[name][0]), -wanted[name][1], name))
    while left and open_ones:
        each = max(1, left // len(open_ones))
        still = []
        for name in open_ones:
            most = max(0, sum(wanted[name]) - parts[name])
            part = min(each, most, left)
            parts[name] += part
            left -= part
            if most > part:
                still.append(name)
        open_ones = still
    for place, name in enumerate(sorted(parts)):
        parts[name] += left // len(parts) + (place < left % len(parts))
    return parts
