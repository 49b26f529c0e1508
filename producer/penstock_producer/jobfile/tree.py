"""What a job spec file holds, each value with its line: built from events, with a bound for
everything.

Neither the depth nor the number of values of a file is known before it is read, so nothing here
recurses while it reads.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from penstock_producer.errors import seen

MAX_DEPTH: Final = 64  # a response schema may lie as deep as schemas may
MAX_VALUES: Final = 20_000  # names and values: a job spec is not a place for data
MAX_KEY_CHARS: Final = 512
_MIN_INT, _MAX_INT = -(2**63), 2**64 - 1  # what every JSON reader on the way keeps exactly
_CONTROL = re.compile("[\x00\ud800-\udfff]")


class FileFault(Exception):
    """What is wrong at one place of the text. ``code`` is stable."""

    def __init__(
        self, code: str, line: int, message: str, fix: str, *, column: int = 0, pointer: str = ""
    ) -> None:
        self.code, self.line, self.column, self.pointer = code, line, column, pointer
        self.message, self.fix = message, fix
        super().__init__(code)


class Event(NamedTuple):
    """A step through the text: a scalar, or the beginning or end of an object or a list."""

    kind: Literal["scalar", "object", "list", "end"]
    line: int  # from 1
    column: int
    value: Any = None
    quoted: bool = False


@dataclass(slots=True)
class Node:
    """One value of the file."""

    line: int
    column: int
    value: Any  # of a scalar itself, of an object its nodes by name, of a list its nodes
    quoted: bool = False
    key_lines: dict[str, int] = field(default_factory=dict)  # of an object: where each name stands

    def plain(self) -> Any:
        """The value without its lines; as deep as ``MAX_DEPTH`` at most."""
        if isinstance(self.value, Mapping):
            return {name: node.plain() for name, node in self.value.items()}
        if isinstance(self.value, Sequence) and not isinstance(self.value, str):
            return [node.plain() for node in self.value]
        return self.value

    def at(self, pointer: str) -> tuple[Node, int]:
        """The value that a JSON pointer leads to, or the last one on the way, and its line."""
        node, line = self, self.line
        for part in pointer.split("/")[1:]:
            value = node.value
            if isinstance(value, dict) and part in value:
                line = node.key_lines.get(part, line)
                node = value[part]
            elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
                node = value[int(part)]
                line = node.line
            else:
                break
        return node, line


def tree_of(events: Iterable[Event]) -> Node:
    """The tree of one document. Raises FileFault."""
    builder = _Builder()
    for event in events:
        builder.take(event)
    if builder.root is None:
        raise FileFault(
            "empty_file", 1, "the file holds nothing", "write one object with the fields of a job"
        )
    return builder.root


class _Builder:
    def __init__(self) -> None:
        self.root: Node | None = None
        self._open: list[Node] = []
        self._keys: list[str | None] = []  # of each open node: the name whose value comes next
        self._values = 0

    def take(self, event: Event) -> None:
        if event.kind == "end":
            self._open.pop()
            self._keys.pop()
            return
        self._values += 1
        if self._values > MAX_VALUES:
            fix = (
                f"at most {MAX_VALUES} are allowed; put documents into a source, and long lists "
                "into files of their own"
            )
            raise FileFault(
                "too_many_values", event.line, "the file holds too many names and values", fix
            )
        parent = self._open[-1] if self._open else None
        if parent is not None and isinstance(parent.value, dict) and self._keys[-1] is None:
            self._keys[-1] = self._key(parent, event)
            return
        node = Node(
            event.line, event.column, _scalar(event) if event.kind == "scalar" else {}, event.quoted
        )
        if event.kind == "list":
            node.value = []
        self._place(parent, node)
        if event.kind != "scalar":
            if len(self._open) >= MAX_DEPTH:
                fix = f"at most {MAX_DEPTH} levels are allowed"
                raise FileFault(
                    "nesting_too_deep",
                    event.line,
                    "objects and lists lie too deep inside one another",
                    fix,
                )
            self._open.append(node)
            self._keys.append(None)

    def _key(self, parent: Node, event: Event) -> str:
        key = event.value
        if event.kind != "scalar" or not isinstance(key, str):
            fix = "write names as text, in quotes where they are numbers or true and false"
            raise FileFault(
                "invalid_type", event.line, f"{seen(key)} is not a name", fix, column=event.column
            )
        if len(key) > MAX_KEY_CHARS:
            fix = f"at most {MAX_KEY_CHARS} are allowed"
            raise FileFault(
                "invalid_value", event.line, f"the name {seen(key)} has {len(key)} characters", fix
            )
        _check_text(event)
        if key in parent.key_lines:
            raise FileFault(
                "duplicate_key",
                event.line,
                f"{seen(key)} is given here and in line {parent.key_lines[key]}",
                "keep one of them",
                column=event.column,
            )
        parent.key_lines[key] = event.line
        return key

    def _place(self, parent: Node | None, node: Node) -> None:
        if parent is None:
            self.root = node
        elif isinstance(parent.value, dict):
            name = self._keys[-1]
            assert name is not None
            parent.value[name] = node
            self._keys[-1] = None
        else:
            parent.value.append(node)


def _scalar(event: Event) -> Any:
    value = event.value
    if isinstance(value, str):
        _check_text(event)
    elif isinstance(value, float) and not math.isfinite(value):
        fix = "write a finite number, or quote it as text"
        raise FileFault(
            "invalid_number", event.line, "the number is not finite", fix, column=event.column
        )
    elif isinstance(value, int) and not _MIN_INT <= value <= _MAX_INT:
        fix = "write a number of at most 64 bits, or quote it as text"
        raise FileFault(
            "invalid_number", event.line, "the number is too large", fix, column=event.column
        )
    return value


def _check_text(event: Event) -> None:
    bad = _CONTROL.search(event.value)
    if bad is not None:
        code, what = (
            ("nul_character", "a NUL")
            if bad[0] == "\x00"
            else ("invalid_unicode", "half of a surrogate pair")
        )
        raise FileFault(
            code, event.line, f"the text holds {what}", "remove it", column=event.column
        )
