"""``HttpClient`` with aiohttp.

Imported only where the settings choose it, or where a provider has a proxy."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from penstock_workers.http.client import (
    AnswerTooLarge,
    CertificateRefused,
    ConnectionLost,
    HttpAnswer,
    HttpError,
    Limits,
    NotConnected,
    PartReader,
    Reserve,
    Target,
    TimedOut,
    UnusableRequest,
    check_headers,
    is_event_stream,
)

SWITCHING = 101


class AiohttpClient:
    """Implements ``HttpClient``."""

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=self._limits.keepalive_s),
            trust_env=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=True,
            # The whole has its own limit, see _send.
            timeout=aiohttp.ClientTimeout(total=None, connect=self._limits.connect_timeout_s),
        )

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
        check_headers(headers.items())
        return await self._send("POST", target, body, headers, timeout_s, reserve, stream)

    async def get(self, target: Target, *, timeout_s: float) -> HttpAnswer:
        return await self._send("GET", target, None, {}, timeout_s, None)

    async def call(
        self, method: str, target: Target, body: bytes | None, *, timeout_s: float
    ) -> HttpAnswer:
        """Return the answer of any other method; raise HttpError."""
        return await self._send(method, target, body, {}, timeout_s, None)

    async def close(self) -> None:
        await self._session.close()

    async def _send(
        self,
        method: str,
        target: Target,
        body: bytes | None,
        headers: Mapping[str, str],
        timeout_s: float,
        reserve: Reserve | None,
        stream: PartReader | None = None,
    ) -> HttpAnswer:
        whole_by = asyncio.get_running_loop().time() + timeout_s
        first_s = timeout_s if stream is None else min(timeout_s, stream.first_s)
        try:
            async with asyncio.timeout(first_s) as patience:
                async with self._session.request(
                    method,
                    URL(target.url, encoded=True),
                    data=body,
                    headers={**target.headers, **headers},
                    allow_redirects=False,
                    proxy=target.proxy,
                ) as response:
                    if response.status == SWITCHING:
                        raise ConnectionLost(
                            "the server switched to another protocol, which the request did not "
                            "ask for"
                        )
                    if stream is not None:
                        patience.reschedule(whole_by)
                    if stream is not None and is_event_stream(response.status, response.headers):
                        await self._pass_on(response, reserve, patience, stream)
                        return HttpAnswer(response.status, response.headers, b"")
                    read = await self._read(response, reserve, patience)
                    return HttpAnswer(response.status, response.headers, read)
        # TimeoutError is an OSError
        except (aiohttp.ClientError, OSError, HttpProcessingError) as error:
            raise _translated(error) from error

    async def _read(
        self, response: aiohttp.ClientResponse, reserve: Reserve | None, patience: asyncio.Timeout
    ) -> bytes:
        """Read a body; nothing of a declared size is read before it is reserved."""
        most = self._limits.max_body_bytes
        free = self._limits.free_body_bytes if reserve is not None else most
        size = None if "Content-Encoding" in response.headers else response.content_length
        if size is not None and size <= min(free, most):
            return await response.read()
        try:
            if size is not None and size > most:
                raise self._too_large()
            if size is not None and reserve is not None:
                await _reserve(reserve, size, patience)
                free = most
            parts, read = [], 0
            async for part in response.content.iter_any():
                read += len(part)
                # nothing says how large it becomes
                if free < read and free < most and reserve is not None:
                    await _reserve(reserve, most, patience)
                    free = most
                if read > most:
                    raise self._too_large()
                parts.append(part)
        except AnswerTooLarge:
            response.close()  # what is still to come is not read
            raise
        return b"".join(parts)

    async def _pass_on(
        self,
        response: aiohttp.ClientResponse,
        reserve: Reserve | None,
        patience: asyncio.Timeout,
        stream: PartReader,
    ) -> None:
        """Feed a stream its parts; of them counts what the reader holds."""
        most, loop = self._limits.max_body_bytes, asyncio.get_running_loop()
        free = self._limits.free_body_bytes if reserve is not None else most
        whole_by, wait_s = patience.when(), stream.first_s
        try:
            while True:
                next_by = loop.time() + wait_s
                patience.reschedule(next_by if whole_by is None else min(whole_by, next_by))
                part, wait_s = await response.content.readany(), stream.next_s
                if not part:
                    return
                held = stream.feed(part)
                if held > free and free < most and reserve is not None:
                    await _reserve(reserve, most, patience)
                    free = most
                if held > most:
                    raise self._too_large()
        except HttpError:
            response.close()  # what is still to come is not read
            raise

    def _too_large(self) -> AnswerTooLarge:
        return AnswerTooLarge(f"the answer has more than {self._limits.max_body_bytes} bytes")


async def _reserve(reserve: Reserve, size: int, patience: asyncio.Timeout) -> None:
    """Wait for memory; the deadline moves along, since it is not the server's time.

    The server is held by its socket."""
    loop = asyncio.get_running_loop()
    ends_at, asked = patience.when(), loop.time()
    patience.reschedule(None)
    try:
        await reserve(size)
    finally:
        if ends_at is not None:
            patience.reschedule(ends_at + loop.time() - asked)


def _translated(error: Exception) -> HttpError:
    match error:
        case aiohttp.ClientConnectorCertificateError():
            return CertificateRefused(f"{error.host}:{error.port}: {error.certificate_error}")
        case aiohttp.ClientConnectorError():
            return NotConnected(str(error))
        case aiohttp.ConnectionTimeoutError():
            return NotConnected(f"no connection: {error}")
        case TimeoutError():
            return TimedOut("the answer was not whole in time")
        case aiohttp.InvalidURL():
            return UnusableRequest(f"not a usable URL: {error}")
    return ConnectionLost(f"{type(error).__name__}: {error}")
