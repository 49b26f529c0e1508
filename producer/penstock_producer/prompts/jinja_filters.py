"""The filters and tests of Jinja prompts, and the work that one record may cost.

Filters that could make a large result of a small template are written here, so that they look at
its size first; the others are Jinja's own. Every one counts what it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

import orjson
from jinja2 import Undefined, UndefinedError, pass_context
from jinja2.filters import FILTERS as JINJA
from jinja2.runtime import Context
from jinja2.tests import TESTS as JINJA_TESTS

from penstock_producer.errors import seen
from penstock_producer.prompts.template import RenderFailed, TextTooLong

__all__ = ["FILTERS", "TESTS", "Work", "as_text", "work_of"]

# units: characters and values looked at; about a second at most, on a slow machine
MAX_WORK: Final = 40_000_000
CALL_UNITS: Final = 400  # of a filter
STEP_UNITS: Final = 400  # of one turn of a loop: 160,000 of them at most
# of each byte of a list or object that is looked at; a character of a text is one unit
VALUE_UNITS: Final = 4
SLOW_UNITS: Final = 16  # filters that take a text apart word by word, for each character
SORT_UNITS: Final = 8  # a sort looks at each value some twenty times, others call a filter for each
MAX_PRECISION: Final = 20
_BUDGET: Final = "$work"


class Work:
    """The cost of rendering one record, and the length of its text.

    Counted, not timed: the same everywhere."""

    def __init__(self, max_chars: int) -> None:
        self._left = MAX_WORK
        self._max_chars = max_chars
        self._shown = 0

    def spend(self, units: int) -> None:
        """Spend ``units`` of the record's share; a unit is about a character.

        Raises RenderFailed where a record has used up its share.
        """
        self._left -= units
        if self._left < 0:
            raise RenderFailed(
                f"the template does more than {MAX_WORK} units of work for this record (characters "
                "and steps of loops); write fewer loops inside one another"
            )

    def step(self) -> None:
        self.spend(STEP_UNITS)

    def look(self, value: Any, times: int = 1) -> None:
        """Count everything inside ``value``: characters, or bytes of its JSON.

        JSON is the quickest way to measure a list.
        """
        if isinstance(value, str):
            self.spend(len(value) * times)
        elif isinstance(value, list | tuple | Mapping):
            try:
                self.spend(len(orjson.dumps(value)) * VALUE_UNITS * times)
            except TypeError:  # it holds an undefined value
                self.spend(len(value) * STEP_UNITS * times)

    def text(self, parts: list[str], between: str = "") -> str:
        """Return the parts as one text, if that is not too long."""
        chars = sum(map(len, parts)) + len(between) * max(len(parts) - 1, 0)
        self.check(chars)
        self.spend(CALL_UNITS + chars)
        return between.join(parts)

    def check(self, chars: int) -> None:
        """Raise TextTooLong for more characters than a prompt may have."""
        if chars > self._max_chars:
            raise TextTooLong("prompt", self._max_chars)

    def show(self, chars: int) -> None:
        self._shown += chars
        self.check(self._shown)


def work_of(context: Context) -> Work:
    work = context.parent[_BUDGET]
    assert isinstance(work, Work)
    return work


def as_text(value: Any) -> str:
    """Return text as it is, all else as JSON, as in simple prompts."""
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _counted(name: str, times: int = 1, *, of_lists: bool = False) -> Callable[..., Any]:
    """Return Jinja's own filter, which counts what it is given.

    It gives lists where Jinja gives generators.
    """
    own = JINJA[name]
    takes = str(getattr(own, "jinja_pass_arg", ""))

    @pass_context
    def run(context: Context, value: Any, *args: Any, **named: Any) -> Any:
        work = work_of(context)
        work.spend(CALL_UNITS)
        if isinstance(value, Undefined):
            raise UndefinedError(value._undefined_message)
        if of_lists and not isinstance(value, list | tuple | Mapping):
            raise RenderFailed(f"{name} takes a list or an object, not {seen(value)}")
        for one in (value, *args, *named.values()):
            work.look(one, times)
        first = {
            "_PassArg.context": (context,),
            "_PassArg.environment": (context.environment,),
        }.get(takes, ())
        if takes == "_PassArg.eval_context":
            first = (context.eval_ctx,)
        made = own(*first, value, *args, **named)
        if isinstance(made, Iterator):
            made = list(islice(made, MAX_WORK // STEP_UNITS))
            work.spend(len(made) * STEP_UNITS)
        return made

    return run


@pass_context
def _default(_: Context, value: Any, fallback: Any = "", empty: bool = False) -> Any:
    """Return a text for what is absent or null, and with ``empty`` for what is empty, too."""
    return (
        fallback
        if value is None or isinstance(value, Undefined) or (empty and not value)
        else value
    )


@pass_context
def _join(context: Context, values: Any, between: str = "") -> str:
    if not isinstance(values, list | tuple | Mapping) or not isinstance(between, str):
        raise RenderFailed(f"join takes a list and a text, not {seen(values)} and {seen(between)}")
    work = work_of(context)
    work.look(values)
    return work.text([as_text(value) for value in values], between)


@pass_context
def _replace(context: Context, text: Any, old: Any, new: Any) -> str:
    if not (isinstance(text, str) and isinstance(old, str) and isinstance(new, str) and old):
        raise RenderFailed(
            f"replace takes three texts, not {seen(text)}, {seen(old)} and {seen(new)}"
        )
    work = work_of(context)
    work.look([text, old, new])
    chars = len(text) + text.count(old) * max(len(new) - len(old), 0)
    work.check(chars)
    work.spend(chars)
    return text.replace(old, new)


@pass_context
def _round(_: Context, value: Any, precision: int = 0) -> Any:
    if (
        type(value) not in (int, float)
        or type(precision) is not int
        or not 0 <= precision <= MAX_PRECISION
    ):
        raise RenderFailed(
            f"round takes a number and 0 to {MAX_PRECISION} digits, not {seen(value)} and "
            f"{seen(precision)}"
        )
    return round(value, precision)


@pass_context
def _sum(context: Context, values: Any) -> Any:
    if not isinstance(values, list | tuple) or not all(
        type(value) in (int, float) for value in values
    ):
        raise RenderFailed(f"sum takes a list of numbers, not {seen(values)}")
    work_of(context).look(values)
    return sum(values)


@pass_context
def _tojson(context: Context, value: Any) -> str:
    if isinstance(value, Undefined):
        raise RenderFailed("tojson is given a value that is absent; give it one with |default")
    work = work_of(context)
    work.look(value)
    return work.text([orjson.dumps(value).decode()])


@pass_context
def _list(context: Context, value: Any) -> list[Any]:
    if not isinstance(value, list | tuple | Mapping):
        raise RenderFailed(
            f"list takes a list or an object, not {seen(value)}; {{{{ text[:100] }}}} cuts a text"
        )
    work_of(context).look(value)
    return list(value)


_LOOKERS = (
    "abs",
    "capitalize",
    "count",
    "first",
    "float",
    "int",
    "last",
    "length",
    "lower",
    "reverse",
    "string",
    "trim",
    "truncate",
    "upper",
)
_OF_LISTS = (
    "dictsort",
    "items",
    "map",
    "max",
    "min",
    "reject",
    "rejectattr",
    "select",
    "selectattr",
    "sort",
    "unique",
)
FILTERS: Final[Mapping[str, Any]] = {
    **{name: _counted(name) for name in _LOOKERS},
    **{name: _counted(name, SORT_UNITS, of_lists=True) for name in _OF_LISTS},
    "title": _counted("title", SLOW_UNITS),
    "wordcount": _counted("wordcount", SLOW_UNITS),
    "default": _default,
    "d": _default,
    "join": _join,
    "list": _list,
    "replace": _replace,
    "round": _round,
    "sum": _sum,
    "tojson": _tojson,
}
TESTS: Final[Mapping[str, Any]] = {
    name: JINJA_TESTS[name]
    for name in (
        "boolean",
        "defined",
        "even",
        "false",
        "float",
        "integer",
        "mapping",
        "none",
        "number",
        "odd",
        "sequence",
        "string",
        "true",
        "undefined",
    )
}
