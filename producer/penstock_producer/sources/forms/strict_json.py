"""One line of JSON, read strictly.

What Python's reader lets pass and a database or a provider refuses later is refused here, by name.
The fast path is orjson, which already rejects NaN, infinities, lone surrogates, raw control
characters and bad UTF-8. The rest is found by cheap looks at the bytes; only a line that fails or
looks suspicious is taken apart slowly.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, Final, NoReturn

import orjson

from penstock_producer.errors import seen
from penstock_producer.job.params import close_to
from penstock_producer.json_bounds import fits, has_long_number, overfull
from penstock_producer.rows import BadRow, Cursor

__all__ = ["bounded", "columns_of", "meant", "too_large"]

# no request body of a known provider nests a quarter of this; parsers fail from 1,000 on
MAX_DEPTH = 64

_ASCII_ESCAPE = re.compile(rb"\\u00[0-7]")
# Strings are skipped whole, possessively, so that no input makes the scan quadratic.
_DEPTH_TOKENS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{]|[\]}]', re.DOTALL)
_SURROGATE = re.compile("[\ud800-\udfff]")
_UTF16_SHARE = 4  # text in UTF-16 has a quarter of NUL bytes and more


class RowFault(Exception):
    """The fault of a row that is refused; the reader adds file and line."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        fix: str,
        field: str | None = None,
        value: str = "",
        doc_id: str | None = None,
    ) -> None:
        self.code = code
        self.message = message
        self.fix = fix
        self.field = field
        self.value = value
        self.doc_id = doc_id
        self.endpoint: str | None = None  # that the row names, where it is not the job's
        super().__init__(code)

    def row(self, uri: str, line: int, cursor: Cursor) -> BadRow:
        """Return the row that is refused, whose cursor continues after it."""
        return BadRow(
            uri,
            line,
            self.code,
            self.field,
            self.message,
            self.value,
            self.fix,
            self.doc_id,
            cursor,
            endpoint=self.endpoint,
        )


def parse_object(
    line: bytes, control_keys: tuple[bytes, ...], *, last: bool = False
) -> dict[str, Any]:
    """Return the JSON object of one line.

    ``control_keys`` are quoted keys that must not occur twice in one object.

    ``last`` says that the file ends in this line without a newline. Raises RowFault.
    """
    value = parse_value(line, control_keys, last=last)
    if type(value) is not dict:
        raise RowFault(
            "invalid_json_line",
            f"This line is JSON but not an object (it is {type(value).__name__}).",
            fix="write one JSON object per line",
            value=seen(line),
        )
    return value


def parse_value(line: bytes, control_keys: tuple[bytes, ...] = (), *, last: bool = False) -> Any:
    """Return the JSON value of one line, of any kind, as ``parse_object`` does for objects."""
    _check_fullness(line)
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        _classify(line, str(error), last=last)
    if _is_suspicious(line, control_keys):
        value = _parse_slowly(line, frozenset(key[1:-1].decode() for key in control_keys))
    return value


def parse_surveyed(line: bytes) -> dict[str, Any]:
    """Return the JSON object of a line that the survey accepted: it is not parsed slowly again.

    Raises RowFault for a line that has no JSON object all the same.
    """
    _check_fullness(line)
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        _classify(line, str(error), last=False)
    return value if type(value) is dict else parse_object(line, ())


def _check_fullness(line: bytes) -> None:
    too_much = overfull(line)
    if too_much is not None:
        raise RowFault(
            "too_many_values",
            f"This line has {too_much}.",
            fix="write fewer, or pass a part as text",
            value=seen(line),
        )


def _is_suspicious(line: bytes, control_keys: tuple[bytes, ...]) -> bool:
    """Return whether the line may hold what orjson lets pass.

    That is NUL escapes, huge integers, deep nesting and repeated keys.
    """
    # find() and not `in`: half the time on short lines.
    if len(line) > 2 * MAX_DEPTH and line.count(b"{") + line.count(b"[") > MAX_DEPTH:
        return True
    if line.find(b"\\u00") >= 0 and _ASCII_ESCAPE.search(line) is not None:
        return True
    for key in control_keys:
        if line.count(key) > 1:
            return True
    return has_long_number(line)


def _classify(line: bytes, reason: str, *, last: bool) -> NoReturn:
    """Name what is wrong with a line that orjson refused."""
    _check_encoding(line)
    _check_depth(line)
    with contextlib.suppress(json.JSONDecodeError):
        _check_strings(
            json.loads(
                line.decode(),
                parse_constant=_refuse_constant,
                parse_int=_integer,
                parse_float=_finite,
            )
        )
    hint = " The file may be truncated." if last else ""
    raise RowFault(
        "invalid_json_line",
        f"This line is not parseable as valid JSON.{hint}",
        fix=f"write one JSON object per line ({reason})",
        value=seen(line),
    )


def _parse_slowly(line: bytes, control_keys: frozenset[str]) -> Any:
    _check_depth(line)

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) != len(pairs):
            _check_unique(pairs, control_keys)
        return value

    value = json.loads(line, object_pairs_hook=unique, parse_int=_integer, parse_float=_finite)
    _check_strings(value)
    return value


def _check_unique(pairs: Iterable[tuple[str, Any]], control_keys: frozenset[str]) -> None:
    met: set[str] = set()
    for name, value in pairs:
        if name in met and name in control_keys:
            raise RowFault(
                "duplicate_key",
                f"The key {name!r} occurs twice in one object, and readers differ on which counts.",
                fix="keep one of them",
                field=name,
                value=seen(value),
            )
        met.add(name)


def _check_encoding(line: bytes) -> None:
    if line.count(0) * _UTF16_SHARE >= len(line) or line[:2] in (b"\xff\xfe", b"\xfe\xff"):
        _refuse_encoding(line, 0, "it looks like UTF-16 or UTF-32")
    try:
        line.decode()
    except UnicodeDecodeError as error:
        if re.search(rb"\xed[\xa0-\xbf]", line[error.start : error.start + 2]):
            raise RowFault(
                "invalid_unicode",
                f"Byte {error.start} of this line encodes half a surrogate pair.",
                fix="write the character itself in UTF-8",
                value=seen(line[error.start : error.start + 8]),
            ) from None
        _refuse_encoding(
            line, error.start, f"byte {error.start} of this line is 0x{line[error.start]:02x}"
        )


def _refuse_encoding(line: bytes, offset: int, why: str) -> NoReturn:
    raise RowFault(
        "invalid_encoding",
        f"This line is not UTF-8: {why}.",
        fix=(
            "convert the file, for example with `iconv -f LATIN1 -t UTF-8` or `iconv -f UTF-16 -t "
            "UTF-8`"
        ),
        value=seen(line[max(0, offset - 8) : offset + 8]),
    )


def _check_depth(line: bytes) -> None:
    depth = 0
    for token in _DEPTH_TOKENS.finditer(line):
        first = token[0][0]
        depth += 1 if first in b"[{" else -1 if first in b"]}" else 0
        if depth > MAX_DEPTH:
            raise RowFault(
                "nesting_too_deep",
                f"This line nests deeper than {MAX_DEPTH} levels (byte {token.start()}).",
                fix="flatten it, or pass the nested part as text",
                value=seen(line),
            )


def _check_strings(value: Any) -> None:
    """Refuse NUL and lone surrogates anywhere, keys included.

    PostgreSQL and UTF-8 cannot hold them.
    """
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, str):
            check_text(part)
        elif isinstance(part, dict):
            waiting.extend(part.keys())
            waiting.extend(part.values())
        elif isinstance(part, list):
            waiting.extend(part)


def check_text(text: str, field: str | None = None) -> None:
    """Raise RowFault for a text that databases or UTF-8 cannot hold."""
    if "\x00" in text:
        raise RowFault(
            "nul_character",
            "A text holds a NUL character (\\u0000).",
            fix="remove it: databases refuse it",
            field=field,
            value=seen(text),
        )
    if not text.isascii() and _SURROGATE.search(text) is not None:
        raise RowFault(
            "invalid_unicode",
            "A text holds half a surrogate pair.",
            fix="write the whole character, or remove it",
            field=field,
            value=seen(text),
        )


def _integer(digits: str) -> int:
    if not fits(digits):
        _refuse_number(digits, "is beyond 64 bits")
    return int(digits)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        _refuse_number(text, "is beyond the range of a double")
    return value


def _refuse_constant(name: str) -> NoReturn:
    _refuse_number(name, "is not JSON")


def _refuse_number(text: str, why: str) -> NoReturn:
    raise RowFault(
        "invalid_number",
        f"The number {why}.",
        fix="write a finite number of at most 64 bits, or quote it as text",
        value=seen(text),
    )


_MAX_COLUMNS_SHOWN: Final = 20
_MAX_COLUMNS_COMPARED: Final = 100


def too_large(size: str, limit: int, field: str | None = None) -> RowFault:
    """Return the fault of a request that is larger than the setting `max_body_bytes`.

    ``size`` says how large.
    """
    return RowFault(
        "body_too_large",
        f"The request has {size}, and the setting max_body_bytes allows {limit}.",
        fix=(
            "shorten the text, name the column once, or raise max_body_bytes where requests really "
            "are larger"
        ),
        field=field,
    )


def bounded(body: bytes, limit: int) -> bytes:
    """Return the request. Raises RowFault where it is too large."""
    if len(body) > limit:
        raise too_large(f"{len(body)} bytes", limit)
    return body


def columns_of(record: Mapping[str, Any]) -> str:
    names = [seen(name) for name in islice(record, _MAX_COLUMNS_SHOWN)]
    return (
        ", ".join(names) + (", …" if len(record) > _MAX_COLUMNS_SHOWN else "") if names else "none"
    )


def meant(name: str, given: Mapping[str, Any]) -> str:
    """Return the column that was probably meant, as the beginning of a fix."""
    close = close_to(name, islice(given, _MAX_COLUMNS_COMPARED))
    return f"did you mean {close!r}? If not, " if close is not None and close != name else ""
