"""Gemini's `cachedContents` over HTTP: create, list, get, renew and delete.

A cache is paid for as input when it is made, and for the time that it was asked for.
"""

from __future__ import annotations

import re
import time
from typing import Any

import orjson
from aiohttp import web

from penstock_simulate.answers import cached_contents, refusals
from penstock_simulate.answers.cached_contents import USUAL_S, KeptContent
from penstock_simulate.answers.refusals import Refusal
from penstock_simulate.batches.batch import Refused
from penstock_simulate.batches.gemini_files import key_of, page, timestamp
from penstock_simulate.provider import Provider
from penstock_simulate.reply import Usage

PATH = "/v1beta/cachedContents"
PAGE, MAX_PAGE = 50, 1000
_SECONDS = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)s")
JSON = {"Content-Type": "application/json"}


def cached_content_routes(provider: Provider) -> list[web.RouteDef]:
    """Return the routes of one account's caches."""

    def called(request: web.Request, *, spends: bool = False) -> float:
        """Return the time; raise Refused for a call that is turned away."""
        if (refusal := provider.turned_away(key_of(request), spends=spends)) is not None:
            raise Refused(refusal)
        now = time.monotonic()
        provider.contents.expire(now)
        return now

    def found(request: web.Request) -> KeptContent:
        name = f"cachedContents/{request.match_info['name']}"
        kept = provider.contents.kept.get(name)
        if kept is None:
            refusal = cached_contents.refusal_of({}, None, "")
            assert refusal is not None, "none is there"
            raise Refused(refusal)
        return kept

    async def create(request: web.Request) -> dict[str, Any]:
        now, body = called(request, spends=True), await _body(request)
        lifetime_s = _lifetime_s(body)
        made = provider.contents.make(body, lifetime_s, now)
        if isinstance(made, Refusal):
            raise Refused(made)
        provider.pay(Usage(made.tokens, 0), 1.0)
        provider.pay_rent(made, lifetime_s)
        return _shown(made, now)

    async def listed(request: web.Request) -> dict[str, Any]:
        now, kept = called(request), provider.contents.kept
        names, more = page([*kept], request, PAGE, MAX_PAGE)
        shown = {"cachedContents": [_shown(kept[name], now) for name in names]} if names else {}
        return shown | ({"nextPageToken": more} if more else {})

    async def get(request: web.Request) -> dict[str, Any]:
        now = called(request)
        return _shown(found(request), now)

    async def renew(request: web.Request) -> dict[str, Any]:
        now, kept, body = called(request), found(request), await _body(request)
        until = now + _lifetime_s(body)
        provider.pay_rent(kept, max(0.0, until - kept.expires_at))
        kept.expires_at = until
        return _shown(kept, now)

    async def remove(request: web.Request) -> dict[str, Any]:
        called(request)
        del provider.contents.kept[found(request).name]
        return {}

    def answering(answer: Any) -> Any:
        async def handle(request: web.Request) -> web.Response:
            try:
                return web.Response(body=orjson.dumps(await answer(request)), headers=JSON)
            except Refused as refused:
                status, body = refusals.gemini(refused.refusal, "")
                return web.Response(status=status, body=body, headers=JSON)

        return handle

    one = PATH + "/{name}"
    return [
        web.post(PATH, answering(create)),
        web.get(PATH, answering(listed)),
        web.get(one, answering(get)),
        web.patch(one, answering(renew)),
        web.delete(one, answering(remove)),
    ]


async def _body(request: web.Request) -> dict[str, Any]:
    try:
        body = orjson.loads(await request.read())
    except orjson.JSONDecodeError as error:
        raise Refused(refusals.invalid(f"Invalid JSON payload received: {error}")) from error
    if not isinstance(body, dict):
        raise Refused(refusals.invalid("Invalid JSON payload received: no object"))
    return body


def _lifetime_s(body: dict[str, Any]) -> float:
    given = body.get("ttl")
    if given is None:
        return USUAL_S
    matched = _SECONDS.fullmatch(given) if isinstance(given, str) else None
    if matched is None:
        raise Refused(refusals.invalid(f"Invalid value at 'cached_content.ttl': {given!r}", "ttl"))
    return float(matched[1])


def _shown(kept: KeptContent, now: float) -> dict[str, Any]:
    """Return a cache as it is shown: never what it holds."""
    since = time.time() - now
    return {
        "name": kept.name,
        "model": kept.model,
        "displayName": kept.display_name,
        "createTime": timestamp(kept.made_at + since),
        "updateTime": timestamp(kept.made_at + since),
        "expireTime": timestamp(kept.expires_at + since),
        "usageMetadata": {"totalTokenCount": kept.tokens},
    }
