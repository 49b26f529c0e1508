"""Requests of a message batch are found in its body wherever the pieces of it are cut, and cost no
more than their bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as some

from penstock_gateway.batches import anthropic_body
from penstock_gateway.batches.anthropic_body import RequestReader
from penstock_gateway.refused import Refused

VALUES = some.recursive(
    some.none() | some.integers(-5, 5) | some.text('a"\\{}[],: é\n', max_size=8),
    lambda inner: (
        some.lists(inner, max_size=3)
        | some.dictionaries(some.text('k"\\{', max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)
PARAMS = some.lists(
    some.dictionaries(some.text(max_size=3), VALUES, max_size=3), min_size=1, max_size=4
)


def cut(body: bytes, size: int) -> Iterator[bytes]:
    return (body[at : at + size] for at in range(0, len(body), size))


@given(PARAMS, some.integers(1, 40), some.booleans())
def test_requests_are_found_wherever_a_body_is_cut(
    params: list[dict[str, object]], size: int, spaced: bool
) -> None:
    """Quotes, escapes and brackets in texts are no structure."""
    requests = [{"custom_id": f"r{number}", "params": one} for number, one in enumerate(params)]
    body = json.dumps({"requests": requests}, indent=1 if spaced else None).encode()
    found = RequestReader(100, 10_000)
    lines = [line for piece in cut(body, size) for line in found.feed(piece)]
    assert found.finish() == len(params)
    assert [orjson.loads(line)["body"] for line in lines] == params


def test_no_byte_is_looked_at_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text of a megabyte that comes in a thousand pieces is not read from its start a thousand
    times."""
    matched = list[int]()

    class Counting:
        def match(self, held: bytearray, start: int) -> object:
            found = in_text.match(held, start)
            assert found is not None
            matched.append(found.end() - start)
            return found

    in_text = anthropic_body._IN_TEXT
    monkeypatch.setattr(anthropic_body, "_IN_TEXT", Counting())
    body = b'{"requests": [{"custom_id": "a", "params": {"x": "' + b'\\"' * 500_000 + b'"}}]}'
    found = RequestReader(1, 2_000_000)
    lines = [line for piece in cut(body, 1_001) for line in found.feed(piece)]
    assert found.finish() == len(lines) == 1
    assert len(matched) > 900
    assert sum(matched) < 1_010_000


def test_a_request_of_very_many_values_is_refused() -> None:
    """Before all of it has arrived, and by the same bound as any body."""
    found = RequestReader(1, 100_000_000)
    found.feed(b'{"requests": [{"custom_id": "a", "params": {"x": [')
    with pytest.raises(Refused, match="more than 400,000 values"):
        found.feed(b"{}," * 500_000)
    found = RequestReader(1, 100_000_000)
    with pytest.raises(Refused, match="more than 400,000 values"):
        found.feed(
            b'{"requests": [{"custom_id": "a", "params": {"x": [' + b"1," * 500_000 + b"1]}}]}"
        )
