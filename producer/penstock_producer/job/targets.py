"""A rule sends documents to a target: another model, its provider, service tier or parameters.

The rules of routes, of escalation and of degradation are one line of text each, in every door:
``CONDITION -> TARGET`` or ``TARGET at MOMENT``. A target is written ``model=large tier=flex
max_tokens=200``; a text with blanks, or with one of the signs of a rule, stands in quotes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final, NamedTuple, get_args

import orjson

from penstock_ledger.texts import SetOption, Text
from penstock_producer.errors import Problem, seen
from penstock_producer.job.lanes import LANES
from penstock_producer.job.params import param_problems
from penstock_producer.job.tiers import Tier, tier_problems

__all__ = ["RULE_CHARS", "RuleFault", "Target", "parts_of", "target_of", "target_problems"]

RULE_CHARS: Final = 2_000
"""Of one rule; a longer one is a program."""
MODEL_CHARS: Final = 512
_QUOTES: Final = "\"'"
_TIERS: Final = get_args(Tier)


class RuleFault(ValueError):
    """A rule that cannot be read; the text says what to write."""


class Target(NamedTuple):
    """A model, parameters and more in the place of the job's own, which None and nothing leave."""

    model: str | None = None
    provider: str | None = None
    tier: Tier | None = None
    params: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        named = (("model", self.model), ("provider", self.provider), ("tier", self.tier))
        words = [f"{name}={value}" for name, value in named if value is not None]
        return " ".join([*words, *(f"{name}={_plain(value)}" for name, value in self.params)])


def target_of(text: str) -> Target:
    """Read a target. Raises RuleFault."""
    found: dict[str, Any] = {}
    for word in parts_of(text, " "):
        name, equals, value = word.partition("=")
        if not equals or not name or not value:
            raise RuleFault(
                f"{seen(word)} is no part of a target: write model=NAME, provider=NAME, "
                "tier=flex or a parameter such as max_tokens=200"
            )
        if name in found:
            raise RuleFault(f"{name} is given twice; keep one of them")
        if name in ("lane", "lanes"):
            raise RuleFault(
                "the documents of a job share its lane; submit those for another lane as a job "
                "of their own"
            )
        found[name] = _unquoted(value)
    if not found:
        raise RuleFault("the target is missing: write model=NAME after it")
    model, provider, tier = (found.pop(name, None) for name in ("model", "provider", "tier"))
    if model is not None and len(model) > MODEL_CHARS:
        raise RuleFault(f"the name of a model has at most {MODEL_CHARS} characters")
    if tier is not None and tier not in _TIERS:
        raise RuleFault(f"there is no tier {seen(tier)}; tiers are {', '.join(_TIERS)}")
    if provider is not None and model is None:
        raise RuleFault("another provider has other models: write model=NAME, too")
    return Target(model, provider, tier, tuple((name, _value(of)) for name, of in found.items()))


def target_problems(
    target: Target, endpoint: str, lanes: Sequence[str], params: Collection[str], pointer: str
) -> Iterator[Problem]:
    """Yield why a job cannot ask for this target; ``pointer`` is the rule's.

    ``lanes`` are those of the job, ``params`` its parameters."""
    yield from param_problems(dict(target.params), endpoint, pointer)
    asks_others = target.tier is not None or target.provider is not None
    fixed = next((lane for lane in lanes if not LANES[lane].is_real_time), None)
    if target.tier is not None and fixed is None:
        for one in tier_problems(target.tier, endpoint, lanes, params):
            yield Problem(one.code, pointer, one.message, one.fix)
    if asks_others and fixed is not None:
        what = "provider" if target.provider is not None else "tier"
        why = f"the documents of a job in lane {fixed} share their {what}"
        fix = Text("submit those documents as a job of their own, or give ", SetOption("lane"))
        yield Problem("invalid_value", pointer, why, fix)


def parts_of(text: str, between: str, most: int | None = None) -> list[str]:
    """Split a rule where ``between`` stands outside of quotes; at most ``most`` times.

    Raises RuleFault for a quote without its end.
    """
    parts, begin, quote, place = list[str](), 0, "", 0
    while place < len(text):
        sign = text[place]
        if quote:
            quote = "" if sign == quote else quote
        elif sign in _QUOTES and (place == 0 or not text[place - 1].isalnum()):
            quote = sign
        elif text.startswith(between, place) and (most is None or len(parts) < most):
            parts.append(text[begin:place])
            place += len(between)
            begin = place
            continue
        place += 1
    if quote:
        raise RuleFault(f"a text begins with {quote} and does not end; write {quote} behind it")
    return [part.strip() for part in (*parts, text[begin:]) if part.strip()]


def _unquoted(value: str) -> str:
    is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in _QUOTES
    return value[1:-1] if is_quoted else value


def _value(text: str) -> Any:
    """Return a parameter's value: JSON where it is that, else the text."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()
