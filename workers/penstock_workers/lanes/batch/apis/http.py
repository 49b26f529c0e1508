"""Calls to a provider's batch API: small ones whole, uploads and downloads streamed.

Redirects are never followed.

Not the api lane's client: that one holds each body in memory. Nothing is tried again in here but
the download of an output (output_lines.py); a call ends in an answer or in one error of
``provider.py``, without the key.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import aiohttp
import orjson
from yarl import URL

from penstock_ledger.redaction import redact
from penstock_workers.lanes.batch.apis.refused import Heard, judge
from penstock_workers.lanes.batch.provider import AccountStopped, BatchError, TryLater, Unclear
from penstock_workers.provider_calls import address

MAX_ANSWER_BYTES = 16 * 1024 * 1024  # of a small call: a page of a list of batches has some 100 KB

_NOT_SENT = (
    aiohttp.ClientConnectorError,
    aiohttp.ConnectionTimeoutError,
    aiohttp.ClientHttpProxyError,
)


class Times(NamedTuple):
    """How long what may take. Tests have shorter ones."""

    connect_s: float = 10.0
    call_s: float = 60.0
    stall_s: float = 60.0  # of a stream without a byte
    slowest_bytes_per_s: float = 50_000.0  # an upload that is slower counts as stuck
    pause_s: float = (
        1.0  # before a broken download goes on; doubled with each break that brought nothing
    )


@dataclass(frozen=True, slots=True)
class Account:
    """Where a provider is, and how it is asked."""

    name: str
    base_url: str
    headers: Mapping[str, str] = field(repr=False)  # of each call: its key, for one
    proxy: str | None = None

    def is_own(self, url: str) -> bool:
        """Whether an address in an answer is the provider's own: the key is sent to no other
        one."""
        try:
            one, other = urlsplit(url), urlsplit(self.base_url)
            return (one.scheme, one.hostname, one.port) == (
                other.scheme,
                other.hostname,
                other.port,
            )
        except ValueError:
            return False


class BatchHttp:
    """The calls of one account.

    Made without a running loop; its session is opened at the first call."""

    def __init__(self, account: Account, times: Times | None = None) -> None:
        self.account, self.times = account, times or Times()
        self._opened: aiohttp.ClientSession | None = None

    async def call(
        self,
        method: str,
        path: str | URL,
        *,
        query: Mapping[str, str] | None = None,
        payload: Mapping[str, Any] | None = None,
        once: bool = False,
        one: bool = False,
    ) -> dict[str, Any]:
        """A small call, and the JSON object that answers it. `once` and `one` as in `heard`."""
        sent = None if payload is None else orjson.dumps(payload)
        headers = {} if sent is None else {"Content-Type": "application/json"}
        heard = await self.heard(
            method, path, query=query, data=sent, headers=headers, once=once, one=one
        )
        return self.object_of(heard, once=once)

    async def heard(
        self,
        method: str,
        path: str | URL,
        *,
        query: Mapping[str, str] | None = None,
        data: Any = None,
        size: int = 0,
        headers: Mapping[str, str] | None = None,
        once: bool = False,
        one: bool = False,
    ) -> Heard:
        """A 2xx answer.

        `size`: bytes of a body that is streamed. `once`: an answer that was lost is Unclear. `one`:
        a 404 says that the batch or file of this path is gone.
        """
        limit_s = self.times.call_s + size / self.times.slowest_bytes_per_s
        try:
            async with (
                asyncio.timeout(limit_s),
                self._request(method, path, query, data, headers or {}) as response,
            ):
                heard = Heard(response.status, response.headers, await _read(response))
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise self.lost(error, once=once) from None
        if not heard.good:
            raise judge(heard, self.account.name, once=once, one=one)
        return heard

    def object_of(self, heard: Heard, *, once: bool, rows: str | None = None) -> dict[str, Any]:
        """The JSON object of an answer.

        `rows`: what a list without a frame (Together's) is called in it."""
        try:
            parsed = orjson.loads(heard.body) if heard.body else {}
        except orjson.JSONDecodeError:
            parsed = None
        if isinstance(parsed, dict):
            return parsed
        if rows is not None and isinstance(parsed, list):
            return {rows: parsed}
        raise self.unusable(f"HTTP {heard.status} with a body that is not a JSON object", once=once)

    def unusable(self, why: str, *, once: bool) -> BatchError:
        """For an answer that succeeds and cannot be used."""
        words = f"provider {self.account.name}: {why}"
        return (Unclear(words) if once else TryLater(None, words)).named("invalid_answer")

    @contextlib.asynccontextmanager
    async def stream(
        self, path: str, query: Mapping[str, str], offset: int
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answer whose body is not read yet, from `offset` on where the server can (206).

        Errors are aiohttp's own."""
        headers = {"Accept-Encoding": "identity"} | (
            {"Range": f"bytes={offset}-"} if offset else {}
        )
        async with self._request("GET", path, query, None, headers) as response:
            yield response

    async def refusal(self, response: aiohttp.ClientResponse) -> BatchError:
        """What a stream means that is no success."""
        heard = Heard(response.status, response.headers, await _read(response))
        return judge(heard, self.account.name, once=False, one=True)

    def lost(self, error: Exception, *, once: bool) -> BatchError:
        """A call without a whole answer."""
        words = redact(f"provider {self.account.name}: {_in_words(error)}")
        if isinstance(error, aiohttp.InvalidURL):
            return AccountStopped(f"{words}; correct base_url")
        if isinstance(error, _NOT_SENT):
            return TryLater(None, words).named("connect_failed")
        name = "timeout" if isinstance(error, TimeoutError) else "connection_lost"
        return (Unclear(words) if once else TryLater(None, words)).named(name)

    async def close(self) -> None:
        if self._opened is not None:
            await self._opened.close()

    def _request(
        self,
        method: str,
        path: str | URL,
        query: Mapping[str, str] | None,
        data: Any,
        headers: Mapping[str, str],
    ) -> contextlib.AbstractAsyncContextManager[aiohttp.ClientResponse]:
        url = (
            URL(address(self.account.base_url, path), encoded=True)
            if isinstance(path, str)
            else path
        )
        return self._session().request(
            method,
            url.update_query(query) if query else url,
            data=data,
            headers={**self.account.headers, **headers},
            allow_redirects=False,
            proxy=self.account.proxy,
        )

    def _session(self) -> aiohttp.ClientSession:
        if self._opened is None:
            self._opened = aiohttp.ClientSession(
                trust_env=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=self.times.connect_s, sock_read=self.times.stall_s
                ),
            )
        return self._opened


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """Raises ValueError for more than a small call may answer."""
    parts, read = [], 0
    async for part in response.content.iter_any():
        read += len(part)
        if read > MAX_ANSWER_BYTES:
            raise ValueError(f"an answer of more than {MAX_ANSWER_BYTES} bytes")
        parts.append(part)
    return b"".join(parts)


def _in_words(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no whole answer in time"
    return f"{type(error).__name__}: {error}"
