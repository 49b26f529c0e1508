"""The line inside a process: no item is skipped, none starves, and each flow gets its part."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections import defaultdict
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_ratelimit import fairness
from penstock_ratelimit.fairness import CLASS_STEP, FairLine, Flow, Priority
from penstock_ratelimit.limiter import StartRequest
from penstock_ratelimit.quota import Quota
from penstock_ratelimit.rates import PerMinute, PerSecond
from penstock_ratelimit.shared.waiting import Waiter, WaitingCallers
from penstock_ratelimit.testing import run_virtual

COSTS = st.floats(0.01, 100.0)
WEIGHTS = st.floats(0.01, 100.0)
FLOWS = st.builds(
    Flow,
    tenant=st.sampled_from(["", "a", "b"]),
    job=st.sampled_from(["1", "2", "3"]),
    weight=WEIGHTS,
    priority=st.sampled_from(Priority),
)
ROUNDING = 1 + 1e-9


def pop(line: FairLine[tuple[str, float]]) -> tuple[str, float]:
    item = line.pop()
    assert item is not None, "the line is not empty"
    return item


def served(line: FairLine[tuple[str, float]], pops: int) -> dict[str, float]:
    """Cost served by name in so many pops."""
    totals: dict[str, float] = defaultdict(float)
    for _ in range(pops):
        name, cost = pop(line)
        totals[name] += cost
    return totals


# --- none is lost, order is kept
# --------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(FLOWS, COSTS) | st.none()))
def test_it_serves_whenever_somebody_waits_and_each_exactly_once(
    steps: list[tuple[Flow, float] | None],
) -> None:
    """Work conserving: ``pop`` says None only when every item that came was served; none is served
    twice."""
    line: FairLine[int] = FairLine()
    inside: set[int] = set()
    for number, step in enumerate(steps):
        if step is not None:
            line.push(number, *step)
            inside.add(number)
        elif inside:
            inside.remove(line.pop())  # type: ignore[arg-type]  # None is no member, which is the point
        else:
            assert line.pop() is None
        assert (len(line), bool(line), set(line)) == (len(inside), bool(inside), inside)
    while inside:
        inside.remove(line.pop())  # type: ignore[arg-type]
    assert line.pop() is None


@given(st.lists(st.tuples(FLOWS, COSTS) | st.none()))
def test_first_come_first_served_inside_a_flow(steps: list[tuple[Flow, float] | None]) -> None:
    """Whatever the costs, items of one job leave in the order in which they came."""
    line: FairLine[tuple[tuple[object, ...], int]] = FairLine()
    last: dict[tuple[object, ...], int] = {}
    for number, step in enumerate([*steps, *[None] * len(steps)]):
        if step is not None:
            flow, cost = step
            line.push(((flow.tenant, flow.job, flow.priority), number), flow, cost)
        elif (item := line.pop()) is not None:
            assert last.get(item[0], -1) < item[1]
            last[item[0]] = item[1]


EXACT_FLOWS = st.builds(  # sums of these costs over these weights have no rounding
    Flow,
    tenant=st.sampled_from(["", "a"]),
    job=st.sampled_from(["1", "2"]),
    weight=st.sampled_from([0.5, 1.0, 2.0]),
    priority=st.sampled_from(Priority),
)


@given(st.lists(st.tuples(EXACT_FLOWS, st.sampled_from([1.0, 2.0, 4.0])) | st.none(), max_size=60))
def test_a_flow_that_was_alone_is_served_as_if_it_had_had_tags(
    steps: list[tuple[Flow, float] | None],
) -> None:
    """A plain line of one flow and tags from the start serve the same items in the same order,
    whenever others come."""
    line, with_tags = FairLine[int](), fairness._Crowd[int]()
    for number, step in enumerate(steps):
        if step is not None:
            line.push(number, *step)
            with_tags.push(fairness._path(step[0]), number, step[1])
            continue
        popped = with_tags.pop(lambda _: False)
        assert line.pop() == (None if popped is None else popped[0])


@given(st.lists(COSTS))
def test_one_flow_is_a_plain_line(costs: list[float]) -> None:
    """Items of one flow leave in the order of their arrival, whatever they cost."""
    line: FairLine[int] = FairLine()
    for number, cost in enumerate(costs):
        line.push(number, Flow(), cost)
    assert [line.pop() for _ in costs] == list(range(len(costs)))


@given(st.lists(st.tuples(FLOWS, COSTS), max_size=40), st.integers(0, 40), st.integers(1, 3))
def test_what_is_given_back_is_next_again_in_its_order(
    items: list[tuple[Flow, float]], taken: int, times: int
) -> None:
    """Giving back changes nothing: the same items follow in the same order, and then those that
    would have followed."""
    line, untouched = FairLine[int](), FairLine[int]()
    for number, (flow, cost) in enumerate(items):
        line.push(number, flow, cost)
        untouched.push(number, flow, cost)
    for _ in range(times):
        line.push_front(
            [item for _ in range(min(taken, len(items))) if (item := line.pop()) is not None]
        )
    assert [line.pop() for _ in items] == [untouched.pop() for _ in items]


@given(st.lists(st.tuples(FLOWS, COSTS, st.booleans())))
def test_those_who_are_gone_are_skipped(items: list[tuple[Flow, float, bool]]) -> None:
    """`pop` gives every item that still waits, once, and none that has left."""
    stays = {number for number, (_, _, stay) in enumerate(items) if stay}
    line = FairLine[int](gone=lambda number: number not in stays)
    for number, (flow, cost, _) in enumerate(items):
        line.push(number, flow, cost)
    assert {line.pop() for _ in stays} == stays
    assert line.pop() is None


def test_those_who_are_gone_are_charged_to_nobody() -> None:
    """A job half of whose items gave up gets as much for the other half as a job that lost none."""
    line: FairLine[tuple[str, float]] = FairLine(gone=lambda item: item[0] == "gone")
    for number in range(200):
        line.push(("steady", 1.0), Flow(job="steady"), 1.0)
        line.push(("gone" if number % 2 else "fickle", 1.0), Flow(job="fickle"), 1.0)
    totals = served(line, 100)
    assert abs(totals["steady"] - totals["fickle"]) <= 2


# --- shares
# --------------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(WEIGHTS, st.lists(COSTS, min_size=30, max_size=30)), min_size=2, max_size=5)
)
def test_jobs_of_a_tenant_share_by_weight_within_their_largest_items(
    jobs: list[tuple[float, list[float]]],
) -> None:
    """While both wait, service / weight of two jobs differs by no more than their largest items /
    weights."""
    line: FairLine[tuple[str, float]] = FairLine()
    for job, (weight, costs) in enumerate(jobs):
        for cost in costs:
            line.push((str(job), cost), Flow(job=str(job), weight=weight), cost)
    left = {str(job): len(costs) for job, (_, costs) in enumerate(jobs)}
    total: dict[str, float] = dict.fromkeys(left, 0.0)
    while all(left.values()):
        name, cost = pop(line)
        left[name] -= 1
        total[name] += cost
        if left[name]:
            assert_even(total, jobs)


def assert_even(total: dict[str, float], jobs: Sequence[tuple[float, Sequence[float]]]) -> None:
    for one, (weight, costs) in enumerate(jobs):
        for other, (other_weight, other_costs) in enumerate(jobs[:one]):
            lead = abs(total[str(one)] / weight - total[str(other)] / other_weight)
            assert lead <= (max(costs) / weight + max(other_costs) / other_weight) * ROUNDING


def test_tenants_share_evenly_however_many_jobs_they_have() -> None:
    """Nine heavy jobs of one tenant get together what the single job of another gets."""
    line: FairLine[tuple[str, float]] = FairLine()
    for _ in range(200):
        for job in range(9):
            line.push(("many", 1.0), Flow("many", str(job), weight=100), 1.0)
        line.push(("single", 1.0), Flow("single", "0", weight=0.01), 1.0)
    totals = served(line, 300)
    assert abs(totals["many"] - totals["single"]) <= 2


def test_a_cost_is_what_counts_not_an_item() -> None:
    """A job of large requests and one of small requests get the same of the quota."""
    line: FairLine[tuple[str, float]] = FairLine()
    for number in range(1_000):
        line.push(("small", 1.0), Flow(job="small"), 1.0)
        if number < 200:
            line.push(("large", 10.0), Flow(job="large"), 10.0)
    totals = served(line, 600)
    assert abs(totals["small"] - totals["large"]) <= 11


def test_an_idle_flow_returns_without_credit() -> None:
    """Who was away while another was served a thousand times gets its part from now on, not what it
    missed."""
    line: FairLine[tuple[str, float]] = FairLine()
    for _ in range(2_000):
        line.push(("busy", 1.0), Flow(job="busy"), 1.0)
    line.push(("away", 1.0), Flow(job="away"), 1.0)
    served(line, 1_000)
    for _ in range(1_000):
        line.push(("away", 1.0), Flow(job="away"), 1.0)
    totals = served(line, 200)
    assert abs(totals["busy"] - totals["away"]) <= 2


def test_leaving_and_coming_back_clears_no_debt() -> None:
    """A job that shows one large request at a time gets no more of the quota than one that shows
    all of its own."""
    line: FairLine[tuple[str, float]] = FairLine()
    for _ in range(1_000):
        line.push(("open", 1.0), Flow(job="open"), 1.0)
    line.push(("sly", 10.0), Flow(job="sly"), 10.0)
    totals: dict[str, float] = defaultdict(float)
    for _ in range(500):
        name, cost = pop(line)
        totals[name] += cost
        if name == "sly":
            line.push(("sly", 10.0), Flow(job="sly"), 10.0)
    assert abs(totals["open"] - totals["sly"]) <= 20


def test_what_is_given_back_is_charged_once() -> None:
    """A job whose items are given back again and again still gets its half."""
    line: FairLine[tuple[str, float]] = FairLine()
    for _ in range(500):
        line.push(("lucky", 1.0), Flow(job="lucky"), 1.0)
        line.push(("unlucky", 1.0), Flow(job="unlucky"), 1.0)
    totals: dict[str, float] = defaultdict(float)
    for _ in range(400):
        item = pop(line)
        while item[0] == "unlucky" and totals["held"] < 5:
            line.push_front([item])
            item = pop(line)
            totals["held"] += 1
        totals["held"] = 0
        totals[item[0]] += 1
    assert abs(totals["lucky"] - totals["unlucky"]) <= 2


def test_a_changed_weight_holds_from_the_next_item_on() -> None:
    """A flow whose weight grows is served by the new weight from its next item on."""
    line: FairLine[tuple[str, float]] = FairLine()
    for _ in range(1_000):
        line.push(("a", 1.0), Flow(job="a", weight=1), 1.0)
        line.push(("b", 1.0), Flow(job="b", weight=1), 1.0)
    served(line, 100)
    line.push(("a", 1.0), Flow(job="a", weight=3), 1.0)
    totals = served(line, 400)
    assert totals["a"] == pytest.approx(300, abs=4)


# --- priorities
# --------------------------------------------------------------------------------------------------


def test_fifty_urgent_items_pass_a_thousand_normal_ones() -> None:
    """They are served at once, but for the ninth that always goes to the others."""
    line: FairLine[tuple[str, float]] = FairLine()
    for _ in range(1_000):
        line.push(("normal", 1.0), Flow(job="big"), 1.0)
    served(line, 10)
    for _ in range(50):
        line.push(("urgent", 1.0), Flow(job="small", priority=Priority.URGENT), 1.0)
    assert served(line, 50 + 50 // 8 + 2)["urgent"] == 50


@given(st.permutations(list(Priority)), COSTS, COSTS)
def test_every_class_is_served_while_the_others_never_end(
    order: list[Priority], cost: float, other: float
) -> None:
    """Ageing: a class waits for its next item no longer than its weight says, plus one item of each
    other class."""
    line: FairLine[tuple[str, float]] = FairLine()
    mine = order[0]
    costs = {priority: cost if priority is mine else other for priority in order}
    for priority in order:
        for _ in range(3):
            line.push((priority.name, costs[priority]), Flow(priority=priority), costs[priority])
    share = {priority: CLASS_STEP ** (mine - priority) for priority in order}
    longest = sum(cost * share[priority] + other for priority in order if priority is not mine)
    waited = 0.0
    for _ in range(400):
        name, paid = pop(line)
        line.push((name, paid), Flow(priority=Priority[name]), paid)
        waited = 0.0 if name == mine.name else waited + paid
        assert waited <= longest * ROUNDING


@given(st.lists(st.tuples(WEIGHTS, COSTS), min_size=2, max_size=6))
def test_every_job_is_served_while_the_others_never_end(jobs: list[tuple[float, float]]) -> None:
    """The lightest job, too, waits no longer than its weight says, plus one item of each other
    job."""
    line: FairLine[tuple[str, float]] = FairLine()
    flows = {str(job): Flow(job=str(job), weight=weight) for job, (weight, _) in enumerate(jobs)}
    for name, flow in flows.items():
        line.push((name, jobs[int(name)][1]), flow, jobs[int(name)][1])
    (weight, cost), others = jobs[0], jobs[1:]
    longest = sum(cost * its_weight / weight + its_cost for its_weight, its_cost in others)
    waited = 0.0
    for _ in range(300):
        name, paid = pop(line)
        line.push((name, paid), flows[name], paid)
        waited = 0.0 if name == "0" else waited + paid
        assert waited <= longest * ROUNDING


# --- memory
# --------------------------------------------------------------------------------------------------


class Name(str):
    """A name whose end can be watched."""

    __slots__ = ("__weakref__",)


def remembered(names: weakref.WeakSet[Name]) -> int:
    gc.collect()
    return len(names)


def test_flows_that_left_are_forgotten_once_the_others_have_caught_up() -> None:
    """Ten thousand jobs that come and go beside one that stays leave nothing behind."""
    line: FairLine[str] = FairLine()
    names: weakref.WeakSet[Name] = weakref.WeakSet()
    name = Name()
    for number in range(10_000):
        name = Name(number)
        names.add(name)
        line.push("one", Flow(job=name), 1.0)
        line.push("stays", Flow(job="stays"), 1.0)
        line.push("stays", Flow(job="stays"), 1.0)
        line.pop()
        line.pop()
    del name
    assert remembered(names) < 10


def test_nothing_is_kept_when_nobody_waits() -> None:
    """An empty line remembers none of the flows that it has served."""
    line: FairLine[int] = FairLine()
    names: weakref.WeakSet[Name] = weakref.WeakSet()
    name = Name()
    for number in range(1_000):
        name = Name(number)
        names.add(name)
        line.push(number, Flow(tenant=name, job=name), 1.0)
    del name
    assert remembered(names) == 1_000
    while line.pop() is not None:
        pass
    assert remembered(names) == 0


def test_items_that_gave_up_leave_nothing_behind() -> None:
    """A job whose items give up again and again, beside one that stays, costs no more after a
    thousand than after ten."""
    line: FairLine[str] = FairLine(gone=lambda item: item == "gone")
    line.push("stays", Flow(job="stays"), 1.0)
    kept = []
    for number in range(1_001):
        line.push("gone", Flow(job="fickle"), 1.0)
        line.push("stays", Flow(job="stays"), 1.0)
        assert line.pop() == "stays"
        if number % 500 == 0:
            kept.append(len(line) + len(gc.get_objects()))
    assert kept[2] - kept[1] < 100


@pytest.mark.parametrize("cost", [0.0, -1.0, float("inf"), float("nan")])
def test_a_cost_that_cannot_be_is_refused(cost: float) -> None:
    """A cost that is not positive and finite is refused."""
    with pytest.raises(ValueError, match="the cost of an item"):
        FairLine[int]().push(1, Flow(), cost)


@pytest.mark.parametrize(
    "flow",
    [{"weight": 0.0}, {"weight": -1.0}, {"weight": float("nan")}, {"weight": 1e9}, {"priority": 3}],
)
def test_a_flow_that_cannot_be_is_refused(flow: dict[str, float]) -> None:
    """A weight or priority outside of its range is refused, with its field named."""
    with pytest.raises(ValueError, match=r"weight|Priority"):
        Flow(**flow)  # type: ignore[arg-type]  # that is the point


# --- the waiting room
# --------------------------------------------------------------------------------------------------

TERMS = Quota("q", {"requests": PerSecond(10), "tokens": PerMinute(60_000)}, margin=1).terms()


def waiter(flow: Flow, tokens: float = 0.0, requests: float = 1.0) -> Waiter:
    costs = {"requests": requests, "tokens": tokens}
    return Waiter(StartRequest(costs, flow=flow), TERMS, asyncio.get_running_loop().create_future())


@pytest.mark.parametrize(
    ("requests", "tokens", "seconds"), [(1, 0, 0.1), (1, 50, 0.1), (1, 500, 0.5), (0, 0, 1e-6)]
)
def test_a_waiter_costs_the_time_it_takes_of_what_binds(
    requests: float, tokens: float, seconds: float
) -> None:
    """A waiter's cost is its time of the scarcest dimension, and never zero."""

    async def main() -> None:
        assert waiter(Flow(), tokens, requests).cost_s == pytest.approx(seconds)

    run_virtual(main())


def test_the_room_shares_between_jobs_what_binds_each() -> None:
    """A job of long requests and one of short ones get the same time of the quota, whichever came
    first."""

    async def main() -> None:
        room = WaitingCallers(asyncio.get_running_loop(), lambda: None)
        for _ in range(100):
            room.arrive(waiter(Flow(job="long"), tokens=1_000))  # a second each
        for _ in range(100):
            room.arrive(waiter(Flow(job="short"), tokens=10))  # a tenth of a second: requests bind
        first = [room.next() for _ in range(55)]
        assert sum(
            one is not None and one.ask.flow.job == "long" for one in first
        ) == pytest.approx(5, abs=1)

    run_virtual(main())


def test_the_room_gives_recalled_tickets_back_in_their_order_and_passes_over_those_who_left() -> (
    None
):
    """Recalled tickets go to the front in their old order, without those that were cancelled."""

    async def main() -> None:
        room = WaitingCallers(asyncio.get_running_loop(), lambda: None)
        waiters = [waiter(Flow(job=str(number % 2))) for number in range(6)]
        for one in waiters:
            room.arrive(one)
        taken = [room.next() for _ in range(4)]
        for number, waiting in enumerate(taken):
            assert waiting is not None
            room.let_go_at(waiting, 10.0 + number)
        waiters[1].future.cancel()
        room.recall()
        assert [room.next() for _ in range(5)] == [
            *(one for one in taken if one is not waiters[1]),
            *waiters[4:],
        ]
        assert (room.next(), room.has_line) == (None, False)

    run_virtual(main())
