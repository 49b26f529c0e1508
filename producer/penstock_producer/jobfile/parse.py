"""The text of a job spec file as events with lines: YAML by libyaml's parser, JSON by Python's.

Only libyaml's events are used, none of PyYAML's constructors: no tag makes an object, no alias is
ever expanded, and values are read as YAML 1.2 and JSON have them, so that `no`, `on`, `1:30`,
`0123` and dates are text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from penstock_producer.errors import seen
from penstock_producer.jobfile.tree import MAX_DEPTH, Event, FileFault, Node, tree_of

MAX_INT_DIGITS: Final = 20
_WORDS: Final = {"": None, "~": None, "null": None, "true": True, "false": False}
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)", re.ASCII)
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?", re.ASCII)
# Strings are skipped whole, possessively, so that no input makes the scan quadratic.
_JSON_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{}]|[^\s\[\]{},:"]+', re.DOTALL)


def parse_yaml(text: str) -> Node:
    """The one document of a YAML text. Raises FileFault."""
    return tree_of(_yaml_events(text))


def parse_json(text: str) -> Node:
    """The one value of a JSON text. Raises FileFault."""
    _check_depth(text)
    try:
        json.loads(
            text, parse_constant=str, parse_int=len
        )  # numbers are read below, where their lines are known
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
    """What begins here: a scalar, an object or a list, with neither anchor nor tag."""
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
    """A word without quotes: a number, truth value or null as JSON writes it, else text."""
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
    """Of a text that is valid JSON: commas and colons need no look."""
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
    """Before a parser that recurses sees the text."""
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
