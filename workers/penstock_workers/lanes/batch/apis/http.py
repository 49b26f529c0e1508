"""Calls to a provider's batch API: small ones whole, uploads and downloads streamed.

Redirects are never followed. It is not the api lane's client: that one holds each body in memory.
Nothing is tried again in here but the download of an output (output_lines.py); a call ends in an
answer or in one error of ``provider.py``, without the key. The error says who has to act, and
whether the call may have worked.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

import aiohttp
import orjson
from yarl import URL

from penstock_ledger.redaction import redact
from penstock_ratelimit import Refusal, Signal, classify
from penstock_workers.clouds import GoogleTokens, Signer
from penstock_workers.errors import NoCredentials
from penstock_workers.item.failures import ASTRAY
from penstock_workers.item.outcome import Parked
from penstock_workers.item.run.fates import FATES
from penstock_workers.lanes.batch.apis.provider import (
    TOKEN_CAP_CODES,
    AccountStopped,
    Astray,
    BatchError,
    BatchGone,
    BatchRefused,
    TokenCapReached,
    TryLater,
    Unclear,
)
from penstock_workers.lanes.batch.apis.reading import identifier, rows
from penstock_workers.provider_calls import address

NO_SUCH_ROUTE = (404, 405, 501)
REDIRECTED = "a redirect: base_url must be the final address, because keys are sent nowhere else"
FOREIGN = (
    "an HTML page: a proxy, a firewall or a login answers in the provider's place; correct "
    "base_url or proxy"
)
MAX_CODE_CHARS = 100
_CAP_IN_WORDS = re.compile(r"enqueued.{0,3}tokens", re.IGNORECASE)  # Gemini has no code for it
_OF_S3 = re.compile(rb"<Error>.*?<Code>(\w{1,100})</Code>.*?<Message>([^<]{0,500})", re.DOTALL)
_HIDES = "or it may not exist"  # Google's 403 for a file that is gone


class Heard(NamedTuple):
    """A whole answer of a small call."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def good(self) -> bool:
        return 200 <= self.status < 300

    def error(self) -> Mapping[str, object]:
        """Return the error in it; empty where it describes none."""
        try:
            parsed = orjson.loads(self.body)
        except orjson.JSONDecodeError:
            return {}
        parsed = parsed[0] if isinstance(parsed, list) and parsed else parsed
        error = parsed.get("error") if isinstance(parsed, dict) else None
        named = self.headers.get("x-amzn-ErrorType")
        if named and isinstance(parsed, dict):  # Amazon's: the name in a header
            return {"message": parsed.get("message"), "code": named.partition(":")[0]}
        return error if isinstance(error, dict) else {}

    def in_json(self) -> Heard:
        """Return a refusal of S3, which is XML, in the form that others have."""
        found = _OF_S3.search(self.body)
        if found is None:
            return self
        code, message = (part.decode("utf-8", "replace") for part in found.groups())
        return self._replace(body=orjson.dumps({"error": {"code": code, "message": message}}))


def judge(heard: Heard, provider: str, *, once: bool, one: bool) -> BatchError:
    """Return the error for an answer that is no 2xx.

    `once`: the call must not be made again where it may have worked. `one`: it was about one batch
    or file, which a 404 says to be gone.
    """
    heard = heard.in_json()
    refusal = classify(heard.status, heard.headers, heard.body, time.time())
    assert refusal is not None, "a 2xx is no refusal"
    words = f"provider {provider}: {redact(refusal.detail, cut=True)}"
    error = _error(heard, refusal, words, provider, once=once, one=one)
    return error.named(refusal.name, heard.status)


def _error(
    heard: Heard, refusal: Refusal, words: str, provider: str, *, once: bool, one: bool
) -> BatchError:
    error = heard.error()
    if 300 <= heard.status < 400:
        return Astray(f"provider {provider}: HTTP {heard.status}, {REDIRECTED}")
    if _codes(error) & TOKEN_CAP_CODES or (
        heard.status == 429 and _CAP_IN_WORDS.search(refusal.detail)
    ):
        return TokenCapReached(words)
    if FATES[refusal.name].outcome is Parked:
        return AccountStopped(f"{words}; {FATES[refusal.name].fix}")
    if refusal.signal in (Signal.THROTTLED, Signal.RAMP):
        return TryLater(refusal.retry_after_s, words)
    # not "it has ended already"
    is_conflict = heard.status in (408, 409, 425) and not (one and error and not once)
    if heard.status >= 500 or is_conflict:
        # in its own words: nothing was done
        turned_away = refusal.signal is Signal.OVERLOADED and bool(error)
        return (
            Unclear(words) if once and not turned_away else TryLater(refusal.retry_after_s, words)
        )
    if refusal.page:
        return Astray(f"provider {provider}: HTTP {heard.status} with {FOREIGN}")
    code = _code(error) or refusal.name
    if (heard.status == 403 and one and _HIDES in refusal.detail) or (heard.status == 404 and one):
        return BatchGone(heard.status, code, words)
    if heard.status in NO_SUCH_ROUTE:
        return Astray(
            f"{words}; there is no such batch API at this address: check base_url and kind"
        )
    return Astray(words) if refusal.name in ASTRAY else BatchRefused(heard.status, code, words)


def _codes(error: Mapping[str, object]) -> set[str]:
    return {code for name in ("code", "type", "status") if isinstance(code := error.get(name), str)}


def _code(error: Mapping[str, object]) -> str:
    named = (error.get(name) for name in ("code", "type", "status"))
    return next(
        (redact(code)[:MAX_CODE_CHARS] for code in named if isinstance(code, str) and code), ""
    )


MAX_ANSWER_BYTES = 16 * 1024 * 1024  # of a small call: a page of a list of batches has some 100 KB

_NOT_SENT = (
    aiohttp.ClientConnectorError,
    aiohttp.ConnectionTimeoutError,
    aiohttp.ClientHttpProxyError,
)


class Times(NamedTuple):
    """The times that calls may take. Tests have shorter ones."""

    connect_s: float = 10.0
    call_s: float = 60.0
    stall_s: float = 60.0  # of a stream without a byte
    slowest_bytes_per_s: float = 50_000.0  # an upload that is slower counts as stuck
    # before a broken download goes on; doubled with each break that brought nothing
    pause_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Account:
    """The place of a provider, and how it is asked."""

    name: str
    base_url: str
    headers: Mapping[str, str] = field(repr=False)  # of each call: its key, for one
    proxy: str | None = None
    # makes what signs each call; may ask the network, and raise NoCredentials. None: a key is sent
    make_signer: Callable[[], Signer | GoogleTokens] | None = field(default=None, repr=False)

    def is_own(self, url: str) -> bool:
        """Return whether an address in an answer is the provider's own.

        The key is sent to no other one."""
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
        self._signer: Signer | GoogleTokens | None = None

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
        """Make a small call and return the JSON object that answers it.

        `once` and `one` as in `heard`."""
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
        """Make a call and return its 2xx answer.

        `size`: bytes of a body that is streamed. `once`: an answer that was lost is Unclear. `one`:
        a 404 says that the batch or file of this path is gone."""
        limit_s = self.times.call_s + size / self.times.slowest_bytes_per_s
        try:
            url = self._url(path, query)
            signed = await self._signed(method, url, data)
            async with (
                asyncio.timeout(limit_s),
                self._request(method, url, data, {**(headers or {}), **signed}) as response,
            ):
                heard = Heard(response.status, response.headers, await _read(response))
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise self.lost(error, once=once) from None
        if not heard.good:
            raise judge(heard, self.account.name, once=once, one=one)
        return heard

    def object_of(self, heard: Heard, *, once: bool, rows: str | None = None) -> dict[str, Any]:
        """Return the JSON object of an answer.

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
        """Return the error of an answer that succeeds and cannot be used."""
        words = f"provider {self.account.name}: {why}"
        return (Unclear(words) if once else TryLater(None, words)).named("invalid_answer")

    @contextlib.asynccontextmanager
    async def stream(
        self, path: str, query: Mapping[str, str], offset: int
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Give an answer whose body is not read yet, from `offset` on where possible (206).

        Errors are aiohttp's own."""
        headers = {"Accept-Encoding": "identity"} | (
            {"Range": f"bytes={offset}-"} if offset else {}
        )
        url = self._url(path, query)
        signed = await self._signed("GET", url, None)
        async with self._request("GET", url, None, {**headers, **signed}) as response:
            yield response

    async def refusal(self, response: aiohttp.ClientResponse) -> BatchError:
        """Return what a stream means that is no success."""
        heard = Heard(response.status, response.headers, await _read(response))
        return judge(heard, self.account.name, once=False, one=True)

    def lost(self, error: Exception, *, once: bool) -> BatchError:
        """Return the error for a call without a whole answer."""
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

    def _url(self, path: str | URL, query: Mapping[str, str] | None) -> URL:
        url = (
            URL(address(self.account.base_url, path), encoded=True)
            if isinstance(path, str)
            else path
        )
        if query and self.account.make_signer is not None:  # as it is signed, byte for byte
            return URL(f"{url}?{urlencode(query, quote_via=quote, safe='')}", encoded=True)
        return url.update_query(query) if query else url

    async def _signed(self, method: str, url: URL, data: Any) -> Mapping[str, str]:
        """Return the headers that sign a call. Raises AccountStopped without credentials."""
        if self.account.make_signer is None:
            return {}
        try:
            if self._signer is None:
                self._signer = await asyncio.to_thread(self.account.make_signer)
            body = data if isinstance(data, bytes) else b""
            return await self._signer.headers(method, str(url), body)
        except NoCredentials as error:
            raise AccountStopped(f"provider {self.account.name}: {error}") from None

    def _request(
        self, method: str, url: URL, data: Any, headers: Mapping[str, str]
    ) -> contextlib.AbstractAsyncContextManager[aiohttp.ClientResponse]:
        return self._session().request(
            method,
            url,
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
    """Return the body; raise ValueError for more than a small call may answer."""
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


MAX_PAGES: Final = 200  # 20,000 batches in pages of 100
MAX_PAGE_ROWS: Final = 1_000


class Listing(NamedTuple):
    """The way to ask for a provider's lists and to turn them over."""

    rows: str  # the field of an answer with its rows
    place: str  # the parameter that says where the next page begins
    next_page: (
        str | None
        # the field of an answer with that place; None: the id of its last row, where `has_more` is
        # true
    )
    full_page: int | None = None  # pages have numbers, from 0: rows of one that another one follows


Page = list[Mapping[str, Any]]


async def pages(
    http: BatchHttp, listing: Listing, path: str, query: Mapping[str, str]
) -> AsyncGenerator[Page, None]:
    """Yield the pages of a list; raise AccountStopped where it has no end that can be reached."""
    seen: set[str] = set()
    place: dict[str, str] = {}
    for number in range(MAX_PAGES):
        heard = await http.heard("GET", path, query={**query, **place})
        answer = http.object_of(heard, once=False, rows=listing.rows)
        if not isinstance(answer.get(listing.rows, []), list):
            raise http.unusable(f"the list {path} has no {listing.rows}", once=False)
        page = rows(answer.get(listing.rows), MAX_PAGE_ROWS)
        yield page
        next_place = _next(listing, answer, page, number)
        if next_place is None:
            return
        if next_place in seen:
            break
        seen.add(next_place)
        place = {listing.place: next_place}
    raise AccountStopped(
        f"provider {http.account.name}: the list {path} has more than {MAX_PAGES} pages, or begins "
        "again and again, so that it does not show what is there; take old entries from the "
        "account"
    )


def _next(listing: Listing, answer: Mapping[str, Any], page: Page, number: int) -> str | None:
    if listing.full_page is not None:
        return str(number + 1) if len(page) >= listing.full_page else None
    if listing.next_page is not None:
        return identifier(answer.get(listing.next_page))
    return identifier(page[-1].get("id")) if page and answer.get("has_more") is True else None
