"""Bodies that cost more to read than to send, each of about the size that it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from penstock_gateway.bodies import MAX_DEPTH, MAX_KEYS
from penstock_producer.json_bounds import MAX_FIELDS, MAX_VALUES

JSON: Final = "application/json"
LINES: Final = "application/x-ndjson"
FORM: Final = "application/x-www-form-urlencoded"
PARTS: Final = "multipart/form-data; boundary=b"


class Body(NamedTuple):
    content: bytes
    content_type: str = JSON


def empty_objects(size: int) -> Body:
    return Body(b"[" + b"{}," * (size // 3) + b"{}]")


def full_of_values(size: int) -> Body:
    """As many as are taken, and text behind them."""
    values = b'"x": [' + b"{}," * (min(MAX_VALUES // 2, size // 3) - 100) + b"{}]"
    return Body(b"{" + values + b', "text": "' + b"a" * (size - len(values)) + b'"}')


def full_of_fields(size: int) -> Body:
    """As many as are taken, in objects that have as many as one may."""
    fields = b",".join(b'"k%d":1' % number for number in range(MAX_KEYS))
    objects = b",".join([b"{%b}" % fields] * min(MAX_FIELDS // MAX_KEYS - 1, size // len(fields)))
    return Body(b'{"x": [' + objects + b'], "text": "' + b"a" * (size - len(objects)) + b'"}')


def unknown_fields(size: int) -> Body:
    """As many as one object may have, and each is unknown; the last one is long."""
    fields = b",".join(b'"promt%d":1' % number for number in range(min(MAX_KEYS - 100, size // 16)))
    return Body(b"{" + fields + b',"prompt": "' + b"a" * (size - len(fields)) + b'"}')


def too_many_fields(size: int) -> Body:
    return Body(b"{" + b",".join(b'"k%d":1' % number for number in range(size // 12)) + b"}")


def equal_keys(size: int) -> Body:
    return Body(b"{" + b'"a":1,' * (size // 6) + b'"a":1}')


def long_names(size: int) -> Body:
    """Names of fields that are as long as the body, some of them repeated inside."""
    name = b"n" * (size // 4)
    return Body(
        b'{"%b": 1, "params": {"%b": 1}, "where": [{"%b": 1}], "reason": {"%b": 1}}' % ((name,) * 4)
    )


def nested(size: int) -> Body:
    """Levels as deep as they may be, again and again."""
    one = b'{"tools":' * (MAX_DEPTH - 3) + b"[]" + b"}" * (MAX_DEPTH - 3)
    return Body(b'{"messages": [' + b",".join([one] * (size // len(one))) + b"]}")


def messages_of_blocks(size: int) -> Body:
    """A request of Anthropic's Messages that is one, of as many small blocks as fit."""
    block = b'{"type":"text","text":"x"},'
    one = b'{"role":"user","content":[' + block * 500 + block[:-1] + b"]},"
    most = min(size // len(one), MAX_VALUES // 2_100)
    return Body(b'{"model":"m","max_tokens":5,"messages":[' + (one * most)[:-1] + b"]}")


def open_brackets(size: int) -> Body:
    return Body(b"[" * size)


def one_text(size: int) -> Body:
    """One that takes four bytes of memory for each of its own."""
    return Body(b'{"prompt": "' + b"a" * size + "😀".encode() + b'"}')


def escapes(size: int) -> Body:
    return Body(b'{"prompt": "' + b"\\n" * (size // 2) + b'"}')


def commas_in_texts(size: int) -> Body:
    return Body(b'{"prompt": ["' + b',\\"' * (size // 3) + b'"]}')


def digits(size: int) -> Body:
    return Body(b'{"budget_usd": ' + b"9" * size + b"}")


def broken_at_its_end(size: int) -> Body:
    return Body(b'{"prompt": "' + "é".encode() * (size // 2) + b'\xff"}')


def zeros(size: int) -> Body:
    return Body(b"\x00" * size)


def spaces(size: int) -> Body:
    return Body(b" " * size + b"{}")


def line_ends(size: int) -> Body:
    return Body(b"\n" * size, LINES)


def short_lines(size: int) -> Body:
    return Body(b'{"id":"a","document":{}}\n' * (size // 25), LINES)


def lines_of_objects(size: int) -> Body:
    """Lines as long as they may be."""
    line = b'{"id":"a","document":{"x":[' + b"{}," * min(2_600_000, size // 12) + b"{}]}}\n"
    return Body(line * (size // len(line)), LINES)


def lines_of_fields(size: int) -> Body:
    line = (
        b'{"id":"a","document":{'
        + b",".join(b'"k%d":1' % n for n in range(min(90_000, size // 60)))
        + b"}}\n"
    )
    return Body(line * (size // len(line)), LINES)


def many_fields(size: int) -> Body:
    return Body(b"a=1&" * (size // 4), FORM)


def many_parts(size: int) -> Body:
    part = b'--b\r\ncontent-disposition: form-data; name="a"\r\n\r\n1\r\n'
    return Body(part * (size // len(part)) + b"--b--\r\n", PARTS)


def almost_boundaries(size: int) -> Body:
    head = b'--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n'
    return Body(head + b"\r\n--" * (size // 4) + b"\r\n--b--\r\n", PARTS)


def requests_of_escapes(size: int) -> Body:
    return Body(
        b'{"requests": [{"custom_id": "a", "params": {"x": "' + b"\\n" * (size // 2) + b'"}}]}'
    )


def requests_of_objects(size: int) -> Body:
    return Body(
        b'{"requests": [{"custom_id": "a", "params": {"x": [' + b"{}," * (size // 3) + b"{}]}}]}"
    )


Shape = Callable[[int], Body]
SHAPES: Final[Mapping[str, Shape]] = {
    shape.__name__: shape
    for shape in (
        empty_objects,
        full_of_values,
        full_of_fields,
        unknown_fields,
        too_many_fields,
        equal_keys,
        long_names,
        nested,
        open_brackets,
        one_text,
        escapes,
        commas_in_texts,
        digits,
        broken_at_its_end,
        zeros,
        spaces,
        line_ends,
        short_lines,
        lines_of_objects,
        lines_of_fields,
        many_fields,
        many_parts,
        almost_boundaries,
        requests_of_escapes,
        requests_of_objects,
    )
}


def wrong_by_schema(schema: Mapping[str, Any], size: int) -> Body:
    """Each field that the document of the API names has a list of numbers, as many together as are
    taken."""
    names = list(schema.get("properties", {}))
    each = b"[" + b"1," * (min(MAX_VALUES, size // 2) // (len(names) or 1) - 10) + b"1]"
    return Body(b"{" + b",".join(b'"%b": %b' % (name.encode(), each) for name in names) + b"}")
