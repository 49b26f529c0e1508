"""The attackers' own tools: what they say of a door is true."""

from __future__ import annotations

import pytest
from hostile.attacked import Attacked, HealthWatch


def test_a_door_is_watched(any_door: Attacked) -> None:
    """Memory, the loop and /health are seen, and a raw request has its answer."""
    with HealthWatch(any_door.url) as watch, any_door.connect() as connection:
        assert connection.head("GET", "/v1/models", any_door.headers)
        answer = connection.answer()
    assert answer is not None
    assert answer.status == 200
    assert watch.only_ok, watch
    assert any_door.peak_mib >= any_door.memory_mib > 10
    assert any_door.stood_still_s() < 0.25
    assert any_door.faults() == []


def test_a_key_is_asked_for(keyed_door: Attacked) -> None:
    """A door that has keys answers 401 without one."""
    with keyed_door.connect() as connection:
        connection.head("GET", "/v1/models", {})
        answer = connection.answer()
    assert answer is not None
    assert answer.status == 401


@pytest.mark.parametrize("data", [b"", b"GET / HT"])
def test_a_raw_connection_ends_by_its_deadline(open_door: Attacked, data: bytes) -> None:
    """A door that says nothing costs the test no more than it allows."""
    with open_door.connect(deadline_s=0.2) as connection:
        connection.send(data)
        assert connection.answer() is None
        assert connection.rest() == b""
