"""Batch work holds back for others at a server that they share: servers played in virtual time, and
the parts of a ceiling."""

from __future__ import annotations

import heapq
import json
import random
from bisect import bisect_left
from collections import deque
from dataclasses import asdict, dataclass, field
from itertools import accumulate, count
from math import inf, nan

import pytest

from penstock_ratelimit import BadQuota, InteractiveTarget, Quota, ServerGauges
from penstock_ratelimit.shared.interactive import (
    LEAST,
    START,
    InteractiveControl,
    Ours,
    Yielding,
    quantile,
    shares,
)

BOUNDS = (0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, inf)
TARGET_S = 0.5
PEOPLE = -1


@dataclass
class Server:
    """A server of some places, a line before them, people who come at random, and fleets that always
    have more to do. Each second every fleet looks."""

    places: int = 32
    people: float = 4.0
    """A second."""
    theirs_s: float = 0.3
    ours_s: float = 1.5
    first_s: float = 0.06
    """To the first token of one that runs."""
    our_first_s: float | None = None
    slower: float = 0.0
    """Seconds more to the first token per request that runs."""
    target: InteractiveTarget = field(default_factory=lambda: InteractiveTarget(TARGET_S))
    fleets: int = 1
    most_ours: int = 1 << 30

    def __post_init__(self) -> None:
        self.now, self.luck, self._number, self.running = 0.0, random.Random(3), count(), 0
        self._events: list[tuple[float, int, str, tuple[float, int]]] = []
        self._line: deque[tuple[float, int]] = deque()  # when it came, and whose it is
        self._counts, self._queue_s, self._queued = [0] * len(BOUNDS), 0.0, 0
        self.late: list[tuple[float, float]] = []
        """When people came, and their times to the first token."""
        self.ours, self.ended = [0] * self.fleets, [0] * self.fleets
        self.controls = [
            InteractiveControl(self.target, lambda: self.now) for _ in range(self.fleets)
        ]
        self.states: list[Yielding] = []
        """Of the first fleet."""
        self.next_person()

    @property
    def ceiling(self) -> float:
        return self.controls[0].state.ceiling

    def next_person(self) -> None:
        if self.people:
            self._push(self.now + self.luck.expovariate(self.people), "person", (0.0, PEOPLE))

    def _push(self, at: float, what: str, about: tuple[float, int]) -> None:
        heapq.heappush(self._events, (at, next(self._number), what, about))

    def _fill(self, fleet: int) -> None:
        while self.ours[fleet] < min(self.most_ours, int(self.controls[fleet].state.ceiling)):
            self.ours[fleet] += 1
            self._line.append((self.now, fleet))
            self._start()

    def _start(self) -> None:
        while self._line and self.running < self.places:
            first = next((one for one in self._line if one[1] == PEOPLE), self._line[0])
            at, whose = first if self.target.ours_last else self._line[0]
            self._line.remove((at, whose))
            first_s, whole_s = self.first_s, self.ours_s
            if whose == PEOPLE:
                whole_s = self.theirs_s
            elif self.our_first_s is not None:
                first_s = self.our_first_s
            first_s += self.slower * self.running
            self.running += 1
            wait_s = self.now - at
            if whose == PEOPLE:
                self.late.append((at, wait_s + first_s))
            self._push(self.now + first_s, "first", (wait_s + first_s, whose))
            whole_s *= self.luck.lognormvariate(0, 0.2)
            self._push(self.now + max(first_s, whole_s), "end", (wait_s, whose))

    def run(self, seconds: float) -> Server:
        until = self.now + seconds
        while self.now < until:
            second = self.now + 1.0
            for fleet in range(self.fleets):
                self._fill(fleet)
            while self._events and self._events[0][0] <= second:
                self.now, _, what, (took_s, whose) = heapq.heappop(self._events)
                if what == "first":
                    self._counts[bisect_left(BOUNDS, took_s)] += 1
                elif what == "person":
                    self._line.append((self.now, PEOPLE))
                    self._start()
                    self.next_person()
                else:
                    self._end(took_s, whose)
            self.now = second
            for control, ours, ended in zip(self.controls, self.ours, self.ended, strict=True):
                control.look(self.gauges(), Ours(ours, ended))
            self.states.append(self.controls[0].state)
        return self

    def _end(self, waited_s: float, whose: int) -> None:
        self.running -= 1
        self._queue_s, self._queued = self._queue_s + waited_s, self._queued + 1
        self._start()
        if whose != PEOPLE:
            self.ours[whose] -= 1
            self.ended[whose] += 1
            self._fill(whose)

    def gauges(self) -> ServerGauges:
        ttft = tuple(zip(BOUNDS, accumulate(self._counts), strict=True))
        return ServerGauges(self.running, len(self._line), ttft, self._queue_s, self._queued)

    def people_wait(self, part: float, since: float = 30.0) -> float:
        waited = sorted(ttft for at, ttft in self.late if at >= since)
        return waited[int(part * len(waited))]

    @property
    def codes(self) -> set[str]:
        return {state.code for state in self.states}


@pytest.mark.parametrize("people", [0.5, 4.0, 30.0])
def test_people_wait_no_longer_than_the_target_and_the_server_stays_full(people: float) -> None:
    """The 95th percentile of what people wait stays under the target beside a fleet that would take
    everything, which gets four fifths of what they leave."""
    server = Server(people=people).run(400)
    assert server.people_wait(0.95) <= TARGET_S
    left = server.places - people * server.theirs_s
    assert server.ended[0] / 400 >= 0.8 * left / (server.ours_s * 1.02)


def test_long_answers_are_held_back_as_well() -> None:
    """Answers of 20 s leave their places late, and few first tokens say how it is."""
    server = Server(ours_s=20.0).run(1_200)
    assert server.people_wait(0.95, since=300) <= TARGET_S


def test_when_people_leave_the_server_is_taken_and_given_back_when_they_come() -> None:
    """Most of the places follow the traffic of others in both directions."""
    server = Server(people=60.0).run(200)
    beside_many = server.ceiling
    server.people = 0.0
    server.run(900)
    alone = server.ceiling
    assert beside_many < 20 < alone
    server.people, came = 60.0, server.now
    server.next_person()
    server.run(200)
    assert server.people_wait(0.95, since=came + 60) <= TARGET_S


def test_a_target_that_cannot_be_met_leaves_one_call_and_says_so() -> None:
    """Others alone are too many for the server: batch work goes on, one call at a time."""
    server = Server(places=4, people=16.0).run(300)
    assert server.states[-1].code == "least"
    assert server.ceiling == LEAST
    assert server.ended[0] > 20


def test_prompts_that_are_long_are_told_from_a_queue() -> None:
    """Ours take a second to their first token however few they are: a trial shows that fewer do not
    help, they go on, and people wait no longer for it."""
    server = Server(our_first_s=1.0).run(250)
    assert "long" in server.codes
    assert server.ended[0] / 250 > 10
    assert server.people_wait(0.95) <= TARGET_S


def test_two_fleets_at_one_server_share_it() -> None:
    """Each with a Redis of its own: people go first all the same, and the fleets end up alike."""
    server = Server(fleets=2).run(900)
    assert server.people_wait(0.95, since=60) <= TARGET_S
    assert sum(server.ended) / 900 > 15
    assert 0.6 < server.ended[0] / server.ended[1] < 1.7


def test_a_server_that_is_slow_without_a_queue_is_relieved() -> None:
    """Each request that runs makes the first tokens of others later: fewer help, and the
    trial finds it out."""
    server = Server(places=200, slower=0.01, ours_s=5.0).run(900)
    assert server.people_wait(0.95, since=300) <= 1.2 * TARGET_S
    assert server.ceiling < 70


def test_what_waits_is_a_reason_before_it_is_late() -> None:
    """A queue that will take longer than the target cuts before its requests have a first token."""
    server = Server().run(60)
    now, seen = server.now, server.gauges()
    many = seen._replace(waiting=200.0)
    for second in range(1, 4):
        server.now = now + second
        counts = tuple((bound, n + 20.0 * second) for bound, n in many.ttft)
        server.controls[0].look(many._replace(ttft=counts), Ours(30, 900))
    assert server.controls[0].state.code == "over"


def test_where_the_server_puts_ours_last_only_others_count() -> None:
    """Ours wait as long as they like, and are left out of the percentile: the server is full."""
    ours_last = InteractiveTarget(TARGET_S, ours_last=True)
    server = Server(target=ours_last).run(200)
    assert server.people_wait(0.95) <= TARGET_S
    assert server.ceiling > server.places - 4
    assert server.ended[0] / 200 > 17


def fed(control: InteractiveControl, seconds: int, now: list[float]) -> Yielding:
    """Show a server that is quick, for so many seconds: 30 first tokens in each."""
    for _ in range(seconds):
        now[0] += 1.0
        counts = tuple((bound, 30.0 * now[0] if bound >= 0.06 else 0.0) for bound in BOUNDS)
        gauges = ServerGauges(8.0, 0.0, counts, 0.0, 30.0 * now[0])
        control.look(gauges, Ours(8, 30.0 * now[0]))
    return control.state


def steady() -> tuple[InteractiveControl, list[float]]:
    now = [0.0]
    control = InteractiveControl(InteractiveTarget(TARGET_S), lambda: now[0])
    fed(control, 20, now)
    return control, now


GOOD = ServerGauges(8.0, 0.0, tuple((bound, 5.0) for bound in BOUNDS), 1.0, 5.0)


@pytest.mark.parametrize(
    ("gauges", "why"),
    [
        (GOOD._replace(waiting=nan), "no number"),
        (GOOD._replace(running=-1.0), "negative"),
        (GOOD._replace(queue_s=inf), "no number"),
        (GOOD._replace(ttft=()), "no times to the first token"),
        (GOOD._replace(ttft=GOOD.ttft[:-1]), "no end"),
        (GOOD._replace(ttft=((0.5, 9.0), (inf, 5.0))), "does not add up"),
        (GOOD._replace(ttft=((inf, 5.0), (inf, 5.0))), "does not add up"),
        (GOOD._replace(ttft=((nan, 5.0), (inf, 5.0))), "does not add up"),
        (GOOD._replace(ttft=((0.5, nan), (inf, 5.0))), "no number"),
        (GOOD._replace(ttft=tuple((float(n), 1.0) for n in range(999))), "no end"),
    ],
)
def test_figures_that_make_no_sense_neither_stop_nor_free(gauges: ServerGauges, why: str) -> None:
    """The ceiling stays where it was, however often, and the reason is said."""
    control, now = steady()
    before = control.state.ceiling
    for _ in range(100):
        now[0] += 1.0
        control.look(gauges, Ours(500, 0.0))
    state = control.state
    assert (state.code, state.ceiling) == ("unread", before)
    assert why in state.why
    assert fed(control, 4, now).code == "under"


def test_a_server_that_starts_again_is_measured_anew() -> None:
    """Its counters begin at nothing: what they seem to have lost is no figure, and the next window
    counts."""
    control, now = steady()
    began = now[0]
    for second in range(1, 6):
        now[0] += 1.0
        n = 10.0 * second
        late = tuple((bound, n if bound > 2 else 0.0) for bound in BOUNDS)
        control.look(ServerGauges(8, 9, late, 2.0 * n, n), Ours(8, 900))
    assert control.state.code == "over"
    assert control.state.requests <= 10 * (now[0] - began)


def test_a_flapping_server_does_not_move_the_ceiling_upwards() -> None:
    """Good figures for one look between two without: no window is ever whole."""
    control, now = steady()
    before = control.state.ceiling
    for _ in range(60):
        fed(control, 1, now)
        now[0] += 1.0
        control.unread("it answers 503")
    assert control.state.ceiling == before


def test_after_a_rest_it_begins_small() -> None:
    """What was right minutes ago is not known to be: the next looks begin as at a start."""
    control, now = steady()
    assert control.state.ceiling > START
    now[0] += 3_600.0
    counts = tuple((bound, 1e6) for bound in BOUNDS)
    state = control.look(ServerGauges(1.0, 0.0, counts, 0.0, 1e6), Ours(1, 1e6))
    assert (state.code, state.ceiling, state.climbing) == ("start", START, True)


def test_an_unused_ceiling_does_not_grow() -> None:
    """A fleet with two calls in flight proves nothing about more."""
    server = Server(most_ours=2).run(200)
    assert server.ceiling == START


def test_another_process_goes_on_where_one_left_off() -> None:
    """The state travels as JSON, and its ceiling holds until the first window of the new one."""
    server = Server().run(100)
    stored = Yielding.from_json(server.controls[0].state.to_json())
    assert stored == server.controls[0].state
    assert stored is not None
    control = InteractiveControl(server.target, lambda: server.now)
    control.adopt(stored)
    assert control.look(server.gauges(), Ours()).ceiling == server.ceiling


@pytest.mark.parametrize(
    "odd",
    [
        {"ceiling": "x"},
        {"ceiling": nan},
        {"ceiling": 0},
        {"ceiling": -5},
        {"code": "so"},
        {"ttft_s": "late"},
        {"why": 5},
    ],
)
def test_an_odd_state_is_no_state(odd: dict[str, object]) -> None:
    """Anyone who reaches Redis may write there."""
    assert Yielding.from_json(json.dumps(asdict(Yielding()))) == Yielding()
    assert Yielding.from_json(json.dumps(asdict(Yielding()) | odd)) is None
    assert [Yielding.from_json(text) for text in ("", "{", "[]", "7", "{}")] == [None] * 5


def test_a_percentile_is_read_as_prometheus_reads_it() -> None:
    """Between the bounds of its bucket; above the last bound it is that."""
    counts = [(0.5, 90.0), (1.0, 100.0), (inf, 100.0)]
    assert quantile(counts, 95) == pytest.approx(0.75)
    assert quantile([(0.5, 0.0), (inf, 10.0)], 9.5) == 0.5
    assert quantile(counts, 0.0) is None


@pytest.mark.parametrize(
    ("ceiling", "wanted", "parts"),
    [
        (10, {"a": (3, 9), "b": (2, 9)}, {"a": 5, "b": 5}),
        (10, {"a": (0, 2), "b": (9, 90)}, {"a": 2, "b": 8}),
        (10, {"a": (0, 0), "b": (1, 0)}, {"a": 5, "b": 5}),
        (1, {"a": (0, 9), "b": (1, 9), "c": (0, 0)}, {"a": 0, "b": 1, "c": 0}),
        (1, {"a": (0, 0), "b": (0, 1)}, {"a": 0, "b": 1}),
        (1.9, {"a": (0, 5)}, {"a": 1}),
        (0, {"a": (0, 5)}, {"a": LEAST}),
        (7, {"a": (9, 9), "b": (9, 9)}, {"a": 4, "b": 3}),
    ],
)
def test_a_ceiling_is_parted_by_what_each_can_use(
    ceiling: float, wanted: dict[str, tuple[int, int]], parts: dict[str, int]
) -> None:
    """None gets more than it can use while another lacks, what is left over is spread, and one call
    stays where calls are under way."""
    assert shares(ceiling, wanted) == parts


def test_parts_are_the_whole_for_any_fleet() -> None:
    """Sums and bounds of 500 random fleets."""
    luck = random.Random(1)
    for _ in range(500):
        wanted = {
            f"p{n}": (luck.randrange(40), luck.randrange(40)) for n in range(luck.randint(1, 30))
        }
        ceiling = luck.choice([1, 2, 7, 31, 400, 5_000])
        parts = shares(ceiling, wanted)
        assert sum(parts.values()) == ceiling
        if sum(map(sum, wanted.values())) >= ceiling:
            assert all(parts[name] <= sum(wanted[name]) for name in wanted)


@pytest.mark.parametrize(
    ("quota", "field"),
    [
        (lambda: Quota("q", reserve=1.0), "Quota.reserve is 1.0"),
        (lambda: Quota("q", reserve=-0.1), "Quota.reserve is -0.1"),
        (lambda: Quota("q", interactive=InteractiveTarget(0)), "Quota.interactive.ttft_s is 0"),
        (lambda: Quota("q", interactive=InteractiveTarget(nan)), "Quota.interactive.ttft_s is nan"),
    ],
)
def test_what_cannot_be_is_refused_with_its_field(quota: object, field: str) -> None:
    """A quota that could start nothing is a mistake."""
    with pytest.raises(BadQuota, match=field):
        quota()  # type: ignore[operator]  # one of the above
