"""A job spec file as a tree, each value with its line.

It is built from events, with a bound for everything: neither the depth nor the number of values of
a file is known before it is read, so nothing here recurses while it reads.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from penstock_producer.errors import seen

MAX_DEPTH: Final = 64  # a response schema may lie as deep as schemas may
MAX_VALUES: Final = 20_000  # names and values: a job spec is not a place for data
MAX_KEY_CHARS: Final = 512
_MIN_INT, _MAX_INT = -(2**63), 2**64 - 1  # what every JSON reader on the way keeps exactly
_CONTROL = re.compile("[\x00\ud800-\udfff]")


class FileFault(Exception):
    """A fault at one place of the text. ``code`` is stable."""

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
        """Return the value without its lines; as deep as ``MAX_DEPTH`` at most."""
        if isinstance(self.value, Mapping):
            return {name: node.plain() for name, node in self.value.items()}
        if isinstance(self.value, Sequence) and not isinstance(self.value, str):
            return [node.plain() for node in self.value]
        return self.value

    def at(self, pointer: str) -> tuple[Node, int]:
        """Return the value that a JSON pointer leads to, or the last on the way, and its line."""
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
    """Return the tree of one document. Raises FileFault."""
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


MAX_INT_DIGITS: Final = 20
_WORDS: Final = {"": None, "~": None, "null": None, "true": True, "false": False}
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)", re.ASCII)
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?", re.ASCII)
# Strings are skipped whole, possessively, so that no input makes the scan quadratic.
_JSON_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{}]|[^\s\[\]{},:"]+', re.DOTALL)


def parse_yaml(text: str) -> Node:
    """Return the one document of a YAML text. Raises FileFault."""
    return tree_of(_yaml_events(text))


def parse_json(text: str) -> Node:
    """Return the one value of a JSON text. Raises FileFault."""
    _check_depth(text)
    try:
        # numbers are read below, where their lines are known
        json.loads(text, parse_constant=str, parse_int=len)
    except json.JSONDecodeError as error:
        fix = "write one JSON object"
        raise FileFault(
            "invalid_json", error.lineno, f"not JSON: {error.msg}", fix, column=error.colno
        ) from None
    return tree_of(_json_events(text))


def _yaml_events(text: str) -> Iterator[Event]:
    import yaml

    documents = 0
    # Pure Python where PyYAML was built without libyaml: the same events, more slowly.
    loader = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
    try:
        for event in yaml.parse(text, Loader=loader):
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    fix = "give each job a file of its own"
                    raise FileFault(
                        "several_documents",
                        _line(event),
                        "a second document begins here (---)",
                        fix,
                    )
            elif isinstance(event, yaml.AliasEvent):
                raise _no_anchors(event, f"*{event.anchor}")
            elif isinstance(event, yaml.NodeEvent):
                yield _started(event)
            elif isinstance(event, yaml.CollectionEndEvent):
                yield Event("end", _line(event), 0)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 0)
        what = ", ".join(part for part in (error.context, error.problem) if part)
        fix = (
            "check indentation (spaces, no tabs), and quote text that has : or # or begins with a "
            "sign"
        )
        raise FileFault("invalid_yaml", line, f"not YAML: {what}", fix, column=column) from None
    except yaml.YAMLError as error:  # of the reader: characters that YAML does not allow
        position = getattr(error, "position", 0)
        line = text.count("\n", 0, position) + 1
        fix = "remove control characters"
        raise FileFault(
            "invalid_yaml", line, "not YAML: it holds a character that is not allowed", fix
        ) from None


def _started(event: Any) -> Event:
    """Return what begins here: a scalar, an object or a list, with neither anchor nor tag."""
    import yaml

    if event.anchor is not None:
        raise _no_anchors(event, f"&{event.anchor}")
    if event.tag is not None and event.tag != "!":
        fix = "leave it out: values are text, numbers, true, false, null, objects and lists"
        raise FileFault(
            "tag_refused",
            _line(event),
            f"the tag {seen(event.tag)} is refused",
            fix,
            column=_column(event),
        )
    if isinstance(event, yaml.MappingStartEvent):
        return Event("object", _line(event), _column(event))
    if isinstance(event, yaml.SequenceStartEvent):
        return Event("list", _line(event), _column(event))
    quoted = not event.implicit[0]  # whether it is a plain word
    value = event.value if quoted else _plain(event.value, _line(event))
    if value == "<<" and not quoted:
        raise _no_anchors(event, "<<")
    return Event("scalar", _line(event), _column(event), value, quoted)


def _plain(text: str, line: int) -> Any:
    """Return the value of a word without quotes.

    It is a number, truth value or null as JSON writes it, else text.
    """
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.fullmatch(text) is not None:
        return _short_integer(text, line)
    return float(text) if _NUMBER.fullmatch(text) is not None else text


def _short_integer(text: str, line: int = 1) -> int:
    if len(text) > MAX_INT_DIGITS:
        fix = "write a number of at most 64 bits, or quote it as text"
        raise FileFault("invalid_number", line, f"the number {seen(text)} is too large", fix)
    return int(text)


def _no_anchors(event: Any, sign: str) -> FileFault:
    fix = "write the value out, or put it into quotes where it is meant as text"
    why = f"{seen(sign)} refers to another part of the file, and a job spec has no anchors"
    return FileFault("alias_refused", _line(event), why, fix, column=_column(event))


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _column(event: Any) -> int:
    return int(event.start_mark.column) + 1


def _json_events(text: str) -> Iterator[Event]:
    """Yield the events of a text that is valid JSON: commas and colons need no look."""
    line, line_start, counted = 1, 0, 0
    for token in _JSON_TOKEN.finditer(text):
        begin = token.start()
        newlines = text.count("\n", counted, begin)
        if newlines:
            line += newlines
            line_start = text.rfind("\n", 0, begin) + 1
        counted = begin
        column = begin - line_start + 1
        match token[0]:
            case "{":
                yield Event("object", line, column)
            case "[":
                yield Event("list", line, column)
            case "}" | "]":
                yield Event("end", line, column)
            case word if word[0] == '"':
                yield Event("scalar", line, column, json.loads(word), quoted=True)
            case word:
                value = _plain(word, line)
                if isinstance(value, str):  # NaN and Infinity, which Python lets pass
                    fix = "write a finite number, or quote it as text"
                    raise FileFault(
                        "invalid_number",
                        line,
                        f"{word} is not a number of JSON",
                        fix,
                        column=column,
                    )
                yield Event("scalar", line, column, value)


def _check_depth(text: str) -> None:
    """Check the depth before a parser that recurses sees the text."""
    depth = 0
    for token in _JSON_TOKEN.finditer(text):
        if token[0] in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                line = text.count("\n", 0, token.start()) + 1
                why = "objects and lists lie too deep inside one another"
                raise FileFault(
                    "nesting_too_deep", line, why, f"at most {MAX_DEPTH} levels are allowed"
                )
        elif token[0] in "]}":
            depth -= 1
