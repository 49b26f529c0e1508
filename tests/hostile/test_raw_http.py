"""What no HTTP client sends: trailers, extensions of chunks, two hosts, bodies that never end,
answers that are not read."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from doors import asked, connected, door, door_settings, new_key, received
from fastapi import APIRouter
from fleet import until
from hostile.attacked import Attacked, HealthWatch, Raw, attacked_door
from servers import RedisServer

from penstock_gateway import bodies
from penstock_gateway.protocol import PIPELINE_MAX
from penstock_gateway.settings import GatewaySettings

MIB = 1024 * 1024
# that a door may grow by while it is attacked: its threads, its caches, and what one body may hold
FLAT_MIB = 48.0
PLACES = 50  # of the door that is crowded
CHUNKED = "POST /ui/login HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n"
FORM = "content-type: application/x-www-form-urlencoded\r\n"

rooms = APIRouter()
hold = threading.Event()


@rooms.get("/v1/hold")
def _hold() -> dict[str, bool]:
    return {"held": hold.wait(20)}


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer else 0


def flooded(attacked: Attacked, head: bytes, piece: bytes, total: int) -> tuple[int, float]:
    """Send a head and then ``piece`` again and again, ``total`` bytes or until the door takes no
    more. Returns the status of the answer (0: none) and by how many MiB the door has grown at the
    most."""
    before = attacked.memory_mib
    with HealthWatch(attacked.url) as watch, attacked.connect() as connection:
        connection.send(head)
        for _ in range(total // len(piece)):
            if not connection.send(piece):
                break
        answer = connection.answer()
    assert watch.only_ok, watch
    assert attacked.faults() == []
    return (0 if answer is None else answer.status), attacked.peak_mib - before


@pytest.mark.parametrize(
    "spot", ["Authorization", "X-Api-Key", "X-Forwarded-For", "Idempotency-Key"]
)
def test_a_trailer_is_no_header(keyed_door: Attacked, spot: str) -> None:
    """401 although the trailer holds the operator's key, for its own request and for the one behind
    it on the connection."""
    assert keyed_door.secret is not None
    value = keyed_door.secret if spot == "X-Api-Key" else f"Bearer {keyed_door.secret}"
    head = b"GET /v1/models HTTP/1.1\r\nhost: 127.0.0.1\r\n"
    trailing = (
        head + b"transfer-encoding: chunked\r\n\r\n0\r\n" + f"{spot}: {value}\r\n\r\n".encode()
    )
    with keyed_door.connect() as connection:
        connection.send(trailing + head + b"connection: close\r\n\r\n")
        assert connection.rest().count(b"HTTP/1.1 401") == 2


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (b"0\r\n", b"X-T: y\r\n" * 10_000),
        (b"0\r\nX-T: ", b"y" * MIB),
        (b"0\r\n", b"y" * MIB),
        (b"1;", b"e" * MIB),
        (b"1", b";e=f" * 20_000),
        (b"", b"1;%b\r\nx\r\n" % (b"e" * 9_000)),
        (b"", b"0" * MIB),
    ],
    ids=[
        "trailers",
        "value",
        "name",
        "extension",
        "extensions",
        "chunks with extensions",
        "zeros of a size",
    ],
)
def test_what_is_no_body_is_bounded(open_door: Attacked, begin: bytes, piece: bytes) -> None:
    """431 for trailers and extensions without end, after kilobytes, and nothing of them is kept."""
    head = CHUNKED.replace("POST /ui/login", "GET /health").encode() + b"\r\n"
    told, grown_mib = flooded(open_door, head + begin, piece, 64 * MIB)
    assert told == 431
    assert grown_mib < FLAT_MIB


def test_a_body_in_tiny_chunks_arrives_whole(open_door: Attacked) -> None:
    """Chunks of one byte, each in a frame five times its size, are no attack: a body of a form
    comes through."""
    form = b"next=%2Fui%2Fjobs&key=" + b"x" * 4_000
    with open_door.connect() as connection:
        origin = f"origin: {open_door.url}\r\nhost: {open_door.url.removeprefix('http://')}\r\n"
        head = CHUNKED.replace("host: 127.0.0.1\r\n", origin) + FORM
        connection.send(
            head.encode()
            + b"\r\n"
            + b"".join(b"1\r\n%c\r\n" % byte for byte in form)
            + b"0\r\n\r\n"
        )
        answer = connection.answer()
    assert answer is not None
    assert (answer.status, b"Incorrect API key" in answer.body) == (401, True)


def test_chunks_without_end_are_no_more_than_a_body(open_door: Attacked) -> None:
    """413 once an anonymous body is too large, however small its chunks are."""
    told, grown_mib = flooded(
        open_door, f"{CHUNKED}{FORM}\r\n".encode(), b"1\r\nx\r\n" * 10_000, 32 * MIB
    )
    assert told == 413
    assert grown_mib < FLAT_MIB


@pytest.mark.parametrize("name", ["Host", "Authorization", "X-Api-Key", "Content-Type", "Origin"])
def test_a_header_that_may_be_there_once_is_refused_twice(any_door: Attacked, name: str) -> None:
    """400, whichever of the two is right: a proxy in front may go by the one, and the door by the
    other."""
    host = any_door.url.removeprefix("http://")
    right = {"Host": host, "Origin": any_door.url}.get(name, f"Bearer {any_door.secret}")
    for pair in ((right, "evil.example"), ("evil.example", right), (right, right)):
        lines = [f"{name}: {value}" for value in pair] + (
            [] if name == "Host" else [f"Host: {host}"]
        )
        with any_door.connect() as connection:
            connection.send("\r\n".join(["GET /v1/models HTTP/1.1", *lines, "", ""]).encode())
            answer = connection.answer()
        assert answer is not None
        assert (answer.status, answer.content["error"]["code"]) == (400, "duplicate_header")


def test_a_pipeline_without_end_is_bounded(open_door: Attacked) -> None:
    """Fifty thousand requests at once: the first ones are answered, the connection ends, and the
    others were never taken."""
    one = b"GET /livez HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
    before = open_door.memory_mib
    with HealthWatch(open_door.url) as watch, contextlib.ExitStack() as stack:
        lines = [stack.enter_context(open_door.connect()) for _ in range(20)]
        for line in lines:
            line.send(one * 2_500)
        answers = [line.rest() for line in lines]
    assert watch.only_ok, watch
    assert all(
        1 <= found.count(b"HTTP/1.1 200") <= 2_500 and b"HTTP/1.1 5" not in found
        for found in answers
    )
    assert any(found.count(b"HTTP/1.1 200") <= PIPELINE_MAX + 1 for found in answers)
    assert open_door.peak_mib - before < FLAT_MIB


def test_a_bad_request_behind_a_good_one_takes_no_answer_from_it(open_door: Attacked) -> None:
    """The good one has its own answer, and the connection ends: an answer out of turn would be read
    as that of another."""
    good = b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
    for bad in (
        b"BAD\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nx: " + b"y" * 99_000,
    ):
        with open_door.connect() as connection:
            connection.send(good + bad)
            found = connection.rest()
        assert found.startswith(b"HTTP/1.1 200")
        assert found.count(b"HTTP/1.1 ") == 1


@pytest.fixture(scope="module")
def crowded(
    tmp_path_factory: pytest.TempPathFactory, _shared_redis: RedisServer
) -> Iterator[Attacked]:
    """A door with few places, so that few attackers fill them."""
    folder = tmp_path_factory.mktemp("crowded")
    with attacked_door(folder, _shared_redis.url, with_keys=True, max_connections=PLACES) as found:
        yield found


def _unfinished_login(line: Raw) -> None:
    line.head(
        "POST",
        "/ui/login",
        {"content-type": "application/x-www-form-urlencoded", "content-length": "60000"},
    )
    line.send(b"k" * 600)


def _unfinished_chunks(line: Raw) -> None:
    line.head("GET", "/health", {"transfer-encoding": "chunked"})
    line.send(b"1\r\nx\r\n")


def _unfinished_head(line: Raw) -> None:
    line.send(b"GET /health HTTP/1.1\r\nx: ")


def _half_closed(line: Raw) -> None:
    _unfinished_login(line)
    with contextlib.suppress(OSError):
        line.socket.shutdown(socket.SHUT_WR)


def _unread(line: Raw) -> None:
    line.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_048)
    line.send(b"GET /openapi.json HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n" * 12)


@pytest.mark.parametrize(
    "attack", [_unfinished_login, _unfinished_chunks, _unfinished_head, _half_closed, _unread]
)
@pytest.mark.parametrize("addresses", [1, 5])
def test_who_keeps_the_door_waiting_shuts_out_nobody(
    crowded: Attacked, attack: Callable[[Raw], None], addresses: int
) -> None:
    """Twice as many connections as there are places, of one address or of five, all unfinished:
    health is answered all the time, a caller with a key is served, and memory stays where it
    was."""
    before = crowded.memory_mib
    with HealthWatch(crowded.url) as watch, contextlib.ExitStack() as stack:
        for number in range(2 * PLACES):
            line = stack.enter_context(crowded.connect(source=f"127.0.0.{2 + number % addresses}"))
            attack(line)
        assert crowded.ask("GET", "/v1/jobs").status == 200
    assert watch.only_ok, watch
    assert crowded.memory_mib - before < FLAT_MIB
    assert crowded.faults() == []


def test_one_address_has_half_of_the_places(crowded: Attacked) -> None:
    """An attacker of one address drops its own connections: one of another that was there before
    and is idle goes on."""
    with crowded.connect(source="127.0.0.9") as early:
        early.head("GET", "/livez", {})
        assert early.answer() is not None
        with contextlib.ExitStack() as stack:
            for _ in range(2 * PLACES):
                stack.enter_context(crowded.connect(source="127.0.0.8"))
            early.head("GET", "/livez", {})
            assert early.answer() is not None


@pytest.fixture
def settings(tmp_path: Path, redis_server: RedisServer) -> GatewaySettings:
    return door_settings(tmp_path, redis_server.url, max_connections=4, address_connections=4)


def test_a_login_has_seconds(settings: GatewaySettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """408 for a form that is not whole by then, although it never stops coming."""
    monkeypatch.setattr(bodies, "ANONYMOUS_S", 0.3)
    with door(settings) as url, connected(url) as slow:
        head = f"POST /ui/login HTTP/1.1\r\nhost: localhost\r\n{FORM}content-length: 60000\r\n\r\n"
        slow.sendall(head.encode())
        ends = threading.Event()

        def drip() -> None:
            with contextlib.suppress(OSError):
                while not ends.wait(0.05):
                    slow.sendall(b"k" * 500)

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            assert status(slow.recv(4_096)) == 408
        finally:
            ends.set()
            thread.join()


def test_probes_have_places_while_all_others_hold_work(settings: GatewaySettings) -> None:
    """No work is broken off for it: /health is answered, and other requests are 503 and may come
    again."""
    key = {"authorization": f"Bearer {new_key(settings, None, 'admin')}"}
    head = (
        "GET /v1/hold HTTP/1.1\r\n"
        "host: localhost\r\n"
        f"authorization: {key['authorization']}\r\n"
        "connection: close\r\n"
        "\r\n"
    )
    hold.clear()
    with door(settings, extra=[rooms]) as url, contextlib.ExitStack() as stack:
        held = [stack.enter_context(connected(url)) for _ in range(4)]
        for line in held:
            line.sendall(head.encode())
        try:
            until(lambda: asked(f"{url}/v1/jobs", **key).status == 503, 30, "all places hold work")
            assert asked(f"{url}/health").status == asked(f"{url}/livez").status == 200
            answer = asked(f"{url}/v1/jobs", **key)
            assert (
                answer.status,
                answer.content["error"]["code"],
                answer.headers["retry-after"],
            ) == (
                503,
                "overloaded",
                "5",
            )
        finally:
            hold.set()
        assert [status(received(line)) for line in held] == [200] * 4
        until(lambda: asked(f"{url}/v1/jobs", **key).status == 200, 30, "there are places again")


def test_an_address_behind_a_balancer_is_bounded_by_request(settings: GatewaySettings) -> None:
    """429 for the address that a trusted balancer names once as many of its requests are under way;
    others come through."""
    gateway = settings.gateway.model_copy(
        update={"trusted_proxies": ("127.0.0.1",), "max_connections": 50}
    )
    settings = settings.model_copy(update={"gateway": gateway})
    key = {"authorization": f"Bearer {new_key(settings, None, 'admin')}"}
    lines = (
        "host: localhost\r\n"
        f"authorization: {key['authorization']}\r\n"
        "x-forwarded-for: 203.0.113.7\r\n"
    )
    hold.clear()
    with door(settings, extra=[rooms]) as url, contextlib.ExitStack() as stack:
        held = [stack.enter_context(connected(url)) for _ in range(4)]
        for line in held:
            line.sendall(f"GET /v1/hold HTTP/1.1\r\n{lines}connection: close\r\n\r\n".encode())
        try:
            until(
                lambda: asked(f"{url}/livez", x_forwarded_for="203.0.113.7").status == 429,
                30,
                "four are under way",
            )
            assert asked(f"{url}/livez", x_forwarded_for="203.0.113.8").status == 200
        finally:
            hold.set()
        assert [status(received(line)) for line in held] == [200] * 4
        until(
            lambda: asked(f"{url}/livez", x_forwarded_for="203.0.113.7").status == 200,
            30,
            "they are answered",
        )
