"""Documents go to a model by what they are: a short table of rules over the columns of the source.

A rule is ``CONDITION and CONDITION -> TARGET``, or ``-> refuse`` for documents that are not to be
asked at all; ``else -> …`` is for those that no other rule takes, which else take the job's own
model. Conditions are ``lang=de``, ``stars<3`` (also != <= > >=), ``subject~"refund|return"`` (a
regular expression over the first characters of a column), ``language(lang)=de`` (the value of a
column as a language: de, de-AT, de_CH) and ``@length>8000`` (characters of the prompt).

Rules have no order. Two that send a document to different targets disagree, and the job is refused;
so is a rule that another one leaves nothing to. A document's route is a function of the document
alone, and travels with its request: a retry, a replay and another worker ask the same.

Regular expressions are those of Rust's regex, which Pydantic brings: the time for a match grows
with the text and never with what the pattern does to it. Patterns without that promise, with
look-around or back-references, are refused there.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple

from pydantic_core import SchemaError, SchemaValidator, ValidationError, core_schema

from penstock_producer.errors import Problem, seen
from penstock_producer.job.targets import RULE_CHARS, RuleFault, Target, parts_of, target_of

__all__ = [
    "DISAGREE",
    "LENGTH",
    "LOOKED_AT_CHARS",
    "MAX_ROUTES",
    "OWN",
    "PATTERN_CHARS",
    "REFUSED_BY_ROUTE",
    "ROUTE_FIELD",
    "Condition",
    "Disagreement",
    "RoutingTable",
    "Rule",
    "condition_of",
    "marked",
    "route_in",
    "table_problems",
    "unmarked",
]

MAX_ROUTES: Final = 20
"""Each rule is asked of each document; a longer table is better a column of the source."""
LOOKED_AT_CHARS: Final = 2_000
"""Of a column's text that a pattern looks at: some milliseconds for the worst of patterns."""
PATTERN_CHARS: Final = 300
UNFOLDED_CHARS: Final = 10_000
"""Of a pattern whose counted repetitions are written out: what is matched costs as much for each
character that is looked at, and some tens of milliseconds at most."""
PATTERNS_KEPT: Final = 64  # compiled; most have some kilobytes, and none more than 10 MB
LENGTH: Final = "@length"
REFUSE: Final = "refuse"
ELSE: Final = "else"
OWN: Final = "else: the job's own model"  # in lists of routes, of documents that no rule takes
DISAGREE: Final = "routes_disagree"  # the code of a row that two rules want elsewhere
REFUSED_BY_ROUTE: Final = "refused_by_route"  # of one that a rule refuses

Subject = Literal["column", "language", "length"]

_CONDITION: Final = re.compile(
    r"(?:language\((?P<language>[^()]{1,512})\)|(?P<length>@length)|(?P<column>[^=!<>~]{1,512}?))"
    r"\s*(?P<op><=|>=|!=|=|<|>|~)\s*(?P<value>\S.*)",
    re.DOTALL,
)
_ORDER: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_REPEATED: Final = re.compile(r"[{,]\s*(\d{1,9})\s*(?=[,}])")
ROUTE_FIELD: Final = "penstock_route"
_MARK: Final = b'{"%b":' % ROUTE_FIELD.encode()


class Condition(NamedTuple):
    """One comparison. ``name`` is that of a column, or of a field of an answer."""

    subject: Subject
    name: str
    op: str
    text: str
    number: float | None = None  # of the text, where it is one

    def holds(self, value: Any) -> bool:
        """Return whether it holds for a value; an absent one is null, which only `=null` finds."""
        if self.op in _ORDER:
            number = number_of(value)
            return (
                number is not None
                and self.number is not None
                and _ORDER[self.op](number, self.number)
            )
        if self.op == "~":
            return value is not None and _matches(self.text, _as_text(value))
        return self._equals(value) is (self.op == "=")

    def follows_from(self, other: Condition) -> bool:
        """Return whether it holds wherever ``other`` does, as far as that can be seen."""
        if self[:4] == other[:4]:
            return True
        if self.name != other.name:
            return False
        if other.op == "=" and other.subject in (self.subject, "column"):
            return self.holds(other.text)
        if self.subject != other.subject:
            return False
        if self.op == "!=":
            return other.op in _ORDER and self.number is not None and not other.holds(self.text)
        if self.op not in _ORDER or other.op[0] != self.op[0]:
            return False
        if self.number is None or other.number is None:
            return False
        if self.number == other.number:
            return len(self.op) >= len(other.op)
        return _ORDER[self.op[0]](other.number, self.number)

    def _equals(self, value: Any) -> bool:
        if value is None:
            return self.text == "null"
        if self.subject == "language":
            said = _as_text(value).lower().replace("_", "-")
            wanted = self.text.lower().replace("_", "-")
            return said == wanted or said.startswith(wanted + "-")
        if self.number is not None and (number := number_of(value)) is not None:
            return number == self.number
        return _as_text(value) == self.text

    def __str__(self) -> str:
        name = f"language({self.name})" if self.subject == "language" else self.name
        return f"{name}{self.op}{self.text}"


class Rule(NamedTuple):
    """One line of the table."""

    number: int  # from 1 on, as people count
    text: str
    conditions: tuple[Condition, ...]  # all of them hold; none: for what no other rule takes
    target: Target | None  # None: the document is refused

    @property
    def named(self) -> str:
        return f"rule {self.number} ({self.text})"


class Disagreement(NamedTuple):
    """Two rules that want the same document elsewhere."""

    first: Rule
    second: Rule

    @property
    def message(self) -> str:
        return f"{self.first.named} and {self.second.named} both take it, to different targets"

    @property
    def fix(self) -> str:
        return (
            f"add a condition to one of them, such as the opposite of {self.second.conditions[0]} "
            f"to rule {self.first.number}"
        )


class RoutingTable:
    """The rules of one job. Raises RuleFault for one that cannot be read."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.rules = [_rule(number, text) for number, text in enumerate(texts, start=1)]
        self._else = next((rule for rule in self.rules if not rule.conditions), None)
        conditions = [one for rule in self.rules for one in rule.conditions]
        self.columns: tuple[str, ...] = tuple(
            dict.fromkeys(one.name for one in conditions if one.subject != "length")
        )

    @property
    def takes_all(self) -> bool:
        """Return whether a rule takes what no other does."""
        return self._else is not None

    def taken(self, record: Mapping[str, Any], length: int) -> Rule | Disagreement | None:
        """Return the rule that takes a row; None where it takes the job's own model.

        ``length`` is the number of characters of its prompt."""
        taken: Rule | None = None
        for rule in self.rules:
            if not rule.conditions or not all(
                one.holds(length if one.subject == "length" else column_of(record, one.name))
                for one in rule.conditions
            ):
                continue
            if taken is None:
                taken = rule
            elif taken.target != rule.target:
                return Disagreement(taken, rule)
        return taken or self._else

    def shadowed(self) -> Iterator[tuple[Rule, Rule]]:
        """Yield each rule that has no document of its own, with the one that takes all of them."""
        for rule in self.rules:
            for other in self.rules:
                if rule is other or not rule.conditions or not other.conditions:
                    continue
                if all(
                    any(one.follows_from(its) for its in rule.conditions)
                    for one in other.conditions
                ):
                    # of two that say the same the later one is too many
                    if rule.number > other.number or not _covers(rule, other):
                        yield rule, other
                    break


def _covers(rule: Rule, other: Rule) -> bool:
    return all(any(one.follows_from(its) for its in other.conditions) for one in rule.conditions)


def table_problems(texts: Sequence[str]) -> Iterator[Problem]:
    """Yield what is wrong with a table by itself: rules that cannot be read or have no document."""
    problems = [_unreadable(number, text) for number, text in enumerate(texts, start=1)]
    if any(problems):
        yield from filter(None, problems)
        return
    table = RoutingTable(texts)
    catch_all = [rule for rule in table.rules if not rule.conditions]
    for rule in catch_all[1:]:
        why = f"{rule.named} is the second for all other documents"
        yield Problem("invalid_value", f"/routes/{rule.number - 1}", why, "keep one of them")
    for rule, other in table.shadowed():
        why = f"{rule.named} is shadowed: {other.named} takes all of its documents"
        fix = f"leave rule {rule.number} out, or add a condition to rule {other.number}"
        yield Problem("invalid_value", f"/routes/{rule.number - 1}", why, fix)


def _unreadable(number: int, text: str) -> Problem | None:
    try:
        _rule(number, text)
    except RuleFault as fault:
        return Problem(
            "invalid_value", f"/routes/{number - 1}", f"{seen(text)} is refused", str(fault)
        )
    return None


def _rule(number: int, text: str) -> Rule:
    if len(text) > RULE_CHARS:
        raise RuleFault(f"a rule has at most {RULE_CHARS:,} characters")
    sides = parts_of(text, "->", 1)
    if len(sides) != 2:
        raise RuleFault('write CONDITION -> TARGET, such as "lang=de -> model=large"')
    said, aim = sides
    conditions = () if said == ELSE else tuple(map(condition_of, parts_of(said, " and ")))
    return Rule(number, text, conditions, None if aim == REFUSE else target_of(aim))


def condition_of(text: str) -> Condition:
    """Read one comparison. Raises RuleFault."""
    found = _CONDITION.fullmatch(text)
    if found is None:
        raise RuleFault(
            f'{seen(text)} is no condition: write lang=de, stars<3, subject~"refund|return", '
            f"language(lang)=de or {LENGTH}>8000, and else for all others"
        )
    op, value = found["op"], found["value"].strip()
    is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
    value = value[1:-1] if is_quoted else value
    number = None if is_quoted else number_of(value)
    subject: Subject = "column"
    name = (found["column"] or "").strip().removeprefix("column:")
    if found["language"] is not None:
        subject, name = "language", found["language"].strip()
        if op not in ("=", "!="):
            raise RuleFault("a language is compared by = or !=, such as language(lang)=de")
    elif found["length"] is not None:
        subject, name = "length", LENGTH
        if op not in _ORDER:
            raise RuleFault(f"a length is compared by < <= > or >=, such as {LENGTH}>8000")
    if not name:
        raise RuleFault(f"{seen(text)} names no column: write lang=de")
    if op in _ORDER and number is None:
        raise RuleFault(f"{op} compares numbers, such as {name}{op}0.5")
    if op == "~":
        _check_pattern(value)
    return Condition(subject, name, op, value, number)


def number_of(value: Any) -> float | None:
    """Return a value as a number, also where a text says it; None where it is none."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def column_of(record: Mapping[str, Any], name: str) -> Any:
    """Return a column of a row, or a field within one as `user.lang`; None where it has none."""
    if name in record:
        return record[name]
    found: Any = record
    for part in name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else str(value)


def _check_pattern(text: str) -> None:
    """Raise RuleFault for a pattern that is not matched in bounded time."""
    if len(text) > PATTERN_CHARS:
        raise RuleFault(f"a regular expression has at most {PATTERN_CHARS} characters")
    repeated = math.prod(max(1, int(number)) for number in _REPEATED.findall(text))
    if repeated * len(text) > UNFOLDED_CHARS:
        raise RuleFault(
            f"{seen(text)} repeats too much: its counts, as in {{1,9}}, multiply to {repeated:,}, "
            f"and times its length that is at most {UNFOLDED_CHARS:,}"
        )
    try:
        _compiled(text)
    except SchemaError as error:
        is_large = "exceeds size limit" in str(error)
        why = "it is too large once it is unfolded" if is_large else _said(error)
        raise RuleFault(f"{seen(text)} cannot be matched in bounded time: {why}") from None


@lru_cache(maxsize=PATTERNS_KEPT)
def _compiled(text: str) -> SchemaValidator:
    return SchemaValidator(core_schema.str_schema(pattern=text, regex_engine="rust-regex"))


def _said(error: SchemaError) -> str:
    return str(error).rpartition("error: ")[2].splitlines()[0]


def _matches(pattern: str, text: str) -> bool:
    try:
        _compiled(pattern).validate_python(text[:LOOKED_AT_CHARS])
    except ValidationError:
        return False
    return True


# -- the mark in a request -------------------------------------------------------------------------


def marked(body: bytes, rule: int) -> bytes:
    """Return a request that says which rule took its document, until it is sent; 0 for none.

    So the route is kept wherever the request is: in a message, a batch or a dead letter."""
    return body if not rule else b"%b%d,%b" % (_MARK, rule, body[1:])


def route_in(body: bytes) -> int:
    """Return the number of the rule that took a document; 0 where none did."""
    if not body.startswith(_MARK):
        return 0
    digits = body[len(_MARK) : body.find(b",", len(_MARK), len(_MARK) + 8)]
    return int(digits) if digits.isdigit() else 0


def unmarked(body: bytes) -> bytes:
    """Return the request as it is sent."""
    return body if not route_in(body) else b"{" + body[body.index(b",") + 1 :]
