"""What belongs to another tenant is not there: every route of the doors, whichever rooms there
are."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest
from door_objects import MAKERS, OF_NO_TENANT, Maker
from doors import door, door_settings, new_key
from servers import RedisServer
from starlette.routing import Route as Routed

from penstock_gateway import GatewaySettings, create_app
from penstock_ledger import open_database
from penstock_producer.settings import ProviderFacts

READ_S = 3.0  # for the head of an answer; streams of events have no end
PARAMETER = re.compile(r"\{[^}]+\}")
SCOPES = ("read", "write", "infer", "keys")
OF_SHAPE = (400, 415, 422)  # statuses of a request that is refused before anything is looked up
OTHER_NAME = "x-1"  # of what is named behind the first parameter


class Route(NamedTuple):
    method: str
    path: str


def routes() -> list[Route]:
    found = [
        Route(method, route.path)
        for route in create_app(GatewaySettings()).routes
        if isinstance(route, Routed)
        for method in sorted(route.methods or ())
    ]
    assert Route("GET", "/health") in found, "routes were not found: the test would prove nothing"
    return found


def maker_of(path: str) -> Maker:
    fitting = [start for start in MAKERS if path.startswith(start)]
    assert fitting, f"{path}: say in tests/harness/door_objects.py what its first parameter names"
    return MAKERS[max(fitting, key=len)]


NAMING = [
    one for one in routes() if PARAMETER.search(one.path) and not one.path.startswith(OF_NO_TENANT)
]
LISTING = [
    one
    for one in routes()
    if one.method == "GET" and one.path.startswith("/v1/") and not PARAMETER.search(one.path)
]


DOCUMENT = create_app(GatewaySettings()).openapi()


def example_of(route: Route) -> bytes | None:
    """A body as the OpenAPI document shows one; nothing where the route reads none."""
    given = DOCUMENT["paths"].get(route.path, {}).get(route.method.lower(), {}).get("requestBody")
    if given is None:
        return b"{}" if route.method in ("POST", "PUT", "PATCH") else None
    content = given["content"]["application/json"]
    found = content["example"] if "example" in content else shown(content["schema"])
    return json.dumps(found).encode()


def shown(schema: dict[str, Any]) -> Any:
    """The example of a schema; of several that may be given, that of the first."""
    while "$ref" in schema or "anyOf" in schema:
        schema = (
            schema["anyOf"][0]
            if "anyOf" in schema
            else DOCUMENT["components"]["schemas"][schema["$ref"].split("/")[-1]]
        )
    return schema["example"] if "example" in schema else schema["examples"][0]


class World(NamedTuple):
    settings: GatewaySettings
    url: str
    owner: str  # a key of tenant `alpha`, who has all objects
    other: str  # a key of tenant `beta`

    def made(self, maker: Maker) -> str:
        database = open_database(self.settings.database_url)
        try:
            return maker(database, self.settings, "alpha")
        finally:
            database.close()

    def ask(self, route: Route, path: str, secret: str) -> tuple[int, bytes]:
        """Status and the beginning of the body."""
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=READ_S)
        method, body = route.method, example_of(route)
        headers = {"authorization": f"Bearer {secret}", "content-type": "application/json"}
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, b"" if answer.status < 300 else answer.read(65_536)
        finally:
            connection.close()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, _shared_redis: RedisServer) -> Iterator[World]:
    priced = {"default": ProviderFacts(usd_per_mtok_in=1.0)}  # for a job to take a budget
    settings = door_settings(tmp_path_factory.mktemp("door"), _shared_redis.url).model_copy(
        update={"providers": priced}
    )
    owner, other = (new_key(settings, tenant, *SCOPES) for tenant in ("alpha", "beta"))
    with door(settings) as url:
        yield World(settings, url, owner, other)


@pytest.mark.parametrize("route", NAMING, ids=lambda route: f"{route.method} {route.path}")
def test_what_another_tenant_has_is_not_there(world: World, route: Route) -> None:
    """404 with the words of an id that never was, for a body that its owner is not refused for.

    Pages of the dashboard may refuse the request first, and do so for both."""
    named = world.made(maker_of(route.path))
    unknown = ("A" if named[-1] != "A" else "B").join((named[:-1], ""))
    to_theirs, to_unknown = (filled(route.path, name) for name in (named, unknown))
    theirs = world.ask(route, to_theirs, world.other)
    nothing = world.ask(route, to_unknown, world.other)
    assert without(theirs[1], named) == without(nothing[1], unknown)
    assert theirs[0] == nothing[0]
    own = world.ask(route, to_theirs, world.owner)
    if route.path.startswith("/v1/"):
        assert theirs[0] == 404
        assert example_of(route) is None or own[0] not in OF_SHAPE, own[1].decode()
    elif theirs[0] != 404:
        assert theirs[0] in (303, 400, 401, 403, 405, 415, 422), (
            f"another tenant is answered {theirs[0]}"
        )
        assert own[0] == theirs[0]


@pytest.mark.parametrize("route", LISTING, ids=lambda route: f"{route.method} {route.path}")
def test_lists_have_nothing_of_another_tenant(world: World, route: Route) -> None:
    """No list names an object of another tenant."""
    made = [world.made(maker) for maker in dict.fromkeys(MAKERS.values())]
    connection = http.client.HTTPConnection(urlsplit(world.url).netloc, timeout=READ_S)
    connection.request("GET", route.path, headers={"authorization": f"Bearer {world.other}"})
    try:
        body = connection.getresponse().read(1_000_000).decode()
    finally:
        connection.close()
    assert not [name for name in made if name in body]


def filled(path: str, first: str) -> str:
    """The path with its first parameter, and another name for each further one."""
    names = iter([first])
    return PARAMETER.sub(lambda _: next(names, OTHER_NAME), path)


def without(body: bytes, name: str) -> str:
    """An answer without the id that was asked for, and without its own."""
    return re.sub(r"req_[A-Za-z0-9]+", "", body.decode().replace(name, "ID"))
