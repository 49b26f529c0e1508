"""The `api` lane: real-time calls to an OpenAI-compatible server through aiohttp, bodies passed through untouched.

No SDK and no retry in here: every send is one `infer`, so the quota sees each of them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

import aiohttp

from penstock_ledger.redaction import hide, redact_bytes
from penstock_workers.item.answer import Answer, NoAnswer, Tried
from penstock_workers.item.answer_memory import AnswerMemory, Room
from penstock_workers.item.lane import Prepared, Request
from penstock_workers.settings import ANSWER_MEMORY_BYTES, MAX_ANSWER_BYTES, ProviderSettings

CONNECT_TIMEOUT_S = 10.0  # a server that does not even accept in this time is down, whatever the item's own deadline
SMALL_ANSWER_BYTES = 64 * 1024  # up to here nothing is asked or counted: nearly every answer, 16 MiB in 256 slots
KEEPALIVE_S = 30.0
CERTIFICATE_FIX = (
    "this machine does not trust the server's certificate: give workers the file of its authority in SSL_CERT_FILE, "
    "or correct the address"
)


class ApiLane:
    """One connection pool per worker process. Its size is bounded by the runner's slots, not by the pool."""

    def __init__(
        self,
        providers: Mapping[str, ProviderSettings],
        max_answer_bytes: int = MAX_ANSWER_BYTES,
        answer_memory_bytes: int = ANSWER_MEMORY_BYTES,
    ) -> None:
        self._providers = providers
        self._max_answer_bytes = max_answer_bytes
        self._memory = AnswerMemory(answer_memory_bytes)
        self._headers: dict[str, dict[str, str]] = {}
        self._keys: dict[str, bytes] = {}
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        for name, provider in self._providers.items():
            key = provider.api_key(name)
            self._keys[name] = (key or "").encode()
            self._headers[name] = {"Content-Type": "application/json"} | (
                {"Authorization": f"Bearer {key}"} if key else {}
            )
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S),
            trust_env=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=True,
        )

    async def prepare(self, request: Request) -> Prepared:
        return Prepared(request)

    def gauges(self) -> Mapping[str, float | str]:
        return {}

    async def infer(self, prepared: Prepared) -> Tried:
        request = prepared.request
        started = time.monotonic()
        try:
            async with asyncio.timeout(request.timeout_s) as patience:
                return await self._post(request, started, patience)
        except aiohttp.ClientConnectorCertificateError as error:
            return NoAnswer(
                "connect_failed",
                f"{error.host}:{error.port}: {error.certificate_error}; {CERTIFICATE_FIX}",
                _since(started),
                sent=False,
            )
        except aiohttp.ClientConnectorError as error:
            return NoAnswer("connect_failed", str(error), _since(started), sent=False)
        except aiohttp.ConnectionTimeoutError as error:
            return NoAnswer("connect_failed", f"no connection: {error}", _since(started), sent=False)
        except TimeoutError:
            return NoAnswer("timeout", f"no complete answer within {request.timeout_s:g} s", _since(started))
        except aiohttp.InvalidURL as error:
            return NoAnswer("bad_request", f"not a usable URL: {error}", _since(started), sent=False)
        except (aiohttp.ClientError, OSError) as error:
            return NoAnswer("connection_lost", f"{type(error).__name__}: {error}", _since(started))

    def drain(self) -> None:
        """Nothing to begin that takes long."""

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def _without_keys(self, provider: str, status: int, body: bytes) -> bytes:
        """An answer is kept as it is, but for the key that was sent; a refusal is only words, and loses every secret."""
        key = self._keys[provider]
        if status != 200:
            return redact_bytes(body)
        return hide(body, key) if key else body

    async def _post(self, request: Request, started: float, patience: asyncio.Timeout) -> Tried:
        assert self._session is not None, "start() comes first"
        provider = self._providers[request.provider]
        async with self._session.post(
            provider.base_url + _path(provider.base_url, request.endpoint),
            data=request.body,
            headers={**self._headers[request.provider], "X-Client-Request-Id": request.tag},
            timeout=aiohttp.ClientTimeout(total=None, connect=CONNECT_TIMEOUT_S),  # the whole has its own, see infer
            allow_redirects=False,
            proxy=provider.proxy,
        ) as response:
            size = _declared_size(response)
            try:
                if size is not None and size <= SMALL_ANSWER_BYTES:
                    body, room = await response.read(), None
                else:
                    body, room = await self._read(response, size, patience)
            except _TooLarge:
                response.close()  # what is still to come is not read
                limit = f"the setting max_answer_bytes allows {self._max_answer_bytes}"
                return NoAnswer("answer_too_large", f"the answer has more bytes than {limit}", _since(started))
            body = self._without_keys(request.provider, response.status, body)
            return Answer(response.status, response.headers, body, _since(started), room)

    async def _read(
        self, response: aiohttp.ClientResponse, size: int | None, patience: asyncio.Timeout
    ) -> tuple[bytes, Room | None]:
        """The body, and its room unless it turns out small. Nothing of a declared size is read before there is room."""
        if size is not None and size > self._max_answer_bytes:
            raise _TooLarge
        room = None if size is None else await self._room(size, patience)
        parts, read = [], 0
        async for part in response.content.iter_any():
            read += len(part)
            if room is None and read > SMALL_ANSWER_BYTES:  # nothing says how large it becomes
                room = await self._room(self._max_answer_bytes, patience)
            if read > self._max_answer_bytes:
                raise _TooLarge
            parts.append(part)
        if room is not None:
            room.shrink(read)
        return b"".join(parts), room

    async def _room(self, size: int, patience: asyncio.Timeout) -> Room:
        """Waiting for room is not the server's time: the request's limit moves along. The server is held by its socket."""
        ends_at = patience.when()
        asked = asyncio.get_running_loop().time()
        patience.reschedule(None)
        try:
            return await self._memory.room(size)
        finally:
            if ends_at is not None:
                patience.reschedule(ends_at + asyncio.get_running_loop().time() - asked)


class _TooLarge(Exception):
    """The answer is larger than any may be."""


def _path(base_url: str, endpoint: str) -> str:
    """Base URLs are customary with and without /v1; the endpoint always carries it."""
    return endpoint.removeprefix("/v1") if base_url.endswith("/v1") else endpoint


def _declared_size(response: aiohttp.ClientResponse) -> int | None:
    """Bytes of the body, where its headers tell; those of a compressed one tell nothing of what it becomes."""
    return None if "Content-Encoding" in response.headers else response.content_length


def _since(started: float) -> int:
    return round((time.monotonic() - started) * 1000)
