"""schemathesis asks a door in a process of its own all that its OpenAPI document has, with a key
and without any keys."""

from __future__ import annotations

import contextlib
import json
from typing import Any, Final

import door_objects
import pytest
import schemathesis
from hostile.attacked import Attacked
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok

from penstock_ledger import open_database

EXAMPLES: Final = 3  # of each operation
GROWTH_MIB: Final = 80.0
# A stream of events has no end; and the first key that is made would close a door that has none.
NOT_ASKED: Final = ("/v1/jobs/{job}/events", "/v1/keys")
SLOW: Final = (
    HealthCheck.too_slow,
    HealthCheck.filter_too_much,
    HealthCheck.data_too_large,
    HealthCheck.large_base_example,
)
AWAY: Final = (503, 504)  # what is behind the door is not there: no worker, no provider


@pytest.fixture(
    scope="module",
    params=["keyed_door", pytest.param("open_door", marks=pytest.mark.whole)],
)
def any_door(request: pytest.FixtureRequest) -> Attacked:
    """One with keys, which looks at all that the other looks at, and more."""
    found: Attacked = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="module")
def objects(any_door: Attacked) -> dict[str, str]:
    """What the paths may name, by the beginning of a path."""
    with contextlib.closing(open_database(any_door.settings.database_url)) as database:
        made = {start: make for start, make in door_objects.MAKERS.items() if start != "/v1/keys/"}
        return {start: make(database, any_door.settings, "shop") for start, make in made.items()}


def test_nothing_that_the_document_allows_is_a_fault(
    any_door: Attacked, objects: dict[str, str]
) -> None:
    """No answer of 5xx and no traceback, the loop goes on, and memory stays as it is."""
    document: Any = json.loads(any_door.ask("GET", "/openapi.json").body)
    schema: Any = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=any_door.url)
    operations = [found.ok() for found in schema.get_all_operations() if isinstance(found, Ok)]
    assert len(operations) > 60
    before = any_door.memory_mib
    any_door.stood_still_s()
    for operation in operations:
        if (
            not any_door.secret
            and operation.path.startswith(NOT_ASKED[1])
            and operation.method.upper() == "POST"
        ):
            continue
        if operation.path != NOT_ASKED[0]:
            ask(operation, any_door, objects)
    assert any_door.faults() == []
    assert any_door.stood_still_s() < 0.25
    assert any_door.memory_mib - before < GROWTH_MIB


def ask(operation: Any, door: Attacked, objects: dict[str, str]) -> None:
    """Some requests to one operation, the same ones in each run, half of them about something that
    is there."""
    start = max((one for one in objects if operation.path.startswith(one)), key=len, default=None)

    @given(case=operation.as_strategy())
    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        suppress_health_check=SLOW,
        phases=[Phase.generate],
    )
    def one(case: Any) -> None:
        parameters = case.path_parameters or {}
        if start is not None and parameters and len(str(case.body)) % 2:
            parameters[next(iter(parameters))] = objects[start]
        answer = case.call(headers={**door.headers, "x-penstock-timeout": "0.2"}, timeout=60)
        if answer.status_code not in AWAY:
            case.validate_response(answer, checks=[not_a_server_error])

    one()
