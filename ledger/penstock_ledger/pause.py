"""Why a job is paused, as data: a code, who did it, and parameters.

Sentences are made of it at the edge and are never read back.

`jobs.pause` holds it as JSON, written in the transaction that writes state and reason. A row of
before, or of a pause that is not written as data yet, has none: its `reason` is shown as it stands.
`jobs.reason` gets the sentence for readers of before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import orjson

__all__ = [
    "ACCEPTED_NOTHING",
    "EXAMPLE_CHARS",
    "Accepted",
    "Pause",
    "PausedBy",
    "StopCode",
    "accepted_with",
    "explain",
    "in_words",
    "read_accepted",
    "read_pause",
    "stored_pause",
]

EXAMPLE_CHARS: Final = 160


class PausedBy(StrEnum):
    """Who or what has paused a job."""

    PERSON = "person"
    CONTROL = "control"
    BUDGET = "budget"
    PROVIDER = "provider"
    LANE = "lane"
    STOP_LOSS = "stop_loss"


class StopCode(StrEnum):
    """What a stop-loss has found."""

    DEAD = "stop_dead"  # too many documents of the latest are dead letters
    # too many of the latest first answers were paid for and refused by the job's own checks
    MISSED = "stop_missed"
    COST = "stop_usd_per_doc"


@dataclass(frozen=True, slots=True)
class Pause:
    """Why a job is paused.

    ``params`` holds what JSON can hold; which keys there are is said by the code."""

    code: str
    by: PausedBy
    params: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {"code": self.code, "by": str(self.by), "params": dict(self.params)}


@dataclass(frozen=True, slots=True)
class Accepted:
    """How bad a person has found a generation of a job when they let it go on after a stop-loss."""

    generation: int
    # share of documents that are dead letters, or whose first answer was refused
    failing: float = 0.0
    usd_per_doc: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return {
            "generation": self.generation,
            "failing": self.failing,
            "usd_per_doc": self.usd_per_doc,
        }


ACCEPTED_NOTHING: Final = Accepted(0)


def explain(pause: Pause, *, examples: bool = True) -> str:
    """Return the sentence for people.

    What they can do about it is no part of it: see the producer's `reporting/pauses.py`."""
    write = _SENTENCES.get(pause.code)
    try:
        if write is None:
            return pause.code
        shown = [in_words(one) for one in pause.params.get("examples", ())] if examples else []
        return (
            write(pause.params)
            + _cause(pause.params)
            + (f"; for example {'; '.join(shown)}" if shown else "")
        )
    # of another release, which has other parameters
    except (KeyError, TypeError, ValueError, AttributeError):
        return pause.code


def in_words(example: Mapping[str, Any]) -> str:
    """Return one of a pause's examples as text."""
    return f"{example['doc_id']}: {example['reason']}: {example['excerpt']}"


def stored_pause(pause: Pause) -> str:
    """Return the JSON of the column `pause`.

    It repeats the sentence in `reason`: a process of a release without this column writes that one
    alone, and by the difference the pause here is known to be over."""
    return orjson.dumps(pause.to_json() | {"reason": explain(pause)}).decode()


def read_pause(text: str | None, reason: str | None) -> Pause | None:
    """Return what ``stored_pause`` has written.

    None for a pause that is over, or of which nothing can be read.
    """
    found = _loaded(text)
    return None if found is None or found[1] != reason else found[0]


def accepted_with(text: str | None, before: Accepted | None) -> Accepted | None:
    """Return what a person accepts by letting a paused job go on.

    The column `pause` is ``text``; what was accepted ``before`` is kept beside it. None where a
    stop-loss did not pause the job.
    """
    found = _loaded(text)
    if found is None or found[0].by is not PausedBy.STOP_LOSS:
        return None
    params = found[0].params
    try:
        new = Accepted(
            int(params["generation"]), float(params["failing"]), float(params["usd_per_doc"])
        )
    except (KeyError, TypeError, ValueError):
        return None
    old = before if before is not None and before.generation == new.generation else ACCEPTED_NOTHING
    return Accepted(
        new.generation, max(old.failing, new.failing), max(old.usd_per_doc, new.usd_per_doc)
    )


def read_accepted(text: str | None) -> Accepted | None:
    """Return what ``Accepted.to_json`` has written; None where nothing was accepted."""
    try:
        found = orjson.loads(text or "null")
        return (
            None
            if found is None
            else Accepted(found["generation"], found["failing"], found["usd_per_doc"])
        )
    except (ValueError, KeyError, TypeError):
        return None


def _loaded(text: str | None) -> tuple[Pause, str | None] | None:
    try:
        found = orjson.loads(text or "null")
        if found is None:
            return None
        return Pause(str(found["code"]), PausedBy(found["by"]), dict(found["params"])), found.get(
            "reason"
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _stop_dead(params: Mapping[str, Any]) -> str:
    return (
        f"{params['bad']:,} of the latest {params['of']:,} documents are dead "
        f"letters{_bound(params)}"
    )


def _stop_missed(params: Mapping[str, Any]) -> str:
    what = (
        f"{params['bad']:,} of the first answers to the latest {params['of']:,} documents were "
        "paid for and refused"
    )
    return f"{what}{_bound(params)}"


def _stop_cost(params: Mapping[str, Any]) -> str:
    cost, bound = params["usd_per_doc"], params["bound_usd"]
    return (
        f"the latest {params['of']:,} documents cost {cost:.4g} USD each (stop_at_usd_per_doc is "
        f"{bound:g})"
    )


def _bound(params: Mapping[str, Any]) -> str:
    return f" (stop_at_dead is {params['bound']:g}%)"


def _cause(params: Mapping[str, Any]) -> str:
    cause = params.get("cause")
    return f"; most often {cause['reason']} ({cause['count']:,})" if cause else ""


_SENTENCES: Final[Mapping[str, Callable[[Mapping[str, Any]], str]]] = {
    StopCode.DEAD: _stop_dead,
    StopCode.MISSED: _stop_missed,
    StopCode.COST: _stop_cost,
}
