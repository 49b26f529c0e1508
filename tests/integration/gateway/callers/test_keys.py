"""Who comes through the HTTP doors: keys, scopes, tenants, limits, and a door without keys."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import pytest
from doors import asked, door, door_settings, new_key, sent
from fastapi import APIRouter, Depends
from fleet import until
from servers import RedisServer
from starlette.requests import HTTPConnection

from penstock_gateway.callers.caller import Caller, Proxies, caller_with
from penstock_gateway.callers.known_keys import TRIES_MAX, Session, read_session, signed_session
from penstock_gateway.serve import DoorOpen, refuse_open_door
from penstock_gateway.settings import GatewaySettings
from penstock_ledger import (
    ApiKeyStore,
    ItemKey,
    JobStore,
    NewApiKey,
    OutcomeStore,
    Result,
    open_database,
)
from penstock_producer import Producer

rooms = APIRouter()
hold = threading.Event()


@rooms.get("/v1/who")
async def _who(caller: Annotated[Caller, Depends(caller_with("read"))]) -> dict[str, str | None]:
    return {"tenant": caller.tenant, "key_id": caller.key_id}


@rooms.post("/v1/spend")
async def _spend(caller: Annotated[Caller, Depends(caller_with("infer"))]) -> dict[str, str | None]:
    return {"tenant": caller.tenant}


@rooms.post("/v1/hold")
def _hold(caller: Annotated[Caller, Depends(caller_with("write"))]) -> dict[str, bool]:
    return {"held": hold.wait(10)}


@rooms.get("/v1/forgotten")
async def _forgotten() -> dict[str, bool]:
    return {"open": True}  # a route that names no scope


@pytest.fixture(scope="module")
def settings(
    tmp_path_factory: pytest.TempPathFactory, _shared_redis: RedisServer
) -> GatewaySettings:
    settings = door_settings(tmp_path_factory.mktemp("door"), _shared_redis.url)
    new_key(settings, None, "admin")
    return settings


@pytest.fixture(scope="module")
def url(settings: GatewaySettings) -> Iterator[str]:
    with door(settings, extra=[rooms]) as url:
        yield url


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


def test_a_request_without_a_key_is_refused(url: str) -> None:
    """401 for none, a wrong one and another scheme, before a body is read; health stays open."""
    for headers in (
        {},
        bearer("sk-penstock-x"),
        bearer("sk-penstock-" + "a" * 43),
        {"authorization": "Basic abc"},
    ):
        answer = asked(f"{url}/v1/who", **headers)
        assert (answer.status, answer.content["error"]["code"]) == (401, "invalid_api_key")
    assert asked(f"{url}/v1/spend", b"x" * 2_000_000, method="POST").status == 401
    assert asked(f"{url}/health").status == 200


def test_a_route_that_names_no_scope_is_still_closed(url: str, settings: GatewaySettings) -> None:
    """Everything below /v1 asks for a key, whatever its route says."""
    assert asked(f"{url}/v1/forgotten").status == asked(f"{url}/v1/unknown").status == 401
    assert asked(f"{url}/v1/forgotten", **bearer(new_key(settings, "a", "read"))).status == 200


def test_both_providers_clients_are_known_by_their_headers(
    url: str, settings: GatewaySettings
) -> None:
    """A key counts as a bearer token and as x-api-key, and brings its tenant."""
    secret = new_key(settings, "shop", "read")
    assert asked(f"{url}/v1/who", **bearer(secret)).content["tenant"] == "shop"
    assert asked(f"{url}/v1/who", x_api_key=secret).content["tenant"] == "shop"


def test_a_key_does_what_its_scopes_say(url: str, settings: GatewaySettings) -> None:
    """403 without the scope of a route; admin has all."""
    reader, admin = new_key(settings, "shop", "read"), new_key(settings, None, "admin")
    answer = asked(f"{url}/v1/spend", b"", method="POST", **bearer(reader))
    assert (answer.status, answer.content["error"]["code"]) == (403, "missing_scope")
    assert asked(f"{url}/v1/spend", b"", method="POST", **bearer(admin)).status == 200


def test_a_key_ends_when_it_is_revoked_or_expires(url: str, settings: GatewaySettings) -> None:
    """401 within the two seconds for which keys are remembered, and the door stays closed when the
    last one is gone."""
    database = open_database(settings.database_url)
    store = ApiKeyStore(database)
    key_id, secret = store.create(NewApiKey("a", None, frozenset(["read"])))
    _, old = store.create(NewApiKey("b", None, frozenset(["read"]), expires_at=time.time() - 1))
    assert asked(f"{url}/v1/who", **bearer(secret)).status == 200
    assert asked(f"{url}/v1/who", **bearer(old)).status == 401
    assert store.revoke(key_id)
    until(lambda: asked(f"{url}/v1/who", **bearer(secret)).status == 401, 30, "the key is refused")
    until(
        lambda: (key := store.get(key_id)) is not None and key.last_used_at is not None,
        30,
        "its use is noted",
    )
    assert not store.revoke(key_id)
    database.close()


def test_nothing_of_a_secret_is_stored(settings: GatewaySettings) -> None:
    """The database has a hash of 32 random bytes, and no part of the secret."""
    secret = new_key(settings, "shop", "read")
    files = list(Path(settings.database_url.removeprefix("sqlite:///")).parent.glob("ledger.db*"))
    assert files
    assert not [file for file in files if secret[15:].encode() in file.read_bytes()]


def test_wrong_keys_from_one_address_are_bounded(tmp_path: Path, redis_server: RedisServer) -> None:
    """After some wrong keys an address waits, while right keys that are known go on."""
    settings = door_settings(tmp_path, redis_server.url)
    secret = new_key(settings, "shop", "read")
    with door(settings, extra=[rooms]) as url:
        assert asked(f"{url}/v1/who", **bearer(secret)).status == 200
        statuses = [
            asked(f"{url}/v1/who", **bearer("sk-penstock-" + f"{n:043}")).status
            for n in range(TRIES_MAX + 2)
        ]
        assert statuses == [401] * TRIES_MAX + [429] * 2
        assert asked(f"{url}/v1/who", **bearer(secret)).status == 200


def test_a_bad_caller_behind_a_balancer_locks_out_no_one_else(
    tmp_path: Path, redis_server: RedisServer
) -> None:
    """Wrong keys count for the address that a trusted proxy names, whatever the caller has written
    before it."""
    settings = door_settings(tmp_path, redis_server.url)
    trusting = settings.gateway.model_copy(update={"trusted_proxies": ("127.0.0.1",)})
    secret = new_key(settings, "shop", "read")
    wrong = bearer("sk-penstock-" + "a" * 43)
    with door(settings.model_copy(update={"gateway": trusting}), extra=[rooms]) as url:
        bad = [
            asked(f"{url}/v1/who", **wrong, x_forwarded_for=f"198.51.100.{n}, 203.0.113.7").status
            for n in range(TRIES_MAX + 1)
        ]
        assert bad == [401] * TRIES_MAX + [429]
        assert asked(f"{url}/v1/who", **wrong, x_forwarded_for="203.0.113.8").status == 401
        assert asked(f"{url}/v1/who", **bearer(secret), x_forwarded_for="203.0.113.8").status == 200


def test_wrong_keys_of_one_ipv6_network_count_together() -> None:
    """A caller has 2^64 addresses there, and would have as many tries; IPv4 counts by address, in
    either form."""
    proxies = Proxies(["127.0.0.1"])

    def counted_for(client: str, forwarded: str = "") -> str:
        headers = [(b"x-forwarded-for", forwarded.encode())] if forwarded else []
        return proxies.caller_of(
            HTTPConnection({"type": "http", "client": (client, 1), "headers": headers})
        )

    assert counted_for("2001:db8::1") == counted_for("2001:db8::ffff:1") == "2001:db8::/64"
    assert counted_for("127.0.0.1", "2001:db8:0:1::9") == "2001:db8:0:1::/64"
    assert counted_for("203.0.113.7") == counted_for("::ffff:203.0.113.7") == "203.0.113.7"


def test_requests_per_minute_are_counted_for_a_tenant(url: str, settings: GatewaySettings) -> None:
    """429 with the time to wait once a tenant has had its minute, by whichever of its keys; others
    go on."""
    first, second = (new_key(settings, "busy", "read", requests_per_minute=3) for _ in range(2))
    assert [asked(f"{url}/v1/who", **bearer(first)).status for _ in range(2)] == [200, 200]
    assert asked(f"{url}/v1/who", **bearer(second)).status == 200
    answer = asked(f"{url}/v1/who", **bearer(second))
    assert (answer.status, answer.content["error"]["code"]) == (429, "rate_limit_exceeded")
    assert 1 <= int(answer.headers["retry-after"]) <= 20
    assert (
        asked(
            f"{url}/v1/who", **bearer(new_key(settings, "calm", "read", requests_per_minute=3))
        ).status
        == 200
    )


def test_requests_at_once_are_counted_for_a_tenant(url: str, settings: GatewaySettings) -> None:
    """429 while as many are under way, and not a moment longer."""
    secret = new_key(settings, "wide", "read", "write", concurrency=1)

    # the requests that look for it may have the one place when it comes
    def held_at_last() -> bool:
        return asked(f"{url}/v1/hold", b"", method="POST", **bearer(secret)).status == 200

    held = threading.Thread(target=until, args=(held_at_last, 20, "the held request has its place"))
    held.start()
    until(
        lambda: asked(f"{url}/v1/who", **bearer(secret)).status == 429,
        30,
        "requests at once are counted",
    )
    hold.set()
    held.join()
    assert asked(f"{url}/v1/who", **bearer(secret)).status == 200


def test_a_budget_that_is_spent_takes_no_more_work(url: str, settings: GatewaySettings) -> None:
    """429 insufficient_quota for new work, while what is there can be read."""
    secret = new_key(settings, "poor", "read", "write", "infer", budget_usd=1.0)
    assert asked(f"{url}/v1/spend", b"", method="POST", **bearer(secret)).status == 200
    rich = new_key(settings, "rich", "read", "write", "infer", budget_usd=1.0)
    database = open_database(settings.database_url)
    with Producer(settings, database=database) as producer:
        job = producer.open_job({"model": "m", "prompt": "{text}", "tenant": "rich"}).job_id
    OutcomeStore(database).settle([paid_answer(job, 2_000_000)], [])
    assert JobStore(database).get(job).spec["tenant"] == "rich"
    answer = asked(f"{url}/v1/spend", b"", method="POST", **bearer(rich))
    assert (answer.status, answer.content["error"]["type"]) == (429, "insufficient_quota")
    assert asked(f"{url}/v1/who", **bearer(rich)).status == 200
    database.close()


def test_without_redis_limited_keys_wait_and_others_go_on(tmp_path: Path) -> None:
    """503 with the time to come again where requests cannot be counted."""
    settings = door_settings(tmp_path)
    limited, free = (
        new_key(settings, "a", "read", requests_per_minute=5),
        new_key(settings, "a", "read"),
    )
    with door(settings, extra=[rooms]) as url:
        answer = asked(f"{url}/v1/who", **bearer(limited))
        assert (answer.status, answer.headers["retry-after"]) == (503, "5")
        assert asked(f"{url}/v1/who", **bearer(free)).status == 200


def test_a_door_without_keys_answers_this_machine_only(tmp_path: Path) -> None:
    """Another name in the Host header, and a page of another origin, are refused; the first key
    closes the door for all."""
    settings = door_settings(tmp_path, hosts=["penstock.test"])
    with door(settings, extra=[rooms]) as url:
        assert asked(f"{url}/v1/who").content == {"tenant": None, "key_id": None}
        for host in ("penstock.test", "localhost:1", "[::1]:8600", "127.0.0.1"):
            assert asked(f"{url}/v1/who", host=host).status == 200, host
        for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8600", ""):
            assert asked(f"{url}/v1/who", host=host).status == 403, host
        assert (
            asked(f"{url}/v1/who", origin="http://evil.example").content["error"]["code"]
            == "origin_not_allowed"
        )
        assert asked(f"{url}/v1/who", origin=url).status == 200
        new_key(settings, None, "admin")
        until(lambda: asked(f"{url}/v1/who").status == 401, 30, "the door has seen the first key")


def test_a_door_without_keys_opens_to_no_network(tmp_path: Path) -> None:
    """An address that other machines reach needs a key to be there; the error says how to make
    one."""
    settings = door_settings(tmp_path, host="0.0.0.0")
    with pytest.raises(DoorOpen, match="penstock keys create"):
        refuse_open_door(settings)
    new_key(settings, None, "admin")
    refuse_open_door(settings)


def test_a_session_begun_over_tls_stays_on_tls(url: str, settings: GatewaySettings) -> None:
    """Its cookie is Secure where the form came from an https page, also through a proxy that ends
    TLS before the door."""
    host, form = url.removeprefix("http://"), f"key={new_key(settings, 'shop', 'read')}".encode()
    for scheme, secure in (("https", True), ("http", False)):
        head = (
            "POST /ui/login HTTP/1.1\r\n"
            f"host: {host}\r\n"
            f"origin: {scheme}://{host}\r\n"
            "connection: close\r\n"
        )
        head += (
            "content-type: application/x-www-form-urlencoded\r\n"
            f"content-length: {len(form)}\r\n"
            "\r\n"
        )
        answer = sent(url, head.encode() + form).lower()
        assert answer.startswith(b"http/1.1 303")
        assert (b"; secure" in answer) is secure


def test_sessions_cannot_be_made_or_lengthened_by_others() -> None:
    """A cookie is signed with its key, its session and its end."""
    session = Session("key_1", "0a1b", 100)
    cookie = signed_session("secret", session)
    assert read_session("secret", cookie, 99.0) == session
    assert read_session("secret", cookie, 100.0) is None
    assert read_session("other", cookie, 99.0) is None
    altered = [
        cookie.replace(part, other)
        for part, other in (("100", "900"), ("key_1", "key_2"), ("0a1b", "0a1c"))
    ]
    for forged in ("", "..", "key_1.100.", "key_1.0a1b.100.", *altered, "é.1.é", "é.é.1.é"):
        assert read_session("secret", forged, 99.0) is None


def paid_answer(job_id: str, microusd: int) -> Result:
    return Result(
        key=ItemKey(job_id, 1, "a"),
        body=b"{}",
        status_code=200,
        request_id=None,
        model="m",
        finish_reason="stop",
        prompt_tokens=1,
        completion_tokens=1,
        cost_microusd=microusd,
        latency_ms=1,
        attempts=1,
        calls=1,
    )
