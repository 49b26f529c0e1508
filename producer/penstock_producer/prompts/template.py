"""Prompt templates: `{field}`, `{field|default:"none"}` and nothing else, beside Jinja.

There is no logic to inject into.

`{{` and `}}` stand for literal braces. A field is a column of the record; `{user.name}` first looks
for a column of exactly that name, then for `name` inside the object `user`. A default is a JSON
string without braces, and stands for a column that is absent, null or empty; without one such a row
is refused. CSV has no null and data frames have both, so an empty cell is no other thing than a
null.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson

from penstock_producer.errors import TemplateError, seen
from penstock_producer.rows import DEFAULT_MAX_BODY_BYTES

_FIELD = re.compile(r"\w[\w .\-/@$#]*")
_DEFAULT = re.compile(r'(?P<name>[^|]*?)\s*\|\s*default:\s*(?P<text>"(?:[^"\\]|\\.)*")')
_TOKEN = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


def is_empty(value: Any) -> bool:
    """Return whether a cell holds nothing to ask about: null, or a text of blanks alone."""
    return value is None or (isinstance(value, str) and (not value or value.isspace()))


class MissingField(LookupError):
    """The record lacks a field of the template, or holds nothing there."""

    def __init__(self, name: str, *, empty: bool) -> None:
        self.name = name
        self.empty = empty  # the column is there, with null or an empty text
        super().__init__(name)


class TextTooLong(ValueError):
    """The text for a record is longer than any request may be.

    ``name`` is the column at which it grew too long.
    """

    def __init__(self, name: str, max_chars: int) -> None:
        self.name = name
        self.max_chars = max_chars
        super().__init__(name)


class RenderFailed(ValueError):
    """The template and this record do not go together; the message says why."""


class Template:
    """A parsed template. Raises TemplateError where ``text`` is not one."""

    whole_row = False

    def __init__(self, text: str, *, pointer: str = "/prompt") -> None:
        fields, defaults, self._literals = _parse(text, pointer)
        self.fields: tuple[str, ...] = fields
        self._parts = tuple(zip(self.fields, defaults, self._literals[1:], strict=True))

    @property
    def required(self) -> tuple[str, ...]:
        """The columns that have no default."""
        return tuple(name for name, default, _ in self._parts if default is None)

    def render(self, record: Mapping[str, Any], max_chars: int = DEFAULT_MAX_BODY_BYTES) -> str:
        """Return the text for one record.

        Raises MissingField: an absent or empty column never becomes a paid request.

        Raises TextTooLong once the parts are longer than ``max_chars`` together, before they are
        joined: a short template that names a long column often enough would fill any memory.
        """
        parts = [self._literals[0]]
        chars = len(self._literals[0])
        for name, default, literal in self._parts:
            value = record.get(name)
            if is_empty(value):
                value = _look_inside(record, name, default)
            text = value if isinstance(value, str) else orjson.dumps(value).decode()
            chars += len(text) + len(literal)
            if chars > max_chars:
                raise TextTooLong(name, max_chars)
            parts.append(text)
            parts.append(literal)
        return "".join(parts)


def _parse(
    text: str, pointer: str
) -> tuple[tuple[str, ...], tuple[str | None, ...], tuple[str, ...]]:
    """Return the columns, their defaults, and the literal texts around them."""
    fields: list[str] = []
    defaults: list[str | None] = []
    literals: list[str] = [""]
    end = 0
    for token in _TOKEN.finditer(text):
        literals[-1] += text[end : token.start()]
        end = token.end()
        name, default = _field_and_default(token[1])
        if token[0] in ("{{", "}}"):
            literals[-1] += token[0][0]
        elif name is None:
            raise TemplateError(
                f"a lone {token[0]!r} at character {token.start()} of {seen(text)}",
                "write {{ and }} for literal braces, {column} for a column",
                pointer=pointer,
            )
        elif _FIELD.fullmatch(name) is None:
            raise TemplateError(
                f"{seen(token[0])} is not a column name",
                'templates have columns only, as {column} or {column|default:"none"}; write {{ and '
                "}} for literal braces",
                pointer=pointer,
            )
        else:
            fields.append(name)
            defaults.append(default)
            literals.append("")
    literals[-1] += text[end:]
    return tuple(fields), tuple(defaults), tuple(literals)


def _field_and_default(inside: str | None) -> tuple[str | None, str | None]:
    """Return the name and the default between braces; all of it as the name without a default."""
    found = None if inside is None else _DEFAULT.fullmatch(inside)
    if found is None:
        return inside, None
    try:
        return found["name"], str(orjson.loads(found["text"]))
    except orjson.JSONDecodeError:
        return inside, None


def _look_inside(record: Mapping[str, Any], name: str, default: str | None) -> Any:
    try:
        return _found_inside(record, name)
    except MissingField:
        if default is None:
            raise
        return default


def _found_inside(record: Mapping[str, Any], name: str) -> Any:
    if name in record:
        raise MissingField(name, empty=True)
    value: Any = record
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise MissingField(name, empty=False)
        value = value[part]
    if is_empty(value):
        raise MissingField(name, empty=True)
    return value
