"""HTTP/1.1 over kept connections, for many requests with whole bodies to few servers.

A third of what aiohttp's client costs, which builds some forty objects per request for cookies,
redirects, streams and traces that calls to a model have no use for. llhttp reads the answers, as it
does for aiohttp and for Node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock_workers.http.client import (
    ConnectionLost,
    HttpAnswer,
    Limits,
    Reserve,
    Server,
    Target,
    check_headers,
)
from penstock_workers.http.connection import Connection
from penstock_workers.http.pool import Pool

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
    ) -> HttpAnswer:
        if target.proxy is not None:
            return await self._through_proxy().post(
                target, body, headers=headers, timeout_s=timeout_s, reserve=reserve
            )
        check_headers(headers.items())
        own = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        head = (
            f"POST {target.resource} HTTP/1.1\r\n"
            f"{target.head}{own}Content-Length: {len(body)}\r\n"
            "\r\n"
        )
        return await self._send(target.server, head.encode(), body, timeout_s, reserve)

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
        self, server: Server, head: bytes, body: bytes, timeout_s: float, reserve: Reserve | None
    ) -> HttpAnswer:
        began = self._loop.time()
        deadline = began + timeout_s
        pool = self._pools.get(server) or self._new_pool(server)
        connection = pool.take(began) or await pool.connect(timeout_s)
        wants = await connection.exchange(head, body, deadline, reserves=reserve is not None)
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
