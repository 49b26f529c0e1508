"""Who may have how much in a queue: each job something, the urgent ones little, and together no
more than there is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_ratelimit.fairness import CLASS_STEP, Flow, Priority
from penstock_workers.control.feeds.shares import Share, parts, shares

FLOWS = st.lists(
    st.builds(
        Flow,
        tenant=st.sampled_from(["", "a", "b"]),
        job=st.text("0123456789", min_size=1, max_size=3),
        weight=st.floats(0.01, 100),
        priority=st.sampled_from(Priority),
    ),
    unique_by=lambda flow: flow.job,
    min_size=1,
    max_size=30,
)


@given(FLOWS)
def test_the_parts_are_the_whole(flows: list[Flow]) -> None:
    """Every job has a part greater than zero, and the parts add up to one."""
    found = parts(flows)
    assert found.keys() == {flow.job for flow in flows}
    assert sum(found.values()) == pytest.approx(1)
    assert min(found.values()) > 0


@given(FLOWS, st.integers(1, 500), st.integers(1, 50_000))
def test_everybody_feeds_and_the_urgent_never_fill_the_front(
    flows: list[Flow], front: int, window: int
) -> None:
    """No job gets nothing; at the front are urgent jobs only, with no more than there is room for,
    and at least one."""
    found = shares(flows, front, window)
    assert found.keys() == {flow.job for flow in flows}
    assert min(share.documents for share in found.values()) >= 1
    urgent = {flow.job for flow in flows if flow.priority == Priority.URGENT}
    at_front = {job: share.documents for job, share in found.items() if share.urgent}
    assert at_front.keys() <= urgent
    assert sum(at_front.values()) <= front
    assert bool(at_front) == bool(urgent)
    assert sum(share.documents for share in found.values() if not share.urgent) <= window + len(
        flows
    )


def test_weights_count_inside_a_tenant_and_tenants_share_evenly() -> None:
    """Tenants have equal shares of the window, divided among their jobs by weight."""
    flows = [Flow("a", "1", weight=1), Flow("a", "2", weight=3), Flow("b", "3", weight=0.01)]
    assert shares(flows, 1, 800) == {
        "1": Share(100, False),
        "2": Share(300, False),
        "3": Share(400, False),
    }


def test_low_work_gets_a_small_part_while_other_work_lives_and_all_of_it_alone() -> None:
    """A low job has one part to a normal job's `CLASS_STEP`, and the whole window when it is
    alone."""
    low, normal = Flow(job="low", priority=Priority.LOW), Flow(job="normal")
    both = shares([low, normal], 1, 900)
    assert both["normal"].documents == pytest.approx(
        CLASS_STEP * both["low"].documents, abs=CLASS_STEP
    )
    assert shares([low], 1, 900)["low"] == Share(900, False)


def test_urgent_work_leaves_the_window_to_the_others() -> None:
    """Urgent jobs have the places at the front, and the window stays whole for the others."""
    flows = [Flow(job="u", priority=Priority.URGENT), Flow(job="n")]
    assert shares(flows, 6, 2_000) == {"u": Share(6, True), "n": Share(2_000, False)}


def test_urgent_jobs_beyond_the_places_at_the_front_are_fed_as_normal_ones() -> None:
    """Where urgent jobs outnumber the places at the front, the rest share the window as normal
    jobs."""
    flows = [Flow(job=str(number), priority=Priority.URGENT) for number in range(4)]
    found = shares([*flows, Flow(job="n")], 2, 300)
    assert [found[str(number)] for number in range(4)] == [Share(1, True)] * 2 + [
        Share(100, False)
    ] * 2
    assert found["n"] == Share(100, False)
