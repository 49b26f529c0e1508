"""A job is paused, being cancelled or failed for a reason as data: a code, its author, parameters.

Sentences are made of it here, at the edge, and are never read back: what decides, decides by the
code. What a person wrote is a note among the parameters, and decides nothing.

`jobs.pause` holds it as JSON, written in the transaction that writes state and reason.
`jobs.reason` gets the sentence, for processes of a release that knows no other. A row that such a
process has written has that sentence alone: `old_reasons.py` is the one reader of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

import orjson

from penstock_ledger.lone_surrogates import dump_json, replace_surrogates
from penstock_ledger.old_reasons import recognised
from penstock_ledger.redaction import redact

__all__ = [
    "ACCEPTED_NOTHING",
    "EXAMPLE_CHARS",
    "Accepted",
    "By",
    "Code",
    "Reason",
    "StopCode",
    "accepted_with",
    "by_hand",
    "examples_of",
    "explain",
    "read_accepted",
    "read_reason",
    "stored_reason",
    "without_secrets",
]

EXAMPLE_CHARS: Final = 160
_MEGABYTE: Final = 1_000_000


class By(StrEnum):
    """The one who has stopped a job."""

    PERSON = "person"
    CONTROL = "control"
    BUDGET = "budget"
    PROVIDER = "provider"
    LANE = "lane"  # it alone is at fault: another one that the job permits may go on
    SOURCE = "source"
    STOP_LOSS = "stop_loss"


class Code(StrEnum):
    """The reasons to stop a job. Names of failures of calls and sources are codes, too."""

    BY_HAND = "by_hand"
    BUDGET_EXHAUSTED = "budget_exhausted"
    TENANT_BUDGET_EXHAUSTED = "tenant_budget_exhausted"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    DISK_FULL = "disk_full"
    BATCH_REFUSED = "batch_refused"
    BATCH_STUCK = "batch_stuck"
    PROVIDER_HELD = "provider_held"  # another job has found what is wrong with the account
    ANSWERS_ALIKE = "answers_alike"  # all of them say that the address, the key or a proxy is wrong
    FORMAT_REFUSED = "format_refused"  # likewise: the provider takes no such response_format
    MODEL_UNCLEAR = "model_unclear"  # the job names none, and its lane serves several
    FOREIGN_QUEUE = "foreign_queue"  # something else has written where the job is answered
    JOB_CANNOT_RUN = "job_cannot_run"  # a worker lacks what the job names
    RESULTS_NOT_WRITTEN = "results_not_written"
    TOO_MANY_OUTCOMES = "too_many_outcomes"
    TOO_FEW_OUTCOMES = "too_few_outcomes"
    UNKNOWN = "unknown"  # a process of an earlier release has said it in words alone


class StopCode(StrEnum):
    """The findings of a stop-loss."""

    DEAD = "stop_dead"  # too many documents of the latest are dead letters
    # too many of the latest first answers were paid for and refused by the job's own checks
    MISSED = "stop_missed"
    COST = "stop_usd_per_doc"


@dataclass(frozen=True, slots=True)
class Reason:
    """The reason why a job is paused, is being cancelled or has failed.

    ``params`` holds what JSON can hold; which keys there are is said by the code. Free text is
    `detail` (who reported it said so), `fix` (what a person can do), `note` (a person's own),
    `also` (what came on top) or `words` (the whole sentence of another release)."""

    code: str
    by: By
    params: Mapping[str, Any] = field(default_factory=dict)

    def number(self, name: str) -> float | None:
        """Return a figure among the parameters; None where another release wrote none."""
        value = self.params.get(name)
        return float(value) if isinstance(value, int | float) else None

    def to_json(self) -> dict[str, Any]:
        return {"code": self.code, "by": str(self.by), "params": dict(self.params)}


def by_hand(note: str) -> Reason:
    """Return the reason of what a person or a service asked for, in their words."""
    return Reason(Code.BY_HAND, By.PERSON, {"note": note})


@dataclass(frozen=True, slots=True)
class Accepted:
    """The state of a generation that a person accepted as they let it go on after a stop-loss."""

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


def explain(reason: Reason, *, examples: bool = True) -> str:
    """Return the sentence for people.

    The options and commands by which a job goes on are no part of it: see the producer's
    `reporting/pauses.py`."""
    params = reason.params
    try:
        shown = examples_of(reason) if examples else []
        said = params["words"] if "words" in params else _sentence(reason)
        return (
            f"{said}{_cause(params)}"
            + (f"; for example {'; '.join(shown)}" if shown else "")
            + (f"; {params['also']}" if "also" in params else "")
        )
    # of another release, which has other parameters
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return reason.code


def _sentence(reason: Reason) -> str:
    params, write = reason.params, _SENTENCES.get(reason.code)
    if write is not None:
        return write(params)
    if "wait_s" in params:
        return f"{reason.code}: {_told_to_wait(params)}"
    if "detail" not in params:
        return reason.code
    said = str(params["detail"]) if reason.code in _PLAIN else f"{reason.code}: {params['detail']}"
    return f"{said}; {params['fix']}" if params.get("fix") else said


def examples_of(reason: Reason) -> list[str]:
    """Return the examples of a stop-loss, each as a line; none where they cannot be read."""
    try:
        return [
            f"{one['doc_id']}: {one['reason']}: {one['excerpt']}"
            for one in reason.params.get("examples", ())
        ]
    except (KeyError, TypeError):
        return []


def without_secrets(reason: Reason) -> Reason:
    """Return the reason as it may be stored and shown."""
    texts = {
        name: _clean(value)
        for name in ("detail", "note", "also", "fix")
        if isinstance(value := reason.params.get(name), str)
    }
    return replace(reason, params={**reason.params, **texts}) if texts else reason


def stored_reason(reason: Reason) -> str:
    """Return the JSON of the column `pause`.

    It repeats the sentence in `reason`: a process of a release without this column writes that one
    alone, and by the difference what is here is known to be over."""
    return dump_json(reason.to_json() | {"reason": _clean(explain(reason))}).decode()


def read_reason(text: str | None, sentence: str | None) -> Reason | None:
    """Return what ``stored_reason`` has written, or what the sentence alone says.

    None where there is no reason at all."""
    found = _loaded(text)
    if found is not None and found[1] == sentence:
        reason = found[0]
        if explain(reason) == reason.code:  # of another release: its sentence is all there is
            return replace(reason, params={**reason.params, "words": sentence})
        return reason
    if not sentence:
        return None
    code, by, params = recognised(sentence)
    return Reason(code, By(by), params)


def accepted_with(text: str | None, before: Accepted | None) -> Accepted | None:
    """Return what a person accepts by letting a paused job go on.

    The column `pause` is ``text``; what was accepted ``before`` is kept beside it. None where a
    stop-loss did not pause the job.
    """
    found = _loaded(text)
    if found is None or found[0].by is not By.STOP_LOSS:
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


def _loaded(text: str | None) -> tuple[Reason, str | None] | None:
    try:
        found = orjson.loads(text or "null")
        if found is None:
            return None
        # a release that comes may know others
        by = By(found["by"]) if found["by"] in set(By) else By.CONTROL
        return Reason(str(found["code"]), by, dict(found["params"])), found.get("reason")
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _clean(text: str) -> str:
    """Return a text as its column holds it, without secrets."""
    return replace_surrogates(redact(text).replace("\0", "\N{REPLACEMENT CHARACTER}"))


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


def _budget(params: Mapping[str, Any]) -> str:
    spent, budget = params["spent_usd"], params["budget_usd"]
    said = f"budget_exhausted: {_usd(spent)} USD of {budget:g} are spent{_next(params)}"
    if params["left"] is None:
        return f"{said}; how many documents are left is not known yet"
    left = params["left"]
    named = "the document left costs" if left == 1 else f"the {left:,} documents left cost"
    return f"{said}; {named} {_more(params)}"


def _tenant_budget(params: Mapping[str, Any]) -> str:
    month, budget = params["month"], params["budget_usd"]
    said = (
        f"tenant_budget_exhausted: {_usd(params['spent_usd'])} USD of the {budget!r} that tenant "
        f"{params['tenant']!r} may spend on jobs of {month} are spent{_next(params)}"
    )
    if params["left"] is not None:
        said += f"; what is left of this job costs {_more(params)}"
    return (
        f"{said}. This job counts in {month} until it ends; new jobs have the next month's budget, "
        f"from {params['next_month']} (UTC). The job goes on by itself once the newest key of the "
        "tenant names a larger budget"
    )


def _next(params: Mapping[str, Any]) -> str:
    if not params["next_usd"]:
        return ""
    batch = params.get("batch_documents")
    what = "the next call" if batch is None else f"the next batch of {batch} documents"
    return f", and {what} may cost {_usd(params['next_usd'])}"


def _more(params: Mapping[str, Any]) -> str:
    about = "at most about" if params["is_bound"] else "about"
    return f"{about} {_usd(params['more_usd'])} USD more"


def _usd(value: float) -> str:
    """Cents, and of a small amount two digits that say something."""
    if value >= 1 or value == 0:
        return f"{value:.2f}"
    return f"{value:.{min(8, 1 - math.floor(math.log10(value)))}f}"


def _deadline(params: Mapping[str, Any]) -> str:
    if "window_s" in params:
        window = params["window_s"]
        return f"deadline_exceeded: the batch is older than its window of {window:g} s"
    deadline = params["deadline_s"]
    return f"deadline_exceeded: the job is older than its deadline of {deadline:g} s"


def _disk_full(params: Mapping[str, Any]) -> str:
    left = f"{max(0, params['free_bytes']) / _MEGABYTE:,.1f} MB"
    return f"disk_full: the disk of {params['place']} has {left} left"


def _batch_stuck(params: Mapping[str, Any]) -> str:
    return (
        f"batch_stuck: provider batch {params['batch']} at {params['provider']} with "
        f"{params['documents']} documents is still {params['status']} after {params['hours']:.0f} "
        "hours (batch.stuck_after_s); look at it there. Resume the job to take its documents back: "
        "the batch is cancelled, what it has answered is kept, and the rest goes into another one"
    )


def _told_to_wait(params: Mapping[str, Any]) -> str:
    return (
        f"the provider asks to wait {params['wait_s']:.0f} s, longer than "
        f"max_retry_after_s={params['max_wait_s']:.0f}; the job goes on by itself when that is over"
    )


_SENTENCES: Final[Mapping[str, Callable[[Mapping[str, Any]], str]]] = {
    StopCode.DEAD: _stop_dead,
    StopCode.MISSED: _stop_missed,
    StopCode.COST: _stop_cost,
    Code.BY_HAND: lambda params: str(params["note"]),
    Code.BUDGET_EXHAUSTED: _budget,
    Code.TENANT_BUDGET_EXHAUSTED: _tenant_budget,
    Code.DEADLINE_EXCEEDED: _deadline,
    Code.DISK_FULL: _disk_full,
    Code.BATCH_STUCK: _batch_stuck,
}
"""All others say their code and what was reported."""

_PLAIN: Final = frozenset(
    {
        Code.ANSWERS_ALIKE,
        Code.FORMAT_REFUSED,
        Code.FOREIGN_QUEUE,
        Code.JOB_CANNOT_RUN,
        Code.MODEL_UNCLEAR,
        Code.PROVIDER_HELD,
    }
)
"""Of these what was reported says it all."""
