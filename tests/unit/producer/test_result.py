"""What programs may do with a `penstock_producer.Result`, whatever it is made of."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import msgspec
import pytest

from penstock_ledger.model import ItemKey
from penstock_producer import Result

FIELDS = (
    "key",
    "status_code",
    "body",
    "request_id",
    "model",
    "finish_reason",
    "prompt_tokens",
    "completion_tokens",
    "cost_microusd",
    "latency_ms",
    "attempts",
    "calls",
    "reason",
    "endpoint",
    "unpriced",
)
VALUES = (
    ItemKey("job_a", 1, "doc-1"),
    200,
    b'{"ok":true}',
    "req-1",
    "m",
    "stop",
    3,
    4,
    5,
    6,
    1,
    2,
    None,
    None,
    0,
)


def test_a_result_is_made_by_position_or_by_name_and_read_by_attribute() -> None:
    """Field names and their order stay, so that programs written for earlier builds make and read
    the same result."""
    made = Result(*VALUES)
    named: dict[str, Any] = dict(zip(FIELDS, VALUES, strict=True))
    assert made == Result(**named)
    assert tuple(getattr(made, name) for name in FIELDS) == VALUES
    assert msgspec.structs.asdict(made) == named
    match made:
        case Result(key=ItemKey(doc_id=doc_id), calls=calls):
            assert (doc_id, calls) == ("doc-1", 2)
        case _:
            pytest.fail("a result is matched by its fields")


def test_a_result_is_a_value() -> None:
    """Results are compared, hashed, copied and pickled as values, and cannot be changed in
    place."""
    made = Result(*VALUES)
    assert {made, Result(*VALUES)} == {made}
    assert copy.deepcopy(made) == copy.copy(made) == pickle.loads(pickle.dumps(made)) == made
    assert msgspec.structs.replace(made, calls=9).calls == 9
    assert made.json() == {"ok": True}
    with pytest.raises(AttributeError):
        made.calls = 9  # type: ignore[misc]  # the refusal is what is tested
