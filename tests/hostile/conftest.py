"""Doors that are attacked: real processes, one without API keys and one with them, for each file of
tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hostile.attacked import Attacked, attacked_door
from servers import RedisServer


@pytest.fixture(scope="module")
def open_door(
    tmp_path_factory: pytest.TempPathFactory, _shared_redis: RedisServer
) -> Iterator[Attacked]:
    """A door without API keys, on loopback."""
    with attacked_door(
        tmp_path_factory.mktemp("open"), _shared_redis.url, with_keys=False
    ) as found:
        yield found


@pytest.fixture(scope="module")
def keyed_door(
    tmp_path_factory: pytest.TempPathFactory, _shared_redis: RedisServer
) -> Iterator[Attacked]:
    """A door with API keys; ``secret`` is the operator's."""
    with attacked_door(
        tmp_path_factory.mktemp("keyed"), _shared_redis.url, with_keys=True
    ) as found:
        yield found


@pytest.fixture(scope="module", params=["open_door", "keyed_door"])
def any_door(request: pytest.FixtureRequest) -> Attacked:
    """Both, one after the other."""
    found: Attacked = request.getfixturevalue(request.param)
    return found
