"""What both HTTP clients promise, against real servers: aiohttp's, uvicorn, and nginx in front of
one."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import socket
import subprocess
import sys
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from http_servers import TEXT, aiohttp_service, canned, nginx_service, raw_server, uvicorn_service
from servers import free_port

from penstock_workers.http import (
    HttpClient,
    Limits,
    NotConnected,
    Target,
    TimedOut,
    UnusableRequest,
    make_client,
)

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "workers/penstock_workers/http"
LIMIT_S = 20.0  # of one request: far more than any of them takes
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
MIB = 1024 * 1024


@pytest.fixture(params=["lean", "aiohttp"])
async def client(request: pytest.FixtureRequest) -> AsyncIterator[HttpClient]:
    made = make_client(request.param)
    yield made
    await made.close()


@pytest.fixture(params=["aiohttp", "uvicorn", pytest.param("nginx", marks=pytest.mark.servers)])
async def service(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    services: dict[str, Callable[[], AbstractAsyncContextManager[str]]] = {
        "aiohttp": aiohttp_service,
        "uvicorn": uvicorn_service,
        "nginx": lambda: nginx_service(tmp_path),
    }
    async with services[request.param]() as url:
        yield url


async def post(client: HttpClient, url: str, body: bytes = b"{}", **headers: str) -> Any:
    return await client.post(Target.of(url), body, headers=headers, timeout_s=LIMIT_S)


async def test_a_request_arrives_as_it_was_given(client: HttpClient, service: str) -> None:
    """Method, path, query, headers and body reach the server whole, and its headers come back by
    their lower-case names."""
    target = Target.of(
        service + "/v1/a b/echo?x=1&y=%20",
        {"Authorization": "Bearer k", "Content-Type": "application/json"},
    )
    answer = await client.post(
        target, b'{"a": 1}', headers={"X-Client-Request-Id": "job:dü"}, timeout_s=LIMIT_S
    )
    seen = json.loads(answer.body)
    assert (answer.status, answer.headers.get("x-request-id")) == (200, "42")
    assert (seen["method"], seen["size"], seen["crc"]) == ("POST", 8, zlib.crc32(b'{"a": 1}'))
    assert seen["path"] == "/v1/a b/echo"
    headers = {name.lower(): value for name, value in seen["headers"].items()}
    assert headers["authorization"] == "Bearer k"
    assert headers["content-type"] == "application/json"
    assert headers["x-client-request-id"].encode("utf-8", "surrogateescape") in (
        b"job:d\xc3\xbc",
        "job:dü".encode("latin-1"),
    )
    assert headers["host"] == service.removeprefix("http://")
    assert "cookie" not in headers


async def test_get_has_no_body(client: HttpClient, service: str) -> None:
    """What asks for gauges and models sends a head and nothing else."""
    answer = await client.get(Target.of(service + "/echo"), timeout_s=LIMIT_S)
    seen = json.loads(answer.body)
    assert (seen["method"], seen["size"]) == ("GET", 0)


@pytest.mark.parametrize(
    ("path", "status", "body"),
    [
        ("/pieces", 200, b"one two three"),
        ("/gzip", 200, TEXT),
        ("/gzip-pieces", 200, TEXT),
        ("/deflate", 200, TEXT),
        ("/large", 200, b"x" * 200_000),
        ("/empty", 204, b""),
        ("/missing", 404, b'{"error": "no such path"}'),
    ],
)
async def test_bodies_come_whole_however_they_are_sent(
    client: HttpClient, service: str, path: str, status: int, body: bytes
) -> None:
    """With a length, in chunks, compressed, in pieces that cut a compressed head, and none; the
    connection serves on."""
    for _ in range(2):
        answer = await post(client, service + path)
        assert (answer.status, answer.body) == (status, body)


async def test_redirects_are_answers(client: HttpClient, service: str) -> None:
    """A redirect is never followed: it would be a second send, and carry a document to a place that
    is in no setting."""
    answer = await post(client, service + "/redirect")
    assert (answer.status, answer.body, answer.headers.get("location")) == (
        307,
        b"elsewhere",
        "/echo",
    )


async def test_connections_are_kept_until_the_server_closes_them(
    client: HttpClient, service: str
) -> None:
    """Requests in a row use one connection; after `connection: close` the next one has its own."""
    first, second = [await post(client, service + "/echo") for _ in range(2)]
    assert first.headers["x-client-port"] == second.headers["x-client-port"]
    last = await post(client, service + "/close")
    assert last.body == b"bye"
    third = await post(client, service + "/echo")
    assert third.headers["x-client-port"] != last.headers["x-client-port"]


async def test_answers_belong_to_their_requests(client: HttpClient, service: str) -> None:
    """Of many requests at once each gets its own answer."""
    bodies = [b"%d" % n * 100 for n in range(60)]
    answers = await asyncio.gather(*(post(client, service + "/echo", body) for body in bodies))
    assert [json.loads(answer.body)["crc"] for answer in answers] == [
        zlib.crc32(body) for body in bodies
    ]


async def test_a_large_body_is_sent_whole(client: HttpClient, service: str) -> None:
    """16 MiB arrive unchanged, written as fast as the server takes them."""
    body = os.urandom(MIB) * 16
    seen = json.loads((await post(client, service + "/echo", body)).body)
    assert (seen["size"], seen["crc"]) == (len(body), zlib.crc32(body))


# -- addresses and proxies -------------------------------------------------------------------------


async def test_every_address_of_a_name_is_tried(
    client: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One dead address beside a living one does not keep a request from its server."""
    async with raw_server(canned(OK)) as server:
        port = int(server.url.rsplit(":", 1)[1])
        found = [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))
            for host in ("127.0.0.2", "127.0.0.1")
        ]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        assert (await post(client, f"http://two.test:{port}/")).body == b"ok"


async def test_a_name_without_address_is_not_connected(
    client: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names host and port, and says that nothing was sent; the next request asks for the
    address anew."""

    def unknown(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    for _ in range(2):
        with pytest.raises(
            NotConnected,
            match=r"Cannot connect to host nowhere\.test:80 .*Name or service not known",
        ):
            await post(client, "http://nowhere.test/")


async def test_refused_connections_are_not_connected(client: HttpClient) -> None:
    """A port without a server: nothing was sent, and the text names it."""
    async with raw_server(canned(OK)) as server:
        url = server.url
    with pytest.raises(
        NotConnected, match=r"Cannot connect to host 127\.0\.0\.1:\d+ .*Connect call failed"
    ):
        await post(client, url)


async def test_addresses_of_ipv6_stand_in_brackets(client: HttpClient) -> None:
    """`http://[::1]:8000` is reached, and the Host header has the brackets, too."""
    if not _has_ipv6():
        pytest.skip("this machine has no IPv6")
    async with raw_server(canned(OK), host="::1") as server:
        assert (await post(client, server.url)).body == b"ok"
        assert f"Host: {server.url.removeprefix('http://')}\r\n" in server.heads[0]


async def test_a_target_with_a_proxy_goes_there(client: HttpClient) -> None:
    """The proxy gets the whole URL; the server's own name is never looked up here."""
    async with raw_server(canned(OK)) as proxy:
        target = Target.of("http://far.invalid/v1/x", proxy=proxy.url)
        answer = await client.post(target, b"{}", headers={}, timeout_s=LIMIT_S)
        assert (answer.body, proxy.heads[0].split("\r\n")[0]) == (
            b"ok",
            "POST http://far.invalid/v1/x HTTP/1.1",
        )


async def test_proxy_variables_do_not_count(
    client: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variable set for another program does not send documents elsewhere."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    async with raw_server(canned(OK)) as server:
        assert (await post(client, server.url)).body == b"ok"


async def test_a_user_in_the_url_becomes_a_header(client: HttpClient) -> None:
    """Name and password travel as basic authentication, and not in the request's first line."""
    async with raw_server(canned(OK)) as server:
        await post(client, server.url.replace("//", "//me:s%40crt@") + "/p")
        assert "Authorization: Basic bWU6c0BjcnQ=\r\n" in server.heads[0]
        assert server.heads[0].startswith("POST /p HTTP/1.1\r\n")


def _has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::1", 0))
        return True
    return False


# -- what cannot be sent ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ftp://host/",
        "http://",
        "http://host:0/",
        "http://host:99999/",
        "http://[::1/",
        "http://a b/",
        "//host/x",
    ],
)
def test_urls_that_lead_nowhere_are_refused(url: str) -> None:
    """The error says so before anything is sent."""
    with pytest.raises(UnusableRequest, match="not a usable URL"):
        Target.of(url)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("X-A", "1\r\nX-Evil: 1"),
        ("X-A", "1\nX-Evil: 1"),
        ("X-A", "nul\0"),
        ("X-A", "\udc80"),
        ("X A", "1"),
        ("X-A:", "1"),
        ("", "1"),
        ("Content-Length", "0"),
        ("Transfer-Encoding", "chunked"),
        ("Host", "other"),
    ],
)
async def test_headers_that_break_a_request_apart_are_refused(
    client: HttpClient, name: str, value: str
) -> None:
    """Line ends in a value would be headers of their own, and lengths are the client's to say:
    nothing is sent."""
    async with raw_server(canned(OK)) as server:
        with pytest.raises(UnusableRequest, match="header"):
            await client.post(
                Target.of(server.url), b"{}", headers={name: value}, timeout_s=LIMIT_S
            )
        with pytest.raises(UnusableRequest, match="header"):
            Target.of(server.url, {name: value})
        assert server.connections == 0


def test_a_user_and_a_key_for_one_server_are_refused() -> None:
    """Both cannot be meant, and the error says what to leave out."""
    with pytest.raises(UnusableRequest, match="beside a key"):
        Target.of("http://me:secret@host/", {"Authorization": "Bearer k"})


# -- TLS -------------------------------------------------------------------------------------------

TLS_PROGRAM = """
import asyncio, sys
sys.path.insert(0, {tests!r})
from http_tls import main
asyncio.run(main({name!r}, {folder!r}))
"""


@pytest.mark.parametrize("name", ["lean", "aiohttp"])
def test_tls_is_verified(name: str, tmp_path: Path) -> None:
    """SSL_CERT_FILE is trusted, names are checked and sent along, strangers are refused; sessions
    are taken up again."""
    code = TLS_PROGRAM.format(tests=str(ROOT / "tests/harness"), name=name, folder=str(tmp_path))
    environment = {**os.environ, "SSL_CERT_FILE": str(tmp_path / "ca.pem")}
    from http_tls import write_authority

    write_authority(tmp_path)
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    seen = json.loads(ran.stdout)
    assert seen["trusted"] == "200 ok"
    assert seen["names sent"] == ["localhost"]
    assert seen["other host"].startswith("CertificateRefused: 127.0.0.1:")
    assert "IP address mismatch" in seen["other host"]
    assert seen["stranger"].startswith("CertificateRefused: localhost:")
    assert "certificate verify failed" in seen["stranger"]
    assert seen["no TLS"].startswith("NotConnected: Cannot connect to host")
    assert seen["sessions taken up"] == (
        [False, True, True] if name == "lean" else [False, False, False]
    )


# -- the house -------------------------------------------------------------------------------------


def test_the_package_imports_nothing_else_of_penstock() -> None:
    """It could be taken out and used elsewhere."""
    for file in PACKAGE.glob("*.py"):
        lines = [
            line.split()[1]
            for line in file.read_text().splitlines()
            if line.lstrip().startswith(("import ", "from "))
        ]
        ours = [name for name in lines if name.startswith("penstock_")]
        assert all(name.startswith("penstock_workers.http") for name in ours), (
            f"{file.name} imports {ours}"
        )


def test_the_lean_client_does_not_load_aiohttp() -> None:
    """A worker starts without the library that it does not use."""
    lanes = ", ".join(
        f"penstock_workers.lanes.{name}"
        for name in ("api.api_lane", "api.admission", "gpu.sidecar")
    )
    code = f"import sys, {lanes}; print('aiohttp' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"


async def test_a_request_leaves_no_cyclic_garbage() -> None:
    """What a request made is gone with its answer, and does not wait for the collector."""
    client = make_client("lean")
    async with raw_server(canned(OK)) as server:
        target = Target.of(server.url)
        await client.post(target, b"{}", headers={}, timeout_s=LIMIT_S)
        gc.disable()
        gc.freeze()  # what other tests leave is not looked at
        try:
            for _ in range(50):
                await client.post(target, b"{}", headers={}, timeout_s=LIMIT_S)
            assert gc.collect() == 0
        finally:
            gc.unfreeze()
            gc.enable()
            await client.close()


async def test_a_connection_that_has_ended_leaves_no_cyclic_garbage() -> None:
    """A provider that closes each connection, or breaks it, fills no memory until a collection."""
    client = make_client("lean")
    closing = canned(b"HTTP/1.0 200 OK\r\n\r\nuntil the end", close=True)
    async with raw_server(closing) as server:
        target = Target.of(server.url)
        await client.post(target, b"{}", headers={}, timeout_s=LIMIT_S)
        gc.collect()
        gc.disable()
        try:
            for _ in range(20):
                await client.post(target, b"{}", headers={}, timeout_s=LIMIT_S)
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            left = [one for one in gc.garbage if type(one).__module__.startswith("penstock")]
            assert not left
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
            await client.close()


async def _on_uvloop(client: HttpClient) -> None:
    async with aiohttp_service() as url:
        for path in ("/pieces", "/gzip", "/large", "/empty", "/close", "/redirect"):
            assert (await post(client, url + path)).status in (200, 204, 307)
        body = os.urandom(MIB) * 16
        assert json.loads((await post(client, url + "/echo", body)).body)["crc"] == zlib.crc32(body)
    with pytest.raises(NotConnected):
        await post(client, f"http://127.0.0.1:{free_port()}")
    async with raw_server(canned(b"HTTP/1.0 200 OK\r\n\r\nuntil the end", close=True)) as server:
        for _ in range(2):
            assert (await post(client, server.url)).body == b"until the end"
        assert server.connections == 2
    async with raw_server(canned(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok")) as server:
        with pytest.raises(TimedOut):
            await client.post(Target.of(server.url), b"{}", headers={}, timeout_s=0.1)
        async with asyncio.timeout(LIMIT_S):
            await server.gone.wait()


@pytest.mark.parametrize("name", ["lean", "aiohttp"])
def test_both_clients_run_on_uvloop(name: Any) -> None:
    """Reuse, chunks, large bodies, refused connections, bodies that end with the connection, and
    deadlines."""
    uvloop = pytest.importorskip("uvloop")

    async def main() -> None:
        client = make_client(name, Limits())
        try:
            await _on_uvloop(client)
        finally:
            await client.close()

    run: Callable[[Awaitable[None]], None] = uvloop.run
    run(main())
