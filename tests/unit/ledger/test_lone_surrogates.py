"""The one rule for lone surrogates, against Python's own reading of JSON."""

from __future__ import annotations

import json
import re

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_ledger.lone_surrogates import (
    REPLACED_MAX,
    dump_json,
    parse_json,
    replace_escaped_surrogates,
    replace_surrogates,
)
from penstock_ledger.model import ItemKey, Result
from penstock_ledger.redaction import one_line
from penstock_ledger.stored_values import json_text, storable

PIECES = st.sampled_from(
    [
        "\\\\",
        "\\ud83d",
        "\\udE00",
        "\\uD83D\\uDE00",
        "\\u00e9",
        '\\"',
        "\\n",
        "ud83d",
        "\\u0000",
        "a",
        "é",
        "\u2028",
    ]
)


@given(st.lists(PIECES, max_size=8).map("".join))
def test_json_is_read_as_everywhere_but_for_its_lone_surrogates(text: str) -> None:
    """Pairs, escaped backslashes and all other characters stay; each lone half is U+FFFD; no byte
    moves its place."""
    written = f'{{"{text}": ["{text}"]}}'
    expected = json.loads(
        re.sub("[\ud800-\udfff]", "\ufffd", json.dumps(json.loads(written), ensure_ascii=False))
    )
    assert parse_json(written) == parse_json(written.encode()) == expected
    assert len(replace_escaped_surrogates(written.encode())) == len(written.encode())


@given(st.text(st.characters(exclude_categories=()), max_size=20))
def test_every_text_can_be_encoded_and_only_halves_are_replaced(text: str) -> None:
    """The same in the log, in a column of SQL and in JSON that is written."""
    replaced = replace_surrogates(text)
    assert replaced.encode().decode() == replaced
    assert [one for one, other in zip(replaced, text, strict=True) if one != other] == [
        "\ufffd"
    ] * len(re.findall("[\ud800-\udfff]", text))
    assert one_line(text).encode().decode() == one_line(text)
    assert storable(text) == replaced.replace("\0", "\ufffd")
    assert orjson.loads(dump_json({text: [text, (text, 5)]})) == {
        replaced: [replaced, [replaced, 5]]
    }
    assert orjson.loads(json_text([text])) == [replaced]


@pytest.mark.parametrize(
    "body", [b"", b"{", b'{"a": NaN}', b'"\xed\xa0\xbd"', b'"\\ud83', b'"\\ud83d', b'\0"\\ud83d"']
)
def test_what_is_no_json_stays_none(body: bytes) -> None:
    """The raw bytes of a surrogate are not UTF-8, so that they are not JSON."""
    with pytest.raises(orjson.JSONDecodeError):
        parse_json(body)


def test_an_answer_of_halves_alone_costs_no_seconds() -> None:
    """Beyond any real number of them a body cannot be read as JSON."""
    with pytest.raises(orjson.JSONDecodeError):
        parse_json(b'"' + b"\\ud83d" * (REPLACED_MAX + 1) + b'"')
    assert len(parse_json(b'"' + b"\\ud83d" * REPLACED_MAX + b'"')) == REPLACED_MAX


@pytest.mark.parametrize("value", [{1, 2}, object(), {"a": ["\ud83d", object()]}])
def test_what_cannot_be_written_as_json_is_refused(value: object) -> None:
    """As orjson refuses it."""
    with pytest.raises(TypeError):
        dump_json(value)


def test_a_result_can_be_read_whatever_half_an_emoji_is_in_it() -> None:
    """Its body keeps the provider's bytes."""
    made = Result(
        ItemKey("j", 1, "d"), 200, b'{"a":"\\ud83d"}', None, None, None, None, None, 0, 0, 1, 1
    )
    assert made.json() == {"a": "\ufffd"}
    assert made.body == b'{"a":"\\ud83d"}'
