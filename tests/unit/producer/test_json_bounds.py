"""How many values a JSON text has is known before it is parsed, and what stands inside of texts
counts for nothing."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as some

from penstock_gateway.bodies import MAX_KEYS, parsed
from penstock_gateway.refused import Refused
from penstock_producer import json_bounds
from penstock_producer.json_bounds import MAX_FIELDS, MAX_VALUES, huge_integer, overfull
from penstock_producer.sources.forms.strict_json import RowFault, parse_object, parse_surveyed

TEXTS = some.lists(some.text('a"\\,:[{\n é', max_size=12), max_size=30)


def test_bounds_are_where_they_say() -> None:
    """A list of numbers may have 400,000, objects together 100,000 fields, and one object 5,000."""
    assert overfull(b"[" + b"1," * (MAX_VALUES - 2) + b"1]") is None
    assert overfull(b"[" + b"1," * MAX_VALUES + b"1]") == "more than 400,000 values"
    objects = b"[" + b'{"abcdef": 1},' * (MAX_FIELDS - 1) + b'{"abcdef": 1}]'
    assert overfull(objects) is None
    assert overfull(objects[:-1] + b',{"a": 1}]') == "more than 100,000 fields"
    fields = b",".join(b'"%d":1' % number for number in range(MAX_KEYS))
    assert len(parsed(b"{%b}" % fields)) == MAX_KEYS
    with pytest.raises(Refused, match="more than 5,000 fields"):
        parsed(b'[{%b,"one":1}]' % fields)


@pytest.mark.parametrize("filler", [b",", b":", b"{[", b'\\",', b"\\\\", b'\\\\\\",:', b"ab, c: "])
def test_texts_hold_no_values(filler: bytes) -> None:
    """Prose has commas, and documents hold JSON: neither counts, wherever the text is cut for
    counting."""
    text = b""
    for more in range(3):
        text = b'{"a": "' + b"x" * more + filler * (1_500_000 // len(filler)) + b'"}'
        assert overfull(text) is None
    assert (
        overfull(text[:-1] + b', "b": [' + b"{}," * MAX_VALUES + b"{}]}")
        == "more than 400,000 values"
    )


@given(TEXTS, some.integers(1, 9))
def test_values_are_counted_alike_in_pieces(texts: list[str], piece: int) -> None:
    """The slow count finds the structure of any JSON, however it is cut."""
    body = json.dumps({"texts": texts, "more": [{}, [1, 2]]}, ensure_ascii=False).encode()
    plain = json.dumps({"": ["" for _ in texts], "b": [{}, [1, 2]]}).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_bounds, "_PIECE", piece)
        assert json_bounds._counted_outside_texts(body) == json_bounds._counted(plain)


def test_lines_have_the_same_bounds() -> None:
    """A row of a source and a pushed document, when they are surveyed and when they are read
    again."""
    line = b'{"x": [' + b"{}," * MAX_VALUES + b"{}]}"
    reads: tuple[Callable[[], object], ...] = (
        lambda: parse_object(line, ()),
        lambda: parse_surveyed(line),
    )
    for read in reads:
        with pytest.raises(RowFault) as caught:
            read()
        assert caught.value.code == "too_many_values"


@pytest.mark.parametrize(
    ("body", "integer"),
    [
        (b'{"seed": 18446744073709551616}', "18446744073709551616"),
        (b'{"seed": 18446744073709551615, "n": [-9223372036854775808]}', None),
        (b"[1, -9223372036854775809]", "-9223372036854775809"),
        (b'{"text": "18446744073709551616", "18446744073709551616": 1}', None),
        (b"[0.18446744073709551616, 18446744073709551616e3, 1e-18446744073709551616]", None),
        (b"18446744073709551616", "18446744073709551616"),
        (b"[" + b"9" * 5_000 + b"]", "9" * 5_000),
    ],
)
def test_an_integer_that_parsing_would_alter_is_found(body: bytes, integer: str | None) -> None:
    """Whatever 64 bits hold is kept, texts and fractions are no integers, and a door refuses the
    rest by its digits."""
    assert huge_integer(body) == integer
    if integer is not None:
        with pytest.raises(Refused, match="64 bits cannot hold") as refused:
            parsed(body)
        assert (refused.value.status, refused.value.code) == (400, "invalid_number")
        if body.startswith(b"{"):
            assert refused.value.param == "seed"


@given(
    some.lists(some.integers(-(2**66), 2**66) | some.floats(allow_nan=False), max_size=9),
    TEXTS,
    some.integers(1, 40),
)
def test_a_huge_integer_is_found_wherever_the_text_is_cut(
    numbers: list[float], texts: list[str], piece: int
) -> None:
    """It is the first integer beyond 64 bits that Python's own reader finds."""
    body = json.dumps([numbers, texts, dict.fromkeys(texts, 2**64 - 1)]).encode()
    huge = [one for one in numbers if isinstance(one, int) and not -(2**63) <= one < 2**64]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_bounds, "_PIECE", piece)
        found = huge_integer(body)
    assert found == (str(huge[0]) if huge else None)
