"""A door as its callers find it: a real server, its health, and the shapes of its errors."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from doors import asked, door, door_settings
from servers import RedisServer


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, _shared_redis: RedisServer) -> Iterator[str]:
    with door(door_settings(tmp_path_factory.mktemp("door"), _shared_redis.url)) as url:
        yield url


def test_a_door_says_that_it_accepts_work(url: str) -> None:
    """/health answers 200 while SQL and Redis answer, and each answer has an id."""
    answer = asked(f"{url}/health")
    assert (answer.status, answer.content) == (
        200,
        {"status": "ok", "database": "ok", "redis": "ok"},
    )
    assert answer.headers["x-request-id"].startswith("req_")
    assert asked(f"{url}/health", method="HEAD").status == 200
    assert asked(f"{url}/livez").content == {"status": "ok"}


def test_a_door_says_what_is_away(tmp_path: Path) -> None:
    """/health answers 503 without Redis, and names it."""
    with door(door_settings(tmp_path)) as url:
        answer = asked(f"{url}/health")
    assert (answer.status, answer.content["redis"], answer.content["database"]) == (
        503,
        "away",
        "ok",
    )


def test_unknown_paths_are_refused_in_the_shape_that_their_clients_read(url: str) -> None:
    """A 404 is OpenAI's error, Anthropic's, problem details or a page, by its path."""
    assert asked(f"{url}/v1/nothing").content["error"]["type"] == "invalid_request_error"
    answer = asked(f"{url}/v1/messages/nothing")
    assert (answer.status, answer.content["error"]["type"]) == (404, "not_found_error")
    assert answer.content["request_id"] == answer.headers["request-id"]
    answer = asked(f"{url}/v1/jobs/a/nothing")
    assert (answer.content["status"], answer.headers["content-type"]) == (
        404,
        "application/problem+json",
    )
    assert asked(f"{url}/ui/nothing").headers["content-type"].startswith("text/html")


def test_a_method_that_a_path_does_not_have_is_refused(url: str) -> None:
    """405 names the methods that there are, and no origin is allowed in."""
    for method in ("DELETE", "OPTIONS"):
        answer = asked(f"{url}/health", method=method)
        assert (answer.status, answer.headers["allow"]) == (405, "GET")
        assert "access-control-allow-origin" not in answer.headers


def test_answers_are_kept_and_guessed_by_no_browser(url: str) -> None:
    """Every answer carries the headers that keep browsers from caching, sniffing and framing it."""
    headers = asked(f"{url}/v1/nothing").headers
    assert (headers["x-content-type-options"], headers["cache-control"]) == ("nosniff", "no-store")
    assert (headers["x-frame-options"], headers["referrer-policy"]) == ("DENY", "no-referrer")


def test_an_answer_reaches_its_client_in_one_piece(url: str) -> None:
    """Head and body are one write, so that a client is woken once; a HEAD has the head alone, and
    a client that asks whether it may send its body is answered before."""
    with socket.create_connection((urlsplit(url).hostname, urlsplit(url).port), 30) as client:
        client.sendall(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert client.recv(65_536).endswith(b'\r\n\r\n{"status":"ok"}')
        client.sendall(b"HEAD /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert client.recv(65_536).endswith(b"\r\n\r\n")
        client.sendall(
            b"POST /v1/jobs HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            b"expect: 100-continue\r\ncontent-length: 2\r\n\r\n"
        )
        assert client.recv(65_536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"[]")
        assert b'"code":"invalid_value"' in client.recv(65_536)
