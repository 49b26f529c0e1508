"""Deliver webhooks: at most so many at once, fair over endpoints, again and again over a day.

They go only where a webhook may go: not to this machine, not into its network, and not to the
metadata service of a cloud.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import socket
import ssl
import time
from collections import Counter
from collections.abc import Collection
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, urlsplit

import aiohttp
import yarl
from aiohttp.abc import AbstractResolver, ResolveResult
from standardwebhooks import Webhook

from penstock_gateway.backend import Backend
from penstock_gateway.news import REST_S, News, rest
from penstock_ledger import DueDelivery, WebhookStore
from penstock_producer.public_hosts import is_address, is_host, is_public

__all__ = [
    "PAUSES_S",
    "UNREACHABLE",
    "URL_MAX",
    "GuardedResolver",
    "NotAllowed",
    "Sent",
    "WebhookSending",
    "check_host",
    "check_url",
    "send",
    "trusted",
]

URL_MAX: Final = 2_048
PORTS: Final = (443, 8443)  # of hosts that the operator has not named
RESOLVE_S: Final = 5.0
ADDRESSES_MAX: Final = 16  # of one host; further ones are not tried

UNREACHABLE: Final = "cannot be reached"
"""All that a caller sees of a host without an answer: in the operator's network it is not its
business whether a name, an address or a port is there. The log says more."""


class NotAllowed(OSError):
    """A webhook is not sent there. ``why`` is for the operator alone."""

    def __init__(self, told: str, why: str = "") -> None:
        super().__init__(told)
        self.why = why or told


def check_url(url: str, allowed_hosts: Collection[str]) -> SplitResult:
    """Check a URL by its looks.

    ``allowed_hosts`` are named by the operator: http, any port and any address are right for them.

    Raises NotAllowed.
    """
    if (
        len(url) > URL_MAX
        or not url.isascii()
        or not url.isprintable()
        or " " in url
        or "\\" in url
    ):
        raise NotAllowed(
            "write the URL in printable ASCII, without blanks and backslashes, in at most "
            f"{URL_MAX} characters"
        )
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise NotAllowed("this is not a URL; write https://host/path") from None
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise NotAllowed("write the URL without user, password and fragment")
    if host in allowed_hosts:
        if parts.scheme not in ("http", "https"):
            raise NotAllowed("begin the URL with https:// or http://")
        return parts
    if parts.scheme != "https":
        raise NotAllowed(
            "begin the URL with https://; http is for hosts that the setting gateway.webhook_hosts "
            "names"
        )
    if (443 if port is None else port) not in PORTS:
        raise NotAllowed(f"webhooks are sent to the ports {' and '.join(map(str, PORTS))} only")
    _check_name(host)
    return parts


async def check_host(parts: SplitResult, allowed_hosts: Collection[str]) -> None:
    """Look now where the host is, for those who register a URL. Raises NotAllowed."""
    host = parts.hostname or ""
    if host not in allowed_hosts and not is_address(host):
        await _public_addresses(host, parts.port or 443, socket.AF_UNSPEC)


class GuardedResolver(AbstractResolver):
    """Resolves a host to its addresses, all of which have to be public.

    The connection is made to one of these and no other."""

    def __init__(self, allowed_hosts: Collection[str]) -> None:
        self._allowed = allowed_hosts

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await (_addresses if host in self._allowed else _public_addresses)(
            host, port, family
        )
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=kind,
                proto=socket.IPPROTO_TCP,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for kind, address in found
        ]

    async def close(self) -> None:
        return


def _check_name(host: str) -> None:
    if is_address(host):
        if not is_public(host):
            raise NotAllowed(f"{host} is not an address of the public internet")
        return
    if not is_host(host):
        raise NotAllowed("the URL names no host; write https://host/path")


async def _public_addresses(host: str, port: int, family: int) -> list[tuple[int, str]]:
    found = await _addresses(host, port, family)
    if not all(is_public(address) for _, address in found):
        raise NotAllowed(f"{host} {UNREACHABLE}", f"{host} is in a private network")
    return found


async def _addresses(host: str, port: int, family: int) -> list[tuple[int, str]]:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(RESOLVE_S):
            answers = await loop.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM)
    except (OSError, TimeoutError, UnicodeError):
        raise NotAllowed(f"{host} {UNREACHABLE}", f"{host} has no address") from None
    found = list(dict.fromkeys((int(kind), str(address[0])) for kind, _, _, _, address in answers))
    if not found:
        raise NotAllowed(f"{host} {UNREACHABLE}", f"{host} has no address")
    return found[:ADDRESSES_MAX]


log = logging.getLogger("penstock.gateway")

# After each try that failed. Eleven tries in a day, the last after 24 hours.
PAUSES_S: Final = (5, 30, 120, 600, 1_800, 3_600, 7_200, 14_400, 28_800, 28_800)
JITTER: Final = 0.1  # of a pause, so that what failed together is not tried together
AT_ONCE: Final = 16  # deliveries that are being sent by one process
PER_ENDPOINT: Final = 2  # of those to one endpoint: one that is slow leaves room for the others
LOOK_EVERY_S: Final = 1.0  # while some are sent, here or by another process
CONNECT_S: Final = 5.0
ANSWER_S: Final = 20.0  # from the beginning of a try to the end of its answer
LEASE_S: Final = 60.0  # longer than a try
ANSWER_MAX: Final = 4 * 1024  # bytes of an answer that are read; nothing is made of them
HEADERS_MAX: Final = 8 * 1024  # of one header line
KEPT_S: Final = 30 * 86_400  # for which deliveries that are over are shown
CLEAN_EVERY_S: Final = 600.0
GONE: Final = 410


class Sent:
    """The end of one try: ``error`` is for its caller, ``why`` for the operator."""

    def __init__(self, status: int | None, error: str | None, why: str | None = None) -> None:
        self.status, self.error, self.why = status, error, why or error

    @property
    def arrived(self) -> bool:
        return self.error is None


class WebhookSending:
    """Any number of replicas may do this: each delivery is held by one of them at a time."""

    def __init__(self) -> None:
        self._owner = secrets.token_hex(8)
        self._under_way: dict[asyncio.Task[None], str] = {}
        self._clean_at = 0.0

    async def run(self, backend: Backend) -> None:
        store, news = WebhookStore(backend.database), backend.part(News)
        try:
            while True:
                coming = news.coming
                pause_s = await self._start_due(backend, store)
                await self._clean(backend, store)
                backend.round_done(self)
                if self._under_way:
                    await asyncio.wait(
                        self._under_way, timeout=LOOK_EVERY_S, return_when=asyncio.FIRST_COMPLETED
                    )
                else:
                    await rest(coming, pause_s)
        finally:
            for task in self._under_way:
                task.cancel()

    async def _start_due(self, backend: Backend, store: WebhookStore) -> float:
        """Start what is due, and return how long one may rest then without news."""
        room = AT_ONCE - len(self._under_way)
        if room <= 0:
            return LOOK_EVERY_S
        due_in_s = await backend.run(store.due_in_s)
        if due_in_s > 0.0:
            return min(due_in_s, REST_S)
        busy = [
            name
            for name, number in Counter(self._under_way.values()).items()
            if number >= PER_ENDPOINT
        ]
        due = await backend.run(
            store.claim, self._owner, LEASE_S, most=room, per_endpoint=PER_ENDPOINT, without=busy
        )
        for delivery in due:
            task = asyncio.create_task(self._deliver(backend, store, delivery))
            self._under_way[task] = delivery.endpoint_id
            task.add_done_callback(self._done)
        return LOOK_EVERY_S

    def _done(self, task: asyncio.Task[None]) -> None:
        self._under_way.pop(task)
        # its lease ends, and it is tried again
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("the end of a webhook's try could not be written: %s", error)

    async def _deliver(self, backend: Backend, store: WebhookStore, delivery: DueDelivery) -> None:
        door = backend.settings.gateway
        sent = await send(delivery, door.webhook_hosts, trusted(door.webhook_ca_file))
        event, endpoint = delivery.event_id, delivery.endpoint_id
        if sent.error is None:
            backend.metrics.tasks.webhook_tries.labels("delivered").inc()
            await backend.run(store.delivered, event, endpoint, self._owner)
            return
        log.info(
            "webhook %s to %s: try %d failed: %s", event, endpoint, delivery.tries + 1, sent.why
        )
        pause_s = None if sent.status == GONE else pause_after(delivery.tries)
        outcome = "gave_up" if pause_s is None else "failed"
        backend.metrics.tasks.webhook_tries.labels(outcome).inc()
        disabled = await backend.run(
            store.failed, event, endpoint, self._owner, sent.error, pause_s
        )
        if disabled:
            log.warning("webhook %s is disabled: nothing has arrived there for days", endpoint)
        elif sent.status == GONE:
            await backend.run(store.disable, endpoint, "it answered 410 Gone")

    async def _clean(self, backend: Backend, store: WebhookStore) -> None:
        now = time.monotonic()
        if now < self._clean_at:
            return
        self._clean_at = now + CLEAN_EVERY_S
        while await backend.run(store.forget_before, time.time() - KEPT_S):
            pass


def pause_after(tries_before: int) -> float | None:
    """Return the seconds until the next try; None after the last."""
    if tries_before >= len(PAUSES_S):
        return None
    return PAUSES_S[tries_before] * random.uniform(1 - JITTER, 1 + JITTER)


@cache
def trusted(ca_file: Path | None) -> ssl.SSLContext:
    """Return whose certificates receivers may have: the system's authorities, and the file's.

    Raises OSError.
    """
    context = ssl.create_default_context()
    if ca_file is not None:
        context.load_verify_locations(ca_file)
    return context


async def send(
    delivery: DueDelivery, allowed_hosts: Collection[str], trust: ssl.SSLContext
) -> Sent:
    """Try once to deliver. Never raises for what the other side does."""
    try:
        url = _as_connected(delivery.url, allowed_hosts)
        async with asyncio.timeout(ANSWER_S):
            status = await _post(url, delivery, allowed_hosts, trust)
    except NotAllowed as error:
        return Sent(None, f"not sent: {error}", error.why)
    except TimeoutError:
        return Sent(None, UNREACHABLE, f"no answer within {ANSWER_S:g} s")
    except (aiohttp.ClientError, OSError, ValueError) as error:
        refused = error.__cause__ or error
        if isinstance(refused, NotAllowed):
            return Sent(None, UNREACHABLE, refused.why)
        if isinstance(error, aiohttp.ClientSSLError) and error.host not in allowed_hosts:
            return Sent(None, f"{UNREACHABLE}: its certificate is not accepted", str(error))
        return Sent(None, UNREACHABLE, f"{type(error).__name__}: {error}")
    if 200 <= status < 300:
        return Sent(status, None)
    if 300 <= status < 400:
        return Sent(
            status,
            f"it answered {status}; redirects are not followed: register the URL where it leads",
        )
    return Sent(status, f"it answered {status}")


def _as_connected(text: str, allowed_hosts: Collection[str]) -> yarl.URL:
    """Check a URL as the library that connects reads it.

    Raises NotAllowed where the two readings differ."""
    parts = check_url(text, allowed_hosts)
    url = yarl.URL(text)
    if (url.scheme, url.host) != (parts.scheme, parts.hostname):
        raise NotAllowed("the URL can be read in two ways")
    return url


async def _post(
    url: yarl.URL, delivery: DueDelivery, allowed_hosts: Collection[str], trust: ssl.SSLContext
) -> int:
    """Post over a connection of its own, so that the address is looked up and checked each time."""
    connector = aiohttp.TCPConnector(
        resolver=GuardedResolver(allowed_hosts),
        use_dns_cache=False,
        force_close=True,
        limit=1,
        ssl=trust,
    )
    patience = aiohttp.ClientTimeout(total=ANSWER_S, sock_connect=CONNECT_S)
    async with (
        aiohttp.ClientSession(
            connector=connector,
            timeout=patience,
            trust_env=False,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            max_line_size=HEADERS_MAX,
            max_field_size=HEADERS_MAX,
            read_bufsize=ANSWER_MAX,
        ) as session,
        session.post(
            url, data=delivery.payload.encode(), headers=signed(delivery), allow_redirects=False
        ) as answer,
    ):
        await answer.content.read(ANSWER_MAX)
        return answer.status


def signed(delivery: DueDelivery) -> dict[str, str]:
    """Return the headers of Standard Webhooks; the time is that of this try."""
    now = datetime.now(UTC)
    signatures = [
        Webhook(secret).sign(delivery.event_id, now, delivery.payload)
        for secret in delivery.secrets
    ]
    return {
        "webhook-id": delivery.event_id,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": " ".join(signatures),
        "content-type": "application/json",
        "user-agent": "penstock-webhooks/1",
        "accept-encoding": "identity",
    }
