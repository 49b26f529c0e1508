"""Servers for HTTP clients: the same small service behind aiohttp, uvicorn and nginx, and a raw one
that may do anything."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import gzip
import json
import shutil
import ssl
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from servers import MissingServer, free_port

from penstock_workers.http import (
    HttpAnswer,
    HttpClient,
    Limits,
    Target,
)

START_TIMEOUT_S = 10.0
PIECES = [b"one ", b"two ", b"three"]
TEXT = b"a text that is worth packing " * 40

# -- a service with one meaning, for every server that is to have it -------------------------------


@dataclass(frozen=True)
class Served:
    """What the service answers: a body, or pieces without a length."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    pieces: list[bytes] | None = None


def serve(method: str, path: str, headers: dict[str, str], body: bytes) -> Served:
    match path.rsplit("/", 1)[-1]:
        case "echo":
            seen = {
                "method": method,
                "path": path,
                "headers": headers,
                "size": len(body),
                "crc": zlib.crc32(body),
            }
            return Served(body=json.dumps(seen).encode(), headers={"x-request-id": "42"})
        case "pieces":
            return Served(pieces=PIECES)
        case "gzip":
            return Served(body=gzip.compress(TEXT), headers={"content-encoding": "gzip"})
        case "gzip-pieces":
            packed = gzip.compress(TEXT)
            return Served(
                pieces=[packed[:9], packed[9:20], packed[20:]], headers={"content-encoding": "gzip"}
            )
        case "deflate":
            return Served(body=zlib.compress(TEXT), headers={"content-encoding": "deflate"})
        case "large":
            return Served(body=b"x" * 200_000)
        case "empty":
            return Served(status=204)
        case "redirect":
            return Served(status=307, headers={"location": "/echo"}, body=b"elsewhere")
        case "close":
            return Served(body=b"bye", headers={"connection": "close"})
    return Served(status=404, body=b'{"error": "no such path"}')


@contextlib.asynccontextmanager
async def aiohttp_service() -> AsyncIterator[str]:
    from aiohttp import web

    async def handle(request: web.Request) -> web.StreamResponse:
        served = serve(request.method, request.path, dict(request.headers), await request.read())
        assert request.transport is not None
        port = str(request.transport.get_extra_info("peername")[1])
        headers = served.headers | {"x-client-port": port}
        if served.pieces is None:
            answer = web.Response(status=served.status, headers=headers, body=served.body)
            if "connection" in headers:
                answer.force_close()
            return answer
        stream = web.StreamResponse(status=served.status, headers=headers)
        await stream.prepare(request)
        for piece in served.pieces:
            await stream.write(piece)
        return stream

    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def uvicorn_service() -> AsyncIterator[str]:
    try:
        import uvicorn
    except ImportError:
        raise MissingServer("no uvicorn: it is in the dependency group `dev`") from None

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            event = await receive()
            body, more = body + event.get("body", b""), event.get("more_body", False)
        headers = {name.decode().title(): value.decode() for name, value in scope["headers"]}
        served = serve(scope["method"], scope["path"], headers, body)
        sent = served.headers | {"x-client-port": str(scope["client"][1])}
        if served.pieces is None and served.status != 204:
            sent["content-length"] = str(len(served.body))
        raw = [(name.encode(), value.encode()) for name, value in sent.items()]
        await send({"type": "http.response.start", "status": served.status, "headers": raw})
        for piece in served.pieces or [served.body]:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    port = free_port()
    server = uvicorn.Server(
        uvicorn.Config(app, port=port, lifespan="off", log_level="critical", loop="none")
    )
    running = asyncio.create_task(server.serve())
    async with asyncio.timeout(START_TIMEOUT_S):
        while not server.started:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await running


NGINX = """\
user {user}; daemon off; worker_processes 1; error_log {folder}/error.log; pid {folder}/pid;
events {{}}
http {{
    access_log off; client_max_body_size 64m;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    gzip on; gzip_types application/octet-stream text/plain; gzip_min_length 1000;
    server {{
        listen 127.0.0.1:{port}; keepalive_timeout 20s 20s;
        location / {{
            proxy_pass {upstream}; proxy_http_version 1.1; proxy_hide_header x-client-port;
            proxy_set_header Host $http_host; add_header x-client-port $remote_port always;
        }}
        location /close {{ keepalive_timeout 0; return 200 "bye"; add_header x-client-port $remote_port; }}
    }}
}}
"""


@contextlib.asynccontextmanager
async def nginx_service(folder: Path) -> AsyncIterator[str]:
    """nginx in front of aiohttp's server, as in front of most models."""
    binary = shutil.which("nginx") or shutil.which("/usr/sbin/nginx")
    if binary is None:
        raise MissingServer("no nginx: install Debian's package nginx")
    port = free_port()
    async with aiohttp_service() as upstream:
        (folder / "nginx.conf").write_text(
            NGINX.format(user=getpass.getuser(), folder=folder, port=port, upstream=upstream)
        )
        options = (
            "-p",
            str(folder),
            "-c",
            str(folder / "nginx.conf"),
            "-e",
            str(folder / "error.log"),
        )
        process = await asyncio.create_subprocess_exec(binary, *options)
        try:
            await _await_port(port, process)
            yield f"http://127.0.0.1:{port}"
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()


async def _await_port(port: int, process: asyncio.subprocess.Process) -> None:
    async with asyncio.timeout(START_TIMEOUT_S):
        while process.returncode is None:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.02)
            else:
                writer.close()
                return
    raise RuntimeError(f"nginx ended with status {process.returncode}")


# -- a server without manners ----------------------------------------------------------------------


class Peer:
    """One connection, as the server sees it."""

    def __init__(
        self, server: RawServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.server, self.reader, self.writer = server, reader, writer

    async def head(self) -> str:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        self.server.heads.append(head)
        return head

    async def request(self) -> bytes:
        """Wait for a whole request; its body."""
        head = await self.head()
        sizes = [
            line.partition(":")[2]
            for line in head.split("\r\n")
            if line.lower().startswith("content-length:")
        ]
        return await self.reader.readexactly(int(sizes[0]) if sizes else 0)

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def reset(self) -> None:
        self.writer.transport.abort()


Script = Callable[[Peer], Awaitable[None]]


@dataclass
class RawServer:
    url: str = ""
    # of the requests, in the order in which they came
    heads: list[str] = field(default_factory=list)
    connections: int = 0
    ended: int = 0  # connections that a script counts as ended
    gone: asyncio.Event = field(default_factory=asyncio.Event)  # a client has closed its connection
    release: asyncio.Event = field(default_factory=asyncio.Event)  # between a script and its test
    answer_now: asyncio.Event = field(default_factory=asyncio.Event)  # likewise


@contextlib.asynccontextmanager
async def raw_server(
    script: Script, *, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1"
) -> AsyncIterator[RawServer]:
    """``script`` is run for each connection, which ends with it."""
    made = RawServer()
    running: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        made.connections += 1
        try:
            await script(Peer(made, reader, writer))
        except (OSError, asyncio.IncompleteReadError):
            made.gone.set()
        except asyncio.CancelledError:
            pass
        finally:
            running.discard(task)
            writer.close()

    server = await asyncio.start_server(handle, host, 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    name = f"[{host}]" if ":" in host else host
    made.url = f"{'http' if tls is None else 'https'}://{name}:{port}"
    try:
        yield made
    finally:
        server.close()
        for task in list(running):
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def canned(*answers: bytes, close: bool = False) -> Script:
    """Gives these answers to the requests of each connection, the last one again and again;
    ``close`` ends it after them."""

    async def script(peer: Peer) -> None:
        left = list(answers)
        while left:
            await peer.request()
            await peer.send(left.pop(0) if len(left) > 1 or close else left[0])

    return script


LIMIT_S = 20.0  # of one request: far more than any of them takes
SHORT_S = 0.15  # of one that is to run out
KIB = 1024
LIMITS = Limits(max_body_bytes=256 * KIB, free_body_bytes=16 * KIB, idle_per_server=3)
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
LARGE = b"large" * 20 * KIB


async def post(
    client: HttpClient,
    server: RawServer,
    body: bytes = b"{}",
    timeout_s: float = LIMIT_S,
    **more: Any,
) -> HttpAnswer:
    return await client.post(Target.of(server.url), body, headers={}, timeout_s=timeout_s, **more)


def answer(
    body: bytes = b"", *headers: bytes, status: bytes = b"200 OK", length: int | None = None
) -> bytes:
    lines = [
        b"HTTP/1.1 " + status,
        b"content-length: %d" % (len(body) if length is None else length),
        *headers,
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def chunked(*pieces: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"".join(pieces)


async def turn_the_loop(client: HttpClient) -> None:
    """Ask another server twice: whatever has reached this machine meanwhile, the client has seen
    then."""
    async with raw_server(canned(OK)) as other:
        for _ in range(2):
            await post(client, other)
