"""The lanes by name, and what accepting and feeding a job must know of each.

This is the only such table of this package. Workers have a registry with everything else
(penstock_workers/lanes/registry.py); tests/contract/test_lanes.py holds the two equal. Light to
import, as command lines need the names before anything else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from penstock_producer.job.endpoints import EMBEDDINGS, MEDIA, OPENAI, SCORING

__all__ = [
    "AUTO",
    "AUTO_LANES",
    "BATCH_LANE",
    "DEFAULT_LANE",
    "LANES",
    "Lane",
    "LaneAsked",
    "LaneFacts",
    "can_answer",
    "has_own_model",
    "lanes_in_words",
    "packs",
    "permitted",
    "served_lanes",
]

Lane = Literal["api", "gpu", "embed", "batch"]
LaneAsked = Literal[Lane, "auto"]
DEFAULT_LANE: Final = "api"
BATCH_LANE: Final = "batch"
# in the place of a lane's name: control chooses one of those that the job permits, and may change
# it
AUTO: Final = "auto"


@dataclass(frozen=True, slots=True)
class LaneFacts:
    """One lane, as far as it concerns those that send work to it."""

    # its workers host one model: requests need not name it, and cost no provider's tokens
    has_own_model: bool = False
    # documents made from a prompt go in the order of their prompts; see feed/feeder_plan.py
    orders_prompts: bool = False
    # what the command line takes for a job that names none; None = the spec's default
    endpoint: str | None = None
    endpoints: frozenset[str] = frozenset()  # answered besides those of every provider
    makes_vectors: bool = False  # its workers store numbers, of the type that a job asks for
    is_real_time: bool = False  # a provider answers at once, at its full price
    # its workers pack documents into files themselves: none is a message, and none is fed
    packs: bool = False


LANES: Final[Mapping[str, LaneFacts]] = {
    "api": LaneFacts(is_real_time=True),  # providers see the file's order
    # The worker's own prefix cache decides the pace.
    "gpu": LaneFacts(has_own_model=True, orders_prompts=True, endpoints=SCORING),
    "embed": LaneFacts(
        has_own_model=True, endpoint=EMBEDDINGS, endpoints=SCORING, makes_vectors=True
    ),
    BATCH_LANE: LaneFacts(packs=True),  # for the providers' Batch APIs
}

# of `auto` where none are named: one provider, and one model
AUTO_LANES: Final = (BATCH_LANE, DEFAULT_LANE)


def permitted(lane: str, lanes: Sequence[str] | None) -> tuple[str, ...]:
    """Return the lanes that a job may go to, the one that it prefers first.

    ``lane`` and ``lanes`` are as its spec has them.
    """
    if lane == AUTO:
        return tuple(lanes) if lanes else AUTO_LANES
    return (lane, *(other for other in lanes or () if other != lane))


def has_own_model(lane: str) -> bool:
    """Return whether workers of this lane host a model themselves; False for an unknown lane."""
    return lane in LANES and LANES[lane].has_own_model


def can_answer(lane: str, endpoint: str) -> bool:
    """Return whether a lane can answer requests to an endpoint.

    A lane for one endpoint only cannot answer those to others, nor can a model of one's own answer
    another API.
    """
    facts = LANES[lane]
    if facts.has_own_model and endpoint not in OPENAI | facts.endpoints:
        return False
    if endpoint in MEDIA and not facts.is_real_time:
        return False
    return facts.endpoint in (None, endpoint) or endpoint in facts.endpoints


def packs(lane: str) -> bool:
    """Return whether workers of this lane read the source and ask a provider's batch API.

    False for a lane that there is not.
    """
    return lane in LANES and LANES[lane].packs


def served_lanes() -> list[str]:
    """Return the lanes that jobs can be sent to, in their usual order."""
    return list(LANES)


def lanes_in_words(last_word: str = "and") -> str:
    """Return text such as "api, gpu and embed"."""
    *first, last = served_lanes()
    return f"{', '.join(first)} {last_word} {last}"
