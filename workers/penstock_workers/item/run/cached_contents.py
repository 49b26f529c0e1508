"""The explicit caches of Gemini as its API has them: made, found, renewed and deleted.

A cache has a name of its own, and a title by which it is found again. Of a cache that is gone the
API says that it is forbidden.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from hashlib import sha256
from typing import Any, Final, NamedTuple, Self

import msgspec

from penstock_ledger.redaction import redact
from penstock_workers.http import HttpAnswer, HttpError, Limits, Target
from penstock_workers.provider_calls import address, headers_of
from penstock_workers.settings import ProviderSettings

__all__ = ["CachedContents", "CallFailed", "KeptContent"]

PATH: Final = "/v1beta/cachedContents"
CALL_S: Final = 12.0
"""A cache is made in two calls, and both end before others believe their maker dead."""
PAGE: Final = 1_000
PAGES_MAX: Final = 20
"""More caches than any account is known to have; one that lies behind them is made twice."""
ANSWER_BYTES: Final = 4 * 1024 * 1024  # a page of a thousand caches has some 300 KB
_NAME: Final = re.compile(r"cachedContents/[A-Za-z0-9_-]{1,128}")


class CallFailed(Exception):
    """A call that came to nothing. ``status`` is None where there was no answer."""

    def __init__(self, told: str, status: int | None = None) -> None:
        super().__init__(redact(told, cut=True))
        self.status = status

    @property
    def is_final(self) -> bool:
        """Return whether the same call would be refused again."""
        return self.status is not None and 400 <= self.status < 500 and self.status != 429

    @property
    def is_gone(self) -> bool:
        return self.status in (403, 404)


class KeptContent(NamedTuple):
    """One cache."""

    name: str
    tokens: int
    expires: float  # Unix seconds, by the provider's clock

    @classmethod
    def of(cls, shown: Mapping[str, Any]) -> Self:
        """Read it from an answer. Raises CallFailed."""
        try:
            name, tokens = shown["name"], shown["usageMetadata"]["totalTokenCount"]
            expires = datetime.fromisoformat(shown["expireTime"]).timestamp()
        except (KeyError, TypeError, ValueError) as error:
            raise CallFailed(f"an answer that says no cache: {error!r}") from error
        if not isinstance(tokens, int) or _NAME.fullmatch(str(name)) is None:
            raise CallFailed(f"an answer that says no cache: {name!r}, {tokens!r}")
        return cls(name, max(0, tokens), expires)

    def to_text(self) -> str:
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_text(cls, text: str) -> Self | None:
        """Return what ``to_text`` wrote; None for nothing."""
        return msgspec.json.decode(text, type=cls) if text else None


class CachedContents:
    """The calls of one worker. Belongs to its event loop. All raise CallFailed."""

    def __init__(self, providers: Mapping[str, ProviderSettings]) -> None:
        self._providers = providers
        self._client: Any = None

    def account(self, provider: str) -> str:
        """Return a name for the account that is asked: others do not see its caches."""
        known = self._providers[provider]
        told = f"{known.base_url}\n{known.api_key(provider) or ''}"
        return sha256(told.encode()).hexdigest()[:8]

    async def find(self, provider: str, title: str) -> KeptContent | None:
        """Return the cache with this title, of several the one that is kept longest."""
        found, token = list[KeptContent](), ""
        for _ in range(PAGES_MAX):
            query = f"?pageSize={PAGE}" + (f"&pageToken={token}" if token else "")
            page = await self._call(provider, "GET", PATH + query)
            rows = page.get("cachedContents", [])
            found += [KeptContent.of(row) for row in rows if row.get("displayName") == title]
            token = page.get("nextPageToken", "")
            if not token:
                break
        return max(found, key=lambda one: one.expires, default=None)

    async def make(
        self, provider: str, model: str, title: str, held: bytes, lifetime_s: float
    ) -> KeptContent:
        """Make a cache of ``held``, the fields of a request that it begins with."""
        fields = msgspec.json.decode(held, type=dict[str, msgspec.Raw])
        named = model if model.startswith("models/") else f"models/{model}"
        asked = {"model": named, "displayName": title, "ttl": _ttl(lifetime_s)}
        body = msgspec.json.encode(asked | fields)
        return KeptContent.of(await self._call(provider, "POST", PATH, body))

    async def renew(self, provider: str, name: str, lifetime_s: float) -> KeptContent:
        """Keep a cache for so long from now on."""
        body = msgspec.json.encode({"ttl": _ttl(lifetime_s)})
        path = f"/v1beta/{name}?updateMask=ttl"
        return KeptContent.of(await self._call(provider, "PATCH", path, body))

    async def delete(self, provider: str, name: str) -> None:
        await self._call(provider, "DELETE", f"/v1beta/{name}")

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def _call(
        self, name: str, method: str, path: str, body: bytes | None = None
    ) -> dict[str, Any]:
        from penstock_workers.http.with_aiohttp import AiohttpClient

        provider = self._providers[name]
        if self._client is None:
            self._client = AiohttpClient(Limits(max_body_bytes=ANSWER_BYTES))
        headers = headers_of(provider.kind, provider.api_key(name))
        if body is not None:
            headers = {**headers, "Content-Type": "application/json"}
        try:
            where = Target.of(address(provider.base_url, path), headers, proxy=provider.proxy)
            answer: HttpAnswer = await self._client.call(method, where, body, timeout_s=CALL_S)
        except HttpError as error:
            raise CallFailed(str(error)) from error
        if answer.status != 200:
            told = answer.body.decode("utf-8", "replace")
            raise CallFailed(f"HTTP {answer.status}: {told}", answer.status)
        try:
            return msgspec.json.decode(answer.body or b"{}", type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CallFailed(f"an answer without a JSON object: {error}") from error


def _ttl(seconds: float) -> str:
    return f"{round(seconds)}s"
