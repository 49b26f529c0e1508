"""Deliveries go out: at most so many at once, fair over endpoints, again and again over a day until
they arrive."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import ssl
import time
from collections import Counter
from collections.abc import Collection
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Final

import aiohttp
import yarl
from standardwebhooks import Webhook

from penstock_gateway.backend import Backend
from penstock_gateway.webhooks.guard import UNREACHABLE, GuardedResolver, NotAllowed, check_url
from penstock_ledger import DueDelivery, WebhookStore

__all__ = ["PAUSES_S", "Sent", "WebhookSending", "send", "trusted"]

log = logging.getLogger("penstock.gateway")

# After each try that failed. Eleven tries in a day, the last after 24 hours.
PAUSES_S: Final = (5, 30, 120, 600, 1_800, 3_600, 7_200, 14_400, 28_800, 28_800)
JITTER: Final = 0.1  # of a pause, so that what failed together is not tried together
AT_ONCE: Final = 16  # deliveries that are being sent by one process
PER_ENDPOINT: Final = 2  # of those to one endpoint: one that is slow leaves room for the others
LOOK_EVERY_S: Final = 1.0
CONNECT_S: Final = 5.0
ANSWER_S: Final = 20.0  # from the beginning of a try to the end of its answer
LEASE_S: Final = 60.0  # longer than a try
ANSWER_MAX: Final = 4 * 1024  # bytes of an answer that are read; nothing is made of them
HEADERS_MAX: Final = 8 * 1024  # of one header line
KEPT_S: Final = 30 * 86_400  # for which deliveries that are over are shown
CLEAN_EVERY_S: Final = 600.0
GONE: Final = 410


class Sent:
    """How one try ended: ``error`` is for its caller, ``why`` for the operator."""

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
        store = WebhookStore(backend.database)
        try:
            while True:
                await self._start_due(backend, store)
                await self._clean(backend, store)
                backend.round_done(self)
                if self._under_way:
                    await asyncio.wait(
                        self._under_way, timeout=LOOK_EVERY_S, return_when=asyncio.FIRST_COMPLETED
                    )
                else:
                    await asyncio.sleep(LOOK_EVERY_S)
        finally:
            for task in self._under_way:
                task.cancel()

    async def _start_due(self, backend: Backend, store: WebhookStore) -> None:
        room = AT_ONCE - len(self._under_way)
        if room <= 0 or not await backend.run(store.any_due):
            return
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

    def _done(self, task: asyncio.Task[None]) -> None:
        self._under_way.pop(task)
        if (
            not task.cancelled() and (error := task.exception()) is not None
        ):  # its lease ends, and it is tried again
            log.warning("the end of a webhook's try could not be written: %s", error)

    async def _deliver(self, backend: Backend, store: WebhookStore, delivery: DueDelivery) -> None:
        door = backend.settings.gateway
        sent = await send(delivery, door.webhook_hosts, trusted(door.webhook_ca_file))
        event, endpoint = delivery.event_id, delivery.endpoint_id
        if sent.error is None:
            backend.metrics.webhook_tries.labels("delivered").inc()
            await backend.run(store.delivered, event, endpoint, self._owner)
            return
        log.info(
            "webhook %s to %s: try %d failed: %s", event, endpoint, delivery.tries + 1, sent.why
        )
        pause_s = None if sent.status == GONE else pause_after(delivery.tries)
        backend.metrics.webhook_tries.labels("gave_up" if pause_s is None else "failed").inc()
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
    """Seconds until the next try; None after the last."""
    if tries_before >= len(PAUSES_S):
        return None
    return PAUSES_S[tries_before] * random.uniform(1 - JITTER, 1 + JITTER)


@cache
def trusted(ca_file: Path | None) -> ssl.SSLContext:
    """Whose certificates receivers may have: the system's authorities, and those of the file.

    Raises OSError."""
    context = ssl.create_default_context()
    if ca_file is not None:
        context.load_verify_locations(ca_file)
    return context


async def send(
    delivery: DueDelivery, allowed_hosts: Collection[str], trust: ssl.SSLContext
) -> Sent:
    """One try. Never raises for what the other side does."""
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
    """Checked, and read by the library that connects.

    Raises NotAllowed where the two readings differ."""
    parts = check_url(text, allowed_hosts)
    url = yarl.URL(text)
    if (url.scheme, url.host) != (parts.scheme, parts.hostname):
        raise NotAllowed("the URL can be read in two ways")
    return url


async def _post(
    url: yarl.URL, delivery: DueDelivery, allowed_hosts: Collection[str], trust: ssl.SSLContext
) -> int:
    """A connection of its own for each try, so that its address is looked up and checked each
    time."""
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
    """The headers of Standard Webhooks; the time is that of this try."""
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
