"""The `api` lane: real-time calls to an OpenAI-compatible server through aiohttp, bodies passed through untouched.

No SDK and no retry in here: every send is one `infer`, so the quota sees each of them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import aiohttp

from penstock_ledger.redaction import redact_bytes
from penstock_workers.answer import Answer, NoAnswer, Tried
from penstock_workers.lanes.base import Prepared, Request
from penstock_workers.settings import ProviderSettings

CONNECT_TIMEOUT_S = 10.0  # a server that does not even accept in this time is down, whatever the item's own deadline
MAX_ANSWER_BYTES = 32 * 1024 * 1024  # an answer above this is no answer; keeps a mad server from eating the worker
KEEPALIVE_S = 30.0


class ApiLane:
    """One connection pool per worker process. Its size is bounded by the runner's slots, not by the pool."""

    def __init__(self, providers: Mapping[str, ProviderSettings]) -> None:
        self._providers = providers
        self._headers: dict[str, dict[str, str]] = {}
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        for name, provider in self._providers.items():
            key = provider.api_key(name)
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
            return await self._post(request, started)
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

    async def _post(self, request: Request, started: float) -> Tried:
        assert self._session is not None, "start() comes first"
        provider = self._providers[request.provider]
        async with self._session.post(
            provider.base_url + _path(provider.base_url, request.endpoint),
            data=request.body,
            headers={**self._headers[request.provider], "X-Client-Request-Id": request.tag},
            timeout=aiohttp.ClientTimeout(total=request.timeout_s, connect=CONNECT_TIMEOUT_S),
            allow_redirects=False,
        ) as response:
            body = await _bounded_body(response)
            if body is None:
                detail = f"the answer is larger than {MAX_ANSWER_BYTES} bytes"
                return NoAnswer("answer_too_large", detail, _since(started))
            # An answer is kept as it is, but for our own key; a refusal is only words, which lose every key in them.
            body = redact_bytes(body, shapes=response.status != 200)
            return Answer(response.status, response.headers, body, _since(started))


def _path(base_url: str, endpoint: str) -> str:
    """Base URLs are customary with and without /v1; the endpoint always carries it."""
    return endpoint.removeprefix("/v1") if base_url.endswith("/v1") else endpoint


async def _bounded_body(response: aiohttp.ClientResponse) -> bytes | None:
    length = response.content_length
    if length is not None and length <= MAX_ANSWER_BYTES and "Content-Encoding" not in response.headers:
        return await response.read()
    parts, size = [], 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > MAX_ANSWER_BYTES:
            return None
        parts.append(part)
    return b"".join(parts)


def _since(started: float) -> int:
    return round((time.monotonic() - started) * 1000)
