"""Quality as a lever: a document is asked of a better model by its answer, or of a cheaper in need.

``--escalate "score<0.5 -> model=large"`` asks the small model first, and the large one where a
field of the small one's answer says so; ``@logprob<-1`` compares the mean log probability of its
tokens. ``missing=escalate`` behind the target says what happens to an answer that has no such
field: it is kept where that is left out.

``--degrade "model=small at 80% of deadline"`` asks another model, or with other parameters, of the
documents that begin after a moment: a share of the job's deadline or of its budget. Several are
steps, each later than the one before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import orjson

from penstock_producer.errors import Problem, seen
from penstock_producer.job.endpoints import (
    CHAT,
    COMPLETIONS,
    CONVERSE,
    GENERATE,
    MESSAGES,
    RESPONSES,
)
from penstock_producer.job.routing import Condition, column_of, condition_of, number_of
from penstock_producer.job.targets import RULE_CHARS, RuleFault, Target, parts_of, target_of

__all__ = [
    "ANSWERED_IN_TEXT",
    "LOGPROB",
    "MAX_STEPS",
    "Escalation",
    "Step",
    "escalation_of",
    "step_of",
    "steps_of",
    "steps_problems",
]

MAX_STEPS: Final = 4
"""A job that gives way more often has the wrong model, deadline or budget."""
ANSWERED_IN_TEXT: Final = frozenset({CHAT, COMPLETIONS, CONVERSE, GENERATE, MESSAGES, RESPONSES})
LOGPROB: Final = "@logprob"
MISSING: Final = "missing"
# longer answers hold no score to decide by
PARSED_CHARS: Final = 1_000_000

Limit = Literal["deadline", "budget"]

_MOMENT: Final = re.compile(r"(.+?)\s+at\s+(\d{1,3}(?:\.\d+)?)\s*%\s+of\s+(deadline|budget)")


class Escalation(NamedTuple):
    """The rule by which a document goes on to another model."""

    condition: Condition
    target: Target
    of_missing: bool  # whether an answer without the field goes on, too

    @property
    def by_logprob(self) -> bool:
        return self.condition.name == LOGPROB

    def applies(self, answer: str | None, body: bytes) -> str | None:
        """Return why a document goes on, in words; None where its answer is kept.

        ``answer`` is the answer's text, ``body`` all of it."""
        found = _mean_logprob(body) if self.by_logprob else _field(answer, self.condition.name)
        if found is None and self.condition.text != "null":
            return f"the answer has no {self.condition.name}" if self.of_missing else None
        return f"{self.condition.name} is {found}" if self.condition.holds(found) else None


class Step(NamedTuple):
    """One step by which a job gives way."""

    number: int  # from 1 on
    text: str
    target: Target
    share: float  # more than 0 and less than 1
    of: Limit

    @property
    def moment(self) -> str:
        return f"{self.share * 100:g}% of the {self.of}"


def escalation_of(text: str) -> Escalation:
    """Read the rule. Raises RuleFault."""
    if len(text) > RULE_CHARS:
        raise RuleFault(f"a rule has at most {RULE_CHARS:,} characters")
    sides = parts_of(text, "->", 1)
    if len(sides) != 2:
        raise RuleFault('write CONDITION -> TARGET, such as "score<0.5 -> model=large"')
    condition = condition_of(sides[0])
    if condition.subject != "column":
        raise RuleFault(
            f"{seen(sides[0])} says nothing of an answer: compare a field of it, such as "
            f"score<0.5, or {LOGPROB}<-1"
        )
    if condition.name == LOGPROB and condition.op[0] not in "<>":
        raise RuleFault(f"{LOGPROB} is compared by < <= > or >=, such as {LOGPROB}<-1")
    words, missing = list[str](), "keep"
    for word in parts_of(sides[1], " "):
        name, _, value = word.partition("=")
        if name == MISSING:
            missing = value
        else:
            words.append(word)
    if missing not in ("keep", "escalate"):
        raise RuleFault(f"{MISSING}={missing} is refused: write {MISSING}=keep or =escalate")
    target = target_of(" ".join(words))
    if target.model is None:
        raise RuleFault("name the model that such documents go on to: model=NAME")
    return Escalation(condition, target, missing == "escalate")


def step_of(number: int, text: str) -> Step:
    """Read one step. Raises RuleFault."""
    found = _MOMENT.fullmatch(text.strip()[: RULE_CHARS + 1])
    if found is None or len(text) > RULE_CHARS:
        raise RuleFault(
            'write TARGET at SHARE% of deadline (or budget), as "model=small at 80% of deadline"'
        )
    target, share = target_of(found[1]), float(found[2]) / 100
    if not 0 < share < 1:
        raise RuleFault(f"{found[2]}% is refused: the moment is more than 0% and less than 100%")
    if target.tier is not None or target.provider is not None:
        raise RuleFault("a step has a model and parameters; provider and tier stay the job's")
    of: Limit = "deadline" if found[3] == "deadline" else "budget"
    return Step(number, text.strip(), target, share, of)


def steps_of(texts: Sequence[str]) -> list[Step]:
    """Read all steps, in their order. Raises RuleFault."""
    return [step_of(number, text) for number, text in enumerate(texts, start=1)]


def steps_problems(
    texts: Sequence[str], *, has_deadline: bool, has_budget: bool
) -> Iterator[Problem]:
    """Yield what is wrong with the steps of a job, by themselves and beside its limits."""
    latest: dict[str, Step] = {}
    for number, text in enumerate(texts, start=1):
        at = f"/degrade/{number - 1}"
        try:
            step = step_of(number, text)
        except RuleFault as fault:
            yield Problem("invalid_value", at, f"{seen(text)} is refused", str(fault))
            continue
        if not (has_deadline if step.of == "deadline" else has_budget):
            option = "deadline_s" if step.of == "deadline" else "budget_usd"
            why = f"the job has no {step.of}, so that its {step.moment} never comes"
            yield Problem("invalid_value", at, why, f"give one: {option}")
        before = latest.get(step.of)
        if before is not None and step.share <= before.share:
            why = f"step {number} would come at {step.moment}, not after step {before.number}"
            yield Problem(
                "invalid_value",
                at,
                why,
                f"write them in their order, step {number} later than {before.share * 100:g}%",
            )
        latest[step.of] = step


def _field(answer: str | None, name: str) -> Any:
    if answer is None or len(answer) > PARSED_CHARS:
        return None
    try:
        fields = orjson.loads(answer)
    except orjson.JSONDecodeError:
        return None
    return column_of(fields, name) if isinstance(fields, Mapping) else None


def _mean_logprob(body: bytes) -> float | None:
    """Return the mean log probability of the first choice's tokens; None where it has none."""
    if b'"logprobs"' not in body:
        return None
    try:
        choice = orjson.loads(body)["choices"][0]
        tokens = choice["logprobs"]["content"]
        found = [number for one in tokens if (number := number_of(one["logprob"])) is not None]
    except (orjson.JSONDecodeError, LookupError, TypeError):
        return None
    return round(sum(found) / len(found), 4) if found else None
