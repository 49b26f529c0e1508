"""No body makes the event loop stand still: every route, with bodies that cost more to read than to
send.

What is measured is CPU time of the door's process between two ticks of its loop, so that a busy
machine changes little. In `make test-all` each kind of route meets each shape, and in `make
test-long` each route.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import door_objects
import pytest
from fastapi import APIRouter
from fastapi.routing import APIRoute
from hostile import bodies
from hostile.attacked import Attacked, HealthWatch, attacked_door
from servers import RedisServer

from penstock_gateway import create_app
from penstock_gateway.app import ROUTERS
from penstock_gateway.routing import Router
from penstock_ledger import open_database
from penstock_producer.job.provider_facts import ProviderFacts

BODY_BYTES: Final = 31_000_000  # just within max_body_bytes
SMALLER_BYTES: Final = 4_000_000  # for routes that read no body: it is looked at all the same
PAGE_BYTES: Final = 60_000  # forms of the dashboard have no more
STILL_S: Final = 0.25  # CPU time for which the loop may answer no request
TRIES: Final = 3  # the best of them counts: whatever else runs here makes memory and caches slower
ANSWER_S: Final = 60.0
GROWTH_MIB: Final = 150.0  # what the allocator may keep of some bodies

WITH_BODY: Final = ("POST", "PATCH", "PUT")
# A body with fields, lines of documents, requests one by one, a form with a file: each of them with
# the shapes that are read in a way of their own there.
KINDS: Final = {
    "POST /v1/jobs": tuple(bodies.SHAPES.values()),
    "POST /v1/jobs/{job}/items": (
        bodies.full_of_values,
        bodies.one_text,
        bodies.broken_at_its_end,
        bodies.line_ends,
        bodies.short_lines,
        bodies.lines_of_objects,
        bodies.lines_of_fields,
    ),
    "POST /v1/messages": (
        bodies.full_of_values,
        bodies.nested,
        bodies.escapes,
        bodies.messages_of_blocks,
    ),
    "POST /v1/messages/batches": (
        bodies.full_of_values,
        bodies.broken_at_its_end,
        bodies.requests_of_escapes,
        bodies.requests_of_objects,
    ),
    "POST /v1/files": (
        bodies.one_text,
        bodies.many_fields,
        bodies.many_parts,
        bodies.almost_boundaries,
    ),
}


class Place(NamedTuple):
    method: str
    path: str  # with names of its parameters

    @property
    def label(self) -> str:
        return f"{self.method} {self.path}"


@pytest.fixture(scope="module")
def door(
    tmp_path_factory: pytest.TempPathFactory, _shared_redis: RedisServer
) -> Iterator[Attacked]:
    """With an operator's key, which everything is open to; and with a provider for batches of
    messages."""
    providers = {"claude": ProviderFacts(kind="anthropic", base_url="http://127.0.0.1:1")}
    folder = tmp_path_factory.mktemp("door")
    with attacked_door(
        folder, _shared_redis.url, with_keys=True, more={"providers": providers}
    ) as found:
        yield found


@pytest.fixture(scope="module")
def places(door: Attacked) -> list[Place]:
    """All routes, those of pages and probes among them."""
    return [
        Place(method, path) for path, methods in _routes(door).items() for method in sorted(methods)
    ]


@pytest.fixture(scope="module")
def objects(door: Attacked) -> Mapping[str, str]:
    """For each beginning of a path an object that its first parameter may name."""
    with contextlib.closing(open_database(door.settings.database_url)) as database:
        return {
            start: make(database, door.settings, "shop")
            for start, make in door_objects.MAKERS.items()
        }


def _routes(door: Attacked) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for route in create_app(door.settings).routes:
        if isinstance(route, APIRoute):
            found.setdefault(route.path, set()).update(route.methods)
    return found


def _address(place: Place, objects: Mapping[str, str]) -> str:
    start = max((one for one in objects if place.path.startswith(one)), key=len, default="")
    path = place.path
    for number in range(path.count("{")):
        begin, end = path.index("{"), path.index("}") + 1
        path = path[:begin] + (objects.get(start, "x") if number == 0 else "x") + path[end:]
    return path


def attack(door: Attacked, place: Place, path: str, body: bodies.Body) -> str:
    """What is wrong with how the door takes it; empty where nothing is."""
    still_s = 0.0
    for _ in range(TRIES):
        door.stood_still_s()
        headers = {
            **door.headers,
            "content-type": body.content_type,
            "content-length": str(len(body.content)),
            "connection": "close",
        }
        with door.connect(ANSWER_S) as connection:
            connection.head(place.method, path, {**headers, "x-penstock-timeout": "0.1"})
            connection.send(body.content)
            status = connection.status()
        is_shut = status == 401 and path.startswith("/v1/")
        if status is None or is_shut or (status >= 500 and status not in (503, 504)):
            return f"{place.label}: {status or 'no answer'}"
        still_s = door.stood_still_s()
        if still_s <= STILL_S:
            return ""
    return (
        f"{place.label} {len(body.content):,} bytes of {body.content_type}: {still_s:.2f} s of CPU"
    )


def size_for(place: Place, largest: int) -> int:
    if not place.path.startswith("/v1/"):
        return PAGE_BYTES
    return largest if place.method in WITH_BODY else SMALLER_BYTES


@pytest.mark.parametrize(
    "largest", [SMALLER_BYTES, pytest.param(BODY_BYTES, marks=pytest.mark.whole)]
)
def test_every_route_goes_on(
    door: Attacked, places: list[Place], objects: Mapping[str, str], largest: int
) -> None:
    """With as many unknown fields as one body may have; others are answered meanwhile, and nothing
    of it stays in memory."""
    assert len(places) > 90
    assert sum(place.method in WITH_BODY for place in places) > 35
    sizes = {place: size_for(place, largest) for place in places}
    made = {size: bodies.unknown_fields(size) for size in set(sizes.values())}
    with HealthWatch(door.url) as watch:
        wrong = [
            attack(door, place, _address(place, objects), made[sizes[place]]) for place in places
        ]
    assert [one for one in wrong if one] == []
    assert watch.only_ok, watch
    assert door.faults() == []


@pytest.mark.parametrize("label", KINDS)
def test_no_shape_stops_a_door(door: Attacked, objects: Mapping[str, str], label: str) -> None:
    """Every shape that is read differently, for each kind of route that reads a body in its own
    way."""
    assert meet(door, objects, label, KINDS[label]) == []
    assert door.faults() == []


@pytest.mark.whole
@pytest.mark.parametrize("label", KINDS)
def test_no_shape_that_is_foreign_stops_a_door(
    door: Attacked, objects: Mapping[str, str], label: str
) -> None:
    """Every other shape, too."""
    others = [shape for shape in bodies.SHAPES.values() if shape not in KINDS[label]]
    assert meet(door, objects, label, others) == []
    assert door.faults() == []


def meet(
    door: Attacked, objects: Mapping[str, str], label: str, shapes: Iterable[bodies.Shape]
) -> list[str]:
    """What is wrong with how a route takes bodies of these shapes."""
    place = Place(*label.split(" "))
    path = _address(place, objects)
    found = [attack(door, place, path, shape(BODY_BYTES)) for shape in shapes]
    return [one for one in found if one]


@pytest.mark.parametrize(
    "path", ["/v1/jobs", "/v1/jobs/{job}/replay", "/v1/keys", "/v1/webhooks", "/v1/schedules"]
)
def test_each_wrong_entry_is_not_an_error_of_its_own(
    door: Attacked, objects: Mapping[str, str], path: str
) -> None:
    """Every field that the document names has a long list of what is no such thing."""
    document: Any = door.ask("GET", "/openapi.json").content
    given = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    names = [
        one["$ref"].rpartition("/")[2] for one in (given, *given.get("anyOf", ())) if "$ref" in one
    ]
    body = bodies.wrong_by_schema(document["components"]["schemas"][names[0]], BODY_BYTES)
    place = Place("POST", path)
    assert attack(door, place, _address(place, objects), body) == ""


def test_bodies_leave_no_memory_behind(door: Attacked) -> None:
    """What was refused and what was taken is given back: ten times the same costs no more than
    twice."""
    place = Place("POST", "/v1/jobs")
    made = [shape(BODY_BYTES) for shape in (bodies.full_of_values, bodies.empty_objects)]
    for body in made:
        attack(door, place, place.path, body)
    before = door.memory_mib
    for _ in range(5):
        for body in made:
            attack(door, place, place.path, body)
    assert door.memory_mib - before < GROWTH_MIB


def test_heads_as_large_as_they_may_be_cost_little(door: Attacked) -> None:
    """Queries, cookies and forms in an address, of as many parts as fit."""
    for path, headers in (
        ("/v1/files?" + "a=1&" * 7_000, {}),
        ("/v1/files?" + "limit=" * 5_000, {}),
        ("/v1/jobs?" + "%41" * 10_000, {}),
        ("/ui/jobs", {"cookie": "a=1;" * 7_000}),
        ("/ui/jobs", {"cookie": '"\\' * 14_000}),
        ("/v1/files", {"range": "bytes=" + "0-1," * 7_000, "accept": "a/b;q=1," * 100}),
        ("/v1/files", {"content-type": "application/json;" + "a=b;" * 7_000}),
    ):
        door.stood_still_s()
        with door.connect() as connection:
            connection.head("GET", path, {**door.headers, **headers, "connection": "close"})
            answer = connection.answer()
        assert answer is not None
        assert answer.status < 500
        assert door.stood_still_s() < STILL_S, path


def test_all_routes_read_their_body_once(door: Attacked) -> None:
    """A room whose routes are FastAPI's own would parse each body again, on the event loop."""
    for name in ROUTERS:
        module, _, attribute = name.partition(":")
        found = getattr(__import__(module, fromlist=[attribute]), attribute)
        assert isinstance(found, Router), name
    plain = {route.path for route in create_app(door.settings).routes if type(route) is APIRoute}
    assert plain == set()
    assert type(APIRouter().route_class) is type(APIRoute)


@pytest.mark.long
@pytest.mark.parametrize("shape", bodies.SHAPES)
def test_every_route_takes_every_shape(
    door: Attacked, places: list[Place], objects: Mapping[str, str], shape: str
) -> None:
    """The whole product."""
    make = bodies.SHAPES[shape]
    made = {size: make(size) for size in (BODY_BYTES, PAGE_BYTES)}
    sizes = {place: BODY_BYTES if place.path.startswith("/v1/") else PAGE_BYTES for place in places}
    wrong = [attack(door, place, _address(place, objects), made[sizes[place]]) for place in places]
    assert [one for one in wrong if one] == []
