"""Conditions on the outcomes of a job: `status=dead`, `reason=context_overflow`, `score<0.5 and
label!=spam`.

A name is one of the outcome's own (``OWN``); any other is a field of the answer, where that is a
JSON object: `score`, or `answer.score` where the name is taken, `rating.score` for a field within a
field. Nothing is ever executed: a condition is a name, a comparison and a value.

A field that is absent is null: `score=null` finds outcomes without it, and `<`, `<=`, `>`, `>=`
hold for numbers only.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from penstock_producer.errors import Problem, SpecError, seen

__all__ = ["OWN", "Where"]

OWN: Final = (
    "id",
    "status",
    "reason",
    "error",
    "model",
    "finish_reason",
    "attempts",
    "calls",
    "prompt_tokens",
    "completion_tokens",
    "cost_usd",
    "latency_ms",
    "generation",
    "answer",
)
STATUSES: Final = ("done", "dead")
MAX_CHARS: Final = 2_000  # of all conditions together
MAX_CONDITIONS: Final = 20

_CONDITION: Final = re.compile(
    r"\s*([A-Za-z_][\w.-]{0,200})\s*(<=|>=|!=|=|<|>)\s*(\S.*?)\s*", re.DOTALL
)
_AND: Final = re.compile(
    r"\s+and\s+(?=[A-Za-z_][\w.-]*\s*[<>=!])"
)  # a value may hold the word "and"
_ORDER: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class _Condition(NamedTuple):
    name: str
    compare: str
    text: str
    number: float | None  # the value as a number, where it is one


class Where:
    """All conditions, each of which must hold. Raises SpecError for one that cannot be read."""

    def __init__(self, given: Sequence[str]) -> None:
        if sum(map(len, given)) > MAX_CHARS:
            raise _refused(given[0], f"conditions have at most {MAX_CHARS} characters together")
        parts = [part for text in given for part in _AND.split(text)]
        if len(parts) > MAX_CONDITIONS:
            raise _refused(given[0], f"give at most {MAX_CONDITIONS} conditions")
        self.texts = tuple(given)
        self._conditions = [_condition(part) for part in parts]

    @property
    def status(self) -> str | None:
        """The one status that can satisfy them; None where both can.

        It spares reading the others."""
        return next(
            (one.text for one in self._conditions if (one.name, one.compare) == ("status", "=")),
            None,
        )

    def holds(self, record: Mapping[str, Any], answer: Any) -> bool:
        """``record``: the outcome's own fields; ``answer``: what the answer is as JSON."""
        return all(_holds(one, _value(one.name, record, answer)) for one in self._conditions)


def _condition(text: str) -> _Condition:
    found = _CONDITION.fullmatch(text)
    if found is None:
        raise _refused(
            text, "write NAME=VALUE, or another of != < <= > >=, such as status=dead or score<0.5"
        )
    name, compare, value = found.groups()
    if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
        return _Condition(name, compare, value[1:-1], None)
    number = _number(value)
    if compare in _ORDER and number is None:
        raise _refused(text, f"{compare} compares numbers, such as {name}{compare}0.5")
    if name == "status" and value not in STATUSES:
        raise _refused(text, f"a status is {' or '.join(STATUSES)}")
    return _Condition(name, compare, value, number)


def _value(name: str, record: Mapping[str, Any], answer: Any) -> Any:
    if name in OWN:
        return record.get(name)
    found = answer
    for part in name.removeprefix("answer.").split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _holds(condition: _Condition, value: Any) -> bool:
    if condition.compare in _ORDER:
        number = value if isinstance(value, int | float) and not isinstance(value, bool) else None
        return (
            number is not None
            and condition.number is not None
            and _ORDER[condition.compare](number, condition.number)
        )
    return _equal(condition, value) is (condition.compare == "=")


def _equal(condition: _Condition, value: Any) -> bool:
    match value:
        case None:
            return condition.text == "null"
        case bool():
            return condition.text == ("true" if value else "false")
        case int() | float():
            return condition.number == value
        case _:
            return bool(value == condition.text)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _refused(text: str, fix: str) -> SpecError:
    return SpecError([Problem("invalid_value", "/where", f"{seen(text)} is refused", fix)])
