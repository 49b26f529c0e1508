"""Prompt templates: `{field}` and nothing else. There is no logic to inject into.

`{{` and `}}` stand for literal braces. A field is a column of the record; `{user.name}` first looks for a column of
exactly that name, then for `name` inside the object `user`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import orjson

from penstock_producer.errors import TemplateError, seen
from penstock_producer.settings import DEFAULT_MAX_BODY_BYTES

_FIELD = re.compile(r"\w[\w .\-/@$#]*")
_TOKEN = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


class MissingField(LookupError):
    """The record lacks a field of the template, or holds null there."""

    def __init__(self, name: str, *, null: bool) -> None:
        self.name = name
        self.null = null
        super().__init__(name)


class TextTooLong(ValueError):
    """The text for a record is longer than any request may be; ``name`` is the column at which it grew too long."""

    def __init__(self, name: str, max_chars: int) -> None:
        self.name = name
        self.max_chars = max_chars
        super().__init__(name)


class Template:
    """A parsed template. Raises TemplateError where ``text`` is not one."""

    def __init__(self, text: str, *, pointer: str = "/prompt") -> None:
        self.fields, self._literals = _parse(text, pointer)
        self._pairs = tuple(zip(self.fields, self._literals[1:], strict=True))

    def render(self, record: Mapping[str, Any], max_chars: int = DEFAULT_MAX_BODY_BYTES) -> str:
        """The text for one record. Raises MissingField: an absent or null column never becomes a paid request.

        Raises TextTooLong once the parts are longer than ``max_chars`` together, before they are joined: a short template
        that names a long column often enough would fill any memory.
        """
        parts = [self._literals[0]]
        chars = len(self._literals[0])
        for name, literal in self._pairs:
            value = record.get(name)
            if value is None:
                value = _look_inside(record, name)
            text = value if isinstance(value, str) else orjson.dumps(value).decode()
            chars += len(text) + len(literal)
            if chars > max_chars:
                raise TextTooLong(name, max_chars)
            parts.append(text)
            parts.append(literal)
        return "".join(parts)


def _parse(text: str, pointer: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    fields: list[str] = []
    literals: list[str] = [""]
    end = 0
    for token in _TOKEN.finditer(text):
        literals[-1] += text[end : token.start()]
        end = token.end()
        name = token[1]
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
                "templates have columns only, no expressions; write {{ and }} for literal braces",
                pointer=pointer,
            )
        else:
            fields.append(name)
            literals.append("")
    literals[-1] += text[end:]
    return tuple(fields), tuple(literals)


def _look_inside(record: Mapping[str, Any], name: str) -> Any:
    if name in record:
        raise MissingField(name, null=True)
    value: Any = record
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise MissingField(name, null=False)
        value = value[part]
    if value is None:
        raise MissingField(name, null=True)
    return value
