"""The connections to one server: those that wait for a request, and how new ones are made.

TLS for one server: the system's authorities, the host's name checked, and sessions taken up
again.

The lean client speaks HTTP/1.1 over kept connections, for many requests with whole bodies to few
servers. It costs a third of what aiohttp's client costs, which builds some forty objects per
request for cookies, redirects, streams and traces that calls to a model have no use for. llhttp
reads the answers, as it does for aiohttp and for Node.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections import deque
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING
from weakref import WeakSet

from aiohappyeyeballs import AddrInfoType, start_connection

from penstock_workers.http.client import (
    CertificateRefused,
    ConnectionLost,
    HttpAnswer,
    Limits,
    NotConnected,
    PartReader,
    Reserve,
    Server,
    Target,
    TimedOut,
    check_headers,
)
from penstock_workers.http.connection import Connection

if TYPE_CHECKING:
    from penstock_workers.http.with_aiohttp import AiohttpClient


class LeanClient:
    """Implements ``HttpClient``.

    Targets with a proxy are asked through aiohttp, which knows tunnels."""

    def __init__(self, limits: Limits | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._limits = limits or Limits()
        self._pools: dict[Server, Pool] = {}
        self._proxied: AiohttpClient | None = None
        self._is_closed = False

    async def post(
        self,
        target: Target,
        body: bytes,
        *,
        headers: Mapping[str, str],
        timeout_s: float,
        reserve: Reserve | None = None,
        stream: PartReader | None = None,
    ) -> HttpAnswer:
        if target.proxy is not None:
            return await self._through_proxy().post(
                target, body, headers=headers, timeout_s=timeout_s, reserve=reserve, stream=stream
            )
        check_headers(headers.items())
        own = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        head = (
            f"POST {target.resource} HTTP/1.1\r\n"
            f"{target.head}{own}Content-Length: {len(body)}\r\n"
            "\r\n"
        )
        return await self._send(target.server, head.encode(), body, timeout_s, reserve, stream)

    async def get(self, target: Target, *, timeout_s: float) -> HttpAnswer:
        if target.proxy is not None:
            return await self._through_proxy().get(target, timeout_s=timeout_s)
        head = f"GET {target.resource} HTTP/1.1\r\n{target.head}\r\n"
        return await self._send(target.server, head.encode(), b"", timeout_s, None)

    async def put(self, target: Target, *, timeout_s: float) -> HttpAnswer:
        """Send a PUT without a body, and never through a proxy: what AWS's metadata service wants.

        Raises HttpError."""
        assert target.proxy is None, "asked of the machine's own metadata service only"
        head = f"PUT {target.resource} HTTP/1.1\r\n{target.head}Content-Length: 0\r\n\r\n"
        return await self._send(target.server, head.encode(), b"", timeout_s, None)

    async def close(self) -> None:
        self._is_closed = True
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.close()
        if self._proxied is not None:
            await self._proxied.close()
        # transports tell their protocols, and close their sockets, in the loop's next turn
        await asyncio.sleep(0)

    async def _send(
        self,
        server: Server,
        head: bytes,
        body: bytes,
        timeout_s: float,
        reserve: Reserve | None,
        stream: PartReader | None = None,
    ) -> HttpAnswer:
        began = self._loop.time()
        deadline = began + timeout_s
        pool = self._pools.get(server) or self._new_pool(server)
        connection = pool.take(began) or await pool.connect(timeout_s)
        wants = await connection.exchange(
            head, body, deadline, reserves=reserve is not None, stream=stream
        )
        if wants:
            assert reserve is not None, "only a body with `reserve` asks for more"
            await self._grant(connection, wants, deadline, reserve)
        answer = connection.finish()
        pool.take_back(connection, answer.headers)
        return answer

    async def _grant(
        self, connection: Connection, wants: int, deadline: float, reserve: Reserve
    ) -> None:
        """Wait for memory; the deadline moves along, since it is not the server's time.

        Meanwhile nothing is read."""
        asked = self._loop.time()
        try:
            await reserve(wants)
        except BaseException:
            connection.close()
            raise
        await connection.go_on(deadline + self._loop.time() - asked)

    def _new_pool(self, server: Server) -> Pool:
        if self._is_closed:
            raise ConnectionLost("the client is closed")
        self._pools[server] = pool = Pool(self._loop, server, self._limits)
        return pool

    def _through_proxy(self) -> AiohttpClient:
        if self._proxied is None:
            from penstock_workers.http.with_aiohttp import AiohttpClient

            self._proxied = AiohttpClient(self._limits)
        return self._proxied


class ResumingContext(ssl.SSLContext):
    """Begins each connection with the session of an earlier one, where there is one.

    No certificates are sent then.

    asyncio and uvloop open a connection with ``wrap_bio`` and have no argument for a session."""

    session: ssl.SSLSession | None = None

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        return super().wrap_bio(
            incoming, outgoing, server_side, server_hostname, session or self.session
        )


def client_context() -> ResumingContext:
    """Make a context as ``ssl.create_default_context`` does.

    For one server: sessions are not valid for others."""
    context = ResumingContext(ssl.PROTOCOL_TLS_CLIENT)  # verifies certificates and names
    context.verify_flags = ssl.create_default_context().verify_flags
    context.load_default_certs()  # those of SSL_CERT_FILE and SSL_CERT_DIR, or the system's
    context.set_alpn_protocols(["http/1.1"])
    return context


# before the next address of the server is tried beside the one that has not answered yet
EYEBALLS_DELAY_S = 0.25
# what a name resolves to is asked again after this, and when no address answers
ADDRESSES_KEPT_S = 10.0
# a connection that was idle for longer is looked at before its use: servers close idle ones
CHECKED_AFTER_S = 1.0
# we close an idle connection so much before the server would, which its Keep-Alive header tells
SERVERS_MARGIN_S = 1.0

_KEEP_ALIVE = re.compile(r"timeout=(\d{1,6})\b", re.IGNORECASE)


class Pool:
    """Hands out the connection that was used last, so that those that are not needed time out."""

    def __init__(self, loop: asyncio.AbstractEventLoop, server: Server, limits: Limits) -> None:
        self._loop = loop
        self._server = server
        self._limits = limits
        self._idle: deque[Connection] = deque()  # the one that was used last is on the right
        self._all: WeakSet[Connection] = WeakSet()  # the loop holds them while they are open
        self._is_closed = False
        self._sweep: asyncio.TimerHandle | None = None
        self._addresses: list[AddrInfoType] = []
        self._addresses_until = 0.0
        self._lookup: asyncio.Task[list[AddrInfoType]] | None = None

    @cached_property
    def _tls(self) -> ResumingContext:
        return client_context()

    def take(self, now: float) -> Connection | None:
        """Return an idle connection that is good for a request."""
        while self._idle:
            connection = self._idle.pop()
            if not connection.usable:
                continue
            is_checked = now - connection.idle_since < CHECKED_AFTER_S or not connection.is_stale()
            if now < connection.idle_until and is_checked:
                return connection
            connection.close()
        return None

    def take_back(self, connection: Connection, headers: Mapping[str, str]) -> None:
        """Take back a connection whose answer is whole, with that answer's headers.

        It is kept where it is usable."""
        # its first answer: tickets come with it
        if self._server.secure and not connection.idle_since:
            self._tls.session = connection.tls_session() or self._tls.session
        now = self._loop.time()
        connection.idle_since, connection.idle_until = now, now + self._keepalive_s(headers)
        if not connection.usable or len(self._idle) >= self._limits.idle_per_server:
            connection.close()
            return
        self._idle.append(connection)
        if self._sweep is None:
            self._sweep = self._loop.call_later(self._limits.keepalive_s, self._close_old)

    def _keepalive_s(self, headers: Mapping[str, str]) -> float:
        said = headers.get("keep-alive")
        found = _KEEP_ALIVE.search(said) if said is not None else None
        limit = self._limits.keepalive_s
        return limit if found is None else min(limit, int(found[1]) - SERVERS_MARGIN_S)

    def _close_old(self) -> None:
        now = self._loop.time()
        kept: deque[Connection] = deque()
        for connection in self._idle:
            if connection.usable and now < connection.idle_until:
                kept.append(connection)
            else:
                connection.close()
        self._idle = kept
        self._sweep = (
            self._loop.call_later(self._limits.keepalive_s, self._close_old) if kept else None
        )

    def close(self) -> None:
        self._is_closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        if self._lookup is not None:
            self._lookup.cancel()
        self._idle.clear()
        for connection in list(self._all):
            connection.close()

    # -- new connections ---------------------------------------------------------------------------

    async def connect(self, timeout_s: float) -> Connection:
        """Open a connection.

        Raises NotConnected, and TimedOut where the request's own limit is the shorter one."""
        limit_s = min(timeout_s, self._limits.connect_timeout_s)
        name = f"{self._server.host}:{self._server.port}"
        patience = asyncio.timeout(limit_s)
        try:
            async with patience:
                connection = await self._open()
        except ssl.SSLCertVerificationError as error:
            raise CertificateRefused(f"{name}: {error}") from error
        # TimeoutError and every ssl.SSLError is an OSError
        except (OSError, UnicodeError) as error:
            if not patience.expired():
                self._addresses_until = 0.0
                raise NotConnected(f"Cannot connect to host {name} [{error}]") from error
            if timeout_s <= self._limits.connect_timeout_s:
                raise TimedOut(f"no connection to {name} within {limit_s:g} s") from None
            raise NotConnected(f"no connection to {name} within {limit_s:g} s") from None
        if not connection.usable:
            raise NotConnected(f"{name} closed the connection, or spoke, before anything was sent")
        return connection

    async def _open(self) -> Connection:
        found = await self._resolve()
        sock = await start_connection(
            found, happy_eyeballs_delay=EYEBALLS_DELAY_S, interleave=1, loop=self._loop
        )
        secure = self._server.secure
        _, connection = await self._loop.create_connection(
            lambda: Connection(self._loop, self._limits),
            sock=sock,
            ssl=self._tls if secure else None,
            server_hostname=self._server.host.rstrip(".") if secure else None,
        )
        self._all.add(connection)
        if self._is_closed:
            connection.close()
        return connection

    async def _resolve(self) -> list[AddrInfoType]:
        """Look up the server's addresses.

        One lookup at a time, however many connections wait for it."""
        if self._loop.time() < self._addresses_until:
            return self._addresses
        if self._lookup is None:
            self._lookup = self._loop.create_task(
                self._look_up(), name=f"look up {self._server.host}"
            )
            self._lookup.add_done_callback(self._looked_up)
        return await asyncio.shield(self._lookup)

    async def _look_up(self) -> list[AddrInfoType]:
        host, port = self._server.host, self._server.port
        return [*await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)]

    def _looked_up(self, lookup: asyncio.Task[list[AddrInfoType]]) -> None:
        self._lookup = None
        if not lookup.cancelled() and lookup.exception() is None:
            self._addresses = lookup.result()
            self._addresses_until = self._loop.time() + ADDRESSES_KEPT_S
