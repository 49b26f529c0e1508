"""How many documents of each job may wait in a queue, by fair shares.

Classes by priority, tenants evenly inside a class, jobs by weight inside a tenant. A queue is first
in, first out, so a job that keeps twice as many documents in it is served twice as often. Urgent
documents go to the consuming end instead; there may be only so many of them at once that every
moment some slots claim others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple, TypeVar

from penstock_ratelimit import Flow, Priority
from penstock_ratelimit.for_penstock import CLASS_STEP


class Share(NamedTuple):
    """What one job may have outstanding."""

    documents: int
    urgent: bool  # at the consuming end


def shares(flows: Collection[Flow], front: int, window: int) -> dict[str, Share]:
    """Return by job how many documents may wait, each at least one.

    Urgent jobs share ``front`` documents, the others a ``window``. Urgent jobs that find no place
    at the front, because there are more jobs than places, are fed as normal ones.
    """
    placed = _placed(flows, front)
    found = {job: Share(documents, True) for job, documents in placed.items()}
    found |= {
        job: Share(max(1, int(window * part)), False)
        for job, part in _parts_beside(flows, placed).items()
    }
    return found


def parts_of_window(flows: Collection[Flow], front: int) -> dict[str, float]:
    """Return which part of the window each job gets that has no place at the front."""
    return _parts_beside(flows, _placed(flows, front))


def parts(flows: Iterable[Flow]) -> dict[str, float]:
    """Return which part of the whole each job gets; the parts add up to one."""
    classes: dict[int, dict[str, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for flow in flows:
        classes[flow.priority][flow.tenant][flow.job] = flow.weight
    return {
        job: of_class * of_tenant * of_job
        for priority, of_class in _split(
            {priority: CLASS_STEP**-priority for priority in classes}
        ).items()
        for tenant, of_tenant in _split(dict.fromkeys(classes[priority], 1.0)).items()
        for job, of_job in _split(classes[priority][tenant]).items()
    }


_Name = TypeVar("_Name", bound=Hashable)


def _split(weights: Mapping[_Name, float]) -> dict[_Name, float]:
    total = sum(weights.values())
    return {name: weight / total for name, weight in weights.items()}


def _placed(flows: Collection[Flow], front: int) -> dict[str, int]:
    return _places([flow for flow in flows if flow.priority == Priority.URGENT], front)


def _parts_beside(flows: Collection[Flow], placed: Collection[str]) -> dict[str, float]:
    return parts(_at_most_normal(flow) for flow in flows if flow.job not in placed)


def _places(urgent: Collection[Flow], front: int) -> dict[str, int]:
    """Return by job its places at the front, all together never more than there are.

    When they run out the largest parts come first."""
    placed: dict[str, int] = {}
    for job, part in sorted(parts(urgent).items(), key=lambda row: (-row[1], row[0])):
        wanted = max(1, int(front * part))
        if sum(placed.values()) + wanted <= front:
            placed[job] = wanted
    return placed


def _at_most_normal(flow: Flow) -> Flow:
    return replace(flow, priority=Priority.NORMAL) if flow.priority < Priority.NORMAL else flow
