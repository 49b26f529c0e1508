"""What no client sends: bodies too large, too slow, packed or malformed, heads without end, paths
in disguise."""

from __future__ import annotations

import contextlib
import gzip
import json
import select
import socket
import time
from collections.abc import Iterator

import pytest
from doors import asked, connected, door, door_settings, received, sent
from fastapi import APIRouter
from fleet import until
from metrics_page import read, value
from starlette.requests import Request
from starlette.responses import Response

from penstock_gateway import bodies, protocol

MOST = 8_192
LARGE = 32 * 1024 * 1024  # more than sockets hold
POST = b"POST /v1/echo HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
echo = APIRouter()


@echo.post("/v1/echo")
async def _echo(request: Request) -> dict[str, int]:
    return {"size": len(await request.body())}


@echo.post("/v1/messages/batches/echo")
@echo.post("/v1/files/echo")
async def _stream(request: Request) -> dict[str, int]:
    return {"size": sum([len(piece) async for piece in request.stream()])}


@echo.get("/large")
async def _large() -> Response:
    return Response(b"x" * LARGE)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings = door_settings(
        tmp_path_factory.mktemp("door"),
        max_body_bytes=MOST,
        max_upload_bytes=MOST,
        body_timeout_s=0.4,
        header_timeout_s=0.6,
        max_header_bytes=4096,
        max_connections=40,
        keep_alive_s=2,
    )
    with door(settings, extra=[echo]) as url:
        yield url


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer else 0


def error_code(answer: bytes) -> str:
    return str(json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"])


def test_a_body_in_its_limits_arrives(url: str) -> None:
    """With and without a length, whole and in pieces."""
    assert asked(f"{url}/v1/echo", b"[1]", content_type="application/json").content == {"size": 3}
    answer = sent(
        url,
        POST + b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n",
        b"2\r\n[1\r\n1\r\n]\r\n0\r\n\r\n",
    )
    assert b'{"size":3}' in answer


@pytest.mark.parametrize("path", ["/v1/echo", "/v1/files/echo"])
def test_a_body_over_the_limit_is_refused(url: str, path: str) -> None:
    """413 by its length before a byte of it is read, and without a length as soon as it is too
    much."""
    head = POST.replace(b"/v1/echo", path.encode())
    told = sent(url, head + b"content-length: 99999999\r\n\r\n")
    assert (status(told), error_code(told)) == (413, "body_too_large")
    piece = b"%x\r\n%s\r\n" % (MOST, b" " * MOST)
    answer = sent(url, head + b"transfer-encoding: chunked\r\n\r\n", *([piece] * 140))
    assert (status(answer), error_code(answer)) == (413, "body_too_large")


def test_who_still_sends_what_is_refused_can_read_why(url: str) -> None:
    """The rest of the body is taken and dropped, also of a client that asks for no second request
    on its connection."""
    with connected(url) as connection:
        connection.sendall(POST + b"connection: close\r\ncontent-length: 99999999\r\n\r\n")
        assert select.select([connection], [], [], 10)[0], "the answer comes before the body"
        for _ in range(64):
            connection.sendall(b" " * 65_536)
        answer = received(connection)
    assert (status(answer), error_code(answer)) == (413, "body_too_large")


def test_a_room_with_a_limit_of_its_own_has_that_one(url: str) -> None:
    """Batches of messages and prompts that are answered together may be larger than uploads and
    other bodies are."""
    large = b'{"a": "%s"}' % (b"x" * 2 * 1024 * 1024)
    assert asked(
        f"{url}/v1/messages/batches/echo", large, content_type="application/json"
    ).content == {"size": len(large)}
    answer = asked(f"{url}/v1/batch/sync", large, content_type="application/json")
    assert (answer.status, answer.content["error"]["param"]) == (400, "prompts")


@pytest.mark.parametrize("path", ["/v1/echo", "/v1/files/echo"])
@pytest.mark.parametrize("length", [b"content-length: 20", b"transfer-encoding: chunked"])
def test_a_body_that_never_ends_is_refused(url: str, path: str, length: bytes) -> None:
    """408, whether its length was announced or not, and whether its route reads it whole or in
    pieces."""
    answer = sent(url, POST.replace(b"/v1/echo", path.encode()) + length + b"\r\n\r\n5\r\n[1, 2")
    assert (status(answer), error_code(answer)) == (408, "request_timeout")


def test_a_body_that_began_fast_may_not_drip(url: str) -> None:
    """408 once less than 1 KiB per second comes, however much came before: else few senders would
    keep all room for bodies."""
    with connected(url) as slow:
        slow.sendall(POST + b"content-length: 8000\r\n\r\n" + b" " * 7_900)
        for _ in range(30):
            slow.sendall(b" ")
            if select.select([slow], [], [], 0.1)[0]:
                break
        else:
            raise AssertionError("the door still waits for a body that drips")
        answer = received(slow)
    assert (status(answer), error_code(answer)) == (408, "request_timeout")


def test_one_tenant_may_not_hold_all_room_for_bodies(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """503 for the second body of a tenant that is over its share; a single one is taken whatever
    its size; room comes back."""
    monkeypatch.setattr(bodies, "TENANT_BYTES", 2_000)
    big, json_type = b"[" + b" " * 3_000 + b"]", "application/json"
    with connected(url) as held:
        held.sendall(POST + b"content-length: 8000\r\n\r\n" + b" " * 1_500)
        told = []

        def refused() -> bool:
            told.append(asked(f"{url}/v1/echo", big, content_type=json_type))
            return told[-1].status != 200

        until(refused, 30, "the first body is held, and the second one refused")
        assert (told[-1].status, told[-1].content["error"]["code"]) == (503, "overloaded")
    until(
        lambda: asked(f"{url}/v1/echo", big, content_type=json_type).status == 200,
        30,
        "its room has come back",
    )


@pytest.mark.parametrize(
    "origin", ["http://[", "http://[::1", "https://]", "null", "http://127.0.0.1:1"]
)
def test_origins_that_are_none_are_refused(url: str, origin: str) -> None:
    """403 for a sign-in from nowhere; a broken one is no fault of the server."""
    form = "application/x-www-form-urlencoded"
    assert asked(f"{url}/ui/login", b"key=x", origin=origin, content_type=form).status == 403


def test_a_head_that_never_ends_costs_a_connection_only_for_a_while(url: str) -> None:
    """Slow headers, line feeds and silence: each connection is ended after header_timeout_s,
    whatever comes meanwhile."""
    began = time.monotonic()
    answer = sent(url, b"GET /health HTTP/1.1\r\n", *([b"x: y\r\n"] * 8), pause_s=0.1)
    assert (status(answer), time.monotonic() - began < 10) == (408, True)
    assert sent(url) == b""
    with connected(url) as kept:
        kept.sendall(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
        kept.recv(4096)
        kept.sendall(b"\r\n")
        assert status(received(kept) or b"HTTP/1.1 408 ") == 408


@pytest.mark.parametrize(
    "head",
    [
        b"x: " + b"y" * 5000 + b"\r\n",
        b"".join(b"x%d: y\r\n" % n for n in range(300)),
        b"x: " + b"y" * 300_000,
    ],
)
def test_a_head_without_measure_is_refused(url: str, head: bytes) -> None:
    """431 for one header that is too long, for too many, and for one that does not end."""
    answer = sent(url, b"GET /livez HTTP/1.1\r\nhost: localhost\r\n" + head + b"\r\n")
    assert (status(answer), error_code(answer)) == (431, "headers_too_large")


@pytest.mark.parametrize(
    "request_bytes",
    [
        POST + b"content-length: many\r\n\r\n",
        POST + b"content-length: -1\r\n\r\n",
        POST + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
        b"GET http:///// HTTP/1.1\r\n\r\n",
        b"CONNECT provider:443 HTTP/1.1\r\n\r\n",
    ],
)
def test_what_is_not_http_is_refused(url: str, request_bytes: bytes) -> None:
    """A wrong length, two lengths, TLS on a plain port: 400 as JSON, and the door lives on."""
    answer = sent(url, request_bytes)
    assert status(answer) in (400, 404)
    assert "error" in json.loads(answer.partition(b"\r\n\r\n")[2])
    assert asked(f"{url}/livez").status == 200


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "gzip, gzip"])
def test_packed_bodies_are_not_unpacked(url: str, coding: str) -> None:
    """415: a body of kilobytes cannot become gigabytes."""
    answer = asked(
        f"{url}/v1/echo",
        gzip.compress(b" " * 10_000),
        content_type="application/json",
        content_encoding=coding,
    )
    assert (answer.status, answer.content["error"]["code"]) == (415, "unsupported_content_encoding")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", "invalid_json"),
        (b'{"a": NaN}', "invalid_json"),
        (b'{"a": Infinity}', "invalid_json"),
        (b"[1] [2]", "invalid_json"),
        (b'"\xff"', "invalid_json"),
        (b'"\\ud800"', "invalid_json"),
        ("[1]".encode("utf-16"), "invalid_json"),
        (b"[" * 65 + b"]" * 65, "nesting_too_deep"),
        (b'{"a":' * 500 + b"1" + b"}" * 500, "nesting_too_deep"),
        (b"[" * 4000, "invalid_json"),
        (b"[" * 4000 + b"]" * 4000, "invalid_json"),
    ],
)
def test_json_that_others_read_otherwise_is_refused(url: str, body: bytes, code: str) -> None:
    """400 for what is malformed, for numbers that JSON does not have, and for hundreds of
    levels."""
    answer = asked(f"{url}/v1/echo", body, content_type="application/json")
    assert (answer.status, answer.content["error"]["code"]) == (400, code)


def test_sixty_four_levels_are_taken(url: str) -> None:
    """The limit on nesting is where it says."""
    assert (
        asked(f"{url}/v1/echo", b"[" * 64 + b"]" * 64, content_type="application/json").status
        == 200
    )


@pytest.mark.parametrize(
    "kind",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""],
)
def test_bodies_of_another_type_are_refused(url: str, kind: str) -> None:
    """415: what a page of another site may send without asking is no request of the API."""
    answer = asked(f"{url}/v1/echo", b"{}", content_type=kind)
    assert (answer.status, answer.content["error"]["code"]) == (415, "unsupported_content_type")


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/jobs/estimate"])
def test_json_without_its_type_is_refused_by_the_header(url: str, path: str) -> None:
    """Also where other types are taken, as rows of a job are."""
    answer = asked(f"{url}{path}", b'{"model": "m"}', content_type="text/plain")
    assert (answer.status, answer.content["code"]) == (415, "unsupported_content_type")
    assert "Content-Type: application/json" in answer.content["detail"]


@pytest.mark.parametrize(
    "path",
    [
        "//v1/echo",
        "/v1//echo",
        "/v1/../v1/echo",
        "/v1/%2e%2e/echo",
        "/v1/echo%2f",
        "/v1/echo%00",
        "/v1/echo%0d%0aX:1",
        "/v1/./echo",
    ],
)
def test_paths_in_disguise_are_not_found(url: str, path: str) -> None:
    """404: a path is what it looks like, for this server and every proxy before it."""
    answer = sent(
        url, b"POST " + path.encode() + b" HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    )
    assert status(answer) == 404


@pytest.mark.parametrize(
    "query",
    ["api_key=abcdef", "x=1&access_token=abcdef", "q=sk-penstock-abc", "q=%73k-abc", "X-API-KEY=a"],
)
def test_keys_in_addresses_are_refused(url: str, query: str) -> None:
    """400, so that no client gets used to it: addresses are what logs and proxies keep."""
    answer = asked(f"{url}/health?{query}")
    assert (answer.status, answer.content["error"]["code"]) == (400, "key_in_url")


def test_idle_connections_keep_none_out(url: str) -> None:
    """Many more connections than there may be, all silent or half-way through a head: requests are
    answered at once."""
    with contextlib.ExitStack() as stack:
        for number in range(120):
            connection = stack.enter_context(connected(url))
            with contextlib.suppress(ConnectionError):
                connection.sendall(b"GET / HT" if number % 2 else b"")
        began = time.monotonic()
        assert asked(f"{url}/livez").status == 200
        assert time.monotonic() - began < 5


def test_requests_that_follow_one_another_without_waiting_are_all_answered(url: str) -> None:
    """Pipelined requests come back in their order, and the connection serves on."""
    one = b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n"
    last = one.replace(b"host:", b"connection: close\r\nhost:")
    assert sent(url, one * 20 + last).count(b"HTTP/1.1 200") == 21


def connections(url: str) -> float:
    """How many are open, without the one that asks."""
    return value(read(asked(f"{url}/metrics").body.decode()), "penstock_door_connections") - 1


def test_an_answer_that_is_not_read_is_given_up(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that takes nothing of a large answer loses its connection after UNREAD_S, and the
    answer is cut there."""
    monkeypatch.setattr(protocol, "UNREAD_S", 0.3)
    until(lambda: connections(url) == 0, 30, "no connection is left of the tests before")
    with connected(url) as connection:
        connection.sendall(b"GET /large HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert connection.recv(15) == b"HTTP/1.1 200 OK"
        until(lambda: connections(url) == 0, 30, "the door has given the answer up")
        assert len(received(connection)) < LARGE


def test_a_client_that_goes_away_leaves_no_connection_behind(url: str) -> None:
    """Two hundred requests, and none of their answers is read: closing its half, and then leaving,
    ends the connection."""
    with connected(url) as connection:
        connection.sendall(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n" * 200)
        connection.shutdown(socket.SHUT_WR)
    until(lambda: connections(url) == 0, 30, "nothing is left of the connection")
